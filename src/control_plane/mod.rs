//! A real control plane on this machine, for the demo, the tests and the benchmarks.
