//! Sequences that are searched by their order: somebody may have edited what is read.

use serde::{Deserialize, Deserializer};

/// Reads a sequence, and sorts it.
pub fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de> + Ord, All: From<Vec<T>>>(
    deserializer: D,
) -> Result<All, D::Error> {
    let mut all: Vec<T> = Deserialize::deserialize(deserializer)?;
    all.sort();
    Ok(all.into())
}
