//! The control plane helper itself.
