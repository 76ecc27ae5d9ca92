//! Test hosts: a network namespace with a containerd of its own, and the programs of this project
//! started on it. Used by the tests of every crate and by `make run`.
//!
//! Everything of a host (daemons, pods, apiserver) runs inside its namespace; a veth pair joins it
//! to the machine, so tests reach node, apiserver and pods by address. Nothing outlives a host,
//! and [`Host::assert_clean`] checks that.
//!
//! Current limitations: IPv4 only; a host has no way out of the machine unless
//! [`Host::open_egress`] opens one, so tests import their images or pull them from a [`Registry`].

#![allow(clippy::arithmetic_side_effects, reason = "a tool of tests, on numbers of its own")]
mod apiserver;
mod cgroup;
mod command;
mod containerd;
mod controllers;
pub mod csi;
mod daemon;
mod disk;
mod dns;
mod docker;
mod egress;
mod error;
pub mod fakecri;
mod folders;
mod guest;
mod host;
mod image;
mod kube_proxy;
mod kubectl;
mod leftovers;
mod machine;
mod memory;
mod net;
mod node;
mod proxy;
mod registry;
mod request;
mod resolver;
pub mod scripted;
mod slot;
mod wait;

pub use apiserver::Apiserver;
pub use cgroup::CgroupDriver;
pub use command::program;
pub use controllers::Controllers;
pub use daemon::Daemon;
pub use disk::Disk;
pub use dns::Dns;
pub use docker::{Docker, DockerOptions};
pub use error::{Error, Result};
pub use guest::{CommandOutput, Guest, GuestOptions};
pub use host::{Host, log_tails, sweep_abandoned};
pub use image::{BUSYBOX, Image, ImageBuilder, PAUSE};
pub use kube_proxy::{KubeProxy, kube_proxy_configuration};
pub use kubectl::Kubectl;
pub use machine::Machine;
pub use memory::{available_memory, cgroup_file, total_memory};
pub use node::{Node, NodeOptions};
pub use registry::Registry;
pub use wait::wait_until;
