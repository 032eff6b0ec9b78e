//! The configuration files: an error names the field, and a valid configuration, also one made of kube-scheduler's file, is
//! the same after it is written and read again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;

use berth_config::{Config, ConfigError, LoadedConfig};
use serde_json::Value;

/// Every key that a configuration can have.
static KEYS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    fn collect(schema: &Value, keys: &mut BTreeSet<String>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        keys.extend(properties.into_iter().flat_map(|properties| properties.keys().cloned()));
        match schema {
            Value::Object(children) => children.values().for_each(|child| collect(child, keys)),
            Value::Array(children) => children.iter().for_each(|child| collect(child, keys)),
            _ => {}
        }
    }
    let mut keys = BTreeSet::new();
    collect(&berth_config::schema(), &mut keys);
    keys
});

fn parse(text: &str) -> Result<Config, ConfigError> {
    let file = (PathBuf::from("berth.yaml"), text.to_owned());
    LoadedConfig::parse(vec![file]).map(|loaded| loaded.config)
}

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse(text) {
        Ok(config) => {
            let written = serde_json::to_string(&config).expect("serialises");
            match parse(&written) {
                Ok(again) => assert_eq!(again, config, "{written}"),
                Err(error) => panic!("{error}: {written}"),
            }
        }
        Err(ConfigError::Invalid { line, problem, .. }) => {
            let lines = text.lines().count().max(1) as u64;
            assert!(line.is_none_or(|line| (1..=lines + 1).contains(&line)), "{line:?} of {lines} lines");
            assert!(!problem.is_empty());
            names_the_field(text, &problem);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Checks that the error of a YAML mapping begins with the path of a field, unless the field is unknown.
fn names_the_field(text: &str, problem: &str) {
    let Ok(Value::Object(fields)) = serde_saphyr::from_str::<Value>(text) else { return };
    if fields.contains_key("kind") || fields.contains_key("apiVersion") {
        return;
    }
    let first = problem.split([':', '.', '[']).next().unwrap_or_default();
    let is_named = KEYS.contains(first) || problem.starts_with("unknown field");
    assert!(is_named, "{problem:?} names no field");
}
