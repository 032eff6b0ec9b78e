//! What to do next about one bind, given what the store has said so far. Pure.
//!
//! Upstream semantics (`pods/binding`): a pod is bound at most once, and binding it again, even to the same node, is
//! refused with 409. So after an answer that says nothing (time-out, 5xx, lost connection) the same request may be
//! sent again without harm, and the pod itself is the only witness. Until the truth is known the assumption stays:
//! nothing here ends by a timer alone.

use std::sync::Arc;
use std::time::Duration;

use super::{Reply, Truth};

/// How long a request whose answer was lost may still be carried out by the store. The kube store asks the API
/// server to give up earlier than this (`?timeout=`).
pub const LATE_EFFECT: Duration = Duration::from_secs(15);

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The next thing to do for a bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Wait for `after`, then send the bind request.
    Bind {
        after: Duration,
    },
    /// Wait for `after`, then read the pod.
    Read {
        after: Duration,
    },
    Done(Outcome),
}

/// How a bind ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The pod is on the node we chose.
    Bound,
    /// Somebody else bound it.
    BoundElsewhere(Arc<str>),
    /// The pod is gone, is being deleted or is gated: there is nothing to place any more.
    Vanished,
    /// The store refused, and the pod certainly has no node: it may be placed anew after a backoff.
    Refused(String),
}

/// The state of one bind.
#[derive(Debug)]
pub struct BindAttempt {
    node: Arc<str>,
    /// A request was sent whose effect is not known, at this time.
    unknown_since: Option<Duration>,
    /// The store's latest refusal.
    refusal: Option<String>,
    pauses: u32,
}

impl BindAttempt {
    pub fn new(node: Arc<str>) -> Self {
        BindAttempt {
            node,
            unknown_since: None,
            refusal: None,
            pauses: 0,
        }
    }

    fn pause(&mut self) -> Duration {
        let pause = FIRST_PAUSE
            .saturating_mul(1 << self.pauses.min(10))
            .min(LONGEST_PAUSE);
        self.pauses += 1;
        pause
    }

    /// The store answered a bind request.
    pub fn replied(&mut self, reply: Reply, now: Duration) -> Step {
        match reply {
            Reply::Bound => Step::Done(Outcome::Bound),
            Reply::NotFound => Step::Done(Outcome::Vanished),
            Reply::Busy { retry_after } => {
                let pause = self.pause();
                Step::Bind {
                    after: retry_after.unwrap_or(pause).max(pause),
                }
            }
            Reply::Conflict(why) | Reply::Rejected(why) => {
                self.refusal = Some(why);
                Step::Read {
                    after: Duration::ZERO,
                }
            }
            Reply::Unknown(why) => {
                self.refusal = Some(why);
                self.unknown_since = Some(now);
                let after = self.pause();
                Step::Read { after }
            }
        }
    }

    /// The store told what the pod is now.
    pub fn read(&mut self, truth: Truth, now: Duration) -> Step {
        match truth {
            Truth::Gone => Step::Done(Outcome::Vanished),
            Truth::BoundTo(node) if node == self.node => Step::Done(Outcome::Bound),
            Truth::BoundTo(node) => Step::Done(Outcome::BoundElsewhere(node)),
            Truth::Unreadable(_) => {
                let after = self.pause();
                Step::Read { after }
            }
            Truth::Unbound { bindable: false } => Step::Done(Outcome::Vanished),
            Truth::Unbound { bindable: true } => self.still_unbound(now),
        }
    }

    /// The pod waits and has no node. Was the refusal final, or may an older request still arrive?
    fn still_unbound(&mut self, now: Duration) -> Step {
        match self.unknown_since {
            // Sending it again is safe, and settles it sooner than waiting would.
            Some(since) if now.saturating_sub(since) < LATE_EFFECT => {
                let after = self.pause();
                Step::Bind { after }
            }
            _ => Step::Done(Outcome::Refused(self.refusal.take().unwrap_or_default())),
        }
    }
}
