//! HTTPS: certificates, limits, and who may have what.

mod access;
mod client;
mod rotation;
mod tls;
