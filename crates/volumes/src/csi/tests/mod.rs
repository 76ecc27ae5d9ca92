//! Volumes of a fake CSI driver, on real mounts (as root), with a fake apiserver.

mod devices;
mod faults;
mod migrated;
mod mounts;
mod online_expansion;
mod pure;
mod sequences;
mod world;
