//! The store, embedded and on etcd.
#![allow(clippy::arithmetic_side_effects, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod backup;
mod contract;
mod crash;
mod damage;
mod embedded;
mod model;
