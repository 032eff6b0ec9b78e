//! Application of recommendations: its watches, the webhook, and the updater.

use std::sync::Arc;

use anyhow::Result;
use kube::Client;
use parking_lot::RwLock;

use berth_config::Config;
use berth_controllers::leadership::Leadership;
use berth_controllers::resizing::Resizer;
use berth_controllers::tasks::{Tasks, host_name};
use berth_controllers::updater;
use berth_kube_io::LivePods;
use berth_kube_io::apply::{PodWriter, follow};
use berth_kube_io::client::without_retries;
use berth_kube_io::vpa::Recommending;
use berth_rightsizing::apply::Index;
use berth_scheduler::engine::Engine;
use berth_scheduler::hints::Hints;
use berth_server::metrics::{Histograms, Sources};
use berth_server::mutate::{Mutate, Placing};

/// Watches the objects that decide about pods, and returns the webhook if it is enabled. Runs in every
/// replica.
pub(super) fn webhook(
    tasks: &mut Tasks,
    config: &Config,
    client: &Client,
    (histograms, sources): (&Histograms, &Sources),
    hints: &Arc<RwLock<Hints>>,
) -> (Option<Arc<RwLock<Index>>>, Option<Arc<Mutate>>) {
    let apply = &config.recommender.apply;
    if !apply.is_on() {
        return (None, None);
    }
    let index: Arc<RwLock<Index>> = Arc::default();
    let (to, client, counters) = (index.clone(), client.clone(), sources.object_watches.clone());
    let scaled = config.scaling.enabled;
    tasks.spawn("watch of what is applied", async move { follow(client, &counters, &to, scaled).await });
    let placing = (config.scaling.enabled && config.scaling.hints_in_pods)
        .then(|| Placing { hints: hints.clone(), ours: config.scheduler_names.clone() });
    let mutate = apply
        .webhook
        .then(|| Arc::new(Mutate::new(index.clone(), histograms.clone(), &config.recommender, placing)));
    (Some(index), mutate)
}

/// Starts the updater, if it is enabled.
pub(super) fn update(
    tasks: &mut Tasks,
    config: &Config,
    cluster: &kube::Config,
    (engine, leadership): (&Engine, &Leadership),
    (index, pods): (Option<Arc<RwLock<Index>>>, LivePods),
    sources: &Sources,
) -> Result<()> {
    let (Some(index), Some(metrics)) = (index, sources.updater.clone()) else { return Ok(()) };
    let client = without_retries(cluster.clone())?;
    // A process that was frozen past its lease must not resize or evict when it resumes.
    let fenced = match &leadership.fence {
        Some(fence) => fence.client(cluster.clone())?,
        None => client.clone(),
    };
    let https = sources.serving.as_ref().map(|(https, _)| https.clone());
    let updater = updater::Updater {
        config: Arc::new(config.recommender.clone()),
        api: Recommending::new(client),
        pods,
        resizer: Arc::new(Resizer::new(engine.clone(), PodWriter::new(fenced, host_name()))),
        index,
        leadership: leadership.clone(),
        certificate: Arc::new(move |now| https.as_ref().is_some_and(|https| !https.has_ended(now))),
        metrics,
    };
    tasks.spawn("updater", updater.run());
    Ok(())
}
