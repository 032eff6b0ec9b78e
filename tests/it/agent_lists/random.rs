//! Random nodes and pod specs: few names and small amounts, so that they match often.

use std::sync::Arc;

use berth_model::{
    Amounts, Effect, FieldRequirement, HostPort, Identity, Image, LabelSelector, Node, NodeAffinity,
    NodeSelectorTerm, Operator, Peer, PodAffinity, PodSelector, PodSpec, PodTerm, PreferredTerm, Protocol,
    Requirement, Spread, SpreadConstraint, Taint, Toleration, TolerationOperator, Usage, WeightedPodTerm,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::oracle::CORDON;
use super::{NAMES, name};

fn effect() -> impl Strategy<Value = Effect> {
    select(vec![Effect::NoSchedule, Effect::PreferNoSchedule, Effect::NoExecute])
}

fn taint() -> impl Strategy<Value = Taint> {
    (select(vec!["a", "b"]), select(vec!["", "1"]), effect()).prop_map(|(key, value, effect)| Taint {
        key: key.into(),
        value: value.into(),
        effect,
    })
}

fn extended() -> impl Strategy<Value = Vec<(Arc<str>, i64)>> {
    (0i64..3, 0i64..3).prop_map(|(gpus, disks)| vec![("x.io/gpu".into(), gpus), ("y.io/disk".into(), disks)])
}

fn images() -> impl Strategy<Value = Vec<(&'static str, i64)>> {
    subsequence(vec![("app:1", 400 << 20), ("db:2", 900 << 20), ("web:3", 60 << 20)], 0..=3)
}

pub fn node() -> impl Strategy<Value = Node> {
    let labels = (
        option::of(select(vec!["a", "b", "c"])),
        option::of(select(vec!["ssd", "hdd"])),
        option::of(select(vec!["1", "7", "many"])),
    );
    let allocatable = (
        select(vec![0, 1000, 4000]),
        select(vec![0, 1000, 9000]),
        select(vec![0, 500]),
        select(vec![0, 1, 3, 110]),
    );
    let taints = prop_oneof![2 => Just(vec![]), 1 => vec(taint(), 1..3)];
    (labels, allocatable, taints, extended(), images(), proptest::bool::weighted(0.1)).prop_map(
        |(
            (zone, disk, rank),
            (cpu_milli, memory, ephemeral_storage, pods),
            taints,
            extended,
            images,
            unschedulable,
        )| Node {
            name: "".into(),
            labels: [("zone", zone), ("disk", disk), ("rank", rank)]
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?)))
                .collect(),
            taints: taints.into(),
            unschedulable,
            allocatable: Amounts { cpu_milli, memory, ephemeral_storage, pods },
            extended: extended.into_iter().collect(),
            images: images
                .into_iter()
                .map(|(name, size_bytes)| Image { name: name.into(), size_bytes })
                .collect(),
            ..Node::default()
        },
    )
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Box<[T]> {
    values.sort();
    values.dedup();
    values.into()
}

fn usage() -> impl Strategy<Value = Usage> {
    let ip = option::of(select(vec!["10.0.0.1", "10.0.0.2"]));
    let port = (ip, select(vec![Protocol::Tcp, Protocol::Udp]), 80u16..82)
        .prop_map(|(ip, protocol, port)| HostPort { ip: ip.map(Arc::from), protocol, port });
    let ports = prop_oneof![2 => Just(vec![]), 1 => vec(port, 1..3)];
    let (cpu, memory) = (select(vec![0, 100, 1000]), select(vec![0, 300, 1000]));
    (cpu, memory, select(vec![0, 0, 300]), extended(), ports).prop_map(
        |(cpu_milli, memory, ephemeral_storage, extended, ports)| Usage {
            requests: Amounts { cpu_milli, memory, ephemeral_storage, pods: 1 },
            // Most request none; otherwise few would ever fit.
            extended: extended.into_iter().filter(|_| cpu_milli == 100).collect(),
            nonzero_cpu_milli: cpu_milli.max(100),
            nonzero_memory: memory.max(200),
            ports: sorted(ports),
        },
    )
}

fn toleration() -> impl Strategy<Value = Toleration> {
    let operator = select(vec![TolerationOperator::Equal, TolerationOperator::Exists]);
    let key = select(vec!["", "a", "b", CORDON]);
    (key, operator, select(vec!["", "1"]), option::of(effect())).prop_map(|(key, operator, value, effect)| {
        Toleration { key: key.into(), operator, value: value.into(), effect }
    })
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let values = || {
        subsequence(vec!["a", "b", "ssd", "7"], 0..3)
            .prop_map(|values| sorted(values.into_iter().map(Arc::from).collect()))
    };
    let operator = prop_oneof![
        values().prop_map(Operator::In),
        values().prop_map(Operator::NotIn),
        Just(Operator::Exists),
        Just(Operator::DoesNotExist),
        (0i64..9).prop_map(Operator::Gt),
        (0i64..9).prop_map(Operator::Lt),
    ];
    (select(vec!["zone", "disk", "rank"]), operator)
        .prop_map(|(key, operator)| Requirement { key: key.into(), operator })
}

fn term() -> impl Strategy<Value = NodeSelectorTerm> {
    let field = (0..NAMES, any::<bool>()).prop_map(|(at, is)| match is {
        true => FieldRequirement::NameIs(name(at)),
        false => FieldRequirement::NameIsNot(name(at)),
    });
    let fields = prop_oneof![3 => Just(vec![]), 1 => vec(field, 1..3)];
    (vec(requirement(), 0..3), fields).prop_map(|(expressions, fields)| NodeSelectorTerm {
        expressions: expressions.into(),
        fields: fields.into(),
    })
}

fn labels_of_pods() -> impl Strategy<Value = LabelSelector> {
    let is = |key: &'static str, value: &'static str| Requirement {
        key: key.into(),
        operator: Operator::In([value.into()].into()),
    };
    let absent = Requirement { key: "app".into(), operator: Operator::DoesNotExist };
    select(vec![
        LabelSelector::All([is("app", "web")].into()),
        LabelSelector::All([is("app", "db")].into()),
        LabelSelector::All([is("app", "web"), is("tier", "1")].into()),
        LabelSelector::All([absent].into()),
        LabelSelector::All([].into()),
        LabelSelector::Nothing,
    ])
}

fn pod_selector() -> impl Strategy<Value = PodSelector> {
    let all = LabelSelector::All([].into());
    let namespaces = select(vec![vec!["x"], vec!["y"], vec!["x", "y"], vec![]]);
    (namespaces, select(vec![LabelSelector::Nothing, LabelSelector::Nothing, all]), labels_of_pods())
        .prop_map(|(namespaces, namespace_selector, labels)| PodSelector {
            namespaces: namespaces.into_iter().map(Arc::from).collect(),
            namespace_selector,
            labels,
        })
}

fn topology() -> impl Strategy<Value = Arc<str>> {
    select(vec!["zone", "disk", "host", "nowhere"]).prop_map(Arc::from)
}

fn pod_term() -> impl Strategy<Value = PodTerm> {
    (pod_selector(), topology()).prop_map(|(selector, topology_key)| PodTerm { selector, topology_key })
}

fn pod_affinity() -> impl Strategy<Value = PodAffinity> {
    let few = || prop_oneof![4 => vec(pod_term(), 0..1), 1 => vec(pod_term(), 1..3)];
    let weight = prop_oneof![1i32..=100, -100i32..=-1];
    let preferred = (weight, pod_term()).prop_map(|(weight, term)| WeightedPodTerm { weight, term });
    (few(), few(), vec(preferred, 0..3)).prop_map(|(required, required_anti, preferred)| PodAffinity {
        required: sorted(required),
        required_anti: sorted(required_anti),
        preferred: sorted(preferred),
    })
}

fn spread(me: Identity) -> impl Strategy<Value = Spread> {
    let constraint = (topology(), 1i32..4, 1i32..4, any::<[bool; 3]>(), labels_of_pods()).prop_map(
        move |(topology_key, max_skew, min_domains, [hard, honor_affinity, honor_taints], labels)| {
            let empty = labels == LabelSelector::All([].into());
            let selector = PodSelector {
                namespaces: [me.namespace.clone()].into(),
                // An empty selector counts nothing, as in the conversion from the API.
                labels: if empty { LabelSelector::Nothing } else { labels.clone() },
                ..PodSelector::default()
            };
            SpreadConstraint {
                topology_key,
                max_skew,
                min_domains,
                hard,
                self_match: labels.matches(&me.labels),
                selector,
                honor_affinity,
                honor_taints,
            }
        },
    );
    let constraints = prop_oneof![3 => Just(vec![]), 2 => vec(constraint, 1..4)];
    (constraints, proptest::bool::weighted(0.2))
        .prop_map(|(constraints, defaulted)| Spread { constraints: constraints.into(), defaulted })
}

/// A template of pods: their spec, and their peer data.
pub fn template() -> impl Strategy<Value = (PodSpec, Peer)> {
    let app = option::of(select(vec!["web", "db"]));
    let identity = (select(vec!["x", "y"]), app, option::of(Just("1"))).prop_map(|(namespace, app, tier)| {
        let labels = [("app", app), ("tier", tier)];
        Identity {
            namespace: namespace.into(),
            namespace_labels: [("team", namespace)].into_iter().collect(),
            labels: labels.into_iter().filter_map(|(key, value)| Some((key, value?))).collect(),
        }
    });
    identity.prop_flat_map(|me| {
        let peer = (Just(me.clone()), pod_affinity(), proptest::bool::weighted(0.1));
        (spec(), spread(me), peer).prop_map(|(spec, spread, (identity, affinity, terminating))| {
            let affinity = Arc::new(affinity);
            let spec = PodSpec { spread, pod_affinity: affinity.clone(), ..spec };
            (spec, Peer { identity, terminating, affinity, ..Peer::default() })
        })
    })
}

pub fn spec() -> impl Strategy<Value = PodSpec> {
    let preferred = (1i32..=100, term()).prop_map(|(weight, term)| PreferredTerm { weight, term });
    let node_selector = prop_oneof![3 => Just(None), 1 => select(vec!["a", "b"]).prop_map(Some)];
    let required = prop_oneof![2 => Just(None), 1 => vec(term(), 0..4).prop_map(Some)];
    (usage(), vec(toleration(), 0..3), node_selector, required, vec(preferred, 0..3), images()).prop_map(
        |(usage, tolerations, zone, required, preferred, images)| PodSpec {
            usage: Arc::new(usage),
            tolerations: sorted(tolerations),
            node_selector: zone.into_iter().map(|zone| ("zone", zone)).collect(),
            node_affinity: NodeAffinity {
                required: required.map(Vec::into_boxed_slice),
                preferred: preferred.into(),
                ..NodeAffinity::default()
            },
            images: images.into_iter().map(|(name, _)| Arc::from(name)).collect(),
            containers: 1,
            unsupported: [].into(),
            ..PodSpec::default()
        },
    )
}
