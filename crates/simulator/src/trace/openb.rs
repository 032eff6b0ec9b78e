//! Alibaba's cluster-trace-gpu-v2023 ("openb"): pods that share GPUs, and the nodes they ran on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::TraceError;
use super::table::{Row, Schema, Table};
use crate::traits::{self, PODS_PER_NODE};
use crate::{ArrivalTrace, Machine, PodArrival};
use berth_model::{Amounts, Extended, Node, PodSpec, Usage};

pub(super) static PODS: Schema = Schema {
    name: "openb",
    columns: &[
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "gpu_spec",
        "qos",
        "pod_phase",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ],
};
const CPU: usize = 1;
const MEMORY: usize = 2;
const GPUS: usize = 3;
const GPU_MILLI: usize = 4;
const GPU_SPEC: usize = 5;
const QOS: usize = 6;
const CREATED: usize = 8;
const DELETED: usize = 9;

pub(super) static NODES: Schema =
    Schema { name: "a list of nodes", columns: &["sn", "cpu_milli", "memory_mib", "gpu", "model"] };
const NODE_NAME: usize = 0;
const NODE_CPU: usize = 1;
const NODE_MEMORY: usize = 2;
const NODE_GPUS: usize = 3;
const NODE_MODEL: usize = 4;

const MIB: f64 = (1u64 << 20) as f64;
/// In thousandths of a GPU.
const GPU_RESOURCE: &str = "nvidia.com/gpu-milli";
const MILLI: i64 = 1000;
pub(super) fn read(table: &mut Table<'_>) -> Result<ArrivalTrace, TraceError> {
    let mut workload = ArrivalTrace { notes: notes(), ..ArrivalTrace::default() };
    let mut known: HashMap<Arc<PodSpec>, u32> = HashMap::new();
    while let Some(row) = table.row()? {
        let spec = Arc::new(spec(&row)?);
        let created = row.time(CREATED)?;
        if created < 0.0 {
            return Err(row.expected(CREATED, "0 or more seconds"));
        }
        let leaves_s = row.end(DELETED, created)?;
        let template = *known.entry(spec).or_insert_with_key(|spec| {
            workload.templates.push(spec.clone());
            workload.templates.len() as u32 - 1
        });
        workload.arrivals.push(PodArrival { template, arrives_s: created, leaves_s });
    }
    workload.machine = machine(&workload.templates);
    Ok(workload)
}

fn spec(row: &Row<'_>) -> Result<PodSpec, TraceError> {
    let requests = amounts(row, CPU, MEMORY, 1)?;
    let gpu_milli = gpus(row, GPUS, row.whole(GPU_MILLI)?)?;
    let usage = Usage {
        requests,
        extended: gpu_resource(gpu_milli),
        nonzero_cpu_milli: requests.cpu_milli,
        nonzero_memory: requests.memory,
        ports: [].into(),
    };
    let mut spec = PodSpec { usage: Arc::new(usage), containers: 1, ..PodSpec::default() };
    let mut models: Vec<&str> = row.text(GPU_SPEC).split('|').filter(|model| !model.is_empty()).collect();
    models.sort_unstable();
    models.dedup();
    if gpu_milli > 0 && !models.is_empty() {
        spec.node_affinity = traits::any_label(models.into_iter().map(traits::gpu_label));
    }
    if !row.text(QOS).is_empty() {
        spec.tolerations = [traits::tolerates_qos(row.text(QOS))].into();
    }
    Ok(spec)
}

pub(super) fn read_nodes(table: &mut Table<'_>) -> Result<Vec<Node>, TraceError> {
    let mut nodes = Vec::new();
    let mut lines: HashMap<Arc<str>, u64> = HashMap::new();
    while let Some(row) = table.row()? {
        let name: Arc<str> = row.text(NODE_NAME).into();
        if name.is_empty() {
            return Err(row.expected(NODE_NAME, "the name of the node"));
        }
        match lines.entry(name.clone()) {
            Entry::Occupied(first) => {
                let first = first.get();
                return Err(row.expected(NODE_NAME, &format!("another name: line {first} has this one")));
            }
            Entry::Vacant(free) => free.insert(row.line()),
        };
        let model = Some(row.text(NODE_MODEL)).filter(|model| !model.is_empty());
        nodes.push(Node {
            name,
            labels: traits::labels(model.map(traits::gpu_label)),
            allocatable: amounts(&row, NODE_CPU, NODE_MEMORY, PODS_PER_NODE)?,
            extended: gpu_resource(gpus(&row, NODE_GPUS, MILLI)?),
            ..Node::default()
        });
    }
    Ok(nodes)
}

fn amounts(row: &Row<'_>, cpu: usize, memory: usize, pods: i64) -> Result<Amounts, TraceError> {
    let (cpu_milli, memory) = (row.amount(cpu, 1.0)?, row.amount(memory, MIB)?);
    Ok(Amounts { cpu_milli, memory, ephemeral_storage: 0, pods })
}

/// Returns the GPUs of a line in thousandths, each counting as `milli`.
fn gpus(row: &Row<'_>, column: usize, milli: i64) -> Result<i64, TraceError> {
    const MOST: i64 = 1_000_000;
    match row.whole(column)?.checked_mul(milli) {
        Some(all) if all <= MOST => Ok(all),
        _ => Err(row.expected(column, "no more than 1000 whole GPUs together")),
    }
}

fn gpu_resource(milli: i64) -> Extended {
    [(Arc::from(GPU_RESOURCE), milli)].into_iter().collect()
}

/// The most common shape of GPU nodes (549 of 1,213): eight G2. It counts as every requested model, so that every pod
/// fits generated nodes.
fn machine(templates: &[Arc<PodSpec>]) -> Machine {
    let allocatable =
        Amounts { cpu_milli: 96_000, memory: 384 << 30, ephemeral_storage: 0, pods: PODS_PER_NODE };
    let terms = templates.iter().flat_map(|spec| spec.node_affinity.required.iter().flatten());
    let labels = traits::labels(terms.flat_map(|term| &term.expressions).map(|asked| asked.key.clone()));
    Machine { node: Node { labels, allocatable, extended: gpu_resource(8 * MILLI), ..Node::default() } }
}

fn notes() -> Vec<String> {
    [
        "Pods of every phase are requests from their creation on: what failed or waited in the source is tried here.",
        "The pods are sparse in time: few are there at once, so more load or fewer nodes say more.",
        "GPUs of a node are one resource in thousandths: that a part of a GPU cannot be spread over two is left out.",
        "Made up: a pod tolerates a taint named after its quality of service, which no node has.",
        "Made up: nodes asked for by number have 96 cores, 384 GiB, room for 500 pods, and eight GPUs that pass for every model.",
    ]
    .map(str::to_owned)
    .to_vec()
}
