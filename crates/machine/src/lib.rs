//! Facts about this machine: constant ones ([`Machine`]), its addresses ([`addresses`]), file systems
//! ([`FileSystem`]) and cgroup version ([`cgroup`]); and the OOM score of this process ([`process`]).

pub mod addresses;
pub mod cgroup;
mod disk;
mod machine;
pub mod process;

pub use self::disk::{FileSystem, disk_capacity};
pub use self::machine::{Machine, online_cpus};
