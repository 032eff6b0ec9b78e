//! Output of advice and backtests, as text, HTML and JSON.

mod backtests;
mod data;
mod page;
mod table;
mod units;

pub use backtests::{json as backtests_json, table as backtests_table};
pub use data::{csv, json, yaml};
pub use page::page;
pub use table::table;
