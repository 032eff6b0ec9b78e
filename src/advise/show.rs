//! Output of advice and backtests, as text, HTML, JSON and patches.

mod backtests;
mod data;
mod graph;
mod page;
mod patches;
mod row;
mod table;
pub mod units;

pub use backtests::{json as backtests_json, table as backtests_table};
pub use data::{csv, json, yaml};
pub use page::page;
pub use patches::{kubectl, kustomize};
pub use table::table;
