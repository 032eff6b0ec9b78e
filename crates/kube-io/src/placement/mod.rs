//! Placement store on the API server: binds, and the writes before them for the volumes and devices of pods.

mod devices;
mod drive;
mod kube;
mod volumes;

pub use drive::{BindCounters, drive};
pub use kube::KubeStore;
pub use volumes::KubeClaims;
