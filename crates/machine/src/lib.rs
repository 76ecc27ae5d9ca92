//! Facts about this machine: constant ones ([`Machine`]), its addresses ([`addresses`]), file systems
//! ([`FileSystem`]), the projects that they count ([`projects`]) and cgroup version ([`cgroup`]); the OOM score of this
//! process ([`process`]); and the kernel settings that a node needs ([`tunables`]).

pub mod addresses;
pub mod cgroup;
mod disk;
mod machine;
pub mod process;
pub mod projects;
pub mod tunables;

pub use self::disk::{FileSystem, disk_capacity};
pub use self::machine::{Machine, online_cpus};
