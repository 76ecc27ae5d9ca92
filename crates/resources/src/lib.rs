//! Cgroups, resource managers, swap and statistics of the node.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod allocatable;
pub mod cgroups;
pub mod hugepages;
pub mod managers;
pub mod memory_qos;
mod start;
pub mod stats;
pub mod swap;

pub use self::start::{Error, start};
