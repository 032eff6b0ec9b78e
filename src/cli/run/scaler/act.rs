//! Doing what was decided: replicas through the `scale` of the workload, sizes in place.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::Place;
use super::look::Look;
use super::settle::{Remembered, Resize, Settled};
use crate::cluster::scaling::{Change, Service};
use crate::recommend::{Amount, PerResource};

/// What was done, and what could not be.
#[derive(Default)]
pub(super) struct Done {
    pub replicas: u32,
    pub resized: usize,
    /// Pods that did not get their size, and the first reason.
    pub held: usize,
    pub because: Option<String>,
    pub changes: Vec<(Change, String)>,
}

/// What was granted on nodes in this round, which the ledger cannot know yet.
pub(super) type Granted = BTreeMap<Arc<str>, PerResource<Amount>>;

impl Place {
    pub(super) async fn act(
        &self,
        service: &Service,
        look: &Look,
        settled: &Settled,
        (remembered, granted): (&mut Remembered, &mut Granted),
        now: Timestamp,
    ) -> Done {
        let (from, to) = (look.scale.replicas, settled.allowed.replicas);
        let mut done = Done { replicas: from, ..Done::default() };
        if to != from {
            match self.api.set_replicas(&look.scale, to).await {
                Ok(()) => {
                    done.replicas = to;
                    remembered.memory.replicas = Some(to);
                    remembered.history.changed(now.as_second(), from, to);
                    let change = if to > from { Change::ScaledUp } else { Change::ScaledDown };
                    done.changes.push((change, format!("{from} -> {to} replicas: {}", settled.decision.reason)));
                }
                Err(error) => done.changes.push((Change::Failed, format!("{to} replicas could not be set: {error}"))),
            }
        }
        for resize in &settled.resizes {
            match self.resize(service, resize, granted).await {
                Ok(()) => done.resized += 1,
                Err(why) => {
                    done.held += 1;
                    done.because.get_or_insert(format!("{}: {why}", resize.pod));
                }
            }
        }
        if done.resized > 0 && settled.decision.sizes_changed {
            let note = format!("{} pods in place: {}", done.resized, settled.decision.reason);
            done.changes.push((Change::Resized, note));
        }
        done
    }

    /// Resizes a pod, if its node has room for what it grows by.
    async fn resize(&self, service: &Service, resize: &Resize, granted: &mut Granted) -> Result<(), String> {
        let grows = |of: fn(&PerResource<Amount>) -> Amount| -> Amount {
            resize.containers.iter().map(|it| of(&it.growth)).fold(0, Amount::saturating_add)
        };
        let growth = PerResource { cpu: grows(|it| it.cpu), memory: grows(|it| it.memory) };
        let node = resize.node.clone().unwrap_or_default();
        let before = granted.get(&node).copied().unwrap_or_default();
        let together = before.zip(growth).map(|(before, more)| before.saturating_add(more.max(0)));
        self.has_room(&node, growth, together)?;
        let containers = resize.containers.iter().map(|it| (it.name.as_str(), it.requests, it.limits));
        let sent = self.api.resize(&service.namespace, (&resize.pod, &resize.uid), containers).await;
        sent.map_err(|error| error.to_string())?;
        granted.insert(node, together);
        Ok(())
    }

    /// Whether a node can hold this, by the ledger that places pods. A resource that does not grow has room.
    fn has_room(
        &self,
        node: &str,
        growth: PerResource<Amount>,
        together: PerResource<Amount>,
    ) -> Result<(), String> {
        let free = self.engine.with(|scheduler, _| {
            let inventory = scheduler.inventory();
            let row = inventory.row(inventory.find(node)?);
            let kept = row.with_reservations(i32::MIN);
            let row = kept.as_ref().unwrap_or(row);
            let free = |all: i64, taken: i64| all.saturating_sub(taken);
            Some(PerResource {
                cpu: free(row.allocatable.cpu_milli, row.requested.cpu_milli),
                memory: free(row.allocatable.memory, row.requested.memory),
            })
        });
        let free = free.ok_or_else(|| format!("its node {node} is not known"))?;
        for (name, growth, together, free) in [
            ("cpu", growth.cpu, together.cpu, free.cpu),
            ("memory", growth.memory, together.memory, free.memory),
        ] {
            if growth > 0 && together > free {
                return Err(format!("its node {node} has no room for {growth} more of {name}"));
            }
        }
        Ok(())
    }
}
