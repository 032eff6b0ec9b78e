//! API access for applying recommendations: owners, LimitRanges; resizes and evictions.

mod events;
mod new_pod;
mod reads;
mod writer;

pub use events::PodEvent;
pub use new_pod::NewPod;
pub use writer::{Evicted, PodId, PodWriter, ResizeError};
