//! Prints a recording without the names in it.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::Serialize;

use super::read::{ReadError, read};
use berth_scheduler::recording::{Pseudonyms, RecordError, RecordedWords, RecordingEntry, Replay};

#[derive(Debug, thiserror::Error)]
pub enum AnonymiseError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Words(#[from] RecordError),
    /// What is written until then is a recording, too.
    #[error(
        "entry {entry}, {at:.3} s after the start, is decided otherwise without the names, or by this version; what was printed ends \
         before it"
    )]
    NamesMatter { entry: u64, at: f64 },
}

impl From<io::Error> for AnonymiseError {
    fn from(error: io::Error) -> Self {
        AnonymiseError::Read(error.into())
    }
}

/// Prints the recording as JSON, a record a line, without its names. Opens it twice: the order of the words is known only at its end. The
/// scheduler decides anew with the other names, so that texts of decisions have none either.
///
/// # Errors
/// The recording cannot be read, or something is decided otherwise without the names.
pub fn anonymise<R: Read>(
    open: impl Fn() -> io::Result<R>,
    out: &mut impl Write,
) -> Result<(), AnonymiseError> {
    let (words, mut records) = (RecordedWords::default(), 0);
    read(open()?, |record| -> Result<(), AnonymiseError> {
        records = record.number;
        Ok(match record.number {
            1 => words.see(&record.opening()?),
            // The scheduler decides anew.
            _ => words.see(&RecordingEntry { decisions: Vec::new(), ..record.parse()? }),
        }?)
    })?;
    let (names, mut under_way) = (Pseudonyms::of(words), None);
    read(open()?, |record| -> Result<(), AnonymiseError> {
        // A recording that still goes on has grown.
        if record.number > records {
            return Ok(());
        }
        let Some(replay) = &mut under_way else {
            let opening = names.applied(&record.opening()?)?;
            print(&opening, out)?;
            under_way = Some(Replay::begin(opening).map_err(ReadError::from)?);
            return Ok(());
        };
        let mut entry: RecordingEntry = record.parse()?;
        let recorded = std::mem::take(&mut entry.decisions);
        let otherwise = AnonymiseError::NamesMatter {
            entry: replay.entries() + 1,
            at: Duration::from_nanos(entry.at).as_secs_f64(),
        };
        let entry = names.applied(&entry)?;
        let Ok(anew) = replay.hear(entry.clone()) else {
            return Err(otherwise);
        };
        let decisions = anew.map_or(Vec::new(), |anew| anew.replayed);
        let mut both = recorded.iter().zip(&decisions);
        if recorded.len() != decisions.len() || !both.all(|(recorded, anew)| names.are_all(recorded, anew)) {
            return Err(otherwise);
        }
        Ok(print(&RecordingEntry { decisions, ..entry }, out)?)
    })?;
    Ok(())
}

fn print(record: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    writeln!(out)
}
