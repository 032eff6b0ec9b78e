//! What a new leader waits for: the binds of its predecessors, and the devices that they gave to claims.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};

use berth_kube_io::{LIVE_PODS, LeanResourceClaim, WatchProgress, comparable_version, is_served};
use berth_scheduler::engine::Engine;

const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Longer than a watch needs to deliver a change.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Pause after a failed request.
const PAUSE: Duration = Duration::from_millis(200);
const PAGE_SIZE: u32 = 1_000;
/// Duration of a short watch in seconds: an API server sends a bookmark two seconds before its end.
const SHORT_WATCH: u32 = 3;

/// Waits until our view contains every bind that was executed before this call: our watch may still lack pods
/// that the previous leader has bound, and even their creation.
///
/// Each of these proves it, and the first that is found is enough:
/// * a list of the watch that began after this call;
/// * a change that the watch has delivered and that is as new as a consistent read made after this call. In a large cluster pods change
///   all the time;
/// * of a cluster whose bound pods are read at once: the watch has delivered each of them;
/// * a second, short watch, which begins where ours is and gets to that read: ours has delivered its last change;
/// * a change as new as the version up to which the previous leader had seen all binds when it released the lease (`handed_over`).
pub(super) async fn await_known_binds(
    engine: &Engine,
    client: &Client,
    pods: &WatchProgress,
    handed_over: Option<u64>,
) {
    let began = Instant::now();
    let lists = pods.lists_begun();
    while !engine.synced() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let by = loop {
        tokio::select! {
            biased;
            () = listed_after(pods, lists) => break "a list",
            () = reached(pods, handed_over.unwrap_or(u64::MAX)) => break "the previous leader",
            proven = prove(engine, client, pods) => match proven {
                Ok(Some(by)) => break by,
                Ok(None) => tracing::debug!("the watch has not delivered all bound pods yet"),
                Err(error) => {
                    tracing::warn!(%error, "cannot read which pods are bound, retrying");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    };
    tracing::info!(took = ?began.elapsed(), by, "existing binds are known");
}

/// Waits until our view contains every allocation of a claim that was executed before this call: until the watch has delivered
/// the latest change of every claim that there is. Of a claim that is gone, its devices are free at worst too late.
pub(super) async fn await_known_claims(client: &Client, claims: &WatchProgress) {
    loop {
        match latest_claim(client).await {
            Ok(latest) => {
                if tokio::time::timeout(ASK_AGAIN, reached(claims, latest)).await.is_ok() {
                    return;
                }
                tracing::debug!("the watch has not delivered all resource claims yet");
            }
            // A role without such claims, as that of an older version: pods with claims then wait.
            Err(kube::Error::Api(status)) if status.code == 403 => return,
            Err(error) => {
                if is_served::<LeanResourceClaim>(client).await == Ok(false) {
                    return;
                }
                tracing::warn!(%error, "cannot read which resource claims are allocated, retrying");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Returns the latest version of all claims; 0: there are none.
async fn latest_claim(client: &Client) -> kube::Result<u64> {
    let api: Api<ResourceClaim> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE_SIZE);
    let mut latest = 0;
    loop {
        let page = api.list_metadata(&params).await?;
        let versions = page.items.iter().map(|claim| claim.metadata.resource_version.as_deref());
        latest = versions.filter_map(comparable_version).fold(latest, u64::max);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            None => return Ok(latest),
            Some(token) => params = params.continue_token(&token),
        }
    }
}

async fn listed_after(pods: &WatchProgress, lists: u64) {
    while !pods.has_listed_after(lists) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Returns what proves that our view contains every bind that was executed before this call; `None`: it does not yet, as far as is
/// known.
async fn prove(engine: &Engine, client: &Client, pods: &WatchProgress) -> kube::Result<Option<&'static str>> {
    let mut bound = list_bound(client, Pages::First).await?;
    if let (false, Some(version)) = (bound.all, bound.version) {
        match reach(client, pods, version).await {
            // Our watch has gone on with a bookmark since its last change, and the server no longer knows what came before.
            Err(kube::Error::Api(status)) if status.code == 410 => {
                bound = list_bound(client, Pages::All).await?;
            }
            known => return known,
        }
    }
    let BoundPods { version, mut uids, .. } = bound;
    let asked = Instant::now();
    loop {
        engine.retain_uncharged(&mut uids);
        // Pods deleted meanwhile, which the watch may never deliver, are missing in the next list.
        if uids.is_empty() {
            return Ok(Some("a read"));
        }
        if version.is_some_and(|version| pods.has_reached(version)) {
            return Ok(Some("a change"));
        }
        if asked.elapsed() >= ASK_AGAIN {
            return Ok(None);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A consistent read of the pods that occupy resources of a node.
struct BoundPods {
    version: Option<u64>,
    uids: Vec<String>,
    /// They are all; otherwise more of them than fit into one page.
    all: bool,
}

/// How much of a list to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// The first page, if versions can be compared.
    First,
    All,
}

/// Reads bound pods.
async fn list_bound(client: &Client, pages: Pages) -> kube::Result<BoundPods> {
    let api: Api<Pod> = Api::all(client.clone());
    let fields = format!("spec.nodeName!=,{LIVE_PODS}");
    let mut params = ListParams::default().fields(&fields).limit(PAGE_SIZE);
    let mut uids = Vec::new();
    loop {
        let page = api.list_metadata(&params).await?;
        let version = comparable_version(page.metadata.resource_version.as_deref());
        uids.extend(page.items.into_iter().filter_map(|pod| pod.metadata.uid));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            None => return Ok(BoundPods { version, uids, all: true }),
            Some(_) if version.is_some() && pages == Pages::First => {
                return Ok(BoundPods { version, uids, all: false });
            }
            Some(token) => params = params.continue_token(&token),
        }
    }
}

/// Returns what proves that our watch has delivered every change up to this version.
async fn reach(client: &Client, pods: &WatchProgress, version: u64) -> kube::Result<Option<&'static str>> {
    tokio::select! {
        biased;
        () = reached(pods, version) => Ok(Some("a change")),
        latest = latest_change(client, pods.version(), version) => match latest? {
            // Of a change, our watch delivers it, too.
            Some(latest) => {
                let known = tokio::time::timeout(ASK_AGAIN, reached(pods, latest)).await;
                Ok(known.is_ok().then_some("a short watch"))
            }
            None => Ok(None),
        },
    }
}

async fn reached(pods: &WatchProgress, version: u64) {
    while !pods.has_reached(version) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Returns the version of the last change of a live pod between these versions, `after` itself if there is none; `None` if a watch did
/// not tell within its time.
async fn latest_change(client: &Client, after: u64, until: u64) -> kube::Result<Option<u64>> {
    let api: Api<Pod> = Api::all(client.clone());
    let params = WatchParams::default().fields(LIVE_PODS).timeout(SHORT_WATCH);
    let mut changes = pin!(api.watch_metadata(&params, &after.to_string()).await?);
    let mut latest = after;
    while let Some(change) = changes.next().await {
        let (version, is_change) = match change? {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) => {
                (pod.metadata.resource_version, true)
            }
            WatchEvent::Bookmark(bookmark) => (Some(bookmark.metadata.resource_version), false),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        };
        let Some(version) = comparable_version(version.as_deref()) else {
            continue;
        };
        if is_change {
            latest = latest.max(version);
        }
        if version >= until {
            return Ok(Some(latest));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::{Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;

    use super::*;
    use berth_scheduler::testing::with_engine;

    /// Returns a client of an API server that answers a list with two pages, read at version 20, and a watch with these events; and the
    /// paths that were asked for.
    fn server(version: &'static str, events: &'static str) -> (Client, Arc<Mutex<Vec<String>>>) {
        let paths = Arc::new(Mutex::new(Vec::new()));
        let asked = paths.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().to_string();
            asked.lock().push(path.clone());
            async move {
                let token = if path.contains("continue=") { "" } else { r#""continue":"more","# };
                let text = match path.contains("watch=") {
                    true => events.to_owned(),
                    false => format!(
                        r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{{{token}"resourceVersion":"{version}"}},"items":[{{"metadata":{{"uid":"u"}}}}]}}"#
                    ),
                };
                Ok::<_, Infallible>(Response::new(Body::from(text.into_bytes())))
            }
        });
        (Client::new(service, "default"), paths)
    }

    fn event(kind: &str, version: &str) -> String {
        format!(
            r#"{{"type":"{kind}","object":{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"name":"p","resourceVersion":"{version}"}}}}}}"#
        ) + "\n"
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_leader_waits_for_the_latest_change_of_every_claim() {
        let list = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"90"},"items":[{"metadata":{"resourceVersion":"12"}},{"metadata":{"resourceVersion":"31"}}]}"#;
        let answers = |status: u16, text: &'static str| {
            let service = tower::service_fn(move |_: Request<Body>| async move {
                let response = Response::builder().status(status).body(Body::from(text.as_bytes().to_vec()));
                Ok::<_, Infallible>(response.expect("a response"))
            });
            Client::new(service, "default")
        };
        let known = async |client: Client, version| {
            let progress = WatchProgress::reached(version);
            let waits = await_known_claims(&client, &progress);
            tokio::time::timeout(Duration::from_secs(60), waits).await.is_ok()
        };
        assert!(known(answers(200, list), 31).await);
        assert!(!known(answers(200, list), 30).await);
        let missing = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"not found","reason":"NotFound","code":404}"#;
        assert!(known(answers(404, missing), 0).await, "a cluster without claims");
        let index = r#"{"paths":["/apis","/version"]}"#;
        assert!(known(answers(404, index), 0).await, "an API server that answers with what there is");
        let forbidden = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"forbidden","reason":"Forbidden","code":403}"#;
        assert!(known(answers(403, forbidden), 0).await, "a role of an older version");
    }

    #[tokio::test]
    async fn one_page_of_a_large_cluster_is_read() {
        let (client, paths) = server("20", "");
        let bound = list_bound(&client, Pages::First).await.expect("a list");
        assert_eq!((bound.version, bound.uids.len(), bound.all), (Some(20), 1, false));
        assert_eq!(paths.lock().len(), 1);
        let bound = list_bound(&client, Pages::All).await.expect("a list");
        assert_eq!((bound.version, bound.uids.len(), bound.all), (Some(20), 2, true));
    }

    #[tokio::test]
    async fn all_pages_are_read_where_versions_cannot_be_compared() {
        let (client, paths) = server("opaque", "");
        let bound = list_bound(&client, Pages::First).await.expect("a list");
        assert_eq!((bound.version, bound.uids.len(), bound.all), (None, 2, true));
        assert_eq!(paths.lock().len(), 2);
    }

    #[tokio::test]
    async fn while_no_pod_changes_a_bookmark_of_a_short_watch_is_the_proof() {
        let (client, paths) = server("20", event("BOOKMARK", "25").leak());
        let watch = WatchProgress::reached(7);
        assert_eq!(reach(&client, &watch, 20).await.expect("an answer"), Some("a short watch"));
        assert!(
            paths.lock()[0].contains("resourceVersion=7") && paths.lock()[0].contains("timeoutSeconds=3")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_our_watch_has_not_delivered_is_waited_for() {
        let events = event("ADDED", "12") + &event("MODIFIED", "15") + &event("BOOKMARK", "20");
        let (client, _) = server("20", events.leak());
        let known =
            async |version| reach(&client, &WatchProgress::reached(version), 20).await.expect("an answer");
        assert_eq!(known(15).await, Some("a short watch"));
        assert_eq!(known(14).await, None);
    }

    #[tokio::test]
    async fn a_short_watch_that_ends_early_or_fails_proves_nothing() {
        let (client, _) = server("20", event("BOOKMARK", "19").leak());
        assert_eq!(reach(&client, &WatchProgress::reached(7), 20).await.expect("an answer"), None);
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#;
        let (client, _) = server("20", gone);
        assert!(reach(&client, &WatchProgress::reached(7), 20).await.is_err());
    }

    #[test]
    fn where_the_server_no_longer_knows_what_came_after_our_last_change_all_bound_pods_are_read() {
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        with_engine(|engine, _| {
            runtime.block_on(async {
                let (client, paths) = server("20", gone);
                let proof = prove(engine, &client, &WatchProgress::reached(7)).await.expect("an answer");
                assert_eq!(proof, None, "the pod has not been seen");
                // The first page, the short watch, and both pages.
                assert_eq!(paths.lock().len(), 4);
            });
        });
    }
}
