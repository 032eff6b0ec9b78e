//! Output of answers.

use std::io::{self, BufWriter, Write};

use clap::ValueEnum;

use super::failure::Failure;

/// Format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    #[default]
    Table,
    Json,
}

/// Writes the answer to standard output.
pub fn written(write: impl FnOnce(&mut BufWriter<io::StdoutLock>) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        // The reader closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(anyhow::Error::from(error).context("cannot write the answer").into()),
        Ok(()) => Ok(()),
    }
}

/// Returns the width of the table: the width of the terminal if the shell sets it.
pub fn width() -> usize {
    const DEFAULT: usize = 110;
    std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(DEFAULT)
}
