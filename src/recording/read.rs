//! Reads a recording.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};
use lz4_flex::frame::FrameDecoder;
use serde::de::DeserializeOwned;

use super::write::started;
use berth_scheduler::recording::{FORMAT, Opening, ReplayError, parse, records};

/// The first bytes of a frame.
const MAGIC: [u8; 4] = 0x184D_2204_u32.to_le_bytes();

/// Maximum size of a frame when it is decompressed. A block has 256 KiB and one more record, which may be a list of all pods.
const FRAME_BYTES_MAX: u64 = 1 << 30;

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
    #[error("record {number} is damaged: {why}")]
    Damaged { number: usize, why: String },
    #[error(transparent)]
    Other(#[from] ReplayError),
}

/// A record of a recording.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// From 1.
    pub number: usize,
    form: Form<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Form<'a> {
    Bytes(&'a [u8]),
    Json(&'a str),
}

impl Record<'_> {
    /// Parses it.
    ///
    /// # Errors
    /// It is none of this type.
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, ReadError> {
        let damaged = |why: String| ReadError::Damaged { number: self.number, why };
        match self.form {
            Form::Bytes(bytes) => parse(bytes).map_err(|error| damaged(error.to_string())),
            Form::Json(text) => serde_json::from_str(text).map_err(|error| damaged(error.to_string())),
        }
    }

    /// Parses the first one.
    ///
    /// # Errors
    /// It is of another format.
    pub fn opening(self) -> Result<Opening, ReadError> {
        // Of another format nothing else may be readable.
        if let Form::Bytes(bytes) = self.form {
            let format = bytes.first().map_or(0, |format| u32::from(*format));
            if format != FORMAT {
                return Err(ReplayError::Format(format).into());
            }
        }
        let opening: Opening = self.parse()?;
        match opening.format {
            FORMAT => Ok(opening),
            other => Err(ReplayError::Format(other).into()),
        }
    }
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

/// Calls `each` with each record, until it fails. Reads frames, or lines of JSON.
///
/// # Errors
/// The first failure: of `each`, or of the reader.
pub fn read<E: From<ReadError>>(
    input: impl Read,
    mut each: impl FnMut(Record) -> Result<(), E>,
) -> Result<Ending, E> {
    let mut input = BufReader::new(input);
    let first = input.fill_buf().map_err(ReadError::from)?;
    if first.starts_with(b"{\"format\":") {
        return read_json(input, each);
    }
    if !first.starts_with(&MAGIC) {
        return Err(ReadError::NoRecording.into());
    }
    let (mut number, mut block) = (0, Vec::new());
    while !input.fill_buf().map_err(ReadError::from)?.is_empty() {
        block.clear();
        let damaged = |number, why: &dyn ToString| ReadError::Damaged { number, why: why.to_string() };
        match FrameDecoder::new(&mut input).take(FRAME_BYTES_MAX + 1).read_to_end(&mut block) {
            Ok(bytes) if bytes as u64 > FRAME_BYTES_MAX => {
                return Err(damaged(number + 1, &"its frame is larger than 1 GiB").into());
            }
            // A frame has records, unless its header is cut off.
            Ok(0) => return Ok(Ending::CutOff),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && number > 0 => {
                return Ok(Ending::CutOff);
            }
            Err(error) => return Err(damaged(number + 1, &error).into()),
        }
        for record in records(&block) {
            number += 1;
            let bytes = record.map_err(|error| damaged(number, &error))?;
            each(Record { number, form: Form::Bytes(bytes) })?;
        }
    }
    Ok(Ending::Whole)
}

fn read_json<E: From<ReadError>>(
    mut input: impl BufRead,
    mut each: impl FnMut(Record) -> Result<(), E>,
) -> Result<Ending, E> {
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        input.read_line(&mut line).map_err(ReadError::from)?;
        let Some(text) = line.strip_suffix('\n') else {
            return Ok(if line.is_empty() { Ending::Whole } else { Ending::CutOff });
        };
        each(Record { number, form: Form::Json(text) })?;
    }
    Ok(Ending::Whole)
}
