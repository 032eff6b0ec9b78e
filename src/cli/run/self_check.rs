//! Periodic self-check: compares the cached state with the API server.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kube::Client;

use berth_config::Config;
use berth_controllers::tasks::Tasks;
use berth_kube_io::list_cluster;
use berth_scheduler::engine::Engine;
use berth_scheduler::scheduler::StateDifference;
use berth_server::metrics::SelfCheckCounters;

/// Time for which a difference must persist: watches lag.
const PAUSE: Duration = Duration::from_secs(10);

/// Compares with the API server periodically. Persistent differences are repaired and logged.
pub(super) fn self_check(
    tasks: &mut Tasks,
    engine: &Engine,
    client: &Client,
    config: &Config,
    counters: Arc<SelfCheckCounters>,
) {
    let (engine, client, interval) = (engine.clone(), client.clone(), config.self_check_interval.get());
    tasks.spawn("self-check", async move {
        loop {
            tokio::time::sleep(interval).await;
            match check_once(&engine, &client).await {
                Ok(mended) => {
                    counters.done.fetch_add(1, Relaxed);
                    if mended > 0 {
                        tracing::error!(
                            mended,
                            "the cached cluster state was wrong and has been repaired; please report this"
                        );
                    }
                }
                Err(error) => {
                    counters.failed.fetch_add(1, Relaxed);
                    tracing::warn!(%error, "self-check: cannot list the cluster");
                }
            }
        }
    });
}

/// Compares once. Returns the number of repaired differences.
async fn check_once(engine: &Engine, client: &Client) -> kube::Result<usize> {
    if !engine.synced() {
        return Ok(0);
    }
    for violation in engine.check_invariants() {
        tracing::error!(%violation, "invariant violated; please report this");
    }
    let recounted = engine.heal();
    for wrong in &recounted {
        tracing::error!(node = %wrong.node, counted = wrong.counted, recounted = wrong.recounted, "the resource sums of a node were wrong");
    }
    let (pods, nodes) = list_cluster(client).await?;
    let suspicions = engine.differences(&pods, &nodes);
    drop((pods, nodes));
    if suspicions.is_empty() {
        return Ok(recounted.len());
    }
    tokio::time::sleep(PAUSE).await;
    let (pods, nodes) = list_cluster(client).await?;
    let mut found = engine.differences(&pods, &nodes);
    found.retain(|difference: &StateDifference| suspicions.binary_search(difference).is_ok());
    for difference in &found {
        tracing::error!(?difference, "cached object differs from the API server");
    }
    Ok(recounted.len() + engine.mend(&found, &pods, &nodes))
}
