//! Whole lives of pods on a node in memory (`crate::testing`), under tokio's paused clock.

#![allow(clippy::unwrap_used, clippy::panic)]

mod claims;
mod lifecycle;
mod lives;
mod mirrors;
mod model;
