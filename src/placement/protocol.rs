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
    /// The read under way was not sent before this time.
    reading_since: Duration,
    /// The store's latest refusal.
    refusal: Option<String>,
    pauses: u32,
}

impl BindAttempt {
    pub fn new(node: Arc<str>) -> Self {
        BindAttempt {
            node,
            unknown_since: None,
            reading_since: Duration::ZERO,
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
                self.read_after(Duration::ZERO, now)
            }
            Reply::Unknown(why) => {
                self.refusal = Some(why);
                self.unknown_since = Some(now);
                let after = self.pause();
                self.read_after(after, now)
            }
        }
    }

    fn read_after(&mut self, after: Duration, now: Duration) -> Step {
        self.reading_since = now + after;
        Step::Read { after }
    }

    /// The store told what the pod is now.
    pub fn read(&mut self, truth: Truth, now: Duration) -> Step {
        match truth {
            Truth::Gone => Step::Done(Outcome::Vanished),
            Truth::BoundTo(node) if node == self.node => Step::Done(Outcome::Bound),
            Truth::BoundTo(node) => Step::Done(Outcome::BoundElsewhere(node)),
            Truth::Unreadable(_) => {
                let after = self.pause();
                self.read_after(after, now)
            }
            Truth::Unbound { bindable: false } => Step::Done(Outcome::Vanished),
            Truth::Unbound { bindable: true } => self.still_unbound(),
        }
    }

    /// The pod waits and has no node. Was the refusal final, or may an older request still arrive?
    fn still_unbound(&mut self) -> Step {
        match self.unknown_since {
            // Sending it again is safe, and settles it sooner than waiting would. What counts is when the pod was read,
            // not when the answer came: a request may have been carried out in between.
            Some(since) if self.reading_since.saturating_sub(since) < LATE_EFFECT => {
                let after = self.pause();
                Step::Bind { after }
            }
            _ => Step::Done(Outcome::Refused(self.refusal.take().unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const UNBOUND: Truth = Truth::Unbound { bindable: true };

    fn unknown() -> Reply {
        Reply::Unknown("timed out".into())
    }

    fn refused() -> Reply {
        Reply::Conflict("the object has been modified".into())
    }

    #[test]
    fn an_answer_to_a_read_that_was_sent_too_early_does_not_end_a_bind_however_late_it_comes() {
        let mut attempt = BindAttempt::new("n".into());
        attempt.replied(unknown(), S);
        assert!(matches!(attempt.read(UNBOUND, 2 * S), Step::Bind { .. }));
        let read = attempt.replied(refused(), 15 * S);
        assert_eq!(
            read,
            Step::Read {
                after: Duration::ZERO
            }
        );
        assert!(matches!(attempt.read(UNBOUND, 20 * S), Step::Bind { .. }));
        attempt.replied(refused(), S + LATE_EFFECT);
        let done = attempt.read(UNBOUND, 20 * S);
        assert!(matches!(done, Step::Done(Outcome::Refused(_))));
    }

    #[test]
    fn the_truth_decides_what_a_lost_or_refusing_answer_meant() {
        for (truth, outcome) in [
            (Truth::Gone, Outcome::Vanished),
            (Truth::Unbound { bindable: false }, Outcome::Vanished),
            (Truth::BoundTo("n".into()), Outcome::Bound),
            (Truth::BoundTo("m".into()), Outcome::BoundElsewhere("m".into())),
        ] {
            for reply in [unknown(), refused()] {
                let mut attempt = BindAttempt::new("n".into());
                assert!(matches!(attempt.replied(reply, S), Step::Read { .. }));
                let blind = attempt.read(Truth::Unreadable("timed out".into()), S);
                assert!(matches!(blind, Step::Read { .. }));
                assert_eq!(attempt.read(truth.clone(), 2 * S), Step::Done(outcome.clone()));
            }
        }
    }
}
