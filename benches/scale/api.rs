//! The API server's protocol over HTTP, as far as a scheduler uses it: lists in pages, watches with bookmarks and the error 410,
//! bindings, patches of conditions, events, the Lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout_at};

use crate::store::{Bound, Kind, Store};
use crate::workload::{Phase, Pod, write_node};

const BODY_BYTES_MAX: usize = 1 << 20;
/// The API server sends one about every minute; the benchmark is shorter.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(10);
/// The API server also sends one at this time before a watch ends.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
const EVENTS_PER_CHUNK: usize = 100;

type Params = HashMap<String, String>;

/// Serves the store at any free port of the loopback address. Returns the URL.
pub async fn serve(store: Arc<Store>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let app = Router::new().fallback(handle).with_state(store);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}

async fn handle(State(store): State<Arc<Store>>, Query(params): Query<Params>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, BODY_BYTES_MAX).await else {
        return status(StatusCode::BAD_REQUEST, "BadRequest");
    };
    let path: Vec<&str> = parts.uri.path().split('/').filter(|part| !part.is_empty()).collect();
    match (&parts.method, &path[..]) {
        (&Method::GET, ["api", "v1", plural] | ["apis", _, _, plural]) => {
            if params.get("watch").is_some_and(|watch| watch != "false") {
                watch(store, plural, &params)
            } else {
                list(&store, plural, None, &params, &parts.headers)
            }
        }
        (&Method::GET, ["api", "v1", "namespaces", namespace, "pods"]) => {
            list(&store, "pods", Some(namespace), &params, &parts.headers)
        }
        (&Method::GET, ["api", "v1", "namespaces", _, "pods", name]) => match store.pod(name) {
            Some(pod) => json_text(StatusCode::OK, pod),
            None => pod_not_found(name),
        },
        (&Method::POST, ["api", "v1", "namespaces", _, "pods", name, "binding"]) => bind(&store, name, &body),
        (&Method::PATCH, ["api", "v1", "namespaces", _, "pods", name, "status"]) => {
            patch_status(&store, name, &body)
        }
        (&Method::POST, ["apis", "events.k8s.io", _, "namespaces", _, "events"]) => {
            store.events.fetch_add(1, Relaxed);
            (StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        (method, ["apis", "coordination.k8s.io", "v1", "namespaces", _, "leases", ..]) => {
            lease(&store, method, &body)
        }
        _ => status(StatusCode::NOT_FOUND, "NotFound"),
    }
}

fn json_text(code: StatusCode, text: String) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn failure(code: StatusCode, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code.as_u16()})
}

fn status(code: StatusCode, reason: &str) -> Response {
    json_text(code, failure(code, reason).to_string())
}

/// Names the pod, as kube-apiserver does: without a name, the path is not served.
fn pod_not_found(name: &str) -> Response {
    let mut failure = failure(StatusCode::NOT_FOUND, "NotFound");
    failure["details"] = json!({"name": name, "kind": "pods"});
    json_text(StatusCode::NOT_FOUND, failure.to_string())
}

fn bind(store: &Store, name: &str, body: &Bytes) -> Response {
    let binding: Value = serde_json::from_slice(body).unwrap_or_default();
    let uid = binding["metadata"]["uid"].as_str().unwrap_or_default();
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    match store.bind(name, uid, node) {
        Bound::Done => json_text(StatusCode::CREATED, r#"{"kind":"Status","status":"Success"}"#.to_owned()),
        Bound::NotFound => pod_not_found(name),
        Bound::AlreadyAssigned => status(StatusCode::CONFLICT, "Conflict"),
    }
}

fn patch_status(store: &Store, name: &str, body: &Bytes) -> Response {
    let patch: Value = serde_json::from_slice(body).unwrap_or_default();
    match &patch["status"]["conditions"][0] {
        Value::Null => status(StatusCode::OK, "nothing is kept of this patch"),
        condition if store.set_condition(name, condition) => json_text(StatusCode::OK, "{}".to_owned()),
        _ => pod_not_found(name),
    }
}

fn lease(store: &Store, method: &Method, body: &Bytes) -> Response {
    let lease = match *method {
        Method::GET => {
            return store.lease().map_or_else(
                || status(StatusCode::NOT_FOUND, "NotFound"),
                |lease| json_text(StatusCode::OK, lease.to_string()),
            );
        }
        _ => serde_json::from_slice(body).unwrap_or_default(),
    };
    match store.write_lease(lease) {
        Some(lease) => json_text(StatusCode::OK, lease.to_string()),
        None => status(StatusCode::CONFLICT, "Conflict"),
    }
}

fn kind_of(plural: &str) -> Option<Kind> {
    match plural {
        "pods" => Some(Kind::Pods),
        "nodes" => Some(Kind::Nodes),
        "replicasets" => Some(Kind::ReplicaSets),
        _ => None,
    }
}

fn list(
    store: &Store,
    plural: &str,
    namespace: Option<&str>,
    params: &Params,
    headers: &HeaderMap,
) -> Response {
    let limit: u32 = params.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(u32::MAX);
    // `version:index` of the next object.
    let token = params.get("continue").and_then(|token| token.split_once(':'));
    let token = token.and_then(|(version, next)| Some((version.parse().ok()?, next.parse().ok()?)));
    let (of, from): (Option<u32>, u32) = token.map_or((None, 0), |(version, next)| (Some(version), next));
    let mut items = String::new();
    let mut next = None;
    let version = match kind_of(plural) {
        Some(Kind::Pods) => {
            let Some(snapshot) = store.snapshot(of) else { return status(StatusCode::GONE, "Expired") };
            let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
            let partial = accept.is_some_and(|accept| accept.contains("PartialObjectMetadataList"));
            let placed_only =
                params.get("fieldSelector").is_some_and(|fields| fields.contains("spec.nodeName!="));
            let namespace = namespace.map(|name| store.size.namespace_number(name));
            let is_asked = |pod: &Pod| {
                namespace.is_none_or(|at| at.is_some_and(|at| store.size.is_in(pod.workload, at)))
            };
            let mut count = 0;
            for (serial, pod) in (from..).zip(&snapshot.pods[from as usize..]) {
                if pod.phase == Phase::Gone || !is_asked(pod) || placed_only && pod.phase == Phase::Waiting {
                    continue;
                }
                if count == limit {
                    next = Some(serial);
                    break;
                }
                separate(&mut items);
                if partial {
                    store.write_partial_pod(&mut items, serial, pod);
                } else {
                    store.write_pod(&mut items, serial, pod);
                }
                count += 1;
            }
            snapshot.version
        }
        Some(Kind::Nodes) => {
            let until = from.saturating_add(limit).min(store.size.nodes);
            for index in from..until {
                separate(&mut items);
                write_node(&mut items, index, 1);
            }
            next = (until < store.size.nodes).then_some(until);
            of.unwrap_or_else(|| store.version())
        }
        Some(Kind::ReplicaSets) => write_all(&mut items, store.replica_sets(), store),
        None if plural == "namespaces" => write_all(&mut items, store.size.namespace_objects(), store),
        None if plural == "services" => write_all(&mut items, store.size.services(), store),
        None => store.version(),
    };
    let token = next.map(|next| format!(r#","continue":"{version}:{next}""#)).unwrap_or_default();
    let text = format!(
        r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"{token}}},"items":[{items}]}}"#
    );
    store.sent.fetch_add(text.len() as u64, Relaxed);
    json_text(StatusCode::OK, text)
}

fn separate(items: &mut String) {
    if !items.is_empty() {
        items.push(',');
    }
}

fn write_all(items: &mut String, objects: Vec<Value>, store: &Store) -> u32 {
    // Before the objects are read: a change that comes meanwhile is sent again by the watch.
    let version = store.version();
    for object in objects {
        separate(items);
        items.push_str(&object.to_string());
    }
    version
}

/// State of one watch.
struct Follower {
    store: Arc<Store>,
    kind: Option<Kind>,
    plural: String,
    version: u32,
    moved: tokio::sync::watch::Receiver<(u32, u32)>,
    cuts: u32,
    bookmark_at: Instant,
    ends_at: Instant,
    over: bool,
}

fn watch(store: Arc<Store>, plural: &str, params: &Params) -> Response {
    let number = |name: &str| params.get(name).and_then(|value| value.parse::<u32>().ok());
    let moved = store.moved.subscribe();
    let cuts = moved.borrow().1;
    let ends_at = Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(3_600).into());
    let follower = Follower {
        kind: kind_of(plural),
        plural: plural.to_owned(),
        version: number("resourceVersion").unwrap_or(0),
        cuts,
        moved,
        bookmark_at: (Instant::now() + BOOKMARK_INTERVAL).min(ends_at - LAST_BOOKMARK),
        ends_at,
        over: false,
        store,
    };
    let chunks = stream::unfold(follower, |mut follower| async move {
        let text = follower.next().await?;
        follower.store.sent.fetch_add(text.len() as u64, Relaxed);
        Some((Ok::<_, std::convert::Infallible>(text), follower))
    });
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], Body::from_stream(chunks)).into_response()
}

impl Follower {
    /// Returns the next events; `None`: the watch ends.
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.over || self.moved.borrow_and_update().1 != self.cuts || Instant::now() >= self.ends_at {
                return None;
            }
            if let Some(kind) = self.kind {
                match self.store.changes(kind, self.version, EVENTS_PER_CHUNK) {
                    Err(_) => {
                        self.over = true;
                        let gone = failure(StatusCode::GONE, "Expired");
                        return Some(format!("{}\n", json!({"type": "ERROR", "object": gone})));
                    }
                    Ok((entries, _)) if !entries.is_empty() => {
                        let mut text = String::new();
                        for entry in &entries {
                            self.store.write_event(&mut text, entry);
                            self.version = entry.version;
                        }
                        return Some(text);
                    }
                    Ok((_, latest)) => self.version = latest,
                }
            }
            if Instant::now() >= self.bookmark_at {
                self.bookmark_at = Instant::now() + BOOKMARK_INTERVAL;
                return Some(self.bookmark());
            }
            let until = self.bookmark_at.min(self.ends_at);
            // The store outlives its watches.
            let _ = timeout_at(until, self.moved.changed()).await;
        }
    }

    fn bookmark(&mut self) -> String {
        if self.kind.is_none() {
            self.version = self.store.version();
        }
        let (kind, version) = (&self.plural, self.version.to_string());
        let object = json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": version}});
        format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
    }
}
