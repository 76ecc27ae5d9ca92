//! What the node gives its pods, by the kernel's means.

pub mod allocation;
pub mod cgroups;
mod usage;

pub use usage::memory as memory_usage;
