//! Published traces as workloads: Azure's packing trace and Alibaba's openb, plain or gzip.
//!
//! Files are streamed: a request becomes a few numbers, and equal requests share one spec. Input is not trusted:
//! errors name the line, and a file with any error is not used.

mod azure;
pub mod lines;
mod openb;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};

use super::ArrivalTrace;
use berth_model::Node;
use table::{Schema, Table};

static ALL: [&Schema; 3] = [&azure::SCHEMA, &openb::PODS, &openb::NODES];

/// File format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TraceFormat {
    /// Azure's packing trace: a VM per line (vmId, tenantId, cores, ram, vmTypeId, starttime, endtime)
    AzurePacking,
    /// Alibaba's cluster-trace-gpu-v2023: a pod per line (name, cpu_milli, memory_mib, num_gpu, gpu_milli, ...)
    Openb,
}

/// Options for reading a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceOptions {
    /// Azure: number of images, chosen for each pod by its tenant, to create more pod classes; 0 for none.
    pub widen: u32,
}

/// Reason why a file cannot be used, for the user. Line numbers are those of the uncompressed text; the header is
/// line 1.
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

/// Reads a trace; with `None`, the format is detected from the header.
///
/// # Errors
/// The file cannot be read, or violates the format.
pub fn read(
    file: &Path,
    format: Option<TraceFormat>,
    options: TraceOptions,
) -> Result<ArrivalTrace, TraceError> {
    let formats: &[&Schema] = match format {
        Some(TraceFormat::AzurePacking) => &[&azure::SCHEMA],
        Some(TraceFormat::Openb) => &[&openb::PODS],
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
    // Stable, so that simultaneous requests stay in file order.
    workload.arrivals.sort_by(|a, b| a.arrives_s.total_cmp(&b.arrives_s));
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    workload.source = format!("{name} ({})", table.schema().name);
    Ok(workload)
}

/// Reads a list of nodes (openb: `sn,cpu_milli,memory_mib,gpu,model`), in file order.
///
/// # Errors
/// The file cannot be read, has no nodes, or violates the format.
pub fn read_nodes(file: &Path) -> Result<Vec<Node>, TraceError> {
    openb::read_nodes(&mut Table::open(file, &[&openb::NODES])?)
}
