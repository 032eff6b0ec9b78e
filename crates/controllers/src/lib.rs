//! Leader election, and the other work of the leader besides placing pods: the recommender, the updater and the scaler.
//!
//! May not know: the HTTP server and the command line.

pub mod clock;
pub mod leadership;
mod node_rooms;
pub mod recommender;
pub mod resizing;
mod rounds;
pub mod scaler;
pub mod tasks;
pub mod updater;
