//! Progress of long commands on standard error: bars on a terminal, else a line from time to time.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressState, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(2);

/// Container of all bars.
pub struct ProgressBars {
    bars: Option<MultiProgress>,
}

/// A count up to a total.
pub struct Stage {
    what: &'static str,
    total: usize,
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    is_over: bool,
}

impl ProgressBars {
    pub fn new() -> Self {
        ProgressBars { bars: std::io::stderr().is_terminal().then(MultiProgress::new) }
    }

    pub fn println(&self, line: &str) {
        match &self.bars {
            // Above the bars. Errors of a closed terminal are ignored.
            Some(bars) => drop(bars.println(line)),
            None => write_line(line),
        }
    }

    pub fn stage(&self, what: &'static str, total: usize) -> Stage {
        let template = "{msg:14} {bar:40} {human_pos:>7}/{human_len} {rate}";
        let style = ProgressStyle::with_template(template).map(|style| {
            // `per_sec` of indicatif has four decimals.
            style.with_key("rate", |state: &ProgressState, to: &mut dyn fmt::Write| {
                let _ = write!(to, "{}/s", HumanCount(state.per_sec() as u64));
            })
        });
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new(total as u64));
            bar.set_style(style.expect("a template that a test draws"));
            bar.set_message(what);
            bar
        });
        let now = Instant::now();
        Stage { what, total, bar, started: now, last_line: now, is_over: false }
    }
}

impl Stage {
    pub fn set(&mut self, count: usize) {
        if self.is_over {
            return;
        }
        self.is_over = count >= self.total;
        match &self.bar {
            Some(bar) if self.is_over => {
                bar.set_position(count as u64);
                bar.abandon();
            }
            Some(bar) => bar.set_position(count as u64),
            None if self.is_over || self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                write_line(&self.line(count, self.started.elapsed()));
            }
            None => {}
        }
    }

    fn line(&self, count: usize, elapsed: Duration) -> String {
        let per_second = HumanCount((count as f64 / elapsed.as_secs_f64().max(0.001)) as u64);
        let (count, total) = (HumanCount(count as u64), HumanCount(self.total as u64));
        format!("{}: {count} of {total} ({per_second}/s)", self.what)
    }
}

/// Writes a line. Not `eprintln!`, which panics if standard error is closed.
pub fn write_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_ends_at_its_total_on_a_terminal_or_not() {
        for bars in [None, Some(MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::hidden()))] {
            let mut stage = ProgressBars { bars }.stage("pods bound", 2_000);
            stage.set(1_000);
            assert!(!stage.is_over);
            assert_eq!(stage.line(1_000, Duration::from_millis(500)), "pods bound: 1,000 of 2,000 (2,000/s)");
            stage.set(2_000);
            assert!(stage.is_over);
        }
    }
}
