//! `berth demo`.

use anyhow::Result;
use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct DemoOptions {}

pub fn demo(_options: DemoOptions) -> Result<()> {
    Ok(())
}
