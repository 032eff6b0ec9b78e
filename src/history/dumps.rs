//! A history from dumps in sequence. What happened between two of them has the times of the objects, such as the creation of a pod; what
//! has none, such as a deletion, happens at the time of the later dump.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::timeline::Timeline;
use super::times::{DumpTimes, PodTimes};
use super::{ClusterHistory, HistoryError};
use crate::explain::dump::{Dump, NamedObject};
use crate::recording::RunTimes;
use berth_model::{Node, Pod};
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName};
use berth_scheduler::recording::Input;

/// What is latest in a dump may be gone in the next one, while kubelets report only every five minutes, in seconds.
const QUIET_MAX: i64 = 360;

/// Reads one dump after the other.
#[derive(Debug)]
pub struct DumpHistory {
    kinds: BTreeSet<ObjectKind>,
    timeline: Timeline,
    notes: Vec<String>,
    dumps: usize,
    /// Times of the first and the last dump, in seconds since 1970.
    first: i64,
    last: i64,
    nodes: BTreeMap<Arc<str>, Node>,
    /// Those that have not ended.
    pods: BTreeMap<Arc<str>, Pod>,
    objects: BTreeMap<(ObjectKind, ObjectName), ClusterObject>,
}

impl DumpHistory {
    /// `kinds`: those that the scheduler asks for.
    pub fn new(kinds: BTreeSet<ObjectKind>) -> Self {
        DumpHistory {
            kinds,
            timeline: Timeline::default(),
            notes: Vec::new(),
            dumps: 0,
            first: 0,
            last: 0,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            objects: BTreeMap::new(),
        }
    }

    /// Adds the next dump.
    ///
    /// # Errors
    /// It is none, has no times, or is older than the one before.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), HistoryError> {
        let dump = Dump::read(bytes)?;
        let times = DumpTimes::read(bytes);
        let now = times.latest.ok_or(HistoryError::NoTimes)?;
        if self.dumps > 0 && now + QUIET_MAX < self.last {
            return Err(HistoryError::Older);
        }
        let now = if self.dumps > 0 { now.max(self.last) } else { now };
        self.notes.extend(dump.notes());
        self.notes.extend(dump.bad().iter().map(|bad| format!("skipped, cannot be read: {bad}")));
        let (nodes, mut pods, objects) = dump.into_parts();
        let created = |pod: &Pod| times.pods.get(&pod.uid).and_then(|times| times.created);
        pods.sort_by_cached_key(|pod| (created(pod), pod.namespace.clone(), pod.name.clone()));
        if self.dumps == 0 {
            self.first = now;
            pods.retain(|pod| !pod.finished);
            self.timeline.begin(&nodes, &pods, &objects, &self.kinds);
            self.nodes = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
            self.pods = pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
            self.objects = objects.into_iter().map(|it| ((it.kind, it.name), it.object)).collect();
        } else {
            // What is gone makes room, and what new pods need is there before them.
            let between = Between { from: self.second(self.last), to: self.second(now), first: self.first };
            self.gone(&nodes, &pods, &objects, &times, between);
            self.objects(objects, between);
            self.nodes(nodes, &times, between);
            self.pods(pods, &times, between);
        }
        (self.last, self.dumps) = (now, self.dumps + 1);
        Ok(())
    }

    /// Returns the history.
    ///
    /// # Errors
    /// There are less than two dumps, or no nodes.
    pub fn finish(self) -> Result<ClusterHistory, HistoryError> {
        if self.dumps < 2 {
            return Err(HistoryError::OneDump);
        }
        let end = self.second(self.last);
        let source = format!("{} dumps", self.dumps);
        let history = self.timeline.finish(source, end, self.kinds, RunTimes::default())?;
        let notes = BTreeSet::from_iter(self.notes).into_iter().collect();
        Ok(ClusterHistory { has_placements: true, notes, ..history })
    }

    fn second(&self, time: i64) -> u64 {
        second_since(self.first, time)
    }

    fn gone(
        &mut self,
        nodes: &[Node],
        pods: &[Pod],
        objects: &[NamedObject],
        times: &DumpTimes,
        between: Between,
    ) {
        let listed: HashSet<_> = pods.iter().map(|pod| &pod.uid).collect();
        // A successor comes when its predecessor is gone.
        let successors: HashMap<_, _> =
            pods.iter().map(|pod| ((&pod.namespace, &pod.name), &pod.uid)).collect();
        for (uid, pod) in self.pods.extract_if(.., |uid, _| !listed.contains(uid)) {
            let successor = successors.get(&(&pod.namespace, &pod.name));
            let times = successor.and_then(|successor| times.pods.get(*successor));
            let at = between.second(times.and_then(|times| times.created));
            self.timeline.push(at, Input::PodGone(uid));
        }
        let listed: HashSet<_> = nodes.iter().map(|node| &node.name).collect();
        for (name, _) in self.nodes.extract_if(.., |name, _| !listed.contains(name)) {
            self.timeline.push(between.to, Input::NodeGone(Cow::Owned(name.to_string())));
        }
        let listed: HashSet<_> = objects.iter().map(|named| (named.kind, &named.name)).collect();
        for ((kind, name), _) in
            self.objects.extract_if(.., |(kind, name), _| !listed.contains(&(*kind, name)))
        {
            self.timeline.push(between.to, Input::ObjectGone(kind, Cow::Owned(name)));
        }
    }

    fn objects(&mut self, objects: Vec<NamedObject>, between: Between) {
        for NamedObject { kind, name, object } in objects {
            let key = (kind, name);
            if self.objects.get(&key) != Some(&object) {
                self.timeline.push(between.from, Input::Object(Cow::Owned(object.clone())));
                self.objects.insert(key, object);
            }
        }
    }

    fn nodes(&mut self, nodes: Vec<Node>, times: &DumpTimes, between: Between) {
        for node in nodes {
            let at = match self.nodes.get(&node.name) {
                Some(known) if *known == node => continue,
                Some(_) => between.to,
                None => between.second(times.nodes.get(&node.name).copied()),
            };
            self.timeline.push(at, Input::Node(Cow::Owned(node.clone())));
            self.nodes.insert(node.name.clone(), node);
        }
    }

    fn pods(&mut self, pods: Vec<Pod>, times: &DumpTimes, between: Between) {
        for pod in pods {
            let times = times.pods.get(&pod.uid).copied().unwrap_or_default();
            match self.pods.get(&pod.uid) {
                Some(known) if *known == pod => {}
                Some(known) => {
                    let was_placed = known.node_name.is_some();
                    self.changed(pod, was_placed, times, between);
                }
                // It ended before.
                None if pod.finished && between.is_before(times.ended.max(times.created)) => {}
                None => {
                    let created = between.second(times.created);
                    if !times.is_static {
                        self.timeline.arrive(created, &pod);
                    }
                    self.changed(pod, false, times, Between { from: created, ..between });
                }
            }
        }
    }

    /// A pod that is known got a node, ended, or changed otherwise.
    fn changed(&mut self, pod: Pod, was_placed: bool, times: PodTimes, between: Between) {
        match &pod.node_name {
            None if pod.finished => {
                let ended = between.second(times.ended);
                self.timeline.push(ended, Input::PodGone(pod.uid.clone()));
            }
            None => self.timeline.arrive(between.to, &pod),
            Some(_) => {
                let at = if was_placed { between.to } else { between.second(times.scheduled) };
                if !pod.finished {
                    self.timeline.pod(at, pod.clone());
                } else if was_placed {
                    self.timeline.pod(between.second(times.ended), pod.clone());
                } else {
                    self.timeline.pod(at, Pod { finished: false, deleting: false, ..pod.clone() });
                    self.timeline.pod(between.second(times.ended).max(at), pod.clone());
                }
            }
        }
        match pod.finished {
            true => {
                self.pods.remove(&pod.uid);
            }
            false => {
                self.pods.insert(pod.uid.clone(), pod);
            }
        }
    }
}

/// Returns the seconds from `first` to `time`; none if it is earlier.
fn second_since(first: i64, time: i64) -> u64 {
    u64::try_from(time.saturating_sub(first)).unwrap_or(0)
}

/// The time between two dumps, in seconds since the first.
#[derive(Debug, Clone, Copy)]
struct Between {
    from: u64,
    to: u64,
    /// Time of the first dump, in seconds since 1970.
    first: i64,
}

impl Between {
    /// Returns the second of this time, or that of the nearer dump; without a time that of the later one.
    fn second(self, time: Option<i64>) -> u64 {
        let Some(time) = time else { return self.to };
        second_since(self.first, time).clamp(self.from, self.to)
    }

    /// Whether this time is not after the earlier dump; without a time it may be.
    fn is_before(self, time: Option<i64>) -> bool {
        time.is_none_or(|time| second_since(self.first, time) <= self.from)
    }
}
