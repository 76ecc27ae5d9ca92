//! Facts about this machine: what does not change while it runs ([`Machine`]), its addresses
//! ([`addresses`]), its file systems ([`FileSystem`]) and its version of cgroups
//! ([`cgroup`]); and the OOM score of this process ([`process`]).

pub mod addresses;
pub mod cgroup;
mod disk;
mod machine;
pub mod process;

pub use self::disk::{FileSystem, disk_capacity};
pub use self::machine::{Machine, online_cpus};
