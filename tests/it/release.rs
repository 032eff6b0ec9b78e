//! What a release consists of, as the scripts of `release/` build it. The binary takes minutes to build; most tests put a small
//! file in its place.

mod image;
mod recipe;

use std::path::Path;
use std::process::Command;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command that must succeed; returns its standard output.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn git(arguments: &[&str]) -> String {
    output(Command::new("git").args(arguments).current_dir(repository())).trim().to_owned()
}
