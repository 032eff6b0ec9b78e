//! Fuzz targets: the check that each runs on its bytes. The same functions replay the kept corpora in `cargo test`.

pub mod checkpoint;
pub mod extender;
pub mod guard;
mod pod;
pub mod quantity;

/// A target; panics on a failure.
pub type Check = fn(&[u8]);

/// Targets by name, which is also the name of the corpus.
pub const ALL: [(&str, Check); 4] = [
    ("checkpoint", checkpoint::check),
    ("extender", extender::check),
    ("guard", guard::check),
    ("quantity", quantity::check),
];
