//! Driver of a bind: the loop around [`BindAttempt`] that sleeps, sends and reads.

use berth_scheduler::placement::{BindAttempt, BindOutcome, BindStep, Binding, PlacementStore, Reply};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Throttle;

/// Counters of the binds of this process.
#[derive(Debug, Default)]
pub struct BindCounters {
    requests: AtomicU64,
    busy: AtomicU64,
    unknown: AtomicU64,
    reads: AtomicU64,
    warnings: Throttle,
}

impl BindCounters {
    /// Returns the number of bind requests sent.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Bind requests that the API server was too busy to take.
    pub fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Bind requests with an unknown result.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Pods read to learn whether they were bound.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl BindCounters {
    fn note(&self, binding: &Binding, reply: &Reply) {
        let (counter, why) = match reply {
            Reply::Busy { .. } => (&self.busy, "the API server is too busy"),
            Reply::Unknown(why) => (&self.unknown, why.as_str()),
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if self.warnings.is_due() {
            tracing::warn!(
                namespace = %binding.namespace, pod = %binding.name, error = why,
                "the API server did not accept a bind, retrying; the pod keeps its room meanwhile"
            );
        }
    }
}

/// Binds, and returns when the outcome is certain, however long that takes.
///
/// `clock` is monotonic. `leads` is checked right before each request: once it returns false, no bind request is sent. A bind
/// with an unknown effect is still settled by reading; all other binds end as `Refused`. Dropping the future abandons the bind
/// with its effect unknown.
pub async fn drive(
    store: &impl PlacementStore,
    binding: &Binding,
    clock: impl Fn() -> Duration,
    leads: impl Fn() -> bool,
    counters: &BindCounters,
) -> BindOutcome {
    let mut attempt = BindAttempt::new(binding.node.clone());
    let mut sent = false;
    let mut step = BindStep::Bind { after: Duration::ZERO };
    loop {
        step = match step {
            BindStep::Done(outcome) => return outcome,
            BindStep::Bind { after } => {
                pause(after).await;
                if leads() {
                    sent = true;
                    counters.requests.fetch_add(1, Ordering::Relaxed);
                    let reply = store.bind(binding).await;
                    counters.note(binding, &reply);
                    attempt.replied(reply, clock())
                } else if sent {
                    BindStep::Read { after: Duration::ZERO }
                } else {
                    BindStep::Done(BindOutcome::Refused(
                        "leadership was lost before the bind was sent".into(),
                    ))
                }
            }
            BindStep::Read { after } => {
                pause(after).await;
                counters.reads.fetch_add(1, Ordering::Relaxed);
                // A request may be carried out between the read and its answer: the time of sending counts.
                let asked = clock();
                attempt.read(store.read(binding).await, asked)
            }
        }
    }
}

async fn pause(length: Duration) {
    if length > Duration::ZERO {
        tokio::time::sleep(length).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use std::sync::atomic::AtomicBool;

    use parking_lot::Mutex;
    use tokio::time::Instant;

    use super::*;
    use berth_scheduler::placement::{LATE_EFFECT, Truth};

    /// Answers binds and reads from two scripts; the last read is repeated.
    struct Script {
        binds: Mutex<VecDeque<Reply>>,
        reads: Mutex<VecDeque<Truth>>,
        leading: AtomicBool,
        /// Leadership ends with the answer to the first bind.
        deposed: bool,
    }

    impl PlacementStore for Script {
        async fn bind(&self, _: &Binding) -> Reply {
            if self.deposed {
                self.leading.store(false, Ordering::Relaxed);
            }
            self.binds.lock().pop_front().expect("one bind request too many")
        }

        async fn read(&self, _: &Binding) -> Truth {
            let mut reads = self.reads.lock();
            let truth = reads.front().cloned().expect("a scripted read");
            if reads.len() > 1 {
                reads.pop_front();
            }
            truth
        }
    }

    struct Ran {
        outcome: BindOutcome,
        took: Duration,
        requests: u64,
        reads: u64,
    }

    async fn run(leading: bool, deposed: bool, binds: Vec<Reply>, reads: Vec<Truth>) -> Ran {
        let store = Script {
            binds: Mutex::new(binds.into()),
            reads: Mutex::new(reads.into()),
            leading: AtomicBool::new(leading),
            deposed,
        };
        let binding = Binding {
            uid: "u1".into(),
            namespace: "default".into(),
            name: "web-0".into(),
            node: "node-1".into(),
            decision: None,
        };
        let counters = BindCounters::default();
        let started = Instant::now();
        let leads = || store.leading.load(Ordering::Relaxed);
        let outcome = drive(&store, &binding, || started.elapsed(), leads, &counters).await;
        Ran { outcome, took: started.elapsed(), requests: counters.requests(), reads: counters.reads() }
    }

    fn unknown() -> Reply {
        Reply::Unknown("time-out".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_store_gets_the_time_it_asks_for() {
        let busy = Reply::Busy { retry_after: Some(Duration::from_secs(7)) };
        let ran = run(true, false, vec![busy, Reply::Bound], vec![]).await;
        assert_eq!((ran.outcome, ran.requests), (BindOutcome::Bound, 2));
        assert!(ran.took >= Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_truth_is_asked_for_until_it_is_known() {
        let reads = vec![
            Truth::Unreadable("down".into()),
            Truth::Unreadable("down".into()),
            Truth::BoundTo("node-1".into()),
        ];
        let ran = run(true, false, vec![unknown()], reads).await;
        assert_eq!((ran.outcome, ran.requests, ran.reads), (BindOutcome::Bound, 1, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn without_leadership_nothing_is_sent() {
        let ran = run(false, false, vec![], vec![]).await;
        assert!(matches!(ran.outcome, BindOutcome::Refused(why) if why.contains("leadership")));
        assert_eq!((ran.requests, ran.reads), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deposed_leader_only_reads_until_its_open_request_can_no_longer_take_effect() {
        let ran = run(true, true, vec![unknown()], vec![Truth::Unbound { bindable: true }]).await;
        assert!(matches!(ran.outcome, BindOutcome::Refused(_)));
        assert_eq!(ran.requests, 1);
        assert!(ran.reads > 1);
        assert!(ran.took >= LATE_EFFECT);
    }
}
