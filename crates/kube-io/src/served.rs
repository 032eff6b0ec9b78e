//! Watches of optional kinds: kinds that the API server may not serve, or serves in one of several versions.
//!
//! While the kind is not served, this costs one discovery request per [`LOOK_EVERY`]; a CRD that is installed later is watched
//! after the next request.

use std::fmt::Debug;
use std::time::Duration;

use http::{Method, StatusCode};
use kube::client::Body;
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::client::{Answer, exchange, request};
use super::watch::{WatchChange, WatchCounters, watch_while_served};

const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Pause after a failed discovery request, and before a watch that ended is restarted.
const PAUSE: Duration = Duration::from_secs(2);

/// A kind that the API server may not serve.
pub trait OptionalKind: Resource<DynamicType: Copy + Send + Sync + 'static> {
    /// In order of preference. Not empty.
    const VERSIONS: &'static [Self::DynamicType];
}

/// Watches all objects of a kind while the server serves it; otherwise reports that. Never returns. `chosen` is called
/// with each version that is watched.
pub async fn watch_if_served<K>(
    client: Client,
    counters: &WatchCounters,
    chosen: impl Fn(K::DynamicType),
    mut sink: impl FnMut(WatchChange<K>),
) where
    K: OptionalKind + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let kind = format!("{}.{}", K::plural(&K::VERSIONS[0]), K::group(&K::VERSIONS[0]));
    let mut is_reported_absent = false;
    loop {
        match served::<K>(&client).await {
            Ok(Some(version)) => {
                tracing::info!(kind, version = &*K::version(&version), "the API server serves this kind");
                chosen(version);
                let began = Instant::now();
                watch_while_served(client.clone(), &version, counters, &mut sink).await;
                report_absent(&kind, &mut sink);
                is_reported_absent = true;
                // A server whose discovery contradicts its 404 is not queried in a tight loop.
                let pause = if began.elapsed() < LOOK_EVERY { LOOK_EVERY } else { PAUSE };
                tokio::time::sleep(pause).await;
            }
            Ok(None) => {
                if !std::mem::replace(&mut is_reported_absent, true) {
                    report_absent(&kind, &mut sink);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(error) => {
                tracing::debug!(kind, error, "discovery of an optional kind failed, retrying");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// A 404 is reliable: a starting API server answers 503 for kinds that it has not loaded.
fn report_absent<K>(kind: &str, sink: &mut impl FnMut(WatchChange<K>)) {
    tracing::info!(kind, "the cluster does not have this kind");
    sink(WatchChange::NotServed);
}

/// Returns whether the API server serves the kind.
///
/// # Errors
/// Discovery failed, for this reason.
pub async fn is_served<K: OptionalKind>(client: &Client) -> Result<bool, String> {
    Ok(served::<K>(client).await?.is_some())
}

/// Returns the preferred version of the kind among those that the server serves.
async fn served<K: OptionalKind>(client: &Client) -> Result<Option<K::DynamicType>, String> {
    #[derive(Deserialize)]
    struct Group {
        versions: Vec<Version>,
    }
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    #[derive(Deserialize)]
    struct Resources {
        resources: Vec<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let folder = format!("/apis/{}", K::group(&K::VERSIONS[0]));
    let group: Group = match read(client, &folder).await? {
        Found::Some(group) => group,
        Found::None => return Ok(None),
        // Without permission for discovery, try the preferred version.
        Found::Forbidden => return Ok(Some(K::VERSIONS[0])),
    };
    for version in K::VERSIONS {
        let name = K::version(version);
        if !group.versions.iter().any(|it| it.version == name) {
            continue;
        }
        if let Found::Some(Resources { resources }) = read(client, &format!("{folder}/{name}")).await?
            && resources.iter().any(|resource| resource.name == K::plural(version))
        {
            return Ok(Some(*version));
        }
    }
    Ok(None)
}

enum Found<T> {
    Some(T),
    None,
    Forbidden,
}

async fn read<T: DeserializeOwned>(client: &Client, path: &str) -> Result<Found<T>, String> {
    let request = request(Method::GET, path).body(Body::empty()).map_err(|error| error.to_string())?;
    let answer: Answer = exchange(client, request).await?;
    match answer.status {
        status if status.is_success() => {
            serde_json::from_slice(&answer.body).map(Found::Some).map_err(|error| error.to_string())
        }
        StatusCode::NOT_FOUND => Ok(Found::None),
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Ok(Found::Forbidden),
        _ => Err(answer.message()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Request, Response};
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::{LeanCoschedulingPodGroup, LeanPodGroup};

    const ROOT: &str = "/apis/scheduling.k8s.io";

    fn group(versions: &[&str]) -> Value {
        let versions: Vec<Value> = versions.iter().map(|version| json!({"version": version})).collect();
        json!({"kind": "APIGroup", "versions": versions})
    }

    fn resources(names: &[&str]) -> Value {
        json!({"resources": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()})
    }

    /// Watches an API server that answers each path with `answer`, for `length`. Returns the requests, the chosen versions and
    /// the changes that the sink received.
    async fn watched<K>(
        length: Duration,
        answer: impl Fn(&str) -> (u16, Value) + Clone + Send + Sync + 'static,
    ) -> (Vec<String>, Vec<String>, Vec<&'static str>)
    where
        K: OptionalKind + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri();
            let (path, is_watch) =
                (uri.path().to_owned(), uri.query().is_some_and(|it| it.contains("watch=true")));
            noted.lock().push(path.clone());
            let answer = answer.clone();
            async move {
                if is_watch {
                    std::future::pending::<()>().await;
                }
                let (status, body) = answer(&path);
                Response::builder().status(status).body(Body::from(body.to_string().into_bytes()))
            }
        });
        let (versions, mut told): (Mutex<Vec<String>>, _) = (Mutex::default(), Vec::new());
        let counters = WatchCounters::default();
        let watch = watch_if_served::<K>(
            Client::new(service, "default"),
            &counters,
            |version| versions.lock().push(K::version(&version).into_owned()),
            |change| {
                told.push(match change {
                    WatchChange::ListBegins => "begin",
                    WatchChange::Apply(_) => "apply",
                    WatchChange::Delete(_) => "delete",
                    WatchChange::ListEnds => "end",
                    WatchChange::NotServed => "not served",
                    WatchChange::Refused => "refused",
                });
            },
        );
        let _ = tokio::time::timeout(length, watch).await;
        let requests = requests.lock().clone();
        (requests, versions.into_inner(), told)
    }

    fn list() -> Value {
        let item = json!({"metadata": {"name": "a", "namespace": "x", "uid": "u", "resourceVersion": "1"}});
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [item]})
    }

    fn not_found() -> (u16, Value) {
        (
            404,
            json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "NotFound", "code": 404}),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_the_kind_is_asked_twice_a_minute_and_there_are_none() {
        let length = Duration::from_secs(595);
        let (requests, versions, told) = watched::<LeanCoschedulingPodGroup>(length, |_| not_found()).await;
        assert_eq!((requests.len(), versions.len()), (20, 0));
        assert_eq!(told, ["not served"]);
        // The group is served, but without this kind.
        let (requests, versions, told) =
            watched::<LeanPodGroup>(
                length,
                |path| {
                    if path == ROOT { (200, group(&["v1"])) } else { not_found() }
                },
            )
            .await;
        assert_eq!((requests.len(), versions.len(), told), (20, 0, vec!["not served"]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_best_version_that_has_the_kind_is_read() {
        let (_, versions, told) = watched::<LeanPodGroup>(Duration::from_secs(5), |path| match path {
            ROOT => (200, group(&["v1", "v1beta1", "v1alpha2"])),
            "/apis/scheduling.k8s.io/v1beta1" => (200, resources(&["workloads"])),
            "/apis/scheduling.k8s.io/v1alpha2" => (200, resources(&["podgroups", "podgroups/status"])),
            _ => (200, list()),
        })
        .await;
        assert_eq!((versions, told), (vec!["v1alpha2".to_owned()], vec!["begin", "apply", "end"]));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_may_not_look_what_there_is_tries_and_believes_the_answer() {
        let forbidden = json!({"kind": "Status", "message": "no", "reason": "Forbidden", "code": 403});
        let (requests, _, told) = watched::<LeanPodGroup>(Duration::from_secs(5), move |path| {
            if path == ROOT { (403, forbidden.clone()) } else { not_found() }
        })
        .await;
        assert_eq!((requests.len(), told), (2, vec!["begin", "not served"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_asked_again_and_nothing_is_told() {
        let (requests, _, told) =
            watched::<LeanPodGroup>(Duration::from_secs(9), |_| (500, json!({"message": "no"}))).await;
        assert_eq!((requests.len(), told.len()), (5, 0));
    }
}
