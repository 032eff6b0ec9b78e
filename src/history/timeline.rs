//! Puts inputs in the order of their times.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::{ClusterHistory, HistoryError};
use crate::explain::dump::NamedObject;
use crate::recording::RunTimes;
use berth_model::{Node, Pod};
use berth_scheduler::inventory::NodeId;
use berth_scheduler::objects::{ObjectKind, ObjectName};
use berth_scheduler::recording::{Input, RecordingEntry};

/// Shortest time between two ticks of the scheduler, and the largest number of them.
const TICK_S: u64 = 1;
const TICKS_MAX: u64 = 20_000;

/// Inputs with their times, in seconds since the beginning.
#[derive(Debug, Default)]
pub struct Timeline {
    beginning: Vec<Input<'static>>,
    inputs: Vec<(u64, Input<'static>)>,
    /// Pods that do not come after all.
    withdrawn: HashSet<Arc<str>>,
    scheduler_names: BTreeSet<Arc<str>>,
}

impl Timeline {
    /// Begins with this cluster: pods without a node begin to wait.
    pub fn begin(
        &mut self,
        nodes: &[Node],
        pods: &[Pod],
        objects: &[NamedObject],
        kinds: &BTreeSet<ObjectKind>,
    ) {
        let mut names: HashMap<ObjectKind, HashSet<ObjectName>> = HashMap::new();
        for named in objects {
            names.entry(named.kind).or_default().insert(named.name.clone());
            self.beginning.push(Input::Object(Cow::Owned(named.object.clone())));
        }
        for kind in kinds {
            let names = names.remove(kind).unwrap_or_default();
            self.beginning.push(Input::RetainObjects(*kind, Cow::Owned(names)));
        }
        self.beginning.extend(nodes.iter().map(|node| Input::Node(Cow::Owned(node.clone()))));
        let listed = Some(Cow::Owned(nodes.iter().map(|node| node.name.clone()).collect()));
        self.beginning.push(Input::RetainNodes { listed, from: NodeId(0) });
        let (placed, waiting): (Vec<&Pod>, Vec<&Pod>) = pods.iter().partition(|pod| pod.node_name.is_some());
        self.beginning.extend(placed.iter().map(|pod| Input::Pod(Cow::Owned(Pod::clone(pod)))));
        let listed = Some(Cow::Owned(placed.iter().map(|pod| pod.uid.clone()).collect()));
        self.beginning.push(Input::RetainPods { listed, from: NodeId(0) });
        self.beginning.push(Input::FinishPodList);
        self.beginning.push(Input::Term(Some(1)));
        waiting.into_iter().for_each(|pod| self.arrive(0, pod));
    }

    /// A pod comes, without a node.
    pub fn arrive(&mut self, at: u64, pod: &Pod) {
        self.scheduler_names.insert(pod.scheduler_name.clone());
        let pod = Pod {
            node_name: None,
            nominated_node: None,
            started_s: None,
            deleting: false,
            finished: false,
            scheduled: None,
            ..pod.clone()
        };
        self.pod(at, pod);
    }

    pub fn pod(&mut self, at: u64, pod: Pod) {
        self.push(at, Input::Pod(Cow::Owned(pod)));
    }

    /// Of the same second, what is pushed first comes first.
    pub fn push(&mut self, at: u64, input: Input<'static>) {
        self.inputs.push((at, input));
    }

    /// A pod does not come after all.
    pub fn withdraw(&mut self, uid: Arc<str>) {
        self.withdrawn.insert(uid);
    }

    /// Returns what was lived through until `end`.
    ///
    /// # Errors
    /// No node was ever there.
    pub fn finish(
        mut self,
        source: String,
        end: u64,
        kinds: BTreeSet<ObjectKind>,
        run_times: RunTimes,
    ) -> Result<ClusterHistory, HistoryError> {
        let all = || self.beginning.iter().chain(self.inputs.iter().map(|(_, input)| input));
        if !all().any(|input| matches!(input, Input::Node(_))) {
            return Err(HistoryError::NoNodes);
        }
        self.inputs
            .retain(|(_, input)| !matches!(input, Input::Pod(pod) if self.withdrawn.contains(&pod.uid)));
        // Those of the same second stay in their order.
        self.inputs.sort_by_key(|(at, _)| *at);
        let every = TICK_S.max(end.div_ceil(TICKS_MAX));
        let mut ticks = (0..=end).step_by(every as usize).peekable();
        let entry = |at: u64, input| {
            let at = Duration::from_secs(at).as_nanos().try_into().unwrap_or(u64::MAX);
            RecordingEntry { at, input, decisions: Vec::new() }
        };
        let mut entries: Vec<_> = self.beginning.into_iter().map(|input| entry(0, input)).collect();
        for (at, input) in self.inputs {
            while let Some(tick) = ticks.next_if(|tick| *tick < at) {
                entries.push(entry(tick, Input::Tick));
            }
            entries.push(entry(at, input));
        }
        entries.extend(ticks.map(|tick| entry(tick, Input::Tick)));
        Ok(ClusterHistory {
            source,
            entries,
            run_times,
            scheduler_names: self.scheduler_names,
            objects: kinds,
            has_placements: false,
            notes: Vec::new(),
        })
    }
}
