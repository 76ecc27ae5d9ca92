//! Longshore, a Kubernetes node: kubelet and kube-proxy in one daemon.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod admission;
pub mod allocation;
mod dashboard;
mod device_plugins;
pub mod docker;
pub mod eviction;
pub mod gc;
pub mod health;
pub mod iptables;
pub mod lock;
mod log_rotation;
pub mod node;
pub mod oom;
pub mod pod_cidr;
mod pod_resources;
mod pods_api;
pub mod registration;
pub mod run_once;
pub mod shutdown;
pub mod status;
pub mod terminator;
#[cfg(test)]
mod testing;
pub mod view;
pub mod worker;
