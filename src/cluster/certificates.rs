//! The certificates that berth issues to itself.

mod issue;
mod read;

pub use issue::{Authority, Issued};
pub(crate) use read::{Certificate, certificates_of};
