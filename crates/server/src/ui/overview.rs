//! What the page shows, and the events that bring a viewer from one state to the next.
//!
//! May not know: HTTP, tokio. Nodes are sent once, and then only the shares that have changed, as many a second as fit the budget of
//! the stream; the rest waits in line. Each other section is sent when it differs from what was sent last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use crate::fragmentation::{FragmentationPass, Latest};
use berth_model::{Node, NodeSize};
use berth_rightsizing::recommend::{Surplus, WorkloadSurplus};
use berth_scheduler::class::ClassId;
use berth_scheduler::engine::Engine;
use berth_scheduler::gang::{GangStatus, Phase};
use berth_scheduler::inventory::Revision;
use berth_scheduler::scheduler::{NodeOverview, WaitingOverview};
use berth_telemetry::RecommenderMetrics;

/// Version of the events: fields are only added within a version.
const API_VERSION: &str = "ui.berth.dev/v1";
/// Nodes whose shares are sent at once: some 20 bytes each.
const USES_MAX: usize = 1_300;
/// Nodes that one event describes.
const NODES_EACH: usize = 500;
/// Groups of waiting pods, gangs and quotas that are listed.
const GROUPS_MAX: usize = 30;
const GANGS_MAX: usize = 30;
const QUOTAS_MAX: usize = 30;
const ADVICE_MAX: usize = 20;
/// Bytes of a message.
const MESSAGE_MAX: usize = 300;
/// A walk over all waiting pods and gangs takes at most this part of the time.
const WALK_SHARE: u32 = 100;
const ZONE: &str = "topology.kubernetes.io/zone";
/// The labels of node pools, by provider.
const POOLS: [&str; 8] = [
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "alpha.eksctl.io/nodegroup-name",
    "doks.digitalocean.com/node-pool",
    "node.kubernetes.io/instance-type",
];
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// What is shown besides the engine, where it is enabled.
#[derive(Clone, Default)]
pub struct PageSources {
    /// Advice on moves.
    pub advice: Option<Arc<Latest>>,
    pub recommender: Option<Arc<RecommenderMetrics>>,
}

/// The state that viewers see.
#[derive(Default)]
pub(super) struct Overview {
    seen: Revision,
    nodes: BTreeMap<u32, ShownNode>,
    /// Nodes whose shares viewers do not have yet, the longest waiting first, and the same as a set.
    line: VecDeque<u32>,
    in_line: BTreeSet<u32>,
    /// By name of the event, as sent last.
    sections: BTreeMap<&'static str, String>,
    queues: Value,
    /// Time of these, in milliseconds since 1970.
    queue_at: i64,
    /// When all waiting pods and gangs were last visited, and how long that took.
    pub(super) walked: Option<(Instant, Duration)>,
}

struct ShownNode {
    node: Arc<Node>,
    shares: Shares,
}

/// Shares of a node's allocatable resources, in permille.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shares {
    cpu: i64,
    memory: i64,
    pods: i64,
    /// Of the busiest extended resource; -1: the node has none.
    extended: i64,
    /// CPU that is reserved for pods that wait.
    reserved: i64,
}

/// A node as viewers get it.
#[derive(PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeFacts<'a> {
    id: u32,
    name: &'a str,
    zone: &'a str,
    pool: &'a str,
    cpu_milli: i64,
    memory: i64,
    pods: i64,
    cordoned: bool,
    ready: bool,
    extended: BTreeMap<&'a str, i64>,
}

/// Waiting pods of one class and workload in one state.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WaitingGroup {
    namespace: Arc<str>,
    /// KIND NAME of the controller.
    owner: Option<String>,
    /// The oldest pod.
    pod: Arc<str>,
    scheduler: Arc<str>,
    pods: usize,
    state: &'static str,
    priority: i32,
    /// Creation of the oldest pod, in milliseconds since 1970.
    since: i64,
    message: Option<String>,
}

impl Shares {
    fn of(node: &Node, row: &NodeOverview) -> Shares {
        let requested = |name: &str| row.extended.as_ref().map_or(0, |all| all.get(name));
        let extended = node.extended.iter().map(|(name, there)| permille(requested(name), there));
        Shares {
            cpu: permille(row.requested.cpu_milli, node.allocatable.cpu_milli),
            memory: permille(row.requested.memory, node.allocatable.memory),
            pods: permille(row.requested.pods, node.allocatable.pods),
            extended: extended.max().unwrap_or(-1),
            reserved: permille(row.reserved.cpu_milli, node.allocatable.cpu_milli),
        }
    }

    fn write(self, id: u32, out: &mut String) {
        let Shares { cpu, memory, pods, extended, reserved } = self;
        // Writing to a string does not fail.
        let _ = write!(out, "{id},{cpu},{memory},{pods},{extended},{reserved}");
    }
}

impl<'a> NodeFacts<'a> {
    fn of(id: u32, node: &'a Node) -> NodeFacts<'a> {
        let label = |key: &str| node.labels.get(key);
        let tainted = |key: &str| node.taints.iter().any(|taint| &*taint.key == key);
        NodeFacts {
            id,
            name: &node.name,
            zone: label(ZONE).unwrap_or_default(),
            pool: POOLS.iter().find_map(|key| label(key)).unwrap_or_default(),
            cpu_milli: node.allocatable.cpu_milli,
            memory: node.allocatable.memory,
            pods: node.allocatable.pods,
            cordoned: node.unschedulable,
            ready: !tainted(NOT_READY) && !tainted(UNREACHABLE),
            extended: node.extended.iter().map(|(name, amount)| (&**name, amount)).collect(),
        }
    }
}

impl Overview {
    /// Looks at the engine again. Returns the events that viewers need. `now`: milliseconds since 1970.
    pub(super) fn advance(&mut self, engine: &Engine, sources: &PageSources, now: i64) -> String {
        let mut events = String::new();
        self.advance_nodes(engine, &mut events);
        self.advance_walks(engine, now, &mut events);
        let totals = engine.totals();
        self.section("agents", &agents(engine, &totals.dispatched), &mut events);
        self.section("quotas", &quotas(engine), &mut events);
        let surplus = sources.recommender.as_ref().and_then(|recommender| recommender.surplus());
        let surplus = surplus.map_or(Value::Null, |surplus| recommendations(&surplus));
        self.section("recommendations", &surplus, &mut events);
        let pass = sources.advice.as_ref().and_then(|latest| latest.get());
        self.section("fragmentation", &pass.map_or(Value::Null, |pass| fragmentation(&pass)), &mut events);
        let totals = json!({
            "at": now, "leading": totals.leading, "nodes": totals.nodes, "pods": totals.pods, "assumed": totals.assumed,
            "waiting": totals.waiting, "queues": self.queues, "queueAt": self.queue_at, "classes": totals.classes,
            "scheduled": totals.scheduled, "conflicts": totals.conflicts, "preemptions": totals.preemptions,
            "listHits": totals.list_hits, "listMisses": totals.list_misses,
        });
        self.section("totals", &totals, &mut events);
        events
    }

    /// Returns the events for a viewer that has nothing yet.
    pub(super) fn whole(&self) -> String {
        let mut events = String::new();
        event(
            "hello",
            &json!({"apiVersion": API_VERSION, "version": env!("CARGO_PKG_VERSION")}),
            &mut events,
        );
        let facts: Vec<_> = self.nodes.iter().map(|(id, shown)| NodeFacts::of(*id, &shown.node)).collect();
        for nodes in facts.chunks(NODES_EACH) {
            event("nodes", &json!({"nodes": nodes, "gone": []}), &mut events);
        }
        write_uses(self.nodes.iter().map(|(id, shown)| (*id, shown.shares)), &mut events);
        for (name, data) in &self.sections {
            raw_event(name, data, &mut events);
        }
        events
    }

    fn advance_nodes(&mut self, engine: &Engine, events: &mut String) {
        let (mut changed, mut gone) = (BTreeSet::new(), BTreeSet::new());
        let (nodes, line, in_line) = (&mut self.nodes, &mut self.line, &mut self.in_line);
        self.seen = engine.visit_changed_nodes(self.seen, |row| {
            let id = row.id.0;
            let Some(node) = &row.node else {
                if nodes.remove(&id).is_some() {
                    changed.remove(&id);
                    gone.insert(id);
                }
                return;
            };
            let shares = Shares::of(node, &row);
            let before = nodes.insert(id, ShownNode { node: node.clone(), shares });
            // Most changes of nodes, such as of their images, are not shown.
            let is_shown_so = |before: &ShownNode| {
                Arc::ptr_eq(&before.node, node) || NodeFacts::of(id, &before.node) == NodeFacts::of(id, node)
            };
            if !before.as_ref().is_some_and(is_shown_so) {
                gone.remove(&id);
                changed.insert(id);
            }
            if before.is_none_or(|before| before.shares != shares) && in_line.insert(id) {
                line.push_back(id);
            }
        });
        let facts: Vec<_> =
            changed.iter().filter_map(|id| Some(NodeFacts::of(*id, &nodes.get(id)?.node))).collect();
        let gone: Vec<_> = gone.into_iter().collect();
        if !gone.is_empty() {
            event("nodes", &json!({"nodes": [], "gone": gone}), events);
        }
        for nodes in facts.chunks(NODES_EACH) {
            event("nodes", &json!({"nodes": nodes, "gone": []}), events);
        }
        let next: Vec<_> = line.drain(..line.len().min(USES_MAX)).collect();
        for id in &next {
            in_line.remove(id);
        }
        write_uses(next.iter().filter_map(|id| Some((*id, nodes.get(id)?.shares))), events);
    }

    /// Looks at all waiting pods and gangs, unless that would take too large a part of the time.
    fn advance_walks(&mut self, engine: &Engine, now: i64, events: &mut String) {
        let began = Instant::now();
        if self.walked.is_some_and(|(at, took)| began.duration_since(at) < took * WALK_SHARE) {
            return;
        }
        let (queue, queues) = queue(engine);
        self.queues = queues;
        self.section("queue", &queue, events);
        let gangs = gangs(engine);
        self.section("gangs", &gangs, events);
        (self.walked, self.queue_at) = (Some((began, began.elapsed())), now);
    }

    fn section(&mut self, name: &'static str, data: &Value, events: &mut String) {
        let text = data.to_string();
        let sent = self.sections.entry(name).or_default();
        if *sent != text {
            raw_event(name, &text, events);
            *sent = text;
        }
    }
}

/// Returns the groups of waiting pods, the oldest first, and the number of pods by queue.
fn queue(engine: &Engine) -> (Value, Value) {
    type Key = (ClassId, Arc<str>, Option<Arc<str>>, &'static str);
    let mut groups: BTreeMap<Key, (WaitingOverview, usize)> = BTreeMap::new();
    let mut states: BTreeMap<&'static str, usize> = BTreeMap::new();
    engine.visit_waiting(|pod| {
        *states.entry(pod.state).or_default() += 1;
        let owner = pod.owner.as_ref().map(|owner| owner.name.clone());
        let key = (pod.class, pod.namespace.clone(), owner, pod.state);
        match groups.get_mut(&key) {
            Some((oldest, pods)) => {
                *pods += 1;
                if pod.created_s < oldest.created_s {
                    *oldest = pod;
                }
            }
            None => drop(groups.insert(key, (pod, 1))),
        }
    });
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by(|(a, _), (b, _)| {
        (a.created_s, &a.namespace, &a.name).cmp(&(b.created_s, &b.namespace, &b.name))
    });
    let left_out = groups.len().saturating_sub(GROUPS_MAX);
    let listed = groups.into_iter().take(GROUPS_MAX).map(|(oldest, pods)| WaitingGroup {
        owner: oldest.owner.map(|owner| format!("{} {}", owner.kind, owner.name)),
        namespace: oldest.namespace,
        pod: oldest.name,
        scheduler: oldest.scheduler,
        pods,
        state: oldest.state,
        priority: oldest.priority,
        since: oldest.created_s.saturating_mul(1_000),
        message: oldest.message.as_deref().map(cut),
    });
    let listed: Vec<_> = listed.collect();
    let of = |names: &[&str]| names.iter().filter_map(|name| states.get(name)).sum::<usize>();
    let queues = json!({
        "active": of(&["queued", "placing", "yielding", "claiming", "binding"]), "backoff": of(&["backing off"]),
        "unschedulable": of(&["parked", "refused", "grouped"]), "gated": of(&["gated"]), "elsewhere": of(&["elsewhere", "held"]),
        "quota": of(&["over quota"]), "heldBack": of(&["held back"]),
    });
    (json!({"groups": listed, "leftOut": left_out}), queues)
}

/// Returns the allocations, those that are not scheduled first.
fn gangs(engine: &Engine) -> Value {
    let (mut waiting, mut scheduled, mut all) = (Vec::new(), Vec::new(), 0);
    engine.visit_gangs(|status| {
        all += 1;
        let list = if status.phase == Phase::Scheduled { &mut scheduled } else { &mut waiting };
        if list.len() < GANGS_MAX {
            list.push(status);
        }
    });
    let shown = |status: GangStatus| {
        let sum =
            |of: fn(&berth_scheduler::gang::GangRoleStatus) -> u32| status.roles.iter().map(of).sum::<u32>();
        json!({
            "namespace": status.name.namespace, "name": status.name.name, "phase": status.phase.name(),
            "message": cut(&status.message), "help": status.help.as_deref().map(cut), "minimum": sum(|role| role.minimum),
            "members": sum(|role| role.members), "bound": sum(|role| role.bound),
        })
    };
    let listed: Vec<_> = waiting.into_iter().chain(scheduled).take(GANGS_MAX).map(shown).collect();
    let left_out = all - listed.len();
    json!({"gangs": listed, "leftOut": left_out})
}

fn quotas(engine: &Engine) -> Value {
    let quotas = engine.quota_standings(QUOTAS_MAX).into_iter().map(|quota| {
        let resources = quota.standing.iter().map(|usage| {
            let show = |amount: i128| usage.resource.show(amount);
            let limit = usage.maximum.or(usage.guaranteed).filter(|limit| *limit > 0);
            json!({
                "resource": usage.resource.name(), "used": show(usage.used), "borrowed": show(usage.borrowed),
                "guaranteed": usage.guaranteed.map(|amount| show(amount.into())),
                "maximum": usage.maximum.map(|amount| show(amount.into())),
                "permille": limit.map(|limit| permille(i64::try_from(usage.used).unwrap_or(i64::MAX), limit)),
            })
        });
        let resources: Vec<_> = resources.collect();
        json!({"name": quota.name, "waiting": quota.waiting, "reclaimed": quota.reclaimed, "resources": resources})
    });
    json!({"quotas": quotas.collect::<Vec<_>>()})
}

fn agents(engine: &Engine, dispatched: &[u64]) -> Value {
    let agents = engine.cache_stats().into_iter().enumerate().map(|(at, cache)| {
        // Agents that have had no request yet are not counted.
        let dispatched = dispatched.get(at).copied().unwrap_or_default();
        json!({"dispatched": dispatched, "lists": cache.lists, "bytes": cache.bytes, "evictions": cache.evictions})
    });
    json!({"agents": agents.collect::<Vec<_>>()})
}

/// Returns what workloads request beyond their recommendations.
fn recommendations(surplus: &Surplus) -> Value {
    let both = |requested: NodeSize, recommended: NodeSize| json!({"cpuMilli": [requested.cpu, recommended.cpu], "memory": [requested.memory, recommended.memory]});
    let shown = |one: &WorkloadSurplus| {
        json!({
            "namespace": one.workload.namespace, "kind": one.workload.kind, "name": one.workload.name, "pods": one.pods,
            "sizes": both(one.requested, one.recommended),
        })
    };
    let listed: Vec<_> = surplus.largest.iter().map(shown).collect();
    json!({
        "workloads": surplus.workloads, "sizes": both(surplus.requested, surplus.recommended),
        "largest": listed, "leftOut": surplus.over - listed.len(),
    })
}

/// Returns the latest advice on moves.
fn fragmentation(pass: &FragmentationPass) -> Value {
    let entries = pass.report.waiting.iter().take(ADVICE_MAX).map(|entry| {
        json!({
            "kind": entry.kind, "namespace": entry.namespace, "name": entry.name, "pods": entry.pods,
            "makesRoomFor": entry.makes_room_for, "help": entry.help.as_deref().map(cut),
            "why": entry.why.as_deref().map(cut),
        })
    });
    let entries: Vec<_> = entries.collect();
    let left_out = pass.report.left_out + pass.report.waiting.len() - entries.len();
    json!({"seconds": pass.took.as_secs_f64(), "entries": entries, "leftOut": left_out})
}

fn write_uses(nodes: impl Iterator<Item = (u32, Shares)>, events: &mut String) {
    let mut list = String::new();
    for (id, shares) in nodes {
        if !list.is_empty() {
            list.push(',');
        }
        shares.write(id, &mut list);
    }
    if !list.is_empty() {
        raw_event("use", &format!("{{\"of\":[{list}]}}"), events);
    }
}

fn event(name: &str, data: &Value, events: &mut String) {
    raw_event(name, &data.to_string(), events);
}

/// `data` is JSON, which has no line breaks.
fn raw_event(name: &str, data: &str, events: &mut String) {
    let _ = write!(events, "event: {name}\ndata: {data}\n\n");
}

fn permille(part: i64, whole: i64) -> i64 {
    match whole {
        1.. => i64::try_from(i128::from(part) * 1_000 / i128::from(whole)).unwrap_or(i64::MAX),
        _ => 0,
    }
}

/// Returns the text without what is too long.
pub(super) fn cut(text: &str) -> String {
    if text.len() <= MESSAGE_MAX {
        return text.to_owned();
    }
    let end = (0..=MESSAGE_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}
