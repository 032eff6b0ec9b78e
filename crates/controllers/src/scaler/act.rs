//! Execution of decisions: replicas with the `scale` subresource of the workload, sizes in place.

use jiff::Timestamp;

use super::ScalerContext;
use super::look::ServiceObservation;
use super::settle::{Remembered, Settled};
use crate::resizing::Resized;
use berth_kube_io::scaling::ScalerChange;

/// Results: what was done, and what failed.
#[derive(Default)]
pub(super) struct Done {
    pub replicas: u32,
    pub resized: usize,
    /// Number of pods that did not get their size, and the first reason.
    pub held: usize,
    pub because: Option<String>,
    pub changes: Vec<(ScalerChange, String)>,
}

impl ScalerContext {
    pub(super) async fn act(
        &self,
        look: &ServiceObservation,
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
                    let change = if to > from { ScalerChange::ScaledUp } else { ScalerChange::ScaledDown };
                    done.changes
                        .push((change, format!("{from} -> {to} replicas: {}", settled.decision.reason)));
                }
                Err(error) => {
                    done.changes.push((ScalerChange::Failed, format!("cannot set {to} replicas: {error}")))
                }
            }
        }
        let (refusals, now_s) = (&mut remembered.refusals, now.as_second());
        refusals.keep(|uid| settled.resizes.iter().any(|resize| *look.pods[resize.pod].uid == *uid));
        for resize in &settled.resizes {
            let pod = &look.pods[resize.pod];
            let paused = refusals.pause(&pod.uid, &resize.changes, now_s).map(str::to_owned);
            let why = match paused {
                Some(why) => why,
                None => match self.resizer.resize(pod, &resize.changes).await {
                    Resized::Asked => {
                        done.resized += 1;
                        continue;
                    }
                    Resized::Gone | Resized::NotSeen => continue,
                    Resized::NoRoom(why) => why,
                    Resized::Refused(why) | Resized::Unknown(why) => {
                        refusals.add(&pod.uid, resize.changes.clone(), why.clone(), now_s);
                        why
                    }
                },
            };
            done.held += 1;
            done.because.get_or_insert(format!("{}: {why}", pod.name));
        }
        if done.resized > 0 && settled.decision.sizes_changed {
            let note = format!("{} pods in place: {}", done.resized, settled.decision.reason);
            done.changes.push((ScalerChange::Resized, note));
        }
        done
    }
}
