//! Objects of the updater and the webhook: pods with their requests and limits, owners and LimitRanges; resizes and evictions.

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
