//! HTTPS: certificates, limits, and access control.

mod access;
pub mod client;
mod rotation;
mod tls;
