//! HTTP handlers according to the configuration.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use kube::Client;

use crate::cli::engine_settings::agent_configs;
use crate::fit::LiveFit;
use berth_config::Config;
use berth_controllers::leadership::Leadership;
use berth_controllers::tasks::Tasks;
use berth_kube_io::PodReader;
use berth_kube_io::placement::KubeStore;
use berth_scheduler::agent::{AgentConfig, CacheLimits};
use berth_scheduler::engine::Engine;
use berth_server::extender::{Binder, Extender, Judge};
use berth_server::fit::FitEndpoint;
use berth_server::forward::{BegunDecisions, Forward, OwnTerm, Trust};
use berth_server::guard::Guard;
use berth_server::metrics::{Histograms, MetricSources, Metrics};
use berth_server::ui::{Feed, PageSources};
use berth_server::{Secure, Served};
use berth_telemetry::Health;

/// Dependencies of the handlers.
pub(super) struct ServingContext<'a> {
    pub engine: &'a Engine,
    pub cluster: &'a kube::Config,
    pub store: &'a KubeStore,
    pub leadership: &'a Leadership,
    pub begun: &'a BegunDecisions,
}

/// Seed of the agent that only answers requests; the scheduling agents use their numbers.
const JUDGE: u64 = 1 << 32;
/// Seed of the agent that only answers what would fit.
const FITTER: u64 = JUDGE + 1;

/// Maximum number of cached lists for external requests. With few nodes a list is small compared with the
/// data of its class, so that with a limit in bytes alone, clients that ask about ever new classes could fill
/// the memory.
const JUDGED_CLASSES: usize = 10_000;

/// The same for questions what would fit: room for the classes of one question.
const FITTED_CLASSES: usize = 2_048;
const FITTED_BYTES: usize = 32 << 20;

/// Returns the handlers of everything that is configured.
pub(super) fn routes(
    tasks: &mut Tasks,
    config: &Config,
    asked: ServingContext,
    health: &Health,
    (histograms, sources): (&Histograms, &MetricSources),
    trust: Trust,
) -> Result<Served> {
    let ServingContext { engine, cluster, store, leadership, begun } = asked;
    let reader = PodReader::new(cluster.clone())?;
    let (binds, reviews, finishes) = (leadership.clone(), leadership.clone(), leadership.clone());
    let ours = OwnTerm {
        binds: Box::new(move || binds.decides()),
        reviews: Box::new(move || reviews.reviews()),
        finishes: Box::new(move |term| finishes.may_finish(term)),
        begun: begun.clone(),
    };
    let forward = Forward::new(ours, leadership.holder.clone(), trust);
    let agent = agent_configs(config).first().map(|agent| AgentConfig {
        seed: JUDGE,
        cache: CacheLimits { slots: JUDGED_CLASSES, ..agent.cache },
    });
    let agent = agent.ok_or_else(|| anyhow::anyhow!("there are no agents"))?;
    let judge = Arc::new(Judge::new(engine.clone(), agent));
    let extender = config.extender.enabled.then(|| {
        let counters = sources.binds.clone();
        let binder = Binder::new(engine.clone(), store.clone(), reader.clone(), counters, forward.clone());
        Arc::new(Extender::new(judge.clone(), binder, histograms.clone(), &config.extender))
    });
    let guard = config.guard.enabled.then(|| {
        let (engine, histograms, manager) = (engine.clone(), histograms.clone(), store.field_manager());
        Arc::new(Guard::new(engine, reader, histograms, forward, manager, &config.guard))
    });
    if let Some(guard) = guard.clone() {
        let (store, client) = (store.clone(), Client::try_from(cluster.clone())?);
        tasks.spawn("held room", async move { guard.maintain_holds(store, client).await });
    }
    let (metrics, health) = (Metrics::new(histograms, sources.clone()), health.clone());
    let fragmentation = sources.fragmentation.clone();
    let shown = PageSources { advice: fragmentation.clone(), recommender: sources.recommender.clone() };
    let ui = Arc::new(Feed::new(engine.clone(), shown, sources.ui.clone()));
    let scheduler =
        config.scheduler_names.first().map_or_else(|| "berth".into(), |name| Arc::from(name.as_str()));
    let bytes = agent.cache.bytes.min(FITTED_BYTES);
    let cache = CacheLimits { slots: FITTED_CLASSES, bytes, ..agent.cache };
    let fitter = Arc::new(LiveFit::new(engine.clone(), AgentConfig { seed: FITTER, cache }, scheduler));
    let fit = FitEndpoint { fitter, counters: sources.fit.clone() };
    Ok(Served { metrics, health, judge, extender, guard, mutate: None, fragmentation, ui, fit })
}

/// Returns how replicas authenticate each other: by the CA of the certificate that they share, and the token with which they
/// authenticate to the API server.
pub(super) fn trust(config: &Config, cluster: &kube::Config, secure: Option<Secure>) -> Trust {
    let file = config.serving.ca_file.clone();
    let ca = move || match &file {
        Some(file) => std::fs::read_to_string(file).ok(),
        None => secure.as_ref().map(Secure::chain),
    };
    let name = config.serving.names.first().cloned().unwrap_or_else(|| "localhost".to_owned());
    Trust { ca: Box::new(ca), name, token_file: cluster.auth_info.token_file.as_ref().map(PathBuf::from) }
}
