//! HTTPS: certificates, limits, and access control.

pub mod access;
pub mod client;
mod rotation;
mod tls;
