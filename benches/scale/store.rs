//! The store: a small state per object, a log of changes for watches, and the JSON of both, written when it is asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::workload::{Phase, Pod, Size, Template, node_index, serial_of, uid_of, write_node};

/// Changes that a log keeps; a watch that begins before them is too old.
const LOG_MAX: usize = 400_000;

/// Kinds that change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Pods,
    Nodes,
    ReplicaSets,
}

#[derive(Debug, Clone, Copy)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone, Copy)]
pub enum Object {
    Pod(u32, Pod),
    Node(u32),
    /// Workload and revision.
    ReplicaSet(u32, u16),
}

/// One change, with the version that it made.
#[derive(Clone, Copy)]
pub struct Entry {
    pub version: u32,
    pub change: Change,
    pub object: Object,
}

#[derive(Default)]
struct Log {
    entries: VecDeque<Entry>,
    /// Version of the last change that is not kept.
    compacted: u32,
}

/// Answer to a bind.
#[derive(Debug, PartialEq, Eq)]
pub enum Bound {
    Done,
    NotFound,
    AlreadyAssigned,
}

/// Consistent state of all pods at one version.
pub struct Snapshot {
    pub version: u32,
    pub pods: Vec<Pod>,
}

struct State {
    version: u32,
    pods: Vec<Pod>,
    logs: [Log; 3],
    /// Latest revision of each workload.
    revisions: Vec<u16>,
    /// Pods of each workload that have a node, oldest first.
    placed: Vec<VecDeque<u32>>,
    /// By version; the lists that are being read.
    snapshots: VecDeque<Arc<Snapshot>>,
    lease: Option<Value>,
    waiting: usize,
    /// Pods that were bound since they were last taken.
    fresh: Vec<u32>,
}

/// Times that the benchmark measures from outside of the subject.
#[derive(Default)]
struct Marks {
    /// Last change of the holder of the Lease.
    elected: Option<Instant>,
    /// First bind after that.
    first_bind: Option<Instant>,
}

/// The store. Shared by the API, the load and the benchmark.
pub struct Store {
    pub size: Size,
    state: Mutex<State>,
    templates: Mutex<HashMap<(u32, u16), Arc<Template>>>,
    /// Conditions that berth has written, by serial.
    conditions: Mutex<HashMap<u32, Arc<str>>>,
    marks: Mutex<Marks>,
    /// Latest version; and how many times watches were cut.
    pub moved: watch::Sender<(u32, u32)>,
    pub binds: AtomicU64,
    pub refused: AtomicU64,
    pub events: AtomicU64,
    /// Bytes of lists and of watches that were sent.
    pub sent: AtomicU64,
}

impl Store {
    /// Creates the nodes, and all pods that have a node from the start.
    pub fn new(size: Size) -> Self {
        let mut placed = vec![VecDeque::new(); size.workloads() as usize];
        let pod = |serial: u32| Pod {
            workload: serial % size.classes,
            revision: 0,
            phase: Phase::Running,
            node: size.first_node(serial),
            version: 1,
        };
        let mut pods = Vec::with_capacity(size.pods as usize * 2);
        pods.extend((0..size.pods).map(pod));
        for (serial, pod) in (0..).zip(&pods) {
            placed[pod.workload as usize].push_back(serial);
        }
        let state = State {
            version: 1,
            pods,
            logs: Default::default(),
            revisions: vec![0; size.workloads() as usize],
            placed,
            snapshots: VecDeque::new(),
            lease: None,
            waiting: 0,
            fresh: Vec::new(),
        };
        Store {
            size,
            state: Mutex::new(state),
            templates: Mutex::default(),
            conditions: Mutex::default(),
            marks: Mutex::default(),
            moved: watch::channel((1, 0)).0,
            binds: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            events: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    pub fn version(&self) -> u32 {
        self.state.lock().version
    }

    /// Returns the number of pods without a node.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Creates pods of a workload in its latest revision.
    pub fn create_pods(&self, workload: u32, count: u32) {
        let mut state = self.state.lock();
        let revision = state.revisions[workload as usize];
        for _ in 0..count {
            let serial = state.pods.len() as u32;
            state.waiting += 1;
            state.pods.push(Pod { workload, revision, phase: Phase::Waiting, node: 0, version: 0 });
            state.change_pod(serial, Change::Added, |_| {});
        }
        self.publish(state.version);
    }

    /// Begins the deletion of the oldest placed pod of a workload, and returns it.
    pub fn delete_oldest(&self, workload: u32) -> Option<u32> {
        let mut state = self.state.lock();
        let serial = state.placed[workload as usize].pop_front()?;
        state.change_pod(serial, Change::Modified, |pod| pod.phase = Phase::Deleting);
        self.publish(state.version);
        Some(serial)
    }

    /// Completes deletions, as kubelets do.
    pub fn finish_deletions(&self, serials: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        for serial in serials {
            state.change_pod(serial, Change::Deleted, |pod| pod.phase = Phase::Gone);
        }
        self.publish(state.version);
    }

    /// Reports bound pods as running, as kubelets do.
    pub fn run_pods(&self, serials: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        for serial in serials {
            if state.pods[serial as usize].phase == Phase::Bound {
                state.change_pod(serial, Change::Modified, |pod| pod.phase = Phase::Running);
            }
        }
        self.publish(state.version);
    }

    /// Returns the pods that were bound since the last call.
    pub fn take_fresh(&self) -> Vec<u32> {
        std::mem::take(&mut self.state.lock().fresh)
    }

    /// Updates the status of nodes, as kubelets do.
    pub fn touch_nodes(&self, indices: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        for index in indices {
            state.record(Kind::Nodes, Change::Modified, Object::Node(index));
        }
        self.publish(state.version);
    }

    /// Begins a rolling update: new pods of the workload have another template.
    pub fn roll(&self, workload: u32) {
        let mut state = self.state.lock();
        state.revisions[workload as usize] += 1;
        let revision = state.revisions[workload as usize];
        state.record(Kind::ReplicaSets, Change::Added, Object::ReplicaSet(workload, revision));
        self.publish(state.version);
    }

    pub fn replica_sets(&self) -> Vec<Value> {
        let revisions = self.state.lock().revisions.clone();
        let set = |(workload, revision)| self.size.replica_set(workload, revision, 1);
        (0..).zip(revisions).map(set).collect()
    }

    /// Drops all changes and ends all watches: each of them has to list again, even if it has seen the last change.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        state.version += 1;
        let version = state.version;
        for log in &mut state.logs {
            log.entries.clear();
            log.compacted = version;
        }
        drop(state);
        self.moved.send_modify(|(_, cuts)| *cuts += 1);
    }

    pub fn bind(&self, name: &str, uid: &str, node: &str) -> Bound {
        let (Some(serial), Some(node)) = (serial_of(name), node_index(node)) else { return Bound::NotFound };
        let mut state = self.state.lock();
        let outcome = match state.pods.get(serial as usize).map(|pod| pod.phase) {
            _ if uid != uid_of(serial) => Bound::AlreadyAssigned,
            None | Some(Phase::Gone) => Bound::NotFound,
            Some(Phase::Waiting) => Bound::Done,
            Some(_) => Bound::AlreadyAssigned,
        };
        if outcome != Bound::Done {
            self.refused.fetch_add(1, Relaxed);
            return outcome;
        }
        let workload = state.pods[serial as usize].workload;
        state.waiting -= 1;
        state.placed[workload as usize].push_back(serial);
        state.fresh.push(serial);
        state.change_pod(serial, Change::Modified, |pod| (pod.phase, pod.node) = (Phase::Bound, node));
        self.publish(state.version);
        drop(state);
        self.binds.fetch_add(1, Relaxed);
        let mut marks = self.marks.lock();
        marks.first_bind = marks.first_bind.or_else(|| Some(Instant::now()));
        outcome
    }

    /// Writes the condition of a pod. Returns whether the pod exists.
    pub fn set_condition(&self, name: &str, condition: &Value) -> bool {
        let Some(serial) = serial_of(name) else { return false };
        let mut state = self.state.lock();
        if state.pods.get(serial as usize).is_none_or(|pod| pod.phase == Phase::Gone) {
            return false;
        }
        self.conditions.lock().insert(serial, condition.to_string().into());
        state.change_pod(serial, Change::Modified, |_| {});
        self.publish(state.version);
        true
    }

    /// Returns the JSON of a named pod.
    pub fn pod(&self, name: &str) -> Option<String> {
        let serial = serial_of(name)?;
        let pod = *self.state.lock().pods.get(serial as usize).filter(|pod| pod.phase != Phase::Gone)?;
        let mut text = String::new();
        self.write_pod(&mut text, serial, &pod);
        Some(text)
    }

    pub fn lease(&self) -> Option<Value> {
        self.state.lock().lease.clone()
    }

    /// Replaces the Lease if this is its current version, and returns it with its new one.
    pub fn write_lease(&self, mut lease: Value) -> Option<Value> {
        let mut state = self.state.lock();
        let version_of = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        let before = state.lease.as_ref().map_or(Value::Null, version_of);
        if before != version_of(&lease) {
            return None;
        }
        state.version += 1;
        lease["metadata"]["resourceVersion"] = state.version.to_string().into();
        let holder_of =
            |lease: &Value| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let holder = holder_of(&lease);
        if !holder.is_empty() && state.lease.as_ref().is_none_or(|before| holder_of(before) != holder) {
            *self.marks.lock() = Marks { elected: Some(Instant::now()), first_bind: None };
        }
        state.lease = Some(lease.clone());
        Some(lease)
    }

    /// Returns when the holder of the Lease changed last, and when it bound its first pod.
    pub fn marks(&self) -> (Option<Instant>, Option<Instant>) {
        let marks = self.marks.lock();
        (marks.elected, marks.first_bind)
    }

    fn publish(&self, version: u32) {
        self.moved.send_modify(|(latest, _)| *latest = version);
    }

    /// Returns the pods at this version, or now.
    pub fn snapshot(&self, version: Option<u32>) -> Option<Arc<Snapshot>> {
        /// Lists in progress: of watches and self-checks of two processes.
        const SNAPSHOTS_MAX: usize = 6;
        let mut state = self.state.lock();
        if let Some(version) = version {
            return state.snapshots.iter().find(|snapshot| snapshot.version == version).cloned();
        }
        let snapshot = Arc::new(Snapshot { version: state.version, pods: state.pods.clone() });
        if state.snapshots.len() == SNAPSHOTS_MAX {
            state.snapshots.pop_front();
        }
        state.snapshots.push_back(snapshot.clone());
        Some(snapshot)
    }

    /// Returns at most `most` changes of a kind after this version, and the latest version.
    ///
    /// # Errors
    /// They are no longer kept.
    pub fn changes(&self, kind: Kind, after: u32, most: usize) -> Result<(Vec<Entry>, u32), TooOld> {
        let state = self.state.lock();
        let log = &state.logs[kind as usize];
        if after < log.compacted {
            return Err(TooOld);
        }
        let from = log.entries.partition_point(|entry| entry.version <= after);
        Ok((log.entries.range(from..).take(most).copied().collect(), state.version))
    }

    fn template(&self, workload: u32, revision: u16) -> Arc<Template> {
        let mut templates = self.templates.lock();
        let new = || Arc::new(self.size.template(workload, revision));
        templates.entry((workload, revision)).or_insert_with(new).clone()
    }

    pub fn write_pod(&self, to: &mut String, serial: u32, pod: &Pod) {
        let condition = match pod.phase {
            Phase::Waiting => self.conditions.lock().get(&serial).cloned(),
            _ => None,
        };
        self.template(pod.workload, pod.revision).write_pod(to, serial, pod, condition.as_deref());
    }

    pub fn write_partial_pod(&self, to: &mut String, serial: u32, pod: &Pod) {
        self.template(pod.workload, pod.revision).write_partial(to, serial, pod);
    }

    /// Appends a watch event.
    pub fn write_event(&self, to: &mut String, entry: &Entry) {
        to.push_str(match entry.change {
            Change::Added => r#"{"type":"ADDED","object":"#,
            Change::Modified => r#"{"type":"MODIFIED","object":"#,
            Change::Deleted => r#"{"type":"DELETED","object":"#,
        });
        match entry.object {
            Object::Pod(serial, pod) => self.write_pod(to, serial, &pod),
            Object::Node(index) => write_node(to, index, entry.version),
            Object::ReplicaSet(workload, revision) => {
                to.push_str(&self.size.replica_set(workload, revision, entry.version).to_string());
            }
        }
        to.push_str("}\n");
    }
}

/// The history of a watch was compacted.
#[derive(Debug)]
pub struct TooOld;

impl State {
    fn change_pod(&mut self, serial: u32, change: Change, update: impl FnOnce(&mut Pod)) {
        let version = self.version + 1;
        let pod = &mut self.pods[serial as usize];
        update(pod);
        pod.version = version;
        let pod = *pod;
        self.record(Kind::Pods, change, Object::Pod(serial, pod));
    }

    fn record(&mut self, kind: Kind, change: Change, object: Object) {
        self.version += 1;
        let log = &mut self.logs[kind as usize];
        if log.entries.len() == LOG_MAX
            && let Some(oldest) = log.entries.pop_front()
        {
            log.compacted = oldest.version;
        }
        log.entries.push_back(Entry { version: self.version, change, object });
    }
}
