//! A running scheduler in a terminal: what the events of its page say, and how it is drawn.
//!
//! May not know: the terminal, the network, clocks.

mod events;
mod state;
#[cfg(test)]
mod tests;
mod view;

pub use events::EventReader;
pub use state::{TopError, TopState, TopUsage};
pub use view::{TopKey, TopScreen, draw};
