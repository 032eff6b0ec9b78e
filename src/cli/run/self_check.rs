//! The self-check: everything known is compared with the API server from time to time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kube::Client;

use berth_config::Config;
use berth_controllers::tasks::Tasks;
use berth_kube_io::list_cluster;
use berth_scheduler::engine::Engine;
use berth_scheduler::scheduler::Difference;
use berth_server::metrics::SelfCheckCounters;

/// A difference that a self-check found must still be there this much later: watches lag.
const PAUSE: Duration = Duration::from_secs(10);

/// Compares with the API server from time to time. What differs twice is mended and logged.
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
                            "berth's view of the cluster was wrong and has been mended; please report this"
                        );
                    }
                }
                Err(error) => {
                    counters.failed.fetch_add(1, Relaxed);
                    tracing::warn!(%error, "the self-check could not list the cluster");
                }
            }
        }
    });
}

/// One comparison. Returns how many differences were mended.
async fn check_once(engine: &Engine, client: &Client) -> kube::Result<usize> {
    if !engine.with(|scheduler, _| scheduler.synced()) {
        return Ok(0);
    }
    for violation in engine.with(|scheduler, _| scheduler.check()) {
        tracing::error!(%violation, "berth is not as it should be; please report this");
    }
    let recounted = engine.with(|scheduler, _| scheduler.heal());
    for wrong in &recounted {
        tracing::error!(node = %wrong.node, counted = wrong.counted, recounted = wrong.recounted, "a node's sums were wrong");
    }
    let find = |pods: &[_], nodes: &[_]| engine.with(|scheduler, _| scheduler.differences(pods, nodes));
    let (pods, nodes) = list_cluster(client).await?;
    let suspicions = find(&pods, &nodes);
    drop((pods, nodes));
    if suspicions.is_empty() {
        return Ok(recounted.len());
    }
    tokio::time::sleep(PAUSE).await;
    let (pods, nodes) = list_cluster(client).await?;
    let mut found = find(&pods, &nodes);
    found.retain(|difference: &Difference| suspicions.binary_search(difference).is_ok());
    for difference in &found {
        tracing::error!(?difference, "berth has an object otherwise than the API server");
    }
    Ok(recounted.len() + engine.with(|scheduler, now| scheduler.mend(&found, &pods, &nodes, now)))
}
