//! Reservations for in-place resizes. Each call reads and changes the charge of one pod and takes time in proportion to what is
//! reserved on its node.

use std::sync::Arc;

use super::{Engine, Operation};
use crate::recording::Input;
use crate::scheduler::{Growth, GrowthError};
use berth_model::NodeSize;

impl Engine {
    /// Charges a pod for `more` on its node, if there is room. Before that releases `unsettled`: the growth of an earlier request
    /// that was not applied.
    ///
    /// # Errors
    /// Why the pod must keep its size.
    pub fn grow_in_place(
        &self,
        uid: &Arc<str>,
        unsettled: Option<&Growth>,
        more: NodeSize,
    ) -> Result<Growth, GrowthError> {
        let heard = self.heard(|| Input::GrowInPlace {
            uid: uid.clone(),
            unsettled: unsettled.map(|growth| growth.number),
            more,
        });
        self.hear(Operation::Resize, heard, |scheduler, _| match unsettled {
            Some(unsettled) => scheduler.grow_instead(uid, unsettled, more),
            None => scheduler.grow_in_place(uid, more),
        })
    }

    /// Releases the growth of a resize that was not applied, unless a watch event has replaced it.
    pub fn take_growth_back(&self, uid: &Arc<str>, growth: &Growth) {
        let heard = self.heard(|| Input::TakeGrowthBack { uid: uid.clone(), growth: growth.number });
        self.hear(Operation::Resize, heard, |scheduler, _| scheduler.take_growth_back(uid, growth));
    }
}
