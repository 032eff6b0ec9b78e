//! NodePorts: two pods on one node cannot use the same host port.

use crate::inventory::Row;
use berth_model::HostPort;

pub fn conflict(wanted: &[HostPort], row: &Row) -> bool {
    match &row.ports {
        Some(taken) if !wanted.is_empty() => wanted.iter().any(|w| taken.iter().any(|t| t.conflicts(w))),
        _ => false,
    }
}
