//! Leadership: whether this process decides, in which term, and for which share of the classes.

use std::borrow::Cow;

use super::{Engine, Operation};
use crate::recording::Input;
use crate::scheduler::Share;

impl Engine {
    /// Leads in this term from now on; `None`: stops leading, while binds in flight settle on their own. Returns whether this process
    /// led before. Bounded by the number of nominated pods; a new leader reports on waiting pods in slices.
    pub fn set_term(&self, term: Option<u64>) -> bool {
        let heard = self.heard(|| Input::Term(term));
        self.hear(Operation::Leadership, heard, |scheduler, _| {
            let before = scheduler.leading();
            match term {
                Some(term) => scheduler.lead(term),
                None => scheduler.set_leading(false),
            }
            before
        })
    }

    /// Schedules only the classes of this share from now on: queues waiting pods that it gains and withdraws those that it loses,
    /// in slices.
    pub fn set_share(&self, share: Share) {
        let heard = self.heard(|| Input::Share(Cow::Borrowed(&share)));
        self.hear(Operation::Leadership, heard, |scheduler, _| scheduler.set_share(Some(share)));
    }

    /// With a share: says whether this process schedules the pods that need devices, from now on.
    pub fn give_devices(&self, gives: bool) {
        let heard = self.heard(|| Input::GiveDevices(gives));
        self.hear(Operation::Leadership, heard, |scheduler, _| scheduler.give_devices(gives));
    }
}
