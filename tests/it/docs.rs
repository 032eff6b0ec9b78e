//! Consistency of the documents: generated parts are up to date, every command has a test or a reason why it has none, every link
//! leads somewhere, every metric is described, and the index has every page.

mod commands;
mod links;
pub(crate) mod metrics;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text of a page; `path` is relative to the root.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the paths of the pages in `docs/`, sorted.
fn pages() -> Vec<String> {
    let names = std::fs::read_dir(root().join("docs"))
        .expect("docs")
        .map(|entry| entry.expect("an entry").file_name());
    let names =
        names.map(|name| name.into_string().expect("a name in UTF-8")).filter(|name| name.ends_with(".md"));
    let mut pages: Vec<String> = names.map(|name| format!("docs/{name}")).collect();
    pages.sort();
    pages
}

#[test]
fn each_section_that_is_measured_has_its_place_in_the_page() {
    let (script, page) = (read(".ci/long"), read("docs/benchmarks.md"));
    let begins = |line: &str| line.trim_start().strip_prefix("bench ").map(str::to_owned);
    let sections: Vec<_> = script.lines().filter_map(begins).collect();
    assert!(sections.len() > 5, "{sections:?}");
    for section in sections {
        let name = section.split_whitespace().next().expect("a name");
        let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
        let rest = page.split_once(&begin).unwrap_or_else(|| panic!("there is no {begin}")).1;
        assert!(rest.contains(&end), "{name} does not end");
    }
}

/// Returns the paths of all documents: those of the root, and the pages.
fn documents() -> Vec<String> {
    let names =
        std::fs::read_dir(root()).expect("the root").map(|entry| entry.expect("an entry").file_name());
    let names =
        names.map(|name| name.into_string().expect("a name in UTF-8")).filter(|name| name.ends_with(".md"));
    let mut documents: Vec<String> = names.collect();
    documents.sort();
    documents.extend(pages());
    documents
}

/// Compares a file with its expected content; `UPDATE=1` in the environment rewrites it instead.
fn assert_up_to_date(file: PathBuf, expected: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, expected).expect("the file is written");
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{} is out of date: run UPDATE=1 cargo test --test it docs", file.display());
}

#[test]
fn the_configuration_is_documented_as_it_is_read() {
    let mut text = String::from(
        "# The configuration file\n\n\
         YAML, read by `berth run --config FILE`; the Helm chart writes it from its value `config`. An unset key has its default; an\n\
         unknown key is rejected. This page is generated from the types that read the file.\n\n\
         | key | default | meaning |\n|---|---|---|\n",
    );
    let schema = berth_config::schema();
    let defaults = serde_json::to_value(berth_config::Config::default()).expect("JSON");
    rows(&schema, &defaults, "", &mut text);
    assert_up_to_date(root().join("docs/configuration.md"), &text);
}

fn rows(schema: &Value, defaults: &Value, prefix: &str, text: &mut String) {
    let properties = schema["properties"].as_object().expect("an object's schema");
    for (key, property) in properties {
        let (path, default) = (format!("{prefix}{key}"), &defaults[key]);
        // An object that is omitted entirely has defaults in its schema.
        let default = match default {
            Value::Null => &property["default"],
            default => default,
        };
        let is_object = property["properties"].is_object();
        if is_object && !default.is_null() {
            rows(property, default, &format!("{path}."), text);
            continue;
        }
        let default = match default {
            Value::Null => "none".to_owned(),
            Value::String(value) if value.is_empty() => "`\"\"`".to_owned(),
            Value::String(value) => format!("`{value}`"),
            value => format!("`{value}`"),
        };
        let meaning = property["description"].as_str().expect("every key is documented").replace('\n', " ");
        let _ = writeln!(text, "| `{path}` | {default} | {} |", meaning.trim());
        if is_object {
            rows(property, &Value::Null, &format!("{path}."), text);
        }
        if property["items"]["properties"].is_object() {
            rows(&property["items"], &Value::Null, &format!("{path}[]."), text);
        }
    }
}
