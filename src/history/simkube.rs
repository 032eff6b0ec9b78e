//! A history from a trace of [SimKube](https://simkube.dev), format 2 or 3, and a dump of the cluster that it should run in: the trace has
//! workloads, no nodes.
//!
//! Pods of a workload come as soon as it is applied, all at once: controllers are not simulated. Where the tracer kept the lives of pods
//! (`trackLifecycle`), the n-th pod runs as long as the n-th one did. Volumes and claims of the pods are left out, as the trace has none.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::timeline::{Timeline, Turn};
use super::{History, HistoryError};
use crate::explain::dump::{Dump, NamedObject};
use crate::fit::{Manifests, TriedWorkload};
use crate::recording::RunTimes;
use berth_scheduler::objects::ObjectKind;
use berth_scheduler::recording::Input;

/// Formats that are read.
const VERSIONS: std::ops::RangeInclusive<u64> = 2..=3;
/// Scheduler name of the pods.
const SCHEDULER: &str = "default-scheduler";
/// Kinds whose pods a controller makes that is not simulated.
const LEFT_OUT: [&str; 2] = ["CronJob", "DaemonSet"];
/// Kinds whose pods are not made again when they have ended.
const MADE_ONCE: [&str; 3] = ["Job", "JobSet", "Pod"];

#[derive(Deserialize)]
struct Head {
    version: u64,
}

#[derive(Deserialize)]
struct Trace {
    config: TracerConfig,
    events: Vec<TraceEvent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TracerConfig {
    tracked_objects: HashMap<String, TrackedObject>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TrackedObject {
    #[serde(default)]
    track_lifecycle: bool,
}

#[derive(Deserialize)]
struct TraceEvent {
    /// Seconds since 1970.
    ts: i64,
    applied_objs: Vec<Value>,
    deleted_objs: Vec<Value>,
}

/// By kind and name of the owner, and hash of the pod's spec.
#[derive(Deserialize)]
struct Lives2 {
    pod_lifecycles: HashMap<(String, String), HashMap<u64, Vec<Life>>>,
}

/// By kind and name of the owner, and the time of its change.
#[derive(Deserialize)]
struct Lives3 {
    index: HashMap<String, HashMap<String, BTreeMap<String, Vec<PodLife>>>>,
}

#[derive(Deserialize)]
struct PodLife {
    lifecycle: Life,
}

#[derive(Clone, Copy, Deserialize)]
enum Life {
    Empty,
    Running(i64),
    Finished(i64, i64),
}

impl Life {
    /// How long the pod ran, if it ended.
    fn seconds(self) -> Option<u64> {
        let Life::Finished(start, end) = self else { return None };
        u64::try_from(end - start).ok()
    }

    fn start(self) -> i64 {
        match self {
            Life::Empty => i64::MAX,
            Life::Running(start) | Life::Finished(start, _) => start,
        }
    }
}

/// Pods of one template.
#[derive(Default)]
struct Made {
    workload: Option<TriedWorkload>,
    /// Those that have not been deleted, the oldest first.
    uids: VecDeque<Arc<str>>,
    count: usize,
}

/// Kind and `NAMESPACE/NAME` of an owner.
type Owner = (String, String);

struct Reader {
    timeline: Timeline,
    manifests: Manifests,
    made: BTreeMap<Owner, BTreeMap<String, Made>>,
    /// Lives of the pods of an owner, in the order in which they came.
    lives: HashMap<Owner, Vec<Life>>,
    run_times: RunTimes,
    notes: BTreeSet<String>,
    end: u64,
}

/// Reads a trace. `cluster`: a dump with nodes, and the pods that are there besides. `kinds`: those that the scheduler asks for.
///
/// # Errors
/// It is no trace, of another format, or has no events; the dump is none, or has no nodes.
pub fn from_simkube(
    trace: &[u8],
    cluster: &[u8],
    kinds: BTreeSet<ObjectKind>,
) -> Result<History, HistoryError> {
    let no_trace = |error: rmp_serde::decode::Error| HistoryError::NoTrace(error.to_string());
    let Head { version } = rmp_serde::from_slice(trace).map_err(no_trace)?;
    if !VERSIONS.contains(&version) {
        return Err(HistoryError::Version(version));
    }
    let Trace { config, mut events } = rmp_serde::from_slice(trace).map_err(no_trace)?;
    let mut lives = match version {
        2 => lives_2(rmp_serde::from_slice(trace).map_err(no_trace)?),
        _ => lives_3(rmp_serde::from_slice(trace).map_err(no_trace)?),
    };
    lives.retain(|(kind, _), _| {
        config.tracked_objects.get(kind).is_some_and(|tracked| tracked.track_lifecycle)
    });
    events.sort_by_key(|event| event.ts);
    let first = events.first().ok_or(HistoryError::NoEvents)?.ts;

    let dump = Dump::read(cluster)?;
    let mut notes: BTreeSet<_> = dump.notes().into_iter().collect();
    notes.extend(dump.bad().iter().map(|bad| format!("skipped, cannot be read: {bad}")));
    let mut manifests = Manifests::default();
    dump.priority_classes().iter().for_each(|class| manifests.priority_class(class));
    let (nodes, mut pods, objects) = dump.into_parts();
    pods.retain(|pod| !pod.finished);
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let mut timeline = Timeline::default();
    timeline.begin(&nodes, &pods, &objects, &kinds);
    let mut reader = Reader {
        timeline,
        manifests,
        made: BTreeMap::new(),
        lives,
        run_times: RunTimes::default(),
        notes,
        end: 0,
    };
    for event in events {
        let at = u64::try_from(event.ts - first).unwrap_or(0);
        reader.end = reader.end.max(at);
        event.deleted_objs.iter().for_each(|object| reader.delete(at, object));
        event.applied_objs.into_iter().for_each(|object| reader.apply(at, first, object));
    }
    let Reader { timeline, run_times, notes, end, .. } = reader;
    let history = timeline.finish("a trace of SimKube".to_owned(), end, kinds, run_times)?;
    Ok(History { notes: notes.into_iter().collect(), ..history })
}

fn lives_2(lives: Lives2) -> HashMap<Owner, Vec<Life>> {
    let in_order = |(owner, by_hash): (Owner, HashMap<u64, Vec<Life>>)| {
        let mut parts: Vec<(u64, Vec<Life>)> = by_hash.into_iter().collect();
        parts.sort_by_key(|(hash, lives)| (lives.first().map_or(i64::MAX, |life| life.start()), *hash));
        (owner, parts.into_iter().flat_map(|(_, lives)| lives).collect())
    };
    lives.pod_lifecycles.into_iter().map(in_order).collect()
}

fn lives_3(lives: Lives3) -> HashMap<Owner, Vec<Life>> {
    let mut found = HashMap::new();
    for (kind, owners) in lives.index {
        for (name, by_time) in owners {
            let mut parts: Vec<(i64, Vec<PodLife>)> =
                by_time.into_iter().map(|(time, lives)| (time.parse().unwrap_or(0), lives)).collect();
            parts.sort_by_key(|(time, _)| *time);
            let lives = parts.into_iter().flat_map(|(_, lives)| lives).map(|pod| pod.lifecycle);
            found.insert((kind.clone(), name), lives.collect());
        }
    }
    found
}

/// Returns who owns the pods of this object.
fn owner_of(object: &Value) -> Owner {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or("default");
    let kind = format!("{}.{}", text(&object["apiVersion"]), text(&object["kind"]));
    (kind, format!("{namespace}/{}", text(&metadata["name"])))
}

impl Reader {
    fn delete(&mut self, at: u64, object: &Value) {
        for made in self.made.remove(&owner_of(object)).into_iter().flat_map(BTreeMap::into_values) {
            made.uids.into_iter().for_each(|uid| self.timeline.push(at, Turn::Gone, Input::PodGone(uid)));
        }
    }

    fn apply(&mut self, at: u64, first: i64, object: Value) {
        let owner = owner_of(&object);
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if LEFT_OUT.contains(&kind.as_str()) {
            self.notes.insert(format!("pods of {kind}s are left out: trace what they make"));
            return;
        }
        let completions =
            object["spec"]["completions"].as_u64().and_then(|count| usize::try_from(count).ok());
        if let Err(why) = self.manifests.take(object) {
            self.notes.insert(format!("left out: {why}"));
            return;
        }
        let unknown = self.manifests.resolve_priorities();
        self.notes
            .extend(unknown.into_iter().map(|class| format!("the priority class {class} is not known")));
        let mut beside = Dump::default();
        self.manifests.move_objects_to(&mut beside);
        for NamedObject { object, .. } in beside.into_parts().2 {
            self.timeline.push(at, Turn::Object, Input::Object(Cow::Owned(object)));
        }
        for workload in std::mem::take(&mut self.manifests.workloads) {
            let total = if kind == "Job" { completions } else { None };
            self.scale(at, first, &owner, workload, total);
        }
    }

    /// Lets pods come and go until the workload has those that it asks for. `total`: number of pods of a Job, over its time.
    fn scale(&mut self, at: u64, first: i64, owner: &Owner, workload: TriedWorkload, total: Option<usize>) {
        let wanted = workload.replicas.unwrap_or_default();
        let of_owner = self.made.entry(owner.clone()).or_default();
        let mut made = of_owner.remove(&workload.name).unwrap_or_default();
        let is_known = made.workload.as_ref().is_some_and(|known| known.has_pods_of(&workload));
        if is_known && MADE_ONCE.contains(&workload.kind.as_str()) {
            of_owner.insert(workload.name.clone(), made);
            return;
        }
        let ends = self.lives.contains_key(owner);
        let keep = if is_known { wanted } else { 0 };
        while made.uids.len() > keep {
            // The youngest goes first, as a ReplicaSet does it.
            let Some(uid) = made.uids.pop_back() else { break };
            self.timeline.push(at, Turn::Gone, Input::PodGone(uid));
        }
        let mut lanes = vec![at; wanted.saturating_sub(made.uids.len())];
        let count = if ends { total.unwrap_or(lanes.len()).max(lanes.len()) } else { lanes.len() };
        for number in 0..count {
            let lanes_len = lanes.len();
            let Some(from) = lanes.get_mut(number % lanes_len.max(1)) else { break };
            let ran_for = self.life(owner, made.count);
            if *from == u64::MAX {
                continue;
            }
            if let Some(uid) = self.arrive(*from, first, owner, &workload, made.count, ran_for) {
                made.uids.push_back(uid);
            }
            made.count += 1;
            *from = ran_for.map_or(u64::MAX, |seconds| from.saturating_add(seconds));
            if *from < u64::MAX {
                self.end = self.end.max(*from);
            }
        }
        made.workload = Some(workload);
        let name = made.workload.as_ref().map(|workload| workload.name.clone()).unwrap_or_default();
        self.made.entry(owner.clone()).or_default().insert(name, made);
    }

    /// Returns how long the pod with this number runs; `None`: until it is deleted.
    fn life(&self, owner: &Owner, number: usize) -> Option<u64> {
        let lives = self.lives.get(owner).filter(|lives| !lives.is_empty())?;
        lives[number % lives.len()].seconds()
    }

    fn arrive(
        &mut self,
        at: u64,
        first: i64,
        owner: &Owner,
        workload: &TriedWorkload,
        number: usize,
        ran_for: Option<u64>,
    ) -> Option<Arc<str>> {
        let (mut pod, _) = workload.pod(number, SCHEDULER);
        pod["metadata"]["uid"] = format!("{}/{}/{}/{number}", owner.0, owner.1, workload.name).into();
        without_claims(&mut pod["spec"]);
        let mut dump = Dump::default();
        dump.take_object(&pod.to_string());
        self.notes.extend(dump.bad().iter().map(|bad| format!("skipped, cannot be read: {bad}")));
        let mut pod = dump.into_parts().1.pop()?;
        pod.created_s = first.saturating_add_unsigned(at);
        self.timeline.arrive(at, &pod);
        if let Some(seconds) = ran_for {
            self.run_times.set(pod.uid.clone(), Duration::from_secs(seconds));
        }
        Some(pod.uid)
    }
}

/// Takes out what asks for objects that are not in the trace.
fn without_claims(spec: &mut Value) {
    let Some(fields) = spec.as_object_mut() else { return };
    fields.remove("nodeName");
    fields.remove("resourceClaims");
    if let Some(volumes) = fields.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| volume["persistentVolumeClaim"].is_null() && volume["ephemeral"].is_null());
    }
    for list in ["containers", "initContainers"] {
        for container in fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) {
                resources.remove("claims");
            }
            container["volumeMounts"] = json!([]);
        }
    }
}
