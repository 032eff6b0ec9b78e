//! Times in a dump.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Times in seconds since 1970.
#[derive(Debug, Default)]
pub struct DumpTimes {
    /// The latest one: the dump is hardly younger.
    pub latest: Option<i64>,
    /// When nodes were created, by name.
    pub nodes: HashMap<Arc<str>, i64>,
    /// By uid, or `NAMESPACE/NAME` of pods without one.
    pub pods: HashMap<Arc<str>, PodTimes>,
}

/// See [`DumpTimes`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodTimes {
    pub created: Option<i64>,
    /// When it got its node.
    pub scheduled: Option<i64>,
    /// When its last container ended.
    pub ended: Option<i64>,
    /// It is of a kubelet, not of the API server.
    pub is_static: bool,
}

impl DumpTimes {
    /// Reads the times of a dump that could be read; what has none is left out.
    pub fn read(bytes: &[u8]) -> DumpTimes {
        let mut times = DumpTimes::default();
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let documents = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
        documents.map_while(Result::ok).for_each(|document| times.add(document, ""));
        times
    }

    /// `kind`: that of an item without one.
    fn add(&mut self, object: &RawValue, kind: &str) {
        let Ok(object) = serde_json::from_str::<Timed>(object.get()) else { return };
        let kind = object.kind.as_deref().unwrap_or(kind);
        if let Some(of) = kind.strip_suffix("List") {
            let items =
                object.items.and_then(|items| serde_json::from_str::<Vec<&RawValue>>(items.get()).ok());
            return items.into_iter().flatten().for_each(|item| self.add(item, of));
        }
        let Some(metadata) = &object.metadata else { return };
        let created = self.seen(metadata.creation_timestamp.as_deref());
        let status = match (kind, object.status) {
            ("Node" | "Pod", Some(status)) => serde_json::from_str(status.get()).unwrap_or_default(),
            _ => Status::default(),
        };
        let name = metadata.name.as_deref().unwrap_or_default();
        match kind {
            "Node" => {
                for condition in status.conditions.iter().flatten() {
                    self.seen(condition.last_transition_time);
                    self.seen(condition.last_heartbeat_time);
                }
                self.nodes.extend(created.map(|created| (Arc::from(name), created)));
            }
            "Pod" => {
                let uid = match metadata.uid.as_deref() {
                    Some(uid) if !uid.is_empty() => uid.into(),
                    _ => format!("{}/{name}", metadata.namespace.as_deref().unwrap_or("default")).into(),
                };
                let mut times = PodTimes { created, is_static: metadata.is_static(), ..PodTimes::default() };
                for condition in status.conditions.iter().flatten() {
                    let at = self.seen(condition.last_transition_time);
                    if condition.type_ == Some("PodScheduled") && condition.status == Some("True") {
                        times.scheduled = at;
                    }
                }
                self.seen(status.start_time);
                for container in status.container_statuses.iter().flatten() {
                    let Some(state) = &container.state else { continue };
                    self.seen(state.running.as_ref().and_then(|running| running.started_at));
                    let ended = state.terminated.as_ref().and_then(|terminated| terminated.finished_at);
                    times.ended = times.ended.max(self.seen(ended));
                }
                self.pods.insert(uid, times);
            }
            _ => {}
        }
    }

    fn seen(&mut self, time: Option<&str>) -> Option<i64> {
        let time = time?.parse::<Timestamp>().ok()?.as_second();
        self.latest = self.latest.max(Some(time));
        Some(time)
    }
}

/// An object or a list.
#[derive(Deserialize)]
struct Timed<'a> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    items: Option<&'a RawValue>,
    metadata: Option<Metadata<'a>>,
    status: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    creation_timestamp: Option<Cow<'a, str>>,
    owner_references: Option<Vec<Owner<'a>>>,
}

impl Metadata<'_> {
    /// A kubelet is the owner of what it shows of the pods in its files.
    fn is_static(&self) -> bool {
        self.owner_references.iter().flatten().any(|owner| owner.kind == Some("Node"))
    }
}

#[derive(Deserialize)]
struct Owner<'a> {
    kind: Option<&'a str>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(borrow)]
    conditions: Option<Vec<Condition<'a>>>,
    start_time: Option<&'a str>,
    container_statuses: Option<Vec<ContainerStatus<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition<'a> {
    #[serde(rename = "type")]
    type_: Option<&'a str>,
    status: Option<&'a str>,
    last_transition_time: Option<&'a str>,
    last_heartbeat_time: Option<&'a str>,
}

#[derive(Deserialize)]
struct ContainerStatus<'a> {
    #[serde(borrow)]
    state: Option<ContainerState<'a>>,
}

#[derive(Deserialize)]
struct ContainerState<'a> {
    #[serde(borrow)]
    running: Option<Running<'a>>,
    terminated: Option<Terminated<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Running<'a> {
    started_at: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated<'a> {
    finished_at: Option<&'a str>,
}
