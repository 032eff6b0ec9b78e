//! The API server as placement store: binds, and the writes that ask for the volumes of claims.

mod drive;
mod kube;
mod volumes;

pub use drive::{BindCounters, drive};
pub use kube::KubeStore;
pub use volumes::KubeClaims;
