//! Doing what was decided: replicas through the `scale` of the workload, sizes in place.

use jiff::Timestamp;

use super::Place;
use super::look::Look;
use super::settle::{Held, Remembered, Resize, Settled};
use crate::cluster::scaling::{Change, Service};
use crate::cluster::vpa::ApiError;
use crate::recommend::{Amount, NodeSize, PerResource};
use crate::scheduler::Growth;

/// What was done, and what could not be.
#[derive(Default)]
pub(super) struct Done {
    pub replicas: u32,
    pub resized: usize,
    pub held: Held,
    pub changes: Vec<(Change, String)>,
}

/// Why a pod was not resized.
enum NotResized {
    /// The API server was not asked.
    NoRoom(String),
    /// With the room that stays taken, as it may have been done all the same.
    Refused(String, Option<Growth>),
}

impl Place {
    pub(super) async fn act(
        &self,
        service: &Service,
        look: &Look,
        settled: &Settled,
        remembered: &mut Remembered,
        now: Timestamp,
    ) -> Done {
        let (from, to) = (look.scale.replicas, settled.allowed.replicas);
        let mut done = Done { replicas: from, held: settled.held.clone(), ..Done::default() };
        if to != from {
            match self.api.set_replicas(&look.scale, to).await {
                Ok(()) => {
                    done.replicas = to;
                    remembered.memory.replicas = Some(to);
                    remembered.history.changed(now.as_second(), from, to);
                    let change = if to > from { Change::ScaledUp } else { Change::ScaledDown };
                    done.changes
                        .push((change, format!("{from} -> {to} replicas: {}", settled.decision.reason)));
                }
                Err(error) => {
                    done.changes.push((Change::Failed, format!("{to} replicas could not be set: {error}")))
                }
            }
        }
        for (uid, unused) in remembered.refusals.forget(&settled.resizes, &look.pods) {
            self.engine.with(|scheduler, _| scheduler.take_growth_back(&uid, &unused));
        }
        for resize in &settled.resizes {
            if let Some(why) = remembered.refusals.pause(resize, now.as_second()) {
                done.held.add(&resize.pod, why);
                continue;
            }
            let held = remembered.refusals.take_room(&resize.uid);
            match self.resize(service, resize, held).await {
                Ok(()) => done.resized += 1,
                Err(NotResized::NoRoom(why)) => done.held.add(&resize.pod, &why),
                Err(NotResized::Refused(why, room)) => {
                    done.held.add(&resize.pod, &why);
                    remembered.refusals.add(resize, why, room, now.as_second());
                }
            }
        }
        if done.resized > 0 && settled.decision.sizes_changed {
            let note = format!("{} pods in place: {}", done.resized, settled.decision.reason);
            done.changes.push((Change::Resized, note));
        }
        done
    }

    /// Resizes a pod, if its node has room for what it grows by. `held`: room that an earlier try still holds.
    async fn resize(
        &self,
        service: &Service,
        resize: &Resize,
        held: Option<Growth>,
    ) -> Result<(), NotResized> {
        let grows = |of: fn(&PerResource<Amount>) -> Amount| -> Amount {
            resize.containers.iter().map(|it| of(&it.growth)).fold(0, Amount::saturating_add)
        };
        let more = NodeSize { cpu: grows(|it| it.cpu), memory: grows(|it| it.memory) };
        let grow = self.engine.with(|scheduler, _| {
            if let Some(held) = held {
                scheduler.take_growth_back(&resize.uid, &held);
            }
            scheduler.grow_in_place(&resize.uid, more)
        });
        let grown = grow.map_err(NotResized::NoRoom)?;
        let containers = resize.containers.iter().map(|it| (it.name.as_str(), it.requests, it.limits));
        match self.api.resize(&service.namespace, (&resize.pod, &resize.uid), containers).await {
            Ok(()) => Ok(()),
            // Whether it was done is not known: the room stays taken until the watch tells.
            Err(ApiError::Other(error)) => Err(NotResized::Refused(error, Some(grown))),
            Err(error) => {
                self.engine.with(|scheduler, _| scheduler.take_growth_back(&resize.uid, &grown));
                Err(NotResized::Refused(error.to_string(), None))
            }
        }
    }
}
