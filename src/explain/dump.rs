//! Streaming reader of `kubectl get … -o json` output: lists of mixed kinds, several lists in sequence, and single
//! objects.
//!
//! Each object is parsed separately into the lean types of the watches. An invalid object is reported by name and the
//! rest are used. Only the text is held in memory twice.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use kube::Resource;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{ExplainSettings, World};
use berth_kube_io::{
    BadObject, Guarded, Interner, LeanAllocation, LeanAllocationPolicy, LeanCoschedulingPodGroup,
    LeanCsiDriver, LeanCsiNode, LeanCsiStorageCapacity, LeanDeviceClass, LeanNamespace, LeanNode, LeanObject,
    LeanPersistentVolume, LeanPersistentVolumeClaim, LeanPod, LeanPodDisruptionBudget, LeanPodGroup,
    LeanQuota, LeanReplicaSet, LeanReplicationController, LeanResourceClaim, LeanResourceSlice, LeanService,
    LeanStatefulSet, LeanStorageClass, LeanVolumeAttachment, ObjectId,
};
use berth_model::{Node, Pod};
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName};

/// The objects of a dump.
#[derive(Debug, Default)]
pub struct Dump {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    objects: Vec<NamedObject>,
    interner: Interner,
    /// As they are.
    priority_classes: Vec<serde_json::Value>,
    /// Number of objects that scheduling does not use, by kind.
    foreign: BTreeMap<String, usize>,
    /// Objects that cannot be parsed, each with its name and the error.
    bad: Vec<String>,
    /// Invalid parts of nodes, which are ignored.
    problems: Vec<String>,
}

/// An object that is neither a node nor a pod.
#[derive(Debug, Clone)]
pub struct NamedObject {
    pub kind: ObjectKind,
    pub name: ObjectName,
    pub object: ClusterObject,
}

/// Reason why a dump cannot be read at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    #[error("the input is empty: pass the output of `kubectl get nodes,pods,… -A -o json`")]
    Empty,
    #[error("the input is not text: byte {0} is not UTF-8")]
    NotText(usize),
    #[error("the input ends in the middle of an object (line {line}, column {column}): is it cut off?")]
    CutOff { line: usize, column: usize },
    #[error("the input is not JSON (line {line}, column {column}: {problem}): get it with -o json")]
    NotJson { line: usize, column: usize, problem: String },
    #[error("the input is JSON, but no Kubernetes object or list of them (line {line}: {problem})")]
    NoObject { line: usize, problem: String },
}

const MOST_THREADS: usize = 8;
/// Minimum number of objects for another thread; parsing them takes some milliseconds.
const WORTH_A_THREAD: usize = 1000;

impl Dump {
    /// # Errors
    /// The input as a whole is not a dump; see [`DumpError`].
    pub fn read(bytes: &[u8]) -> Result<Dump, DumpError> {
        let text = std::str::from_utf8(bytes).map_err(|error| DumpError::NotText(error.valid_up_to()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim().is_empty() {
            return Err(DumpError::Empty);
        }
        let mut dump = Dump::default();
        let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Document>();
        let mut begin = 0;
        while let Some(document) = documents.next() {
            let document = document.map_err(|error| explained(&error))?;
            let whole = &text[begin..documents.byte_offset()];
            begin = documents.byte_offset();
            let Some(kind) = &document.kind else {
                let line = 1 + text[..begin].matches('\n').count();
                return Err(DumpError::NoObject { line, problem: "an object without a kind".to_owned() });
            };
            match (kind.strip_suffix("List"), document.items) {
                (Some(of), Some(items)) => {
                    let of = Head { api_version: document.api_version, kind: Some(Cow::Borrowed(of)) };
                    dump.take_all(&of, &items);
                }
                // An empty list.
                (Some(_), None) => {}
                (None, _) => dump.take(&Head::default(), whole),
            }
        }
        Ok(dump)
    }

    /// Reads the items of a list; a long list is split among threads.
    fn take_all(&mut self, list: &Head, items: &[&RawValue]) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let parts = std::thread::scope(|scope| {
            let parts = items.chunks(items.len().div_ceil(threads).max(WORTH_A_THREAD)).map(|items| {
                scope.spawn(move || {
                    let mut part = Dump::default();
                    items.iter().for_each(|item| part.take(list, item.get()));
                    part
                })
            });
            let parts: Vec<_> = parts.collect();
            let ended = |part: std::thread::ScopedJoinHandle<_>| part.join();
            parts.into_iter().map(ended).collect::<Vec<std::thread::Result<Dump>>>()
        });
        for part in parts {
            self.append(part.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    }

    fn append(&mut self, part: Dump) {
        self.nodes.extend(part.nodes);
        self.pods.extend(part.pods);
        self.objects.extend(part.objects);
        self.priority_classes.extend(part.priority_classes);
        for (kind, count) in part.foreign {
            *self.foreign.entry(kind).or_default() += count;
        }
        self.bad.extend(part.bad);
        self.problems.extend(part.problems);
    }

    /// Reads one object. `list` supplies its kind if it has none: the items of a `PodList` are pods.
    fn take(&mut self, list: &Head, json: &str) {
        let head = Head::of(json);
        let kind = head.kind.as_ref().or(list.kind.as_ref()).map_or("", |kind| kind);
        let version = head.api_version.as_ref().or(list.api_version.as_ref()).map_or("", |v| v);
        match (version, kind) {
            ("v1", "Pod") => {
                let pod = parse::<LeanPod>(json).map(|mut pod| {
                    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
                    pod
                });
                self.add_pod(pod);
            }
            ("v1", "Node") => self.add_node(parse(json)),
            ("v1", "Namespace") => self.add_object(parse::<LeanNamespace>(json)),
            ("v1", "Service") => self.add_object(parse::<LeanService>(json)),
            ("v1", "ReplicationController") => self.add_object(parse::<LeanReplicationController>(json)),
            ("v1", "PersistentVolume") => self.add_object(parse::<LeanPersistentVolume>(json)),
            ("v1", "PersistentVolumeClaim") => self.add_object(parse::<LeanPersistentVolumeClaim>(json)),
            ("storage.k8s.io/v1", "StorageClass") => self.add_object(parse::<LeanStorageClass>(json)),
            ("storage.k8s.io/v1", "CSINode") => self.add_object(parse::<LeanCsiNode>(json)),
            ("storage.k8s.io/v1", "CSIDriver") => self.add_object(parse::<LeanCsiDriver>(json)),
            ("storage.k8s.io/v1", "CSIStorageCapacity") => {
                self.add_object(parse::<LeanCsiStorageCapacity>(json));
            }
            ("storage.k8s.io/v1", "VolumeAttachment") => self.add_object(parse::<LeanVolumeAttachment>(json)),
            ("resource.k8s.io/v1", "ResourceSlice") => self.add_object(parse::<LeanResourceSlice>(json)),
            ("resource.k8s.io/v1", "DeviceClass") => self.add_object(parse::<LeanDeviceClass>(json)),
            ("resource.k8s.io/v1", "ResourceClaim") => self.add_object(parse::<LeanResourceClaim>(json)),
            ("apps/v1", "ReplicaSet") => self.add_object(parse::<LeanReplicaSet>(json)),
            ("apps/v1", "StatefulSet") => self.add_object(parse::<LeanStatefulSet>(json)),
            ("policy/v1", "PodDisruptionBudget") => {
                self.add_object(parse::<LeanPodDisruptionBudget>(json));
            }
            ("berth.dev/v1alpha1", "Allocation") => self.add_object(parse::<LeanAllocation>(json)),
            ("scheduling.x-k8s.io/v1alpha1", "PodGroup") => {
                self.add_object(parse::<LeanCoschedulingPodGroup>(json));
            }
            (version, "PodGroup") if version.starts_with("scheduling.k8s.io/") => {
                self.add_object(parse::<LeanPodGroup>(json));
            }
            ("berth.dev/v1alpha1", "AllocationPolicy") => {
                self.add_object(parse::<LeanAllocationPolicy>(json));
            }
            ("berth.dev/v1alpha1", "Quota") => self.add_object(parse::<LeanQuota>(json)),
            ("scheduling.k8s.io/v1", "PriorityClass") => {
                self.priority_classes.extend(serde_json::from_str::<serde_json::Value>(json));
            }
            (_, "") => *self.foreign.entry("objects without a kind".to_owned()).or_default() += 1,
            (_, kind) => *self.foreign.entry(kind.to_owned()).or_default() += 1,
        }
    }

    pub fn add_pod(&mut self, pod: Result<LeanPod, BadObject>) {
        let Some(pod) = self.good(pod) else {
            return;
        };
        let mut pod = pod.into_pod(&mut self.interner);
        // Hand-written pods may have no UID, but everything here is keyed by it.
        if pod.uid.is_empty() {
            pod.uid = format!("{}/{}", pod.namespace, pod.name).into();
        }
        self.pods.push(pod);
    }

    pub fn add_node(&mut self, node: Result<LeanNode, BadObject>) {
        let Some(node) = self.good(node) else {
            return;
        };
        let node = node.into_node(&mut self.interner);
        let problems = node.problems.iter().map(|problem| format!("Node {}: {problem}", node.name));
        self.problems.extend(problems);
        self.nodes.push(node);
    }

    pub fn add_object<K: LeanObject + Resource<DynamicType: Default>>(
        &mut self,
        object: Result<K, BadObject>,
    ) {
        if let Some(object) = self.good(object) {
            let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
            let metadata = object.metadata();
            let name = ObjectName { namespace: text(&metadata.namespace), name: text(&metadata.name) };
            let object = object.into_object(&mut self.interner);
            self.objects.push(NamedObject { kind: K::KIND, name, object });
        }
    }

    fn good<K: Resource<DynamicType: Default>>(&mut self, object: Result<K, BadObject>) -> Option<K> {
        let named =
            |bad: BadObject| format!("{} {}: {}", K::kind(&Default::default()), bad.id.shown(), bad.error);
        object.map_err(|bad| self.bad.push(named(bad))).ok()
    }

    /// Reads one object in JSON.
    pub(crate) fn take_object(&mut self, json: &str) {
        self.take(&Head::default(), json);
    }

    pub(crate) fn add_priority_class(&mut self, class: serde_json::Value) {
        self.priority_classes.push(class);
    }

    pub(crate) fn priority_classes(&self) -> &[serde_json::Value] {
        &self.priority_classes
    }

    /// Returns the objects other than nodes and pods, and whether there are any of those.
    pub(crate) fn into_objects(self) -> (Vec<ClusterObject>, bool) {
        let holds_more = !self.nodes.is_empty() || !self.pods.is_empty();
        (self.objects.into_iter().map(|named| named.object).collect(), holds_more)
    }

    /// Returns the objects that cannot be parsed; answers ignore them.
    pub fn bad(&self) -> &[String] {
        &self.bad
    }

    /// Returns other notes about the input, one per line.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.problems.clone();
        if !self.foreign.is_empty() {
            let kinds = self.foreign.iter().map(|(kind, count)| format!("{count} {kind}"));
            let kinds: Vec<_> = kinds.collect();
            notes.push(format!("ignored, as scheduling does not use it: {}", kinds.join(", ")));
        }
        notes
    }

    /// Feeds all objects to a scheduler. Of several versions of one pod, the last is used.
    pub fn into_world(self, settings: ExplainSettings) -> World {
        let (nodes, pods, objects) = self.into_parts();
        World::new(settings, objects.into_iter().map(|named| named.object).collect(), nodes, pods)
    }

    /// Returns nodes, pods and the other objects. Of several versions of one pod, the last is used.
    pub fn into_parts(self) -> (Vec<Node>, Vec<Pod>, Vec<NamedObject>) {
        let Dump { nodes, pods, objects, .. } = self;
        let mut last: HashMap<_, Pod> = HashMap::with_capacity(pods.len());
        for pod in pods {
            last.insert((pod.namespace.clone(), pod.name.clone()), pod);
        }
        (nodes, last.into_values().collect(), objects)
    }
}

fn parse<K: DeserializeOwned + Resource>(json: &str) -> Result<K, BadObject> {
    serde_json::from_str(json).or_else(|error| match serde_json::from_str::<Guarded<K>>(json) {
        Ok(guarded) => guarded.into_result(),
        // It parsed as JSON before.
        Err(_) => Err(BadObject { id: ObjectId::default(), error: error.to_string() }),
    })
}

fn explained(error: &serde_json::Error) -> DumpError {
    let (line, column) = (error.line(), error.column());
    let plain = error.to_string();
    let problem =
        plain.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&plain).to_owned();
    match error.classify() {
        serde_json::error::Category::Eof => DumpError::CutOff { line, column },
        serde_json::error::Category::Data => DumpError::NoObject { line, problem },
        _ => DumpError::NotJson { line, column, problem },
    }
}

/// An object or a list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object such as {\"kind\": \"List\", \"items\": […]}")]
struct Document<'a> {
    #[serde(borrow)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

/// Kind and API version of an object.
#[derive(Default)]
struct Head<'a> {
    api_version: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
}

impl<'a> Head<'a> {
    /// Reads no further than needed: kubectl sorts keys, so these two come first.
    fn of(json: &'a str) -> Self {
        let mut head = Head::default();
        // Parsing fails where reading stops; the whole text is known to be valid JSON.
        let _ = head.deserialize(&mut serde_json::Deserializer::from_str(json));
        head
    }
}

impl<'de> DeserializeSeed<'de> for &mut Head<'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Head<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while self.kind.is_none() || self.api_version.is_none() {
            let Some(Text(key)) = map.next_key()? else {
                break;
            };
            match &*key {
                "kind" => self.kind = Some(map.next_value::<Text>()?.0),
                "apiVersion" => self.api_version = Some(map.next_value::<Text>()?.0),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
