//! What each fuzz target does with its bytes. The same functions replay the kept corpora in `cargo test`.

pub mod checkpoint;
pub mod extender;
pub mod guard;
mod pod;
pub mod quantity;

/// A target, which panics when something is wrong.
pub type Check = fn(&[u8]);

/// By name, which is also that of the corpus.
pub const ALL: [(&str, Check); 4] = [
    ("checkpoint", checkpoint::check),
    ("extender", extender::check),
    ("guard", guard::check),
    ("quantity", quantity::check),
];
