//! Controllers on an apiserver in the same process.
#![allow(clippy::arithmetic_side_effects, clippy::panic, clippy::unwrap_used, missing_docs)]

mod certificates;
mod cluster_objects;
mod common;
mod volumes;
mod workloads;
