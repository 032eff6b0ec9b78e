//! Limits of what tests do at the same time. There are more test threads than cores (`.cargo/config.toml`), as most
//! tests wait most of the time: for a lease to expire, for the next round of a controller, for a process.

use tokio::sync::{Semaphore, SemaphorePermit};

/// A control plane uses half a gigabyte. With more of them, two cores answer too late for the tests with short leases.
const CONTROL_PLANES_MAX: usize = 3;
/// Those of the machine that the tests are for.
const CORES: usize = 2;

static CONTROL_PLANES: Semaphore = Semaphore::const_new(CONTROL_PLANES_MAX);
static BUSY: Semaphore = Semaphore::const_new(CORES);

/// The end of a turn, when dropped.
pub type Turn = SemaphorePermit<'static>;

/// Waits for a turn to have a control plane.
pub async fn control_plane_turn() -> Turn {
    CONTROL_PLANES.acquire().await.expect("the semaphore is never closed")
}

/// Waits for a turn to use a core for seconds. Whoever has it waits for no turn of another kind.
pub async fn busy_turn() -> Turn {
    BUSY.acquire().await.expect("the semaphore is never closed")
}

/// Waits for a turn to measure time: until its end, no test has a [`busy_turn`] and no control plane starts. Take it
/// after the control plane was started, which needs a busy turn itself.
pub async fn quiet_turn() -> Turn {
    BUSY.acquire_many(CORES as u32).await.expect("the semaphore is never closed")
}

/// Waits for a turn in a test that is not asynchronous.
pub fn wait_for(turn: impl Future<Output = Turn>) -> Turn {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime without I/O").block_on(turn)
}
