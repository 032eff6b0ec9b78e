//! Line reader for untrusted text files, plain or gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::TraceError;

/// In bytes; the formats need a few hundred. Bounds memory for a file that is not a table.
const LONGEST_LINE: usize = 64 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// The rest of the file, and the last line read.
pub struct TraceLines {
    file: PathBuf,
    input: Box<dyn BufRead>,
    compressed: bool,
    line: u64,
    bytes: Vec<u8>,
}

impl TraceLines {
    /// # Errors
    /// The file cannot be opened.
    pub fn open(file: &Path) -> Result<TraceLines, TraceError> {
        let failed = |source| TraceError::Open { file: file.to_owned(), source };
        let mut input = BufReader::with_capacity(1 << 16, File::open(file).map_err(failed)?);
        let begin = input.fill_buf().map_err(failed)?;
        let compressed = begin.starts_with(&GZIP);
        let input: Box<dyn BufRead> = match compressed {
            true => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            false => Box::new(input),
        };
        Ok(TraceLines { file: file.to_owned(), input, compressed, line: 0, bytes: Vec::new() })
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the number of the last line read.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns an error at the last line read.
    pub fn wrong(&self, problem: String) -> TraceError {
        TraceError::Invalid { file: self.file.clone(), line: self.line.max(1), problem }
    }

    /// Reads the next non-empty line; false at the end of the file.
    ///
    /// # Errors
    /// The line cannot be read, or is too long.
    pub fn read(&mut self) -> Result<bool, TraceError> {
        loop {
            self.bytes.clear();
            let mut limited = self.input.by_ref().take(LONGEST_LINE as u64);
            let read = limited.read_until(b'\n', &mut self.bytes);
            self.line += 1;
            match read {
                Err(error) => return Err(self.unreadable(error)),
                Ok(0) => {
                    self.line -= 1;
                    return Ok(false);
                }
                Ok(_) if self.bytes.len() >= LONGEST_LINE => {
                    let problem = format!("a line of more than {LONGEST_LINE} bytes: is this a table?");
                    return Err(self.wrong(problem));
                }
                Ok(_) if self.bytes.trim_ascii().is_empty() => {}
                Ok(_) => return Ok(true),
            }
        }
    }

    /// Returns the last line read.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn text(&self) -> Result<&str, TraceError> {
        let text = std::str::from_utf8(&self.bytes).map_err(|error| {
            let byte = error.valid_up_to() + 1;
            self.wrong(format!("byte {byte} of the line is not UTF-8: the file should be text, or gzip"))
        })?;
        Ok(if self.line == 1 { text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text) } else { text })
    }

    fn unreadable(&self, source: io::Error) -> TraceError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof if self.compressed => {
                self.wrong("the gzip file is cut off here: copy or download it again".to_owned())
            }
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput if self.compressed => {
                self.wrong(format!("the gzip file is damaged ({source}): copy or download it again"))
            }
            _ => TraceError::Read { file: self.file.clone(), line: self.line, source },
        }
    }
}

/// Splits a line at commas, and removes white space and quotes around each value.
pub fn values(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|value| {
        let value = value.trim();
        value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
    })
}

/// Formats text of the file for a message: short, and without terminal escapes.
pub fn shown(text: &str) -> String {
    const MOST_CHARS: usize = 60;
    let mut shown: String = text.chars().take(MOST_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
