//! Loading of the file into a validated [`Config`], with errors that name the line and the field.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::Config;
use super::kube_scheduler::{Rest, is_kube_scheduler, translate};
use berth_model::InvalidField;

/// Error of loading the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is of the same kind as {}: give one configuration file of each kind", file.display(), earlier.display())]
    SameKind { file: PathBuf, earlier: PathBuf },
    /// `problem` names the field and the allowed values. The line is `None` if the value is a default.
    #[error("{}{}: {problem}", file.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid { file: PathBuf, line: Option<u64>, problem: String },
}

/// The files of `--config`, read.
#[derive(Debug, Default)]
pub struct LoadedConfig {
    pub config: Config,
    /// Of `clientConnection` in kube-scheduler's file.
    pub kubeconfig: Option<PathBuf>,
    /// Fields of kube-scheduler's file that mean nothing here, a line each.
    pub notes: Vec<String>,
}

/// How the kind of a file is found out.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
}

impl LoadedConfig {
    /// Reads and validates the files: one with the fields of [`Config`], one `KubeSchedulerConfiguration`, which
    /// takes precedence in what it sets, or both. Returns the defaults without a file.
    ///
    /// # Errors
    /// A file cannot be read, is not valid YAML for its kind, has a value out of its limits or one that berth can neither
    /// follow nor ignore, or there are two of one kind. The message names the file, the line, the field and the allowed
    /// values.
    pub fn read(files: &[PathBuf]) -> Result<Self, ConfigError> {
        let read = |file: &PathBuf| match std::fs::read_to_string(file) {
            Ok(text) => Ok((file.clone(), text)),
            Err(source) => Err(ConfigError::Read { file: file.clone(), source }),
        };
        Self::parse(files.iter().map(read).collect::<Result<_, _>>()?)
    }

    /// Does the same with the texts of the files, whose names are only for errors.
    ///
    /// # Errors
    /// As [`LoadedConfig::read`].
    pub fn parse(files: Vec<(PathBuf, String)>) -> Result<Self, ConfigError> {
        let (mut own, mut upstream) = (None, None);
        for (file, text) in files {
            let head: Head = serde_saphyr::from_str(&text).unwrap_or_default();
            let is_upstream = is_kube_scheduler(head.api_version.as_deref(), head.kind.as_deref());
            let place = if is_upstream { &mut upstream } else { &mut own };
            if let Some((earlier, _)) = place.replace((file.clone(), text)) {
                return Err(ConfigError::SameKind { file, earlier });
            }
        }
        let config = match &own {
            Some((file, text)) => parse_text(text).map_err(|problem| problem.of(file))?,
            None => Config::default(),
        };
        match upstream {
            Some((file, text)) => {
                with_upstream(config, own.is_none(), &text).map_err(|problem| problem.of(&file))
            }
            None => Ok(LoadedConfig { config, ..LoadedConfig::default() }),
        }
    }
}

/// Applies the text of a `KubeSchedulerConfiguration`.
fn with_upstream(mut config: Config, alone: bool, text: &str) -> Result<LoadedConfig, Problem> {
    let file = serde_saphyr::from_str(text).map_err(|error| explain(text, &error))?;
    let rest = translate(file, alone, &mut config);
    match rest.and_then(|rest| config.validate().map(|()| rest)) {
        Ok(Rest { kubeconfig, notes }) => Ok(LoadedConfig { config, kubeconfig, notes }),
        Err(invalid) => Err(Problem::invalid(text, &invalid)),
    }
}

/// Returns the line of the field, or of the closest one above it that the text has.
fn line_of(text: &str, invalid: &InvalidField) -> Option<u64> {
    let values = values(text);
    let mut field = &*invalid.field;
    loop {
        if let Some(value) = values.iter().find(|value| value.field == field) {
            return Some(value.at.line());
        }
        field = &field[..field.rfind(['.', '['])?];
    }
}

/// A problem, and its line in the file, counted from 1.
struct Problem(Option<u64>, String);

impl Problem {
    fn of(self, file: &Path) -> ConfigError {
        let Problem(line, problem) = self;
        ConfigError::Invalid { file: file.to_owned(), line, problem }
    }

    fn invalid(text: &str, invalid: &InvalidField) -> Problem {
        Problem(line_of(text, invalid), invalid.to_string())
    }
}

/// Parses and validates berth's own file.
fn parse_text(text: &str) -> Result<Config, Problem> {
    let config: Config = serde_saphyr::from_str(text).map_err(|error| explain(text, &error))?;
    match config.validate() {
        Ok(()) => Ok(config),
        Err(invalid) => Err(Problem::invalid(text, &invalid)),
    }
}

/// The parser knows the position of an error, but not the name of its field.
fn explain(text: &str, error: &serde_saphyr::Error) -> Problem {
    let plain = error.without_snippet().to_string();
    let Some(at) = error.location() else {
        return Problem(None, plain);
    };
    // The parser appends the position to its text; we put it in front, as compilers do.
    let suffix = format!(" at line {}, column {}", at.line(), at.column());
    let problem = plain.strip_suffix(&suffix).unwrap_or(&plain);
    let problem = match value_at(&values(text), at, problem) {
        Some(value) => format!("{}: {problem}", value.field),
        None => problem.to_owned(),
    };
    Problem(Some(at.line()), problem)
}

/// Errors with these texts have the position of the value's key, others that of the value.
const AT_KEY: [&str; 3] = ["invalid type", "invalid value", "unknown variant"];

/// Returns the value that an error at this position is about.
fn value_at<'v>(values: &'v [Value], at: Location, problem: &str) -> Option<&'v Value> {
    let at = (at.line(), at.column());
    let is_at_key = AT_KEY.iter().any(|text| problem.starts_with(text));
    // A mapping may begin with its first key.
    let exact = values.iter().find(|value| value.position() == at && !(is_at_key && value.is_container));
    let after = values.iter().filter(|value| is_at_key && value.position() > at);
    exact.or_else(|| after.min_by_key(|value| value.position()))
}

struct Value {
    field: String,
    at: Location,
    is_container: bool,
}

impl Value {
    fn position(&self) -> (u64, u64) {
        (self.at.line(), self.at.column())
    }
}

/// Returns every value of a YAML text with its path; empty if the text is not YAML, which is reported
/// earlier.
fn values(text: &str) -> Vec<Value> {
    let mut found = Vec::new();
    if let Ok(fields) = serde_saphyr::from_str(text) {
        collect("", fields, &mut found);
    }
    found
}

fn collect(parent: &str, fields: Fields, found: &mut Vec<Value>) {
    let named: Vec<(String, Spanned<Fields>)> = match fields {
        Fields::Scalar => return,
        Fields::Mapping(entries) if parent.is_empty() => entries,
        Fields::Mapping(entries) => {
            entries.into_iter().map(|(key, node)| (format!("{parent}.{key}"), node)).collect()
        }
        Fields::List(elements) => {
            elements.into_iter().enumerate().map(|(at, node)| (format!("{parent}[{at}]"), node)).collect()
        }
    };
    for (field, node) in named {
        let is_container = !matches!(node.value, Fields::Scalar);
        collect(&field, node.value, found);
        found.push(Value { field, at: node.referenced, is_container });
    }
}

/// The places of the values in a value.
enum Fields {
    Scalar,
    Mapping(Vec<(String, Spanned<Fields>)>),
    List(Vec<Spanned<Fields>>),
}

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
        Ok(Fields::Mapping(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Fields, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(Fields::List(elements))
    }

    fn visit_str<E>(self, _: &str) -> Result<Fields, E> {
        Ok(Fields::Scalar)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Fields, E> {
        Ok(Fields::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Fields, E> {
        Ok(Fields::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Fields, E> {
        Ok(Fields::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Fields, E> {
        Ok(Fields::Scalar)
    }

    fn visit_unit<E>(self) -> Result<Fields, E> {
        Ok(Fields::Scalar)
    }
}
