//! Measured latencies of the dispatcher, kept across restarts.

use std::path::Path;

use berth_scheduler::dispatch::Estimator;
use berth_scheduler::engine::Engine;

pub(super) fn read(file: Option<&Path>) -> Estimator {
    let Some(file) = file else {
        return Estimator::default();
    };
    match std::fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), %error, "invalid estimator file, measuring latencies from scratch");
            Estimator::default()
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Estimator::default(),
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "cannot read the estimator file, measuring latencies from scratch");
            Estimator::default()
        }
    }
}

/// Writes the file atomically.
pub(super) fn save(file: Option<&Path>, engine: &Engine) {
    let Some(file) = file else { return };
    let fresh = file.with_extension("new");
    let written = serde_json::to_string(&engine.estimator())
        .map_err(std::io::Error::other)
        .and_then(|text| std::fs::write(&fresh, text))
        .and_then(|()| std::fs::rename(&fresh, file));
    if let Err(error) = written {
        tracing::warn!(file = %file.display(), %error, "cannot save the measured latencies");
    }
}
