//! A file of comma-separated values with a header, line by line.
//!
//! The formats read here have neither commas nor line ends within values, so a value is what lies between two commas, without
//! quotes around it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::{ALL, TraceError};

/// The columns of a format. Files may have them in any order, and must have no others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Schema {
    /// As in "this is …".
    pub name: &'static str,
    pub columns: &'static [&'static str],
}

/// Bytes; the formats need some hundred. Keeps a file that is no table from filling the memory.
const LONGEST_LINE: usize = 64 << 10;
/// Amounts are less, in milli-CPU as well as in bytes (1 PiB): sums of thousands stay exact.
const MOST: f64 = (1u64 << 50) as f64;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &str = "\u{feff}";

pub(super) struct Table<'a> {
    file: PathBuf,
    input: Box<dyn BufRead>,
    compressed: bool,
    /// The line that was read last.
    line: u64,
    rows: u64,
    bytes: Vec<u8>,
    schema: &'a Schema,
    /// By column of the schema: its position in the file.
    positions: Vec<usize>,
}

/// The values of one line.
pub(super) struct Row<'t> {
    file: &'t Path,
    line: u64,
    schema: &'t Schema,
    /// By column of the schema.
    values: Vec<&'t str>,
}

impl<'a> Table<'a> {
    /// Opens a file that is in one of these formats.
    pub fn open(file: &Path, formats: &[&'a Schema]) -> Result<Table<'a>, TraceError> {
        let failed = |source| TraceError::Open { file: file.to_owned(), source };
        let mut input = BufReader::with_capacity(1 << 16, File::open(file).map_err(failed)?);
        let begin = input.fill_buf().map_err(failed)?;
        let compressed = begin.starts_with(&GZIP);
        let input: Box<dyn BufRead> = match compressed {
            true => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            false => Box::new(input),
        };
        let (file, bytes, schema) = (file.to_owned(), Vec::new(), formats[0]);
        let mut table =
            Table { file, input, compressed, line: 0, rows: 0, bytes, schema, positions: Vec::new() };
        table.read_header(formats)?;
        Ok(table)
    }

    pub fn schema(&self) -> &'a Schema {
        self.schema
    }

    /// The next line that is not empty.
    ///
    /// # Errors
    /// It cannot be read or has too few or too many values; or the file ends without any.
    pub fn row(&mut self) -> Result<Option<Row<'_>>, TraceError> {
        if !self.read_line()? {
            if self.rows == 0 {
                return Err(self.wrong("there is nothing after the header: is the file complete?".to_owned()));
            }
            return Ok(None);
        }
        self.rows += 1;
        let found: Vec<&str> = values(self.text()?).collect();
        if found.len() != self.positions.len() {
            let (has, needs) = (found.len(), self.positions.len());
            let problem = format!("{has} values, but the header names {needs} columns: is the line cut off?");
            return Err(self.wrong(problem));
        }
        let values = self.positions.iter().map(|at| found[*at]).collect();
        Ok(Some(Row { file: &self.file, line: self.line, schema: self.schema, values }))
    }

    /// Something is wrong at the line that was read last.
    pub fn wrong(&self, problem: String) -> TraceError {
        TraceError::Invalid { file: self.file.clone(), line: self.line.max(1), problem }
    }

    fn read_header(&mut self, formats: &[&'a Schema]) -> Result<(), TraceError> {
        if !self.read_line()? {
            return Err(self.wrong(format!("the file is empty: it should begin with {}", headers(formats))));
        }
        let text = self.text()?;
        let found: Vec<&str> = values(text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)).collect();
        // The format that was most likely meant; the first of several.
        let known = |schema: &Schema| found.iter().filter(|column| schema.columns.contains(column)).count();
        let schema = formats.iter().rev().max_by_key(|schema| known(schema)).expect("a format is asked for");
        let other = ALL.iter().find(|other| {
            !formats.contains(other) && known(other) == found.len() && found.len() == other.columns.len()
        });
        if let Some(other) = other {
            let problem = format!("this is {}, but {} is expected", other.name, headers(formats));
            return Err(self.wrong(problem));
        }
        if known(schema) == 0 {
            let problem = format!("no column of a known format: the header should be {}", headers(formats));
            return Err(self.wrong(problem));
        }
        let mut problems = Vec::new();
        let mut name = |what: &str, columns: Vec<&str>| {
            if !columns.is_empty() {
                let columns: Vec<String> = columns.into_iter().map(shown).collect();
                problems.push(format!("{what} {}", columns.join(", ")));
            }
        };
        let unknown = found.iter().copied().filter(|column| !schema.columns.contains(column));
        name("unknown columns", unknown.collect());
        let missing = schema.columns.iter().copied().filter(|column| !found.contains(column));
        name("missing columns", missing.collect());
        let again = found.iter().enumerate().filter(|(at, column)| found[..*at].contains(column));
        name("repeated columns", again.map(|(_, column)| *column).collect());
        if !problems.is_empty() {
            let (problems, expected) = (problems.join("; "), headers(&[schema]));
            return Err(self.wrong(format!("{problems}: the header should be {expected}")));
        }
        let position = |column| found.iter().position(|c| c == column);
        self.positions = schema.columns.iter().filter_map(position).collect();
        self.schema = schema;
        Ok(())
    }

    /// Reads the next line that is not empty into `bytes`; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, TraceError> {
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

    fn text(&self) -> Result<&str, TraceError> {
        std::str::from_utf8(&self.bytes).map_err(|error| {
            let byte = error.valid_up_to() + 1;
            self.wrong(format!("byte {byte} of the line is not UTF-8: the file should be text, or gzip"))
        })
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

fn values(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|value| {
        let value = value.trim();
        value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
    })
}

/// Text of the file in a message: short, and without anything that a terminal would obey.
fn shown(text: &str) -> String {
    const MOST_CHARS: usize = 60;
    let mut shown: String = text.chars().take(MOST_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

fn headers(formats: &[&Schema]) -> String {
    let each = formats.iter().map(|schema| format!("{} ({})", schema.columns.join(","), schema.name));
    each.collect::<Vec<_>>().join(" or ")
}

impl<'t> Row<'t> {
    pub fn line(&self) -> u64 {
        self.line
    }

    pub fn text(&self, column: usize) -> &'t str {
        self.values[column]
    }

    /// An amount counted in `unit`s; rounded up, neither negative nor more than any machine could have.
    pub fn amount(&self, column: usize, unit: f64) -> Result<i64, TraceError> {
        let amount = self.number(column)? * unit;
        match amount {
            ..0.0 => Err(self.expected(column, "0 or more")),
            MOST.. => Err(self.expected(column, &format!("less than {}", MOST / unit))),
            // Exact: less than 2^50.
            _ => Ok(amount.ceil() as i64),
        }
    }

    /// An amount of what cannot be divided.
    pub fn whole(&self, column: usize) -> Result<i64, TraceError> {
        if self.number(column)?.fract() != 0.0 {
            return Err(self.expected(column, "a whole number"));
        }
        self.amount(column, 1.0)
    }

    /// A point in time, in the unit of the file.
    pub fn time(&self, column: usize) -> Result<f64, TraceError> {
        let time = self.number(column)?;
        if !time.is_finite() {
            return Err(self.expected(column, "a finite time"));
        }
        Ok(time)
    }

    /// When something ends that began at `start`: infinite when empty or `inf`.
    pub fn end(&self, column: usize, start: f64) -> Result<f64, TraceError> {
        if self.text(column).is_empty() {
            return Ok(f64::INFINITY);
        }
        let end = self.number(column)?;
        if end < start {
            return Err(self.expected(column, &format!("a time that is not before the start ({start})")));
        }
        Ok(end)
    }

    pub fn expected(&self, column: usize, what: &str) -> TraceError {
        let (name, value) = (self.schema.columns[column], shown(self.text(column)));
        self.wrong(format!("{name} is \"{value}\", expected {what}"))
    }

    fn wrong(&self, problem: String) -> TraceError {
        TraceError::Invalid { file: self.file.to_owned(), line: self.line, problem }
    }

    /// Any number but NaN.
    fn number(&self, column: usize) -> Result<f64, TraceError> {
        match self.text(column).parse::<f64>() {
            Ok(number) if !number.is_nan() => Ok(number),
            _ => Err(self.expected(column, "a number")),
        }
    }
}
