//! Sizing of pods: the store of watched objects, the webhook, and the updater.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Result;
use parking_lot::RwLock;

use berth_config::Config;
use berth_controllers::clock::Clock;
use berth_controllers::leadership::Leadership;
use berth_controllers::resizing::Resizer;
use berth_controllers::tasks::{Tasks, host_name};
use berth_controllers::updater;
use berth_kube_io::apply::PodWriter;
use berth_kube_io::client::{fenced, without_retries};
use berth_kube_io::vpa::Recommending;
use berth_kube_io::webhook_configurations::WebhookConfiguration;
use berth_kube_io::{LivePods, WatchStore};
use berth_rightsizing::apply::index::SizingKind;
use berth_scheduler::engine::Engine;
use berth_scheduler::hints::Hints;
use berth_server::metrics::{Histograms, MetricSources};
use berth_server::mutate::{Mutate, Placing};

/// Returns the store of what the enabled features need to size pods: with none of them, of nothing.
pub(super) fn watch_store(config: &Config) -> WatchStore {
    let (scaled, recommender) = (config.scaling.enabled, config.recommender.clone());
    let (recommends, apply) = (recommender.enabled, recommender.apply.clone());
    let mut kinds = BTreeSet::new();
    if recommends || apply.is_on() {
        kinds.extend([SizingKind::Vpa].into_iter().chain(SizingKind::WORKLOADS));
    }
    if scaled {
        kinds.insert(SizingKind::Vpa);
    }
    if apply.is_on() {
        kinds.insert(SizingKind::LimitRange);
        kinds.extend(scaled.then_some(SizingKind::ServiceScaler));
    }
    let label = recommender.auto_create.enabled.then(|| recommender.auto_create.label.clone());
    let sized = recommends || apply.updater;
    let pods = LivePods::new(move |namespace| scaled || sized && recommender.covers(namespace));
    WatchStore::new(pods, kinds, label.as_deref())
}

/// Returns the webhook, if it is enabled. It runs in every replica.
pub(super) fn webhook(
    config: &Config,
    watches: &WatchStore,
    histograms: &Histograms,
    hints: &Arc<RwLock<Hints>>,
) -> Option<Arc<Mutate>> {
    let placing = (config.scaling.enabled && config.scaling.hints_in_pods)
        .then(|| Placing { hints: hints.clone(), own_schedulers: config.scheduler_names.clone() });
    let mutate = || Mutate::new(watches.index.clone(), histograms.clone(), &config.recommender, placing);
    config.recommender.apply.webhook.then(|| Arc::new(mutate()))
}

/// Starts the updater, if it is enabled.
pub(super) fn update(
    tasks: &mut Tasks,
    config: &Config,
    cluster: &kube::Config,
    (engine, leadership): (&Engine, &Leadership),
    (watches, clock): (&WatchStore, &Clock),
    sources: &MetricSources,
) -> Result<()> {
    let Some(metrics) = sources.updater.clone() else { return Ok(()) };
    let writer = PodWriter::new(fenced(cluster.clone(), leadership.fence.as_ref())?, host_name());
    let https = sources.serving.as_ref().map(|(https, _)| https.clone());
    let client = without_retries(cluster.clone())?;
    let updater = updater::Updater {
        config: Arc::new(config.recommender.clone()),
        engine: engine.clone(),
        webhook: WebhookConfiguration::mutating(&client, &config.serving),
        api: Recommending::new(client),
        watches: watches.clone(),
        resizer: Arc::new(Resizer::new(engine.clone(), writer)),
        leadership: leadership.clone(),
        clock: clock.clone(),
        certificate: Arc::new(move |now| https.as_ref().is_some_and(|https| !https.has_ended(now))),
        metrics,
    };
    tasks.spawn("updater", updater.run());
    Ok(())
}
