//! Loop of the controllers: rounds at an interval while this process leads.

use std::time::Duration;

use super::clock::Clock;

/// Interval at which a process that does not lead checks its leadership.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// State of a controller in one term of leadership. It is dropped at the end of the term: another process may
/// have written meanwhile.
pub(crate) trait Rounds: Send {
    /// Runs one round. If leadership may end during the round, it checks the term before each write.
    fn round(&mut self) -> impl Future<Output = ()> + Send;

    /// Called when leadership has ended.
    fn leadership_ended(&self);

    /// Called instead if the controller stops while this process leads.
    fn stop(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Runs rounds while `decides` returns a term, until `stop` resolves. The first round of a term starts
/// immediately, and a round is never cancelled. `begin` returns the state for a term; `None` ends the loop.
pub(crate) async fn run<R: Rounds>(
    decides: impl Fn() -> Option<u64>,
    (clock, interval): (&Clock, Duration),
    begin: impl Fn(u64) -> Option<R>,
    stop: impl Future<Output = ()>,
) {
    let mut stop = std::pin::pin!(stop);
    loop {
        let Some(term) = decides() else {
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => continue,
                () = &mut stop => return,
            }
        };
        let Some(mut rounds) = begin(term) else { return };
        let mut ticks = clock.ticks(interval);
        while decides() == Some(term) {
            tokio::select! {
                () = ticks.tick() => {}
                () = &mut stop => return rounds.stop().await,
            }
            if decides() == Some(term) {
                rounds.round().await;
            }
        }
        rounds.leadership_ended();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::time::{Instant, sleep, sleep_until, timeout};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    /// What happened, with seconds since the start of the test.
    #[derive(Clone)]
    struct Log(Instant, Arc<Mutex<Vec<String>>>);

    impl Log {
        fn new() -> Log {
            Log(Instant::now(), Arc::default())
        }

        fn add(&self, what: &str) {
            self.1.lock().push(format!("{} {what}", self.0.elapsed().as_secs()));
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.1.lock())
        }
    }

    struct Counting {
        log: Log,
        term: u64,
        rounds: usize,
        took: Duration,
    }

    impl Rounds for Counting {
        async fn round(&mut self) {
            self.rounds += 1;
            self.log.add(&format!("round {} of term {}", self.rounds, self.term));
            sleep(self.took).await;
        }

        fn leadership_ended(&self) {
            self.log.add(&format!("end of term {}", self.term));
        }

        async fn stop(&mut self) {
            self.log.add(&format!("stop in term {}", self.term));
        }
    }

    /// Runs a controller whose rounds take this time.
    async fn counting(
        log: &Log,
        took: Duration,
        decides: impl Fn() -> Option<u64>,
        stop: impl Future<Output = ()>,
    ) {
        let begin = |term| Some(Counting { log: log.clone(), term, rounds: 0, took });
        run(decides, (&Clock::of_system(), INTERVAL), begin, stop).await;
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_start_with_leadership_and_follow_at_the_interval() {
        let (log, began) = (Log::new(), Instant::now());
        let decides = || (began.elapsed() > Duration::from_millis(700)).then_some(1);
        let _ = timeout(Duration::from_secs(30), counting(&log, Duration::ZERO, decides, pending())).await;
        assert_eq!(log.take(), ["1 round 1 of term 1", "11 round 2 of term 1", "21 round 3 of term 1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_round_delays_the_next_ones() {
        let log = Log::new();
        let took = Duration::from_secs(25);
        let _ = timeout(Duration::from_secs(60), counting(&log, took, || Some(1), pending())).await;
        assert_eq!(log.take(), ["0 round 1 of term 1", "25 round 2 of term 1", "50 round 3 of term 1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_term_begins_with_new_state() {
        let (log, term) = (Log::new(), Cell::new(Some(1)));
        let terms = async {
            for (at, next) in [(15.0, None), (24.8, Some(2)), (30.0, Some(3)), (50.0, None), (99.0, None)] {
                sleep_until(log.0 + Duration::from_secs_f64(at)).await;
                term.set(next);
            }
        };
        tokio::select! {
            () = terms => {}
            () = counting(&log, Duration::ZERO, || term.get(), pending()) => {}
        }
        let expected = [
            "0 round 1 of term 1",
            "10 round 2 of term 1",
            // Noticed at the next tick, which runs no round.
            "20 end of term 1",
            "25 round 1 of term 2",
            "35 end of term 2",
            "35 round 1 of term 3",
            "45 round 2 of term 3",
            "55 end of term 3",
        ];
        assert_eq!(log.take(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_lets_the_round_finish_and_is_reported_only_to_the_leader() {
        let log = Log::new();
        let (took, stop) = (Duration::from_secs(4), || sleep(Duration::from_secs(2)));
        counting(&log, took, || Some(1), stop()).await;
        assert_eq!(log.take(), ["0 round 1 of term 1", "4 stop in term 1"]);

        let log = Log::new();
        counting(&log, took, || None, stop()).await;
        assert!(log.take().is_empty());
        assert_eq!(log.0.elapsed(), Duration::from_secs(2));

        // Leadership ends during the round.
        let (log, began) = (Log::new(), Instant::now());
        let decides = || (began.elapsed() < Duration::from_secs(1)).then_some(1);
        counting(&log, took, decides, stop()).await;
        assert_eq!(log.take(), ["0 round 1 of term 1", "4 end of term 1"]);
    }
}
