//! Tables of the answers of the production ledger and lease rules, computed once for every question the model can
//! ask.

use std::sync::Arc;
use std::time::Duration;

use berth_kube_io::lease::{self, LeaseConfig, LeaseRecord, Observed};
use berth_model::{Amounts, Identity, Node, PodSpec, Usage};
use berth_scheduler::class::{Class, Classifier};
use berth_scheduler::invariants::within_allocatable;
use berth_scheduler::inventory::{Ledger, NodeId, Row};
use berth_scheduler::rules;
use jiff::Timestamp;

use super::state::{LEASE, NODES, NodeAt, UIDS, Uid};

/// A ledger as a number: each uid is not charged, or charged to a node, assumed or not.
pub type Charges = u8;

const DIGIT: u8 = 1 + 2 * NODES as u8;
const LEDGERS: usize = (DIGIT as usize).pow(UIDS as u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charged {
    pub node: NodeAt,
    pub assumed: bool,
}

pub fn charged(charges: Charges, uid: Uid) -> Option<Charged> {
    let digit = charges / DIGIT.pow(uid.into()) % DIGIT;
    (digit > 0).then(|| Charged { node: (digit - 1) / 2, assumed: (digit - 1) % 2 == 1 })
}

pub fn charge(charges: Charges, uid: Uid, to: Option<Charged>) -> Charges {
    let digit = |to: Option<Charged>| to.map_or(0, |it| 1 + 2 * it.node + u8::from(it.assumed));
    charges - digit(charged(charges, uid)) * DIGIT.pow(uid.into()) + digit(to) * DIGIT.pow(uid.into())
}

#[derive(Debug, Clone, Copy)]
pub enum Entry {
    Bound(Uid, NodeAt),
    Confirm(Uid),
    Discharge(Uid),
}

impl Entry {
    fn all() -> impl Iterator<Item = Entry> {
        let uids = || 0..UIDS as u8;
        let bound = uids().flat_map(|uid| (0..NODES as u8).map(move |node| Entry::Bound(uid, node)));
        bound.chain(uids().map(Entry::Confirm)).chain(uids().map(Entry::Discharge))
    }

    fn index(self) -> usize {
        usize::from(match self {
            Entry::Bound(uid, node) => uid * NODES as u8 + node,
            Entry::Confirm(uid) => (UIDS * NODES) as u8 + uid,
            Entry::Discharge(uid) => (UIDS * NODES + UIDS) as u8 + uid,
        })
    }

    fn make(self, ledger: &mut Ledger) {
        match self {
            Entry::Bound(uid, node) => ledger.bound(&uid_name(uid), &node_name(node), &pod_usage()),
            Entry::Confirm(uid) => ledger.confirm(&uid_name(uid)),
            Entry::Discharge(uid) => {
                ledger.discharge(&uid_name(uid));
            }
        }
    }
}

/// Answers of the production code.
#[derive(Debug)]
pub struct Books {
    /// By ledger, then by entry.
    entries: Vec<Vec<Charges>>,
    /// By ledger, then by uid and node: the ledger after the commit; none is a conflict.
    commits: Vec<[[Option<Charges>; NODES]; UIDS]>,
    /// By ledger and node: its row holds no more than the node has (I2).
    within: Vec<[bool; NODES]>,
    /// By holder of the record (none, this replica, another) and its age: whether this replica may write the lease.
    lease: [[bool; LEASE as usize + 1]; 3],
}

impl Books {
    /// `rooms`: how many pods fit each node.
    pub fn new(rooms: [i64; NODES]) -> Self {
        let class = Classifier::default().classify(
            &Arc::new(PodSpec { usage: pod_usage(), ..PodSpec::default() }),
            &Identity::default(),
            0,
        );
        let all = 0..LEDGERS as u8;
        Books {
            entries: all.clone().map(|charges| entries(rooms, charges)).collect(),
            commits: all.clone().map(|charges| commits(rooms, &class, charges)).collect(),
            within: all.map(|charges| within(rooms, charges)).collect(),
            lease: [None, Some(ME), Some("another")].map(|holder| {
                std::array::from_fn(|age| is_ours_to_write(holder, Duration::from_secs(age as u64)))
            }),
        }
    }

    pub fn enter(&self, charges: Charges, entry: Entry) -> Charges {
        self.entries[usize::from(charges)][entry.index()]
    }

    /// `Ledger::commit` with the rules' answer to "does it still fit".
    pub fn commit(&self, charges: Charges, uid: Uid, node: NodeAt) -> Option<Charges> {
        self.commits[usize::from(charges)][usize::from(uid)][usize::from(node)]
    }

    /// Whether the pods charged to this node fit it.
    pub fn is_within_allocatable(&self, charges: Charges, node: NodeAt) -> bool {
        self.within[usize::from(charges)][usize::from(node)]
    }

    pub fn may_write_lease(&self, holder: WhoseLease, age: u8) -> bool {
        self.lease[holder as usize][usize::from(age)]
    }
}

#[derive(Debug, Clone, Copy)]
pub enum WhoseLease {
    Nobodys,
    Mine,
    Anothers,
}

fn uid_name(uid: Uid) -> Arc<str> {
    ["pod-0", "pod-1", "pod-0-again"][usize::from(uid)].into()
}

pub fn node_name(node: NodeAt) -> Arc<str> {
    ["node-0", "node-1"][usize::from(node)].into()
}

fn pod_usage() -> Arc<Usage> {
    let requests = Amounts { cpu_milli: 1000, pods: 1, ..Amounts::default() };
    Arc::new(Usage { requests, nonzero_cpu_milli: 1000, ..Usage::default() })
}

fn ledger(rooms: [i64; NODES], charges: Charges) -> Ledger {
    let mut ledger = Ledger::default();
    for (node, room) in rooms.into_iter().enumerate() {
        let allocatable = Amounts { cpu_milli: 1000 * room, pods: 110, ..Amounts::default() };
        ledger.apply_node(Node { name: node_name(node as u8), allocatable, ..Node::default() });
    }
    for uid in 0..UIDS as u8 {
        match charged(charges, uid) {
            None => {}
            Some(Charged { node, assumed: false }) => {
                ledger.bound(&uid_name(uid), &node_name(node), &pod_usage());
            }
            Some(Charged { node, assumed: true }) => {
                let id = id_of(&ledger, node);
                ledger.commit(&uid_name(uid), &pod_usage(), id, |_| true).expect("not charged yet");
            }
        }
    }
    ledger
}

fn id_of(ledger: &Ledger, node: NodeAt) -> NodeId {
    ledger.inventory().find(&node_name(node)).expect("a node of the model")
}

fn number_of(ledger: &Ledger) -> Charges {
    (0..UIDS as u8).fold(0, |charges, uid| {
        let at = ledger.charge_of(&uid_name(uid)).map(|it| Charged {
            node: (0..NODES as u8).find(|node| id_of(ledger, *node) == it.node).expect("known"),
            assumed: it.assumed,
        });
        charge(charges, uid, at)
    })
}

fn entries(rooms: [i64; NODES], charges: Charges) -> Vec<Charges> {
    let after = |entry: Entry| {
        let mut ledger = ledger(rooms, charges);
        entry.make(&mut ledger);
        assert!(ledger.consistency_check().is_empty());
        number_of(&ledger)
    };
    let mut all = vec![0; 2 * UIDS + UIDS * NODES];
    Entry::all().for_each(|entry| all[entry.index()] = after(entry));
    all
}

fn commits(rooms: [i64; NODES], class: &Class, charges: Charges) -> [[Option<Charges>; NODES]; UIDS] {
    std::array::from_fn(|uid| {
        std::array::from_fn(|node| {
            let mut ledger = ledger(rooms, charges);
            let (id, seen) = (id_of(&ledger, node as u8), ledger.inventory().revision());
            let fits = |row: &Row| rules::still_admits(class, row, seen);
            ledger.commit(&uid_name(uid as u8), &pod_usage(), id, fits).ok()?;
            // The check of `Scheduler::commit`, which counts and reports a violation.
            within_allocatable(ledger.inventory().row(id), &pod_usage())
                .expect("the ledger never overcommits");
            Some(number_of(&ledger))
        })
    })
}

fn within(rooms: [i64; NODES], charges: Charges) -> [bool; NODES] {
    let ledger = ledger(rooms, charges);
    std::array::from_fn(|node| {
        let row = ledger.inventory().row(id_of(&ledger, node as u8));
        within_allocatable(row, &pod_usage()).is_ok()
    })
}

const ME: &str = "me";

/// A tick is a second here. `evaluate` waits until *more* than the duration has passed: a millisecond more will do.
fn is_ours_to_write(holder: Option<&str>, age: Duration) -> bool {
    let duration = Duration::from_secs(LEASE.into());
    let config = LeaseConfig { duration, ..LeaseConfig::new("default", "berth", ME) };
    let record = LeaseRecord {
        holder: holder.unwrap_or_default().to_owned(),
        duration,
        acquired: None,
        renewed: None,
        transitions: 0,
    };
    let observed = Observed { record, since: Duration::ZERO };
    let now = age + Duration::from_millis(1);
    let step = lease::evaluate(Some(&observed), &config, now, Timestamp::UNIX_EPOCH);
    !matches!(step, lease::LeaseStep::Wait)
}
