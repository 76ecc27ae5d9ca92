//! kube-proxy: how services reach their endpoints. Data flows one way: [`model`] keeps services and
//! their endpoints as this node sees them, [`render`] turns them into the text of rules, [`apply`]
//! writes these to the kernel, as often as [`bounded_frequency`] allows; [`conntrack`] deletes stale
//! flows, [`accounting`] counts packets by name. [`proxier`] combines these, [`health`] reports
//! whether they work. [`userspace`] is the other mode, with relays instead of rules. Watches, ports, metrics and
//! events are the daemon's.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod accounting;
pub mod apply;
pub mod bounded_frequency;
pub mod config;
pub mod conntrack;
pub mod health;
pub mod model;
mod netlink;
pub mod proxier;
pub mod render;
pub mod sysctl;
pub mod userspace;

pub use model::Family;
