//! Access to parts of JSON objects that may be missing.

use serde_json::{Map, Value};

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the fields of an object.
pub fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}
