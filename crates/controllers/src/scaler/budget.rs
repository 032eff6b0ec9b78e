//! Budget of the scaler's requests to the API server.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};

/// Maximum number of requests in flight. A bind waits in the API server behind as many, in each round.
pub(super) const IN_FLIGHT_MAX: usize = 8;
/// Minimum interval between two writes: 1,000 per second. A new leader writes one status for each service.
const BETWEEN_WRITES: Duration = Duration::from_millis(1);

/// Limits the requests in flight, and the writes per second. Requests wait in the order in which they come.
pub(super) struct RequestBudget {
    permits: Semaphore,
    /// Earliest time of the next write.
    next_write: Mutex<Instant>,
}

impl RequestBudget {
    pub fn new() -> RequestBudget {
        RequestBudget { permits: Semaphore::new(IN_FLIGHT_MAX), next_write: Mutex::new(Instant::now()) }
    }

    /// Waits until a request may be sent, which holds the permit until it has its response.
    pub async fn read(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.acquire().await.ok()
    }

    /// The same for a request that writes.
    pub async fn write(&self) -> Option<SemaphorePermit<'_>> {
        let permit = self.read().await;
        let at = {
            let mut next = self.next_write.lock();
            let at = (*next).max(Instant::now());
            *next = at + BETWEEN_WRITES;
            at
        };
        sleep_until(at).await;
        permit
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_keep_to_the_budget() {
        let budget = RequestBudget::new();
        let (began, most) = (Instant::now(), Mutex::new((0, 0)));
        let request = async |takes: Duration, is_write: bool| {
            let _permit = if is_write { budget.write().await } else { budget.read().await };
            {
                let mut most = most.lock();
                most.0 += 1;
                most.1 = most.1.max(most.0);
            }
            tokio::time::sleep(takes).await;
            most.lock().0 -= 1;
        };
        // Reads are limited by their number in flight only.
        join_all((0..10 * IN_FLIGHT_MAX).map(|_| request(Duration::from_millis(100), false))).await;
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        assert_eq!(most.lock().1, IN_FLIGHT_MAX);
        let began = Instant::now();
        join_all((0..1_000).map(|_| request(Duration::ZERO, true))).await;
        assert!(began.elapsed() >= BETWEEN_WRITES * 999, "{:?}", began.elapsed());
    }
}
