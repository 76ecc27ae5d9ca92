//! What the node gives its pods, by the kernel's means.

pub mod cgroups;
pub mod managers;
