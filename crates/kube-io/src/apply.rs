//! API access for applying recommendations: pods with their requests and limits, owners, LimitRanges; resizes and evictions.

mod events;
mod new_pod;
mod pods;
mod reads;
mod watched;
mod writer;

pub use events::PodEvent;
pub use new_pod::NewPod;
pub use pods::{read_pod, read_running};
pub use reads::Replicas;
pub use watched::{Follows, follow};
pub use writer::{Evicted, PodId, PodWriter, ResizeError};
