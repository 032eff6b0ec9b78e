//! Plain values: what the rules need to know of pods and nodes, and nothing else.
//!
//! May not know: kube, tokio, clocks. Everything here is cheap to move, compares by value, and was checked when
//! it was made: a `Pod` whose spec could not be understood carries the error instead of the spec.

mod labels;
mod node;
mod pod;
mod quantity;
mod report;
mod resources;
mod selector;
mod taints;

pub use labels::Labels;
pub use node::{Image, Node};
pub use pod::{
    HostPort, Pod, PodSpec, PreemptionPolicy, Protocol, ScheduledCondition, SpecError, Unsupported,
};
pub use quantity::{Quantity, QuantityError};
pub use report::{PodRef, Report};
pub use resources::{Amounts, Extended, Usage};
pub use selector::{FieldRequirement, NodeAffinity, NodeSelectorTerm, Operator, PreferredTerm, Requirement};
pub use taints::{Effect, Taint, Toleration, TolerationOperator};
