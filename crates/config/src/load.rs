//! Loading of the file into a validated [`Config`], with errors that name the line and the field.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::Config;

/// Error of loading the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// `problem` names the field and the allowed values. The line is `None` if the value is a default.
    #[error("{}{}: {problem}", file.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid { file: PathBuf, line: Option<u64>, problem: String },
}

pub(super) fn read(file: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(file)
        .map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
    parse(&text).map_err(|(line, problem)| ConfigError::Invalid { file: file.to_owned(), line, problem })
}

/// Parses and validates. The error is a line, counted from 1, and the problem there.
fn parse(text: &str) -> Result<Config, (Option<u64>, String)> {
    let config: Config = serde_saphyr::from_str(text).map_err(|error| explain(text, &error))?;
    match config.validate() {
        Ok(()) => Ok(config),
        Err(invalid) => {
            let place = values(text).into_iter().find(|value| value.field == invalid.field);
            Err((place.map(|value| value.at.line()), invalid.to_string()))
        }
    }
}

/// The parser knows the position of an error, but not the name of its field.
fn explain(text: &str, error: &serde_saphyr::Error) -> (Option<u64>, String) {
    let plain = error.without_snippet().to_string();
    let Some(at) = error.location() else {
        return (None, plain);
    };
    // The parser appends the position to its text; we put it in front, as compilers do.
    let suffix = format!(" at line {}, column {}", at.line(), at.column());
    let problem = plain.strip_suffix(&suffix).unwrap_or(&plain);
    let field = values(text)
        .into_iter()
        .find(|value| (value.at.line(), value.at.column()) == (at.line(), at.column()));
    let problem = match field {
        Some(value) => format!("{}: {problem}", value.field),
        None => problem.to_owned(),
    };
    (Some(at.line()), problem)
}

struct Value {
    field: String,
    at: Location,
}

/// Returns every value of a YAML text with its path; empty if the text is not YAML, which is reported
/// earlier.
fn values(text: &str) -> Vec<Value> {
    let mut found = Vec::new();
    if let Ok(Fields(fields)) = serde_saphyr::from_str(text) {
        collect("", fields, &mut found);
    }
    found
}

fn collect(parent: &str, fields: Vec<(String, Spanned<Fields>)>, found: &mut Vec<Value>) {
    for (key, node) in fields {
        let field = if parent.is_empty() { key } else { format!("{parent}.{key}") };
        collect(&field, node.value.0, found);
        found.push(Value { field, at: node.referenced });
    }
}

/// The entries of a mapping; empty for any other value.
struct Fields(Vec<(String, Spanned<Fields>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = map.next_entry()? {
            fields.push(entry);
        }
        Ok(Fields(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Fields, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Fields(Vec::new()))
    }

    fn visit_str<E>(self, _: &str) -> Result<Fields, E> {
        Ok(Fields(Vec::new()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Fields, E> {
        Ok(Fields(Vec::new()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Fields, E> {
        Ok(Fields(Vec::new()))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Fields, E> {
        Ok(Fields(Vec::new()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Fields, E> {
        Ok(Fields(Vec::new()))
    }

    fn visit_unit<E>(self) -> Result<Fields, E> {
        Ok(Fields(Vec::new()))
    }
}
