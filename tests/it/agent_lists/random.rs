//! Random nodes and pod specs: few names and small amounts, so that they meet.

use std::sync::Arc;

use berth::model::{
    Amounts, Effect, FieldRequirement, HostPort, Image, Node, NodeAffinity, NodeSelectorTerm, Operator,
    PodSpec, PreferredTerm, Protocol, Requirement, Taint, Toleration, TolerationOperator, Usage,
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
            problems: [].into(),
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
            // Most ask for none, else few would ever fit.
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
            },
            images: images.into_iter().map(|(name, _)| Arc::from(name)).collect(),
            containers: 1,
            unsupported: [].into(),
            ..PodSpec::default()
        },
    )
}
