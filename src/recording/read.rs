//! Reads a recording.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};
use lz4_flex::frame::FrameDecoder;
use serde::de::DeserializeOwned;

use super::write::started;

/// The first bytes of a frame.
const MAGIC: [u8; 4] = 0x184D_2204_u32.to_le_bytes();

/// How a recording ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With a whole frame.
    Whole,
    /// Within a frame or a line, which is left out: the process was killed, or the disk was full.
    CutOff,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    #[error("it is no recording of berth: it begins neither with an LZ4 frame nor with a line of one")]
    NoRecording,
    #[error("line {line} is damaged: {why}")]
    Damaged { line: usize, why: String },
}

/// Opens a recording, or the latest one in a folder.
///
/// # Errors
/// There is none.
pub fn open(path: &Path) -> Result<File> {
    let cannot = || format!("cannot open {}", path.display());
    if !path.is_dir() {
        return File::open(path).with_context(cannot);
    }
    let names = std::fs::read_dir(path).with_context(cannot)?;
    let paths = names.filter_map(|entry| Some(entry.ok()?.path()));
    let latest = paths.filter_map(|path| Some((started(&path)?, path))).max();
    let (_, latest) = latest.with_context(|| format!("{} has no recording of berth", path.display()))?;
    File::open(&latest).with_context(|| format!("cannot open {}", latest.display()))
}

/// Parses a line.
pub(super) fn parsed<T: DeserializeOwned>(line: usize, text: &str) -> Result<T, ReadError> {
    serde_json::from_str(text).map_err(|error| ReadError::Damaged { line, why: error.to_string() })
}

/// Calls `each` with the number and the text of each line, until it fails. Reads frames, or the lines alone.
///
/// # Errors
/// The first failure: of `each`, or of the reader.
pub fn read<E: From<ReadError>>(
    input: impl Read,
    mut each: impl FnMut(usize, &str) -> Result<(), E>,
) -> Result<Ending, E> {
    let mut input = BufReader::new(input);
    let first = input.fill_buf().map_err(ReadError::from)?;
    let is_plain = first.starts_with(b"{\"format\":");
    if !is_plain && !first.starts_with(&MAGIC) {
        return Err(ReadError::NoRecording.into());
    }
    let (mut number, mut lines) = (0, Vec::new());
    while !input.fill_buf().map_err(ReadError::from)?.is_empty() {
        lines.clear();
        let damaged = |why: &dyn ToString| ReadError::Damaged { line: number + 1, why: why.to_string() };
        let frame = match is_plain {
            true => input.read_until(b'\n', &mut lines),
            false => FrameDecoder::new(&mut input).read_to_end(&mut lines),
        };
        match frame {
            // A frame has lines, unless its header is cut off.
            Ok(_) if !lines.ends_with(b"\n") => return Ok(Ending::CutOff),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && number > 0 => {
                return Ok(Ending::CutOff);
            }
            Err(error) => return Err(damaged(&error).into()),
        }
        let text = std::str::from_utf8(&lines).map_err(|error| damaged(&error))?;
        for line in text.lines() {
            number += 1;
            each(number, line)?;
        }
    }
    Ok(Ending::Whole)
}
