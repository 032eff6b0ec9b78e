//! Command line: one file per subcommand.

mod cluster;
mod crds;
mod demo;
mod drain;
mod engine_settings;
mod explain;
mod failure;
mod fit;
mod kubectl_completion;
mod logging;
mod output;
mod progress;
mod reading;
mod recommend;
mod replay;
mod run;
mod server;
mod shell;
mod simulate;
mod top;
mod tunnel;
mod ui;
mod why;

use clap::{Parser, Subcommand};

pub use crds::crds;
pub use demo::{DemoOptions, demo};
pub use drain::{DrainOptions, drain};
pub use explain::{ExplainOptions, explain};
pub use fit::{FitOptions, fit};
pub use kubectl_completion::{complete_for_kubectl, completion_of_kubectl};
pub use output::Output;
pub use recommend::{RecommendOptions, recommend};
pub use replay::{ReplayOptions, replay};
pub use run::{RunOptions, run, run_until};
pub use shell::{CompletionOptions, ManOptions, completion, man};
pub use simulate::{SimulateOptions, simulate};
pub use top::{TopOptions, top};
pub use ui::{UiOptions, ui};
pub use why::{WhyOptions, why};

/// A Kubernetes scheduler that keeps a ranked list of nodes for every class of pods.
#[derive(Debug, Parser)]
#[command(version, about, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Schedule the pods that name berth as their scheduler.
    Run(RunOptions),
    /// Print the CustomResourceDefinitions of berth as YAML: berth crds | kubectl apply --server-side -f -
    Crds,
    /// Watch berth schedule 5,000 pods on 1,000 nodes of a control plane on this machine, or 500 pods on 100 fake nodes of an
    /// existing cluster.
    Demo(DemoOptions),
    /// Explain why pods wait, where they could be placed, and what would help. Installed under the name
    /// kubectl-berth, this is `kubectl berth explain`.
    Explain(ExplainOptions),
    /// Try whether the pods of manifests would fit: where each would go, how many more would, and what helps if not.
    Fit(FitOptions),
    /// Plan which nodes can be emptied, in which order, and where their pods would go; with --apply, empty them.
    Drain(DrainOptions),
    /// Tell why a placed pod has its node: what was compared, what decided, and how long each stage took.
    Why(WhyOptions),
    /// Watch a running berth in this terminal: nodes, queue, gangs, quotas, agents and recommendations, live.
    Top(TopOptions),
    /// Serve the page of a running berth to a browser on this machine: nodes, queue, agents, gangs, quotas and recommendations,
    /// live.
    Ui(UiOptions),
    /// Recommend requests of containers from their usage in Prometheus; or backtest estimators on recorded
    /// usage.
    Recommend(Box<RecommendOptions>),
    /// Run the scheduler again from a recording, and tell the first decision that differs.
    Replay(ReplayOptions),
    /// Print a script that completes commands and options in a shell.
    Completion(CompletionOptions),
    /// Write manual pages.
    Man(ManOptions),
    /// Compare dispatchers on a trace or on a synthetic workload, on a virtual clock.
    Simulate(Box<SimulateOptions>),
}

/// Installs the TLS provider, before any connection is made: with one provider installed, no library has to
/// guess.
pub fn install_tls_provider() {
    // `Err`: a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
