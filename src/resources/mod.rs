//! What the node gives its pods, by the kernel's means.

pub mod allocatable;
pub mod allocation;
pub mod cgroups;
pub mod hugepages;
pub mod managers;
pub mod memory_qos;
mod start;
pub mod swap;
mod usage;

pub use self::start::{Error, start};
pub use self::usage::memory as memory_usage;
