//! Placement store on the API server: binds, and writes that request the volumes of claims.

mod drive;
mod kube;
mod volumes;

pub use drive::{BindCounters, drive};
pub use kube::KubeStore;
pub use volumes::KubeClaims;
