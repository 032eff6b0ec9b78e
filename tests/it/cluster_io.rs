//! Watches, reports, leases and the placement store against a real API server.
