//! What each fuzz target does with its bytes. The same functions replay the kept corpora in `cargo test`.

pub mod checkpoint;
pub mod extender;
pub mod guard;
mod pod;
pub mod quantity;

/// By name, which is also that of the corpus.
pub const ALL: [(&str, fn(&[u8])); 4] = [
    ("checkpoint", checkpoint::check),
    ("extender", extender::check),
    ("guard", guard::check),
    ("quantity", quantity::check),
];
