//! Recordings of what the scheduler hears and decides.

use std::path::PathBuf;

use berth_model::InvalidField;
use berth_model::validate::{refuse, whole_number, within};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A recording of all that the scheduler hears and decides, for `berth replay`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RecorderConfig {
    /// Make a recording from each start on. It holds the names, labels and requests of all pods and nodes.
    pub enabled: bool,

    /// Folder of the recordings; it is created. Of earlier recordings in it, the latest is kept.
    pub directory: PathBuf,

    /// Size after which a recording ends, in MiB.
    #[serde(rename = "maxMiB", deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_mib: u32,
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self { enabled: false, directory: "/var/lib/berth/recordings".into(), max_mib: 256 }
    }
}

impl RecorderConfig {
    pub(super) fn validate(&self) -> Result<(), InvalidField> {
        within("recorder.maxMiB", self.max_mib, 1..=65_536)?;
        match self.enabled && self.directory.as_os_str().is_empty() {
            true => refuse("recorder.directory", "it is empty; name a folder that berth may write"),
            false => Ok(()),
        }
    }
}
