//! JSON objects as Go decodes them: field names match in any case, the last duplicate wins, null means unset.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The fields of one object, not yet decoded.
pub(super) struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// # Errors
    /// The text is not a JSON object.
    pub fn read(text: &'a str) -> Result<Fields<'a>, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the field with this name if it is set and not null.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        (found.1.get() != "null").then_some(found.1)
    }

    /// Decodes the field with this name as a `T`; `None` if it is unset or null.
    ///
    /// # Errors
    /// The field is set and is not a `T`; the text names the field.
    pub fn parse<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(raw) = self.get(name) else {
            return Ok(None);
        };
        serde_json::from_str(raw.get()).map(Some).map_err(|error| format!("{name}: {error}"))
    }

    pub fn into_iter(self) -> impl Iterator<Item = (Cow<'a, str>, &'a RawValue)> {
        self.0.into_iter()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((Text(key), value)) = map.next_entry()? {
                    fields.push((key, value));
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(FieldsVisitor).map(Fields)
    }
}

/// A string that is borrowed unless it has escapes.
#[derive(serde::Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_the_last_of_two_wins() {
        let fields = Fields::read(r#"{"pod": 1, "POD": 2, "nodes": null}"#).expect("an object");
        assert_eq!(fields.parse::<i32>("Pod"), Ok(Some(2)));
        assert_eq!(fields.parse::<i32>("Nodes"), Ok(None));
        assert!(fields.parse::<String>("Pod").is_err_and(|why| why.starts_with("Pod: ")));
        assert!(Fields::read("[1]").is_err() && Fields::read(r#"{"a": 1"#).is_err());
    }
}
