//! `berth crds`: the CustomResourceDefinitions of berth.

use std::io::Write;

use anyhow::{Context, Result};

/// Prints the definitions as YAML, for `kubectl apply --server-side -f -`.
pub fn crds() -> Result<()> {
    let mut text = String::new();
    for crd in berth_crds::crds() {
        text.push_str("---\n");
        text.push_str(&berth_crds::yaml(&crd).context("cannot serialize a definition")?);
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
