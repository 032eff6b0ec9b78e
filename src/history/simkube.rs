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
use serde_json::Value;

use super::timeline::Timeline;
use super::{ClusterHistory, HistoryError};
use crate::explain::dump::{Dump, NamedObject};
use crate::fit::{Manifests, TriedWorkload};
use crate::recording::RunTimes;
use berth_scheduler::objects::ObjectKind;
use berth_scheduler::recording::Input;

/// Formats that are read.
const VERSIONS: std::ops::RangeInclusive<u64> = 2..=3;
/// Scheduler name of the pods.
const SCHEDULER: &str = "default-scheduler";
/// Maximum number of pods.
const PODS_MAX: usize = 500_000;
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
        end.checked_sub(start).and_then(|seconds| u64::try_from(seconds).ok())
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
    /// Those that have not been deleted, and when they come, the oldest first.
    pods: VecDeque<(u64, Arc<str>)>,
    count: usize,
    /// When the last of them ends that ends by itself.
    end: u64,
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
    pods: usize,
}

/// Reads a trace. `cluster`: a dump with nodes, and the pods that are there besides. `kinds`: those that the scheduler asks for.
///
/// # Errors
/// It is no trace, of another format, or has no events; the dump is none, or has no nodes.
pub fn from_simkube(
    trace: &[u8],
    cluster: &[u8],
    kinds: BTreeSet<ObjectKind>,
) -> Result<ClusterHistory, HistoryError> {
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
        pods: 0,
    };
    let mut end = 0;
    for event in events {
        let at = u64::try_from(event.ts.saturating_sub(first)).unwrap_or(0);
        end = end.max(at);
        event.deleted_objs.into_iter().for_each(|object| reader.delete(at, object));
        event.applied_objs.into_iter().try_for_each(|object| reader.apply(at, first, object))?;
    }
    let ends = reader.made.values().flat_map(BTreeMap::values).map(|made| made.end);
    let end = ends.max().unwrap_or(0).max(end);
    let Reader { timeline, run_times, notes, .. } = reader;
    let history = timeline.finish("a trace of SimKube".to_owned(), end, kinds, run_times)?;
    Ok(ClusterHistory { notes: notes.into_iter().collect(), ..history })
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
    fn delete(&mut self, at: u64, object: Value) {
        // The numbers of its pods go on, should it come back.
        for made in self.made.get_mut(&owner_of(&object)).into_iter().flat_map(BTreeMap::values_mut) {
            made.workload = None;
            made.end = 0;
            for (comes, uid) in made.pods.drain(..) {
                self.timeline.push(at, Input::PodGone(uid.clone()));
                if comes > at {
                    self.timeline.withdraw(uid);
                }
            }
        }
        // It may have nothing but its name.
        let taken = self.manifests.take(object);
        self.manifests.workloads.clear();
        if taken.is_ok() {
            for NamedObject { kind, name, .. } in self.beside() {
                self.timeline.push(at, Input::ObjectGone(kind, Cow::Owned(name)));
            }
        }
    }

    /// Returns the objects that came last and are no workloads.
    fn beside(&mut self) -> Vec<NamedObject> {
        let mut beside = Dump::default();
        self.manifests.move_objects_to(&mut beside);
        self.notes.extend(beside.bad().iter().map(|bad| format!("skipped, cannot be read: {bad}")));
        beside.into_parts().2
    }

    fn apply(&mut self, at: u64, first: i64, object: Value) -> Result<(), HistoryError> {
        let owner = owner_of(&object);
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if LEFT_OUT.contains(&kind.as_str()) {
            self.notes.insert(format!("pods of {kind}s are left out: trace what they make"));
            return Ok(());
        }
        let spec = &object["spec"];
        let is_suspended = spec["suspend"] == true;
        let completions = spec["completions"].as_u64().and_then(|count| usize::try_from(count).ok());
        if let Err(why) = self.manifests.take(object) {
            self.notes.insert(format!("left out: {why}"));
            return Ok(());
        }
        let unknown = self.manifests.resolve_priorities();
        self.notes
            .extend(unknown.into_iter().map(|class| format!("the priority class {class} is not known")));
        for NamedObject { object, .. } in self.beside() {
            self.timeline.push(at, Input::Object(Cow::Owned(object)));
        }
        for workload in std::mem::take(&mut self.manifests.workloads) {
            let wanted = if is_suspended { 0 } else { workload.replicas.unwrap_or_default() };
            let total = if kind == "Job" { completions.unwrap_or(wanted) } else { wanted };
            let mut made =
                self.made.entry(owner.clone()).or_default().remove(&workload.name).unwrap_or_default();
            self.scale(at, first, &owner, &workload, (wanted, total), &mut made)?;
            let name = workload.name.clone();
            made.workload = Some(workload);
            self.made.entry(owner.clone()).or_default().insert(name, made);
        }
        Ok(())
    }

    /// Lets pods come and go until so many are there at once; of those that end by themselves, a total over time.
    fn scale(
        &mut self,
        at: u64,
        first: i64,
        owner: &Owner,
        workload: &TriedWorkload,
        (wanted, total): (usize, usize),
        made: &mut Made,
    ) -> Result<(), HistoryError> {
        let is_known = made.workload.as_ref().is_some_and(|known| known.has_pods_of(workload));
        let is_made_once = MADE_ONCE.contains(&workload.kind.as_str());
        if is_known && is_made_once && !made.pods.is_empty() {
            return Ok(());
        }
        let keep = if is_known { wanted } else { 0 };
        while made.pods.len() > keep {
            // The youngest goes first, as a ReplicaSet does it.
            let Some((_, uid)) = made.pods.pop_back() else { break };
            self.timeline.push(at, Input::PodGone(uid));
        }
        let lives = self.lives.get(owner).filter(|lives| is_made_once && !lives.is_empty()).cloned();
        let at_once = wanted.saturating_sub(made.pods.len());
        let count = if lives.is_some() { total.max(at_once) } else { at_once };
        self.pods = self.pods.saturating_add(count);
        if self.pods > PODS_MAX {
            return Err(HistoryError::Pods(PODS_MAX));
        }
        // When each place is free; `None`: never again.
        let mut places = vec![Some(at); at_once];
        for number in 0..count {
            let Some(place) = places.get_mut(number % at_once.max(1)) else { break };
            let Some(from) = *place else { continue };
            let life = lives.as_ref().and_then(|lives| lives[made.count % lives.len()].seconds());
            let Some(uid) = self.arrive(from, first, owner, workload, made.count, life) else { break };
            made.pods.push_back((from, uid));
            made.count += 1;
            *place = life.map(|seconds| from.saturating_add(seconds));
            made.end = made.end.max(place.unwrap_or(0));
        }
        Ok(())
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
            let Some(container) = container.as_object_mut() else { continue };
            container.remove("volumeMounts");
            if let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) {
                resources.remove("claims");
            }
        }
    }
}
