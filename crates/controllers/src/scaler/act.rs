//! Execution of decisions: replicas with the `scale` subresource of the workload, sizes in place.

use futures::StreamExt;
use jiff::Timestamp;
use tokio::sync::SemaphorePermit;

use super::ScalerContext;
use super::budget::IN_FLIGHT_MAX;
use super::look::ServiceObservation;
use super::settle::{Remembered, Settled};
use crate::resizing::Resized;
use berth_kube_io::scaling::ScalerChange;

/// Results: what was done, and what failed.
#[derive(Default)]
pub(super) struct Done {
    pub replicas: u32,
    pub resized: usize,
    /// Number of pods that did not get all of their size, and the first reason.
    pub held: usize,
    pub because: Option<String>,
    pub changes: Vec<(ScalerChange, String)>,
}

impl ScalerContext {
    /// Sets replicas and sizes. Does nothing once leadership has ended.
    pub(super) async fn act(
        &self,
        look: &ServiceObservation,
        settled: &Settled,
        remembered: &mut Remembered,
        now: Timestamp,
    ) -> Done {
        let (from, to) = (look.scale.replicas, settled.allowed.replicas);
        let mut done = Done { replicas: from, ..Done::default() };
        if to != from
            && let Some(_turn) = self.turn().await
        {
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
        self.resize_pods(look, settled, remembered, now.as_second(), &mut done).await;
        if done.resized > 0 && settled.decision.sizes_changed {
            let note = format!("{} pods in place: {}", done.resized, settled.decision.reason);
            done.changes.push((ScalerChange::Resized, note));
        }
        done
    }

    /// Resizes the pods of a service, several concurrently.
    async fn resize_pods(
        &self,
        look: &ServiceObservation,
        settled: &Settled,
        remembered: &mut Remembered,
        now_s: i64,
        done: &mut Done,
    ) {
        let (refusals, no_room_s) = (&mut remembered.refusals, &mut remembered.no_room_s);
        refusals.keep(|uid| settled.resizes.iter().any(|resize| *look.pods[resize.pod].uid == *uid));
        let resized: Vec<_> = settled
            .resizes
            .iter()
            .map(|resize| {
                let pod = &look.pods[resize.pod];
                let paused = refusals.pause(&pod.uid, &resize.changes, now_s).map(str::to_owned);
                async move {
                    if let Some(why) = paused {
                        return Some(Err(why));
                    }
                    let _turn = self.turn().await?;
                    Some(Ok(self.resizer.resize_in_part(pod, &resize.changes).await))
                }
            })
            .collect();
        let resized: Vec<_> = futures::stream::iter(resized).buffered(IN_FLIGHT_MAX).collect().await;
        for (resize, resized) in settled.resizes.iter().zip(resized) {
            let pod = &look.pods[resize.pod];
            let Some(resized) = resized else { continue };
            if matches!(resized, Ok((_, Some(_)) | (Resized::NoRoom(_), _))) {
                *no_room_s = Some(now_s);
            }
            let why = match resized {
                Ok((Resized::Asked, waits)) => {
                    done.resized += 1;
                    let Some(why) = waits else { continue };
                    why
                }
                Ok((Resized::Gone | Resized::NotSeen, _)) => continue,
                Ok((Resized::NoRoom(why), _)) | Err(why) => why,
                Ok((Resized::Refused(why) | Resized::Unknown(why), _)) => {
                    refusals.add(&pod.uid, resize.changes.clone(), why.clone(), now_s);
                    why
                }
            };
            done.held += 1;
            done.because.get_or_insert(format!("{}: {why}", pod.name));
        }
    }

    /// Waits until a write is within the budget; `None`: leadership has ended.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let permit = self.budget.write().await?;
        self.leadership.decides_in(self.term).then_some(permit)
    }
}
