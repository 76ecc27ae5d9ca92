//! Longshore, a Kubernetes node: kubelet and kube-proxy in one daemon.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod admission;
pub mod certificates;
pub mod client;
pub mod config;
pub mod desired;
pub mod events;
pub mod eviction;
mod files;
pub mod gc;
pub mod handlers;
pub mod health;
pub mod iptables;
pub mod lock;
pub mod logging;
pub mod logs;
pub mod metrics;
pub mod node;
pub mod objects;
pub mod observe;
pub mod oom;
pub mod plugins;
pub mod probes;
pub mod proxy;
pub mod registration;
pub mod resources;
pub mod run_once;
pub mod runtime;
pub mod server;
pub mod services;
pub mod sources;
pub mod stats;
pub mod status;
pub mod systemd;
pub mod view;
pub mod volumes;
pub mod worker;
