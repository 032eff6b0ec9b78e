//! Evaluates nodes for pods of other schedulers, from ranked lists of its own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::names::Names;
use super::places::Places;
use super::wire::{self, CandidateNodes, FilterResult, NodeList, PreemptionArgs, VictimsByNode};
use berth_model::Pod;
use berth_scheduler::agent::{Agent, AgentConfig};
use berth_scheduler::class::Class;
use berth_scheduler::decisions::PlacementDecision;
use berth_scheduler::engine::{Engine, Evaluation, EvaluationError, NodeNames};
use berth_scheduler::rules::{Reasons, Standing};
use berth_scheduler::scheduler::Verdict;

/// An agent that evaluates given nodes instead of choosing one.
pub struct Judge {
    engine: Engine,
    inner: Mutex<Inner>,
}

struct Inner {
    agent: Agent,
    names: Names,
    /// The value of the inventory's [`named`](berth_scheduler::inventory::Inventory::named) that `names` was built at.
    named: Option<u64>,
}

/// The standing of each node of a request, in request order; `None`: berth does not know the node.
struct Judged {
    class: Arc<Class>,
    standings: Vec<Option<Result<Standing, Reasons>>>,
}

/// A node that kube-scheduler knows and berth does not know (yet).
const UNKNOWN_NODE: &str = "node(s) were not known to berth yet";

const UNKNOWN_NODES: &str = "berth does not know these nodes yet; retry";
const ROOM_IN_DOUBT: &str = "the room is reserved by binds in flight; retry";

impl Judge {
    pub fn new(engine: Engine, config: AgentConfig) -> Self {
        let inner = Inner { agent: Agent::new(config), names: Names::default(), named: None };
        Judge { engine, inner: Mutex::new(inner) }
    }

    /// Returns which of the nodes are feasible for the pod, and why the rest are not.
    pub fn filter<'a>(&self, pod: &Pod, nodes: &'a CandidateNodes) -> FilterOutcome<'a> {
        FilterOutcome { nodes, judged: self.judge(pod, nodes).map_err(|error| error.to_string()) }
    }

    /// Scores the nodes for the pod: 10 for the best one, the rest by rank. Returns JSON.
    pub fn prioritize(&self, pod: &Pod, nodes: &CandidateNodes) -> Result<Vec<u8>, EvaluationError> {
        let judged = self.judge(pod, nodes)?;
        let valid = judged.standings.iter().filter_map(|standing| standing.as_ref()?.as_ref().ok().copied());
        let places = Places::new(valid.collect());
        let score = |standing: &Option<Result<Standing, Reasons>>| match standing {
            Some(Ok(standing)) => places.score(*standing),
            _ => 0,
        };
        Ok(wire::priorities(nodes.names().zip(judged.standings.iter().map(score))))
    }

    /// Returns the nodes that would be feasible for the pod without their victims.
    pub fn preempt(&self, args: PreemptionArgs) -> Result<BTreeMap<String, VictimsByNode>, EvaluationError> {
        let PreemptionArgs { pod, mut victims } = args;
        let uids = victims.values().map(|of| of.pods.iter().map(|victim| victim.uid.as_str()).collect());
        let candidates: Vec<_> = victims.keys().map(String::as_str).zip(uids).collect();
        let mut admitted = self.engine.admits_without(&pod, &candidates)?.into_iter();
        victims.retain(|_, _| admitted.next() == Some(true));
        Ok(victims)
    }

    /// Returns the latest remembered decision about a pod of this name, and how long ago it was.
    pub fn why(&self, namespace: &str, name: &str) -> Option<(PlacementDecision, Duration)> {
        self.engine.why(namespace, name)
    }

    /// Returns the pod, its queue and the verdict on all nodes; `None` if berth does not know the pod.
    pub fn explain(&self, namespace: &str, name: &str) -> Option<(Pod, &'static str, Verdict)> {
        self.engine.explain(&mut self.inner.lock().agent, namespace, name)
    }

    fn judge(&self, pod: &Pod, nodes: &CandidateNodes) -> Result<Judged, EvaluationError> {
        let mut inner = self.inner.lock();
        let Inner { agent, names, named } = &mut *inner;
        let Evaluation { class, nominated, now, names: renamed } =
            self.engine.begin_evaluation(agent, pod, *named)?;
        if let Some(NodeNames { version, by_id }) = renamed {
            (*names, *named) = (Names::new(by_id), Some(version));
        }
        agent.choose(&class, now, |_| {});
        agent.cache_changes();
        let found = names.find(nodes.names());
        let mut standings = agent.standings_of(class.id, found.iter().copied());
        if let Some((node, standing)) = nominated
            && let Some(at) = found.iter().position(|id| *id == Some(node))
        {
            standings[at] = Some(standing);
        }
        Ok(Judged { class, standings })
    }
}

/// Result of `filter`, from which the response is encoded.
pub struct FilterOutcome<'a> {
    nodes: &'a CandidateNodes<'a>,
    judged: Result<Judged, String>,
}

impl FilterOutcome<'_> {
    fn any(&self, test: fn(&Option<Result<Standing, Reasons>>) -> bool) -> bool {
        self.judged.as_ref().is_ok_and(|judged| judged.standings.iter().any(test))
    }

    /// Whether no node is feasible but one may be soon: for the caller some are feasible, so the watch event that frees the room may
    /// be on its way.
    pub fn may_change(&self) -> bool {
        !self.any(|standing| matches!(standing, Some(Ok(_))))
            && self.any(|standing| matches!(standing, Some(Err(why)) if why.resolvable_by_eviction()))
    }

    /// The final response. After "no feasible node", kube-scheduler retries only when an event that it observes may help, which can
    /// be minutes later in a quiet cluster; so a refusal that can pass without such an event is returned as an error, which it retries.
    pub fn last_word(mut self, judge: &Judge) -> Self {
        if self.any(|standing| matches!(standing, Some(Ok(_)))) {
            return self;
        }
        if self.any(Option::is_none) {
            self.judged = Err(UNKNOWN_NODES.to_owned());
        } else if self.may_change() && !judge.engine.binds_under_way().are_settled() {
            self.judged = Err(ROOM_IN_DOUBT.to_owned());
        }
        self
    }

    /// Encodes the response as JSON.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let judged = match &self.judged {
            Ok(judged) => judged,
            Err(why) => {
                return serde_json::to_vec(&FilterResult { error: why.clone(), ..FilterResult::default() });
            }
        };
        let mut texts: BTreeMap<Reasons, String> = BTreeMap::new();
        for standing in judged.standings.iter().flatten() {
            if let Err(reasons) = standing {
                texts.entry(*reasons).or_insert_with(|| reasons.texts(&judged.class).join(", "));
            }
        }
        let mut result = FilterResult::default();
        for (name, standing) in self.nodes.names().zip(&judged.standings) {
            match standing {
                Some(Ok(_)) => {}
                None => {
                    result.failed_nodes.insert(name, UNKNOWN_NODE);
                }
                Some(Err(reasons)) if reasons.resolvable_by_eviction() => {
                    result.failed_nodes.insert(name, &texts[reasons]);
                }
                Some(Err(reasons)) => {
                    result.failed_and_unresolvable_nodes.insert(name, &texts[reasons]);
                }
            }
        }
        let valid = |at: usize| matches!(judged.standings[at], Some(Ok(_)));
        match self.nodes {
            CandidateNodes::Names(names) => {
                let passed = names.iter().enumerate().filter(|(at, _)| valid(*at));
                result.node_names = Some(passed.map(|(_, name): (_, &Cow<str>)| &**name).collect());
            }
            CandidateNodes::Objects(objects) => {
                let passed = objects.iter().enumerate().filter(|(at, _)| valid(*at));
                let items = passed.map(|(_, (_, node))| *node).collect();
                result.nodes = Some(NodeList { metadata: BTreeMap::new(), items });
            }
        }
        serde_json::to_vec(&result)
    }

    /// Numbers of feasible and infeasible nodes; `None` after an error.
    pub fn counts(&self) -> Option<(usize, usize)> {
        let judged = self.judged.as_ref().ok()?;
        let passed = judged.standings.iter().filter(|standing| matches!(standing, Some(Ok(_)))).count();
        Some((passed, judged.standings.len() - passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Amounts, Node, PodSpec, Usage};
    use berth_scheduler::testing::with_engine;
    use std::collections::HashSet;

    fn pod(uid: &str, node: Option<&str>) -> Pod {
        let requests = Amounts { cpu_milli: 600, pods: 1, ..Amounts::default() };
        let usage = Arc::new(Usage { requests, ..Usage::default() });
        let spec = Ok(Arc::new(PodSpec { usage: usage.clone(), ..PodSpec::default() }));
        Pod { uid: uid.into(), node_name: node.map(Arc::from), usage, spec, ..Pod::default() }
    }

    #[test]
    fn a_node_that_is_full_in_our_view_may_be_free_soon_and_an_unknown_one_is_no_last_word() {
        with_engine(|engine, agent| {
            let allocatable = Amounts { cpu_milli: 1_000, pods: 110, ..Amounts::default() };
            engine.apply_node(Node { name: "n".into(), allocatable, ..Node::default() });
            engine.retain_nodes(&HashSet::from(["n".into()]));
            engine.apply_pod(pod("there", Some("n")));
            engine.retain_pods(&HashSet::from(["there".into()]));
            let judge = Judge::new(engine.clone(), agent);
            let asks = pod("asks", None);
            let (nodes, unknown) =
                (CandidateNodes::Names(vec!["n".into()]), CandidateNodes::Names(vec!["new".into()]));
            let full = judge.filter(&asks, &nodes);
            assert!(full.may_change());
            assert_eq!(full.last_word(&judge).counts(), Some((0, 1)));
            let new = judge.filter(&asks, &unknown);
            assert!(!new.may_change());
            assert_eq!(new.last_word(&judge).counts(), None);
            engine.delete_pod(&Arc::from("there"));
            let free = judge.filter(&asks, &nodes);
            assert!(!free.may_change());
            assert_eq!(free.last_word(&judge).counts(), Some((1, 0)));
        });
    }
}
