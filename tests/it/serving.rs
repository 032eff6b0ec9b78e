//! HTTPS: certificates, limits, and who may have what.

mod access;
pub mod client;
mod tls;
