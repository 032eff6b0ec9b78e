//! HTTPS: certificates, limits, and who may have what.

mod client;
mod tls;
