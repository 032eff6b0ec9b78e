//! A child process that cannot outlive its owner.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs the given command line and kills it when standard input ends: at `Process::kill`, but also at any death of the owner, as
/// the kernel then closes the pipe. The first line it prints is the command's process id.
///
/// The command is killed before its id is reaped, so the id cannot belong to another process by then. The watcher is reaped here
/// too: the process that inherits the orphans may not reap them.
const GUARD: &str = r#"
exec 3<&0 </dev/null
"$@" >&2 3<&- &
child=$!
echo "$child"
{ read -r _; kill -9 "$child"; } <&3 >/dev/null 2>&1 &
watcher=$!
exec 3<&- >/dev/null
wait "$child"
status=$?
exec 2>/dev/null
kill "$watcher"
wait "$watcher"
exit "$status"
"#;

const POLL_INTERVAL: Duration = Duration::from_millis(25);
const TAIL_BYTES_MAX: u64 = 3_000;

/// A running program with its output in a log file. Dropping it ends it with SIGKILL.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    pid: u32,
    guard: Child,
    log: Log,
}

/// Output of one run of a program: the end of a file that earlier runs may have written to.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
    /// Offset of this run's output, in bytes.
    start: u64,
}

impl Process {
    /// Starts `program`; `name` is for messages, its output is appended to the file `log`.
    ///
    /// # Errors
    /// The log cannot be written or the shell around the program cannot run. A missing program is not an error here: it ends at
    /// once and leaves the reason in the log.
    pub fn start<A: AsRef<OsStr>>(
        name: &'static str,
        program: &Path,
        args: impl IntoIterator<Item = A>,
        log: PathBuf,
    ) -> Result<Self> {
        Self::start_with(name, program, args, log, |_| {})
    }

    /// Same as [`Process::start`]; `prepare` sets the environment and the folder.
    pub(super) fn start_with<A: AsRef<OsStr>>(
        name: &'static str,
        program: &Path,
        args: impl IntoIterator<Item = A>,
        log: PathBuf,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let output = File::options().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("cannot write the log {}", log.display()))?;
        let log = Log { path: log, start: output.metadata()?.len() };
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", GUARD, "sh"])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(output)
            // Not in the terminal's process group: Ctrl-C is for the owner, who may need the program a little longer.
            .process_group(0);
        prepare(&mut command);
        let mut guard = command.spawn().with_context(|| format!("cannot start {name} through /bin/sh"))?;
        let mut line = String::new();
        if let Some(stdout) = guard.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let pid = line.trim().parse();
        let pid = pid.with_context(|| format!("/bin/sh did not start {name} but printed {line:?}"))?;
        Ok(Self { name, pid, guard, log })
    }

    /// Returns the program's own process id, not that of the shell around it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills the program with SIGKILL and returns when it has ended. Does nothing if it has ended before.
    pub fn kill(&mut self) {
        drop(self.guard.stdin.take());
        // The guard is our child and waited for only here and in `has_exited`, so this cannot fail.
        let _ = self.guard.wait();
    }

    /// Whether the program has exited or was killed.
    pub fn has_exited(&mut self) -> bool {
        self.exit_status().is_some()
    }

    /// Returns the status of a program that has exited: one that was killed has a code above 128, as in a shell.
    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.guard.try_wait().ok().flatten()
    }

    /// Returns the output of this run.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Polls `is_ready` until it is true.
    ///
    /// # Errors
    /// The program ends first or `limit` passes; the message has the end of the log.
    pub async fn await_ready<R>(&mut self, limit: Duration, mut is_ready: impl FnMut() -> R) -> Result<()>
    where
        R: Future<Output = bool>,
    {
        let started = Instant::now();
        loop {
            if self.has_exited() {
                bail!("{} ended while it was starting; its log:\n{}", self.name, self.log.tail());
            }
            if is_ready().await {
                return Ok(());
            }
            if started.elapsed() > limit {
                let seconds = limit.as_secs();
                bail!("{} was not ready after {seconds} s; its log:\n{}", self.name, self.log.tail());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Log {
    /// Returns the last whole lines, a few kilobytes, or why they cannot be read.
    pub fn tail(&self) -> String {
        self.read_end(TAIL_BYTES_MAX)
            .unwrap_or_else(|error| format!("(cannot read {}: {error})", self.path.display()))
    }

    /// Returns all of it.
    pub(super) fn text(&self) -> std::io::Result<String> {
        self.read_end(u64::MAX)
    }

    /// Whether `text` has been written. Reads the whole log: for the first seconds of a run.
    pub fn contains(&self, text: &str) -> bool {
        self.read_end(u64::MAX).is_ok_and(|log| log.contains(text))
    }

    fn read_end(&self, bytes_max: u64) -> std::io::Result<String> {
        let mut file = File::open(&self.path)?;
        let start = file.metadata()?.len().saturating_sub(bytes_max).max(self.start);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let is_cut = start > self.start;
        let whole_lines = if is_cut { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
        Ok(whole_lines.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn sh(script: &str, folder: &Path) -> Process {
        Process::start("the script", Path::new("/bin/sh"), ["-c", script], folder.join("log")).unwrap()
    }

    fn is_alive(pid: u32) -> bool {
        let kill = format!("kill -0 {pid} 2>/dev/null");
        Command::new("/bin/sh").args(["-c", &kill]).status().unwrap().success()
    }

    #[tokio::test]
    async fn the_reported_id_is_the_programs_own_and_a_kill_ends_it_even_when_it_ignores_signals() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = sh("trap '' TERM INT HUP; echo I am $$; exec sleep 1000", folder.path());
        let (log, word) = (process.log().clone(), format!("I am {}", process.pid()));
        process.await_ready(LIMIT, || ready(log.contains(&word))).await.unwrap();
        assert!(is_alive(process.pid()));
        assert!(!process.has_exited());
        process.kill();
        assert!(!is_alive(process.pid()));
        assert!(process.has_exited());
    }

    #[tokio::test]
    async fn a_program_that_ends_while_starting_is_an_error_with_the_log_of_this_run() {
        let folder = tempfile::tempdir().unwrap();
        let mut earlier = sh("echo earlier; exec sleep 1000", folder.path());
        let log = earlier.log().clone();
        earlier.await_ready(LIMIT, || ready(log.contains("earlier"))).await.unwrap();
        drop(earlier);
        let mut process = sh("echo bad flag >&2; exit 3", folder.path());
        let error = process.await_ready(LIMIT, || ready(false)).await.unwrap_err().to_string();
        assert_eq!(error, "the script ended while it was starting; its log:\nbad flag");
    }

    #[tokio::test]
    async fn a_program_that_never_gets_ready_is_an_error_after_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = sh("exec sleep 1000", folder.path());
        let error = process.await_ready(Duration::ZERO, || ready(false)).await.unwrap_err().to_string();
        assert!(error.starts_with("the script was not ready after 0 s"), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no-such-program");
        let mut process = Process::start("it", &missing, ["x"], folder.path().join("log")).unwrap();
        let error = process.await_ready(LIMIT, || ready(false)).await.unwrap_err().to_string();
        assert!(error.contains("no-such-program: "), "{error}");
    }

    #[tokio::test]
    async fn the_tail_of_a_long_log_is_bounded_and_starts_with_a_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exec sleep 1000";
        let mut process = sh(script, folder.path());
        let log = process.log().clone();
        process.await_ready(LIMIT, || ready(log.contains("line 1999"))).await.unwrap();
        let tail = log.tail();
        assert!(tail.len() as u64 <= TAIL_BYTES_MAX);
        assert!(tail.starts_with("line ") && tail.ends_with("line 1999"), "{tail}");
    }
}
