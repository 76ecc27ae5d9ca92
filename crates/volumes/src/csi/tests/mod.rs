//! Volumes of a driver of our own, on real mounts (as root), with an apiserver of a few lines.

mod devices;
mod faults;
mod growth;
mod migrated;
mod mounts;
mod pure;
mod sequences;
mod world;
