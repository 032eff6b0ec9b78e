//! How fast the extender is; the figures need a release build and a quiet machine.
