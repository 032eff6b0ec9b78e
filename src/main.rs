//! The `berth` binary.

use std::process::ExitCode;

use berth::cli::{Cli, Command};
use clap::Parser;

fn main() -> ExitCode {
    berth::cli::install_tls_provider();
    if let Some(words) = berth::cli::completion_of_kubectl(std::env::args_os()) {
        // An error would be shown in the middle of the command line.
        return berth::cli::complete_for_kubectl(&words).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let result = match Cli::parse().command {
        Command::Run(options) => berth::cli::run(options),
        Command::Crds => berth::cli::crds(),
        Command::Demo(options) => berth::cli::demo(options),
        Command::Explain(options) => return berth::cli::explain(options),
        Command::Fit(options) => return berth::cli::fit(&options),
        Command::Drain(options) => return berth::cli::drain(&options),
        Command::Why(options) => return berth::cli::why(&options),
        Command::Top(options) => return berth::cli::top(&options),
        Command::Ui(options) => return berth::cli::ui(&options),
        Command::Recommend(options) => return berth::cli::recommend(&options),
        Command::Replay(options) => return berth::cli::replay(&options),
        Command::Completion(options) => berth::cli::completion(&options),
        Command::Man(options) => berth::cli::man(&options),
        Command::Simulate(options) => return berth::cli::simulate(*options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The whole chain in one line: the failed operation and its cause.
            eprintln!("berth: {error:#}");
            ExitCode::FAILURE
        }
    }
}
