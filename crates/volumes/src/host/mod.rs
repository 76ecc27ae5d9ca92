//! What of the machine volumes are made with: mounts, file systems on devices, loop devices, and
//! the system's own tools.

pub(super) mod format;
pub(super) mod loops;
pub(super) mod mounts;
pub(super) mod tools;
