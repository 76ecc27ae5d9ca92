//! The node on a real containerd, and on a real Docker Engine.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs
)]

mod admission;
mod apparmor;
mod certificates;
mod cgroups;
mod checkpoint;
mod claims;
mod cluster;
mod common;
mod csi;
mod csi_in_use;
mod devices;
mod docker;
mod dra;
mod environment;
mod eviction;
mod extremes;
mod faults;
mod gc;
mod hooks;
mod hostile;
mod iptables;
mod kills;
mod lifecycle;
mod managers;
mod metrics;
mod mounts;
mod oom;
mod orphans;
mod outage;
mod pods;
mod probes;
mod projects;
mod proxy;
mod pulls;
mod resize;
mod restart;
mod rotation;
mod security;
mod security_page;
mod standalone;
mod start;
mod static_pods;
mod stats;
mod streams;
mod top;
mod undecodable;
mod vm;
mod volume_data;
mod volume_kinds;
