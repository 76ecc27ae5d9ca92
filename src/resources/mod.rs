//! What the node gives its pods, by the kernel's means.

pub mod allocatable;
pub mod allocation;
pub mod cgroups;
pub mod hugepages;
pub mod managers;
pub mod memory_qos;
mod start;
pub mod swap;

pub use self::start::{Error, start};
