//! Usage recordings for a backtest: comma-separated files with a header, plain or gzip.
//!
//! One column is the time (`ts`, `timestamp` or `time`: seconds or milliseconds since 1970, or a date and time, in
//! UTC if it has no zone), another the usage. Other columns are ignored. Input is not trusted: errors name the line.

use std::path::Path;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use berth_rightsizing::recommend::amount;
use berth_rightsizing::recommend::backtest::{Recorded, RecordedResource, RecordedSample};
use berth_rightsizing::recommend::time::UnixNanos;
use berth_simulator::trace::TraceError;
use berth_simulator::trace::lines::{TraceLines, shown, values};

const TIME_COLUMNS: [&str; 3] = ["ts", "timestamp", "time"];
/// The default usage column.
pub const VALUE_COLUMN: &str = "value";
/// A larger number is milliseconds: as seconds it would be after the year 5000.
const MILLISECONDS_FROM: f64 = 1e11;

/// A usage column and its unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: String,
    pub resource: RecordedResource,
    /// Factor from the column's unit to cores or bytes.
    pub scale: f64,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// One per requested column.
    pub recorded: Vec<Recorded>,
    /// Number of rows dropped because they are not later than the row before.
    pub out_of_order: u64,
}

/// Reads the series of a file.
///
/// # Errors
/// The file cannot be read, a column is missing, or a time or usage is invalid.
pub fn read(file: &Path, columns: &[Column]) -> Result<Recording, TraceError> {
    let mut lines = TraceLines::open(file)?;
    if !lines.read()? {
        return Err(lines.wrong("the file is empty: it should begin with ts,value".to_owned()));
    }
    let header: Vec<String> = values(lines.text()?).map(str::to_owned).collect();
    let (time_at, value_at) = positions(&header, columns).map_err(|problem| lines.wrong(problem))?;
    let mut series = vec![Vec::new(); columns.len()];
    let mut latest = UnixNanos::MIN;
    let mut out_of_order = 0;
    while lines.read()? {
        let row: Vec<&str> = values(lines.text()?).collect();
        if row.len() != header.len() {
            let (has, needs) = (row.len(), header.len());
            return Err(lines
                .wrong(format!("{has} values, but the header names {needs} columns: is the line cut off?")));
        }
        let time = time(row[time_at]).ok_or_else(|| {
            let (name, value) = (&header[time_at], shown(row[time_at]));
            lines.wrong(format!(
                "{name} is \"{value}\", expected seconds since 1970, or a time such as 2026-01-31 12:00:00"
            ))
        })?;
        if time <= latest {
            out_of_order += 1;
            continue;
        }
        latest = time;
        for ((column, at), samples) in columns.iter().zip(&value_at).zip(&mut series) {
            // No measurement.
            if row[*at].is_empty() {
                continue;
            }
            let amount = usage(row[*at], column).ok_or_else(|| {
                let (name, value) = (shown(&column.name), shown(row[*at]));
                lines.wrong(format!("{name} is \"{value}\", expected a usage of 0 or more"))
            })?;
            samples.push(RecordedSample { time, amount });
        }
    }
    if series.iter().all(Vec::is_empty) {
        return Err(lines.wrong("there is nothing after the header: is the file complete?".to_owned()));
    }
    let base = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let recorded = columns.iter().zip(series).map(|(column, samples)| Recorded {
        name: if columns.len() == 1 && column.name == VALUE_COLUMN {
            base.to_string()
        } else {
            format!("{base}:{}", column.name)
        },
        resource: column.resource,
        pods: vec![samples],
    });
    Ok(Recording { recorded: recorded.collect(), out_of_order })
}

/// Returns the indexes of the time column and of each usage column.
fn positions(header: &[String], columns: &[Column]) -> Result<(usize, Vec<usize>), String> {
    let of = |name: &str| header.iter().position(|column| column == name);
    let has = || header.iter().map(|name| shown(name)).collect::<Vec<_>>().join(",");
    let time = TIME_COLUMNS.iter().find_map(|name| of(name));
    let time = time.ok_or_else(|| {
        format!("no column is called {}: the columns are {}", TIME_COLUMNS.join(", "), has())
    })?;
    let value = |column: &Column| {
        of(&column.name).ok_or_else(|| {
            let name = shown(&column.name);
            format!(
                "no column is called {name}: the columns are {}; name one with --cpu-column or --memory-column",
                has()
            )
        })
    };
    Ok((time, columns.iter().map(value).collect::<Result<_, _>>()?))
}

fn time(text: &str) -> Option<UnixNanos> {
    if let Ok(number) = text.parse::<f64>() {
        let seconds = if number.abs() < MILLISECONDS_FROM { number } else { number / 1000.0 };
        // The range of nanoseconds in an i64.
        return (seconds.abs() < 9e9).then_some((seconds * 1e9) as UnixNanos);
    }
    let timestamp = match text.parse::<Timestamp>() {
        Ok(timestamp) => timestamp,
        Err(_) => text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp(),
    };
    UnixNanos::try_from(timestamp.as_nanosecond()).ok()
}

fn usage(text: &str, column: &Column) -> Option<i64> {
    let value = text.parse::<f64>().ok()? * column.scale;
    let usage = match column.resource {
        RecordedResource::Cpu => amount::cpu_from_cores(value),
        RecordedResource::Memory => amount::from_float(value),
    };
    amount::is_usage(value).then_some(usage)
}
