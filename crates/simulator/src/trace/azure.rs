//! Azure's packing trace (Protean, OSDI'20) as released by CoSpot (SoCC'22): one VM per line.

use std::collections::HashMap;
use std::sync::Arc;

use super::table::{Schema, Table};
use super::{TraceError, TraceOptions};
use crate::traits::{self, Family, GIB};
use crate::{ArrivalTrace, PodArrival};
use berth_model::{Amounts, PodSpec, Usage};
use berth_scheduler::rules::mix;

pub(super) static SCHEMA: Schema = Schema {
    name: "azure-packing",
    columns: &["vmId", "tenantId", "cores", "ram", "vmTypeId", "starttime", "endtime"],
};
const TENANT: usize = 1;
const CORES: usize = 2;
const RAM: usize = 3;
const PRIORITY: usize = 4;
const START: usize = 5;
const END: usize = 6;

const SECONDS_PER_DAY: f64 = 86_400.0;
/// Cores and RAM use an unpublished scale, assumed here: 100 per core, 4 per GiB.
const CPU_MILLI_PER_CORES: f64 = 10.0;
const BYTES_PER_RAM: f64 = (GIB / 4) as f64;

/// Type of a requested VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Type {
    cpu_milli: i64,
    memory: i64,
    low_priority: bool,
    /// The number of its image, if the trace is widened.
    image: Option<u64>,
}

pub(super) fn read(table: &mut Table<'_>, options: TraceOptions) -> Result<ArrivalTrace, TraceError> {
    let mut workload = ArrivalTrace { machine: traits::vm_machine(), ..ArrivalTrace::default() };
    let mut known: HashMap<Type, u32> = HashMap::new();
    let mut gone = 0u64;
    while let Some(row) = table.row()? {
        let kind = Type {
            cpu_milli: row.amount(CORES, CPU_MILLI_PER_CORES)?,
            memory: row.amount(RAM, BYTES_PER_RAM)?,
            low_priority: match row.whole(PRIORITY)? {
                0 => false,
                1 => true,
                _ => return Err(row.expected(PRIORITY, "the priority: 0 (high) or 1 (low)")),
            },
            image: (options.widen > 0).then(|| hash(row.text(TENANT)) % u64::from(options.widen)),
        };
        let start = row.time(START)?;
        let end = row.end(END, start)?;
        if end <= 0.0 {
            gone += 1;
            continue;
        }
        let template = *known.entry(kind).or_insert_with(|| {
            workload.templates.push(Arc::new(spec(kind)));
            workload.templates.len() as u32 - 1
        });
        let (arrives_s, leaves_s) = (start.max(0.0) * SECONDS_PER_DAY, end * SECONDS_PER_DAY);
        if !arrives_s.is_finite() {
            return Err(row.expected(START, "days that can be counted in seconds"));
        }
        let request = PodArrival { template, arrives_s, leaves_s };
        if start < 0.0 { workload.running.push(request) } else { workload.arrivals.push(request) }
    }
    workload.notes = notes(gone, options);
    Ok(workload)
}

fn spec(kind: Type) -> PodSpec {
    let Type { cpu_milli, memory, .. } = kind;
    let usage = Usage {
        requests: Amounts { cpu_milli, memory, pods: 1, ..Amounts::default() },
        nonzero_cpu_milli: cpu_milli,
        nonzero_memory: memory,
        ..Usage::default()
    };
    PodSpec {
        usage: Arc::new(usage),
        tolerations: kind.low_priority.then(traits::tolerates_low_priority).into_iter().collect(),
        node_affinity: Family::of(cpu_milli, memory).affinity(),
        images: kind.image.map(|number| traits::image("tenant", number)).unwrap_or_default(),
        containers: 1,
        ..PodSpec::default()
    }
}

/// FNV-1a, mixed: the same in every version, for any tenant names.
fn hash(name: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    mix(name.bytes().fold(0xCBF2_9CE4_8422_2325, fold))
}

fn notes(gone: u64, options: TraceOptions) -> Vec<String> {
    let mut notes = vec![
        "Each VM is a pod; a request of several VMs is several pods that arrive together.".to_owned(),
        "The trace's scale is guessed: cores / 100 are cores, ram / 4 is GiB.".to_owned(),
        "Made up: a pod asks for a family of machines (compute, general or memory: less than 3, less than 6, or more GiB a core), \
         which every node belongs to; low priority tolerates a taint that no node has."
            .to_owned(),
        "Made up: nodes asked for by number have 96 cores, 768 GiB and room for 500 pods.".to_owned(),
    ];
    if options.widen > 0 {
        notes.push(format!(
            "Made up: each tenant's pods use one of {} images, which are on no node.",
            options.widen
        ));
    }
    if gone > 0 {
        notes.push(format!("Left out: {gone} VMs that are gone before the clock starts."));
    }
    notes
}
