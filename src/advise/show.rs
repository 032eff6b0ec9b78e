//! Output of advice and backtests, as text, HTML, JSON, patches and messages.

mod backtests;
mod data;
mod graph;
mod helm;
mod page;
mod patches;
mod row;
mod slack;
mod table;
pub mod units;

pub use backtests::{json as backtests_json, table as backtests_table};
pub use data::{csv, json, yaml};
pub use helm::helm;
pub use page::page;
pub use patches::{kubectl, kustomize};
pub use slack::slack;
pub use table::table;
