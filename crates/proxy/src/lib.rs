//! kube-proxy: how services reach their endpoints. Data flows one way: [`model`] keeps services and
//! their endpoints as this node sees them, [`render`] makes rules of them as text, [`apply`] has
//! these in the kernel, as often as [`pacer`] says; [`conntrack`] ends the flows that nobody answers
//! any more, [`accounting`] counts packets by name. [`proxier`] has all of these work together, [`health`] tells others whether they do.
//! [`userspace`] is the other mode, with relays in the place of rules. Watches, ports, metrics and
//! events are the daemon's.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod accounting;
pub mod apply;
pub mod config;
pub mod conntrack;
pub mod health;
pub mod model;
mod netlink;
pub mod pacer;
pub mod proxier;
pub mod render;
pub mod sysctl;
pub mod userspace;

pub use model::Family;
