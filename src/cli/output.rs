//! Output of answers.

use std::io::{self, BufWriter, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;

/// Format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    #[default]
    Table,
    Json,
}

/// Writes the answer to standard output.
///
/// # Errors
/// That fails, for another reason than a reader who has read enough.
pub fn written(write: impl FnOnce(&mut BufWriter<io::StdoutLock>) -> io::Result<()>) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        // The reader closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Writes an answer: as JSON, one object, or with `table`.
///
/// # Errors
/// As [`written`].
pub fn answered(
    format: Output,
    answer: &impl Serialize,
    table: impl FnOnce(&mut BufWriter<io::StdoutLock>) -> io::Result<()>,
) -> Result<()> {
    written(|out| match format {
        Output::Table => table(out),
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, answer)?;
            writeln!(out)
        }
    })
}

/// Writes these bytes to standard output.
///
/// # Errors
/// As [`written`].
pub fn printed(bytes: &[u8]) -> Result<()> {
    written(|out| out.write_all(bytes))
}

/// Returns the width of the table: the width of the terminal if the shell sets it.
pub fn width() -> usize {
    const DEFAULT: usize = 110;
    std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(DEFAULT)
}
