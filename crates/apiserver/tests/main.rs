//! The apiserver over HTTP.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs
)]

mod access;
mod accounts;
mod aggregation;
mod answers;
mod apply;
mod audit;
mod authorization;
mod callers;
mod clients;
mod common;
mod contract;
mod conversion;
mod custom_resources;
mod daemon;
mod dual_stack;
mod flow_control;
mod kinds;
mod kubectl;
mod limits;
mod linearizability;
mod logs;
mod objects;
mod pod_certificates;
mod pod_parts;
mod pod_proxy;
mod policies;
mod proxies;
mod proxy;
mod servers;
mod snapshots;
mod takeover;
mod tokens;
mod tours;
mod tracing;
mod volumes;
mod watches;
mod webhooks;
mod workloads;
