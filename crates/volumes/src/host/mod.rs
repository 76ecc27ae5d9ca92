//! Host operations: mounts, file systems, loop devices, and system tools.

pub(super) mod format;
pub(super) mod loops;
pub(super) mod mounts;
pub(super) mod tools;
