//! Published traces as workloads: Azure's packing trace and Alibaba's openb, plain or compressed with gzip.
//!
//! Streams: a request becomes a few numbers, and what it asks for is shared by all that ask for the same. Input is not trusted:
//! whatever is wrong with a file is told with the line, and nothing of a file is used that is wrong anywhere.

mod azure;
pub mod lines;
mod openb;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};

use super::Workload;
use berth_model::Node;
use table::{Schema, Table};

static ALL: [&Schema; 3] = [&azure::SCHEMA, &openb::PODS, &openb::NODES];

/// How a trace is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Azure's packing trace: a VM a line (vmId, tenantId, cores, ram, vmTypeId, starttime, endtime)
    AzurePacking,
    /// Alibaba's cluster-trace-gpu-v2023: a pod a line (name, cpu_milli, memory_mib, num_gpu, gpu_milli, ...)
    Openb,
}

/// How a trace is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceOptions {
    /// Azure: more than 0 gives each pod one of so many images, by its tenant, so that there are more classes of pods.
    pub widen: u32,
}

/// Why a file cannot be used, for the person who named it. Lines are those of the uncompressed text; the header is line 1.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot open {}", file.display())]
    Open {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}:{line}: cannot read on", file.display())]
    Read {
        file: PathBuf,
        line: u64,
        #[source]
        source: std::io::Error,
    },
    #[error("{}:{line}: {problem}", file.display())]
    Invalid { file: PathBuf, line: u64, problem: String },
}

/// Reads a trace; `None`: its header tells the format.
///
/// # Errors
/// The file cannot be read, or something in it is not as the format has it.
pub fn read(file: &Path, format: Option<Format>, options: TraceOptions) -> Result<Workload, TraceError> {
    let formats: &[&Schema] = match format {
        Some(Format::AzurePacking) => &[&azure::SCHEMA],
        Some(Format::Openb) => &[&openb::PODS],
        None => &[&azure::SCHEMA, &openb::PODS],
    };
    let mut table = Table::open(file, formats)?;
    let mut workload = match table.schema() {
        schema if schema == &azure::SCHEMA => azure::read(&mut table, options)?,
        _ => openb::read(&mut table)?,
    };
    if workload.arrivals.is_empty() {
        return Err(
            table.wrong("no request arrives at time 0 or later: there is nothing to simulate".to_owned())
        );
    }
    // Stable, so that requests that arrive together stay in the order of the file.
    workload.arrivals.sort_by(|a, b| a.arrives_s.total_cmp(&b.arrives_s));
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    workload.source = format!("{name} ({})", table.schema().name);
    Ok(workload)
}

/// Reads a list of nodes (openb: `sn,cpu_milli,memory_mib,gpu,model`), in the order of the file.
///
/// # Errors
/// The file cannot be read, has no nodes, or something in it is not as the format has it.
pub fn read_nodes(file: &Path) -> Result<Vec<Node>, TraceError> {
    openb::read_nodes(&mut Table::open(file, &[&openb::NODES])?)
}
