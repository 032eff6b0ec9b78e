//! `berth crds`: the definitions of the kinds that berth adds to a cluster.

use std::io::Write;

use anyhow::{Context, Result};

/// Prints them as YAML, to be piped into `kubectl apply --server-side -f -`.
pub fn crds() -> Result<()> {
    let mut text = String::new();
    for crd in berth_crds::crds() {
        text.push_str("---\n");
        text.push_str(&berth_crds::yaml(&crd).context("a definition cannot be written")?);
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
