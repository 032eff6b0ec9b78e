//! Fuzz targets: the check that each runs on its bytes. The same functions replay the kept corpora in `cargo test`.

pub mod checkpoint;
pub mod config;
pub mod dump;
pub mod extender;
pub mod guard;
pub mod mutate;
pub mod objects;
mod pod;
pub mod promql;
pub mod quantity;
pub mod trace;
pub mod vpa_checkpoint;

/// A target; panics on a failure.
pub type Check = fn(&[u8]);

/// Targets by name, which is also the name of the corpus.
pub const ALL: [(&str, Check); 11] = [
    ("checkpoint", checkpoint::check),
    ("config", config::check),
    ("dump", dump::check),
    ("extender", extender::check),
    ("guard", guard::check),
    ("mutate", mutate::check),
    ("objects", objects::check),
    ("promql", promql::check),
    ("quantity", quantity::check),
    ("trace", trace::check),
    ("vpa_checkpoint", vpa_checkpoint::check),
];
