//! Doing what was decided: replicas through the `scale` of the workload, sizes in place.

use jiff::Timestamp;

use super::Place;
use super::look::Look;
use super::settle::{Remembered, Resize, Settled};
use crate::cluster::scaling::{Change, Service};
use crate::cluster::vpa::ApiError;
use crate::recommend::{Amount, NodeSize, PerResource};

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

/// Why a pod was not resized.
enum NotResized {
    /// The API server was not asked.
    NoRoom(String),
    Refused(String),
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
        let mut done = Done { replicas: from, ..Done::default() };
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
        let refusals = &mut remembered.refusals;
        refusals.keep(|uid| settled.resizes.iter().any(|resize| *resize.uid == *uid));
        for resize in &settled.resizes {
            let paused = refusals.pause(&resize.uid, &resize.containers, now.as_second());
            let why = match paused.map(str::to_owned) {
                Some(why) => why,
                None => match self.resize(service, resize).await {
                    Ok(()) => {
                        done.resized += 1;
                        continue;
                    }
                    Err(NotResized::NoRoom(why)) => why,
                    Err(NotResized::Refused(why)) => {
                        refusals.add(&resize.uid, resize.containers.clone(), why.clone(), now.as_second());
                        why
                    }
                },
            };
            done.held += 1;
            done.because.get_or_insert(format!("{}: {why}", resize.pod));
        }
        if done.resized > 0 && settled.decision.sizes_changed {
            let note = format!("{} pods in place: {}", done.resized, settled.decision.reason);
            done.changes.push((Change::Resized, note));
        }
        done
    }

    /// Resizes a pod, if its node has room for what it grows by.
    async fn resize(&self, service: &Service, resize: &Resize) -> Result<(), NotResized> {
        let grows = |of: fn(&PerResource<Amount>) -> Amount| -> Amount {
            resize.containers.iter().map(|it| of(&it.growth)).fold(0, Amount::saturating_add)
        };
        let more = NodeSize { cpu: grows(|it| it.cpu), memory: grows(|it| it.memory) };
        let grown = self.engine.with(|scheduler, _| scheduler.grow_in_place(&resize.uid, more));
        let grown = grown.map_err(NotResized::NoRoom)?;
        let containers = resize.containers.iter().map(|it| (it.name.as_str(), it.requests, it.limits));
        match self.api.resize(&service.namespace, (&resize.pod, &resize.uid), containers).await {
            Ok(()) => Ok(()),
            // Whether it was done is not known: the room stays taken until the watch tells.
            Err(ApiError::Other(error)) => Err(NotResized::Refused(error)),
            Err(error) => {
                self.engine.with(|scheduler, _| scheduler.take_growth_back(&resize.uid, &grown));
                Err(NotResized::Refused(error.to_string()))
            }
        }
    }
}
