//! `berth crds`: the CustomResourceDefinitions of berth.

use anyhow::{Context, Result};

use super::output::printed;

/// Prints the definitions as YAML, for `kubectl apply --server-side -f -`.
pub fn crds() -> Result<()> {
    let mut text = String::new();
    for crd in berth_crds::crds() {
        text.push_str("---\n");
        text.push_str(&berth_crds::yaml(&crd).context("cannot serialize a definition")?);
    }
    printed(text.as_bytes())
}
