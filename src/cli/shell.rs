//! `berth completion` and `berth man`: what shells and `man` show of berth.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::output::printed;

/// Options of `berth completion`.
#[derive(Debug, Clone, Args)]
pub struct CompletionOptions {
    /// The shell that reads the script.
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Options of `berth man`.
#[derive(Debug, Clone, Args)]
pub struct ManOptions {
    /// Folder for the pages, which must exist: berth.1, and one for each command.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Prints the script that completes commands and options.
pub fn completion(options: &CompletionOptions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "berth", &mut script);
    printed(&script)
}

/// Writes the manual pages.
pub fn man(options: &ManOptions) -> Result<()> {
    let folder = &options.folder;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write the pages into {}", folder.display()))
}
