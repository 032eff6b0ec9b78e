//! A file of comma-separated values with a header, line by line.
//!
//! The supported formats have no commas or line breaks within values, so a value is the text between two commas,
//! without quotes around it.

use std::path::Path;

use super::lines::{TraceLines, shown, values};
use super::{ALL, TraceError};

/// The columns of a format. They may be in any order; other columns are rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Schema {
    /// Name used in "this is …".
    pub name: &'static str,
    pub columns: &'static [&'static str],
}

/// Exclusive upper limit of amounts, in milli-CPU and in bytes (1 PiB): sums of thousands stay exact.
const MOST: f64 = (1u64 << 50) as f64;

pub(super) struct Table<'a> {
    lines: TraceLines,
    rows: u64,
    schema: &'a Schema,
    /// Position in the file, by column of the schema.
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
    /// Opens a file in one of these formats.
    pub fn open(file: &Path, formats: &[&'a Schema]) -> Result<Table<'a>, TraceError> {
        let lines = TraceLines::open(file)?;
        let mut table = Table { lines, rows: 0, schema: formats[0], positions: Vec::new() };
        table.read_header(formats)?;
        Ok(table)
    }

    pub fn schema(&self) -> &'a Schema {
        self.schema
    }

    /// Returns the next non-empty line.
    ///
    /// # Errors
    /// The line cannot be read or has the wrong number of values; or the file ends without any line.
    pub fn row(&mut self) -> Result<Option<Row<'_>>, TraceError> {
        if !self.lines.read()? {
            if self.rows == 0 {
                return Err(self.wrong("there is nothing after the header: is the file complete?".to_owned()));
            }
            return Ok(None);
        }
        self.rows += 1;
        let found: Vec<&str> = values(self.lines.text()?).collect();
        if found.len() != self.positions.len() {
            let (has, needs) = (found.len(), self.positions.len());
            let problem = format!("{has} values, but the header names {needs} columns: is the line cut off?");
            return Err(self.wrong(problem));
        }
        let values = self.positions.iter().map(|at| found[*at]).collect();
        Ok(Some(Row { file: self.lines.file(), line: self.lines.line(), schema: self.schema, values }))
    }

    /// Returns an error at the last line read.
    pub fn wrong(&self, problem: String) -> TraceError {
        self.lines.wrong(problem)
    }

    fn read_header(&mut self, formats: &[&'a Schema]) -> Result<(), TraceError> {
        if !self.lines.read()? {
            return Err(self.wrong(format!("the file is empty: it should begin with {}", headers(formats))));
        }
        let found: Vec<&str> = values(self.lines.text()?).collect();
        // The format most likely intended; the first of several.
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

    /// Returns an amount in `unit`s, rounded up; it must be neither negative nor implausibly large.
    pub fn amount(&self, column: usize, unit: f64) -> Result<i64, TraceError> {
        let amount = self.number(column)? * unit;
        match amount {
            ..0.0 => Err(self.expected(column, "0 or more")),
            MOST.. => Err(self.expected(column, &format!("less than {}", MOST / unit))),
            // Exact: less than 2^50.
            _ => Ok(amount.ceil() as i64),
        }
    }

    /// Returns an amount that must be whole.
    pub fn whole(&self, column: usize) -> Result<i64, TraceError> {
        if self.number(column)?.fract() != 0.0 {
            return Err(self.expected(column, "a whole number"));
        }
        self.amount(column, 1.0)
    }

    /// Returns a point in time, in the unit of the file.
    pub fn time(&self, column: usize) -> Result<f64, TraceError> {
        let time = self.number(column)?;
        if !time.is_finite() {
            return Err(self.expected(column, "a finite time"));
        }
        Ok(time)
    }

    /// Returns the end of an interval that began at `start`: infinite when empty or `inf`.
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

    /// Returns any number except NaN.
    fn number(&self, column: usize) -> Result<f64, TraceError> {
        match self.text(column).parse::<f64>() {
            Ok(number) if !number.is_nan() => Ok(number),
            _ => Err(self.expected(column, "a number")),
        }
    }
}
