//! The scheduler: finds a node for each pod that has none.
//!
//! [`scheduler`] is all of it without I/O: a [`queue`] of pods, a [`cache`] of nodes, and profiles of
//! [`framework`] plugins that [`plugins::Registry`] has by name.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod cache;
pub mod config;
pub mod devices;
pub mod driver;
pub mod events;
pub mod framework;
pub mod metrics;
pub mod model;
pub mod plugins;
pub mod program;
pub mod queue;
mod resource_metrics;
pub mod scheduler;
pub mod service;
#[cfg(test)]
mod testing;
