//! The recording of this process, if one is configured.

use anyhow::Result;
use jiff::Timestamp;

use crate::recording::{FileTape, Writing};
use berth_config::RecorderConfig;
use berth_scheduler::recording::Tape;

/// Begins a recording; `None`: none is configured.
///
/// # Errors
/// The folder or the file cannot be written.
pub fn begin(config: &RecorderConfig) -> Result<Option<(Box<dyn Tape>, Writing)>> {
    if !config.enabled {
        return Ok(None);
    }
    let (tape, writing) = FileTape::begin(config, Timestamp::now().as_second())?;
    tracing::info!(file = %writing.file.display(), "a recording is made, for berth replay");
    Ok(Some((Box::new(tape), writing)))
}
