//! Output of a plan as a table.

use std::io::{self, Write};

use super::{DELETION_COST, DeletionCost, DrainPlan, EmptiedNode, KeptNodes};
use crate::explain::show::{counted, some, wrapped};

/// Nodes named with one reason.
const SHOWN_NODES: usize = 3;

/// Writes the nodes in their order, each with its moves.
///
/// # Errors
/// Writing to `out` fails.
pub fn table(plan: &DrainPlan, width: usize, out: &mut impl Write) -> io::Result<()> {
    let width = width.max(60);
    let DrainPlan { nodes, moves, freed_cpu_milli, freed_memory_bytes, .. } = plan;
    if nodes.is_empty() {
        writeln!(out, "no node can be emptied")?;
    } else {
        let cpu = *freed_cpu_milli as f64 / 1000.0;
        let memory = *freed_memory_bytes as f64 / f64::from(1 << 30);
        let order = if nodes.len() > 1 { " in this order, once all of them are cordoned" } else { "" };
        let (nodes, moves) = (counted(nodes.len(), "node"), counted(*moves, "move"));
        let text =
            format!("{nodes} can be emptied{order}: {moves}, which frees {cpu:.1} CPUs and {memory:.1} GiB");
        wrapped(out, "", &text, width)?;
    }
    nodes.iter().try_for_each(|node| emptied(node, width, out))?;
    plan.kept.iter().try_for_each(|kept| reason(kept, width, out))
}

/// Writes a command for each pod that a scale-in should take.
///
/// # Errors
/// Writing to `out` fails.
pub fn deletion_costs(plan: &DrainPlan, out: &mut impl Write) -> io::Result<()> {
    plan.deletion_costs.iter().try_for_each(|DeletionCost { namespace, name, cost }| {
        writeln!(out, "kubectl annotate pod --overwrite -n {namespace} {name} {DELETION_COST}={cost}")
    })?;
    if plan.deletion_costs.is_empty() {
        writeln!(
            out,
            "# no pod of a ReplicaSet is on a node that can be emptied, or their spread would suffer"
        )?;
    }
    Ok(())
}

fn emptied(node: &EmptiedNode, width: usize, out: &mut impl Write) -> io::Result<()> {
    let mut text = format!("{}: {}", node.node, counted(node.moves.len(), "pod"));
    if node.wait_for_budgets > 0 {
        text += &format!(", of which {} must wait for a disruption budget", node.wait_for_budgets);
    }
    if node.stay > 0 {
        text += &format!("; {} of DaemonSets or the kubelet stay", node.stay);
    }
    wrapped(out, "  ", &text, width)?;
    node.moves.iter().try_for_each(|step| writeln!(out, "    {} to {}", step.pod, step.to))
}

fn reason(kept: &KeptNodes, width: usize, out: &mut impl Write) -> io::Result<()> {
    let nodes = some(&kept.nodes, SHOWN_NODES, false);
    let pod = if kept.pod.is_empty() { String::new() } else { format!(" (such as {})", kept.pod) };
    wrapped(out, "", &format!("not {nodes}: {}{pod}", kept.reason), width)
}
