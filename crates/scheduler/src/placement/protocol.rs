//! State machine of one bind, driven by the replies of the store. Pure.
//!
//! Upstream semantics (`pods/binding`): a pod is bound at most once, and binding it again, even to the same node, is
//! refused with 409. So after an inconclusive reply (timeout, 5xx, lost connection) it is safe to send the same request
//! again, and only reading the pod shows the result. The pod stays assumed until the result is known: no bind ends by a
//! timer alone.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Reply, Truth};

/// Time within which the store may still carry out a request whose answer was lost. The kube store asks the API
/// server for a shorter timeout (`?timeout=`).
pub const LATE_EFFECT: Duration = Duration::from_secs(15);

/// Maximum number of bind requests without a conclusive reply.
pub const MOST_UNKNOWN: u32 = 5;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause that the store may ask for. The API server asks for 1 s to 10 s; a bind that waits holds a slot and the
/// room on its node.
const LONGEST_ASKED_PAUSE: Duration = Duration::from_secs(30);

/// The next step of a bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindStep {
    /// Wait for `after`, then send the bind request.
    Bind {
        after: Duration,
    },
    /// Wait for `after`, then read the pod.
    Read {
        after: Duration,
    },
    Done(BindOutcome),
}

/// The outcome of a bind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BindOutcome {
    /// The pod is bound to the chosen node.
    Bound,
    /// Another client bound it to this node.
    BoundElsewhere(Arc<str>),
    /// The pod is gone, being deleted or gated: it no longer needs a node.
    Vanished,
    /// The store refused, and the pod certainly has no node: it may be scheduled again after a backoff.
    Refused(String),
}

/// The state of one bind.
#[derive(Debug)]
pub struct BindAttempt {
    node: Arc<str>,
    /// The latest send time of a request with an unknown effect.
    unknown_since: Option<Duration>,
    /// The number of such requests.
    unknowns: u32,
    /// The store's latest refusal.
    refusal: Option<String>,
    pauses: u32,
}

impl BindAttempt {
    pub fn new(node: Arc<str>) -> Self {
        BindAttempt { node, unknown_since: None, unknowns: 0, refusal: None, pauses: 0 }
    }

    fn pause(&mut self) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.pauses.min(10)).min(LONGEST_PAUSE);
        self.pauses += 1;
        pause
    }

    /// Handles the reply to a bind request.
    pub fn replied(&mut self, reply: Reply, now: Duration) -> BindStep {
        match reply {
            Reply::Bound => BindStep::Done(BindOutcome::Bound),
            Reply::NotFound => BindStep::Done(BindOutcome::Vanished),
            Reply::Busy { retry_after } => {
                let pause = self.pause();
                let asked = retry_after.unwrap_or_default().min(LONGEST_ASKED_PAUSE);
                BindStep::Bind { after: asked.max(pause) }
            }
            Reply::Conflict(why) | Reply::Rejected(why) => {
                self.refusal = Some(why);
                BindStep::Read { after: Duration::ZERO }
            }
            Reply::Unknown(why) => {
                self.refusal = Some(why);
                self.unknown_since = Some(now);
                self.unknowns += 1;
                let after = self.pause();
                BindStep::Read { after }
            }
        }
    }

    /// Handles the state of the pod at some time after `asked`, the send time of the read.
    pub fn read(&mut self, truth: Truth, asked: Duration) -> BindStep {
        match truth {
            Truth::Gone => BindStep::Done(BindOutcome::Vanished),
            Truth::BoundTo(node) if node == self.node => BindStep::Done(BindOutcome::Bound),
            Truth::BoundTo(node) => BindStep::Done(BindOutcome::BoundElsewhere(node)),
            Truth::Unreadable(_) => {
                let after = self.pause();
                BindStep::Read { after }
            }
            Truth::Unbound { bindable: false } => BindStep::Done(BindOutcome::Vanished),
            Truth::Unbound { bindable: true } => self.still_unbound(asked),
        }
    }

    /// Handles a pod without a node: the refusal is final unless an older request may still arrive.
    fn still_unbound(&mut self, asked: Duration) -> BindStep {
        match self.unknown_since {
            // The send time of the read counts, not the time of its answer: a request may have been carried out in
            // between.
            Some(since) if asked.saturating_sub(since) < LATE_EFFECT => {
                let after = self.pause();
                if self.unknowns < MOST_UNKNOWN {
                    // Sending it again is safe and settles the bind sooner than waiting.
                    BindStep::Bind { after }
                } else {
                    // Out of attempts: send nothing more until no request can still take effect.
                    BindStep::Read { after }
                }
            }
            _ => BindStep::Done(BindOutcome::Refused(self.refusal.take().unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn attempt() -> BindAttempt {
        BindAttempt::new("n1".into())
    }

    fn unknown() -> Reply {
        Reply::Unknown("500".into())
    }

    const FREE: Truth = Truth::Unbound { bindable: true };

    #[test]
    fn a_lost_answer_is_settled_by_reading_and_the_pod_counts_as_bound_if_it_is_on_our_node() {
        let mut bind = attempt();
        assert!(matches!(bind.replied(unknown(), S), BindStep::Read { .. }));
        assert!(matches!(bind.read(Truth::Unreadable("down".into()), S), BindStep::Read { .. }));
        assert_eq!(bind.read(Truth::BoundTo("n1".into()), S), BindStep::Done(BindOutcome::Bound));
    }

    #[test]
    fn a_refusal_is_final_only_when_no_older_request_can_still_arrive() {
        let mut sure = attempt();
        assert_eq!(sure.replied(Reply::Conflict("why".into()), S), BindStep::Read { after: Duration::ZERO });
        assert_eq!(sure.read(FREE, S), BindStep::Done(BindOutcome::Refused("why".into())));

        let mut open = attempt();
        open.replied(unknown(), S);
        open.replied(Reply::Rejected("why".into()), 2 * S);
        assert!(
            matches!(open.read(FREE, 3 * S), BindStep::Bind { .. }),
            "the first request may still arrive"
        );
        assert_eq!(open.read(FREE, S + LATE_EFFECT), BindStep::Done(BindOutcome::Refused("why".into())));
    }

    #[test]
    fn a_request_that_is_never_answered_is_not_sent_for_ever() {
        let mut bind = attempt();
        let (mut now, mut sent) = (Duration::ZERO, 1);
        let mut step = bind.replied(unknown(), now);
        for _ in 0..100 {
            step = match step {
                BindStep::Read { after } => {
                    now += after;
                    bind.read(FREE, now)
                }
                BindStep::Bind { after } => {
                    (now, sent) = (now + after, sent + 1);
                    bind.replied(unknown(), now)
                }
                BindStep::Done(_) => break,
            };
        }
        assert_eq!(step, BindStep::Done(BindOutcome::Refused("500".into())));
        assert_eq!(sent, MOST_UNKNOWN);
        assert!(now >= LATE_EFFECT && now < 3 * LATE_EFFECT, "{now:?}");
    }

    #[test]
    fn a_pod_that_is_gone_dying_or_elsewhere_is_not_ours_to_place_any_more() {
        assert_eq!(attempt().replied(Reply::NotFound, S), BindStep::Done(BindOutcome::Vanished));
        assert_eq!(attempt().read(Truth::Gone, S), BindStep::Done(BindOutcome::Vanished));
        assert_eq!(
            attempt().read(Truth::Unbound { bindable: false }, S),
            BindStep::Done(BindOutcome::Vanished)
        );
        let elsewhere = BindOutcome::BoundElsewhere("n2".into());
        assert_eq!(attempt().read(Truth::BoundTo("n2".into()), S), BindStep::Done(elsewhere));
    }

    #[test]
    fn a_busy_store_gets_the_time_it_asks_for_up_to_a_limit() {
        let busy = |s| Reply::Busy { retry_after: Some(s * S) };
        assert_eq!(attempt().replied(busy(7), S), BindStep::Bind { after: 7 * S });
        assert_eq!(attempt().replied(busy(86_400), S), BindStep::Bind { after: LONGEST_ASKED_PAUSE });
        assert_eq!(
            attempt().replied(Reply::Busy { retry_after: None }, S),
            BindStep::Bind { after: FIRST_PAUSE }
        );
    }
}
