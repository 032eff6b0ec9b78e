//! CPU and memory usage of a process on this machine, from /proc.

use std::time::Duration;

/// CPU time and memory of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessUsage {
    /// User and system time of all threads.
    pub cpu: Duration,
    pub resident_bytes: u64,
    /// Peak resident memory.
    pub peak_resident_bytes: u64,
}

/// Linux counts CPU time for /proc in hundredths of a second on every architecture berth runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the usage of a process. `pid` is a number or `self`. `None` if there is no such process or no /proc.
pub fn usage_of(pid: &str) -> Option<ProcessUsage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may hold any character; utime and stime are fields 14 and 15.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    let cpu = Duration::try_from_secs_f64((ticks()? + ticks()?) / TICKS_PER_SECOND).ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    Some(ProcessUsage { cpu, resident_bytes: bytes("VmRSS:")?, peak_resident_bytes: bytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_an_unknown_one_has_no_usage() {
        let usage = usage_of("self").expect("tests run on Linux");
        assert!(usage.peak_resident_bytes >= usage.resident_bytes && usage.resident_bytes > 1 << 20);
        assert_eq!(usage_of("0"), None);
    }
}
