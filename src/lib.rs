//! Longshore, a Kubernetes node: kubelet and kube-proxy in one daemon.

pub mod admission;
pub mod client;
pub mod config;
pub mod desired;
pub mod events;
pub mod eviction;
pub mod handlers;
pub mod health;
pub mod node;
pub mod objects;
pub mod observe;
pub mod probes;
pub mod registration;
pub mod resources;
pub mod run_once;
pub mod runtime;
pub mod server;
pub mod services;
pub mod sources;
pub mod stats;
pub mod status;
pub mod view;
pub mod volumes;
pub mod worker;
