//! HTTPS: certificates, limits, and who may have what.

pub mod client;
mod tls;
