//! kube-proxy: how services reach their endpoints. Data flows one way: [`model`] keeps services and
//! their endpoints as this node sees them, [`render`] makes rules of them as text, [`apply`] has
//! these in the kernel, as often as [`pacer`] says; [`conntrack`] ends the flows that nobody answers
//! any more. [`userspace`] is the other mode, with relays in the place of rules.
//!
//! Current limitations: no daemon runs it yet.

pub mod apply;
pub mod config;
pub mod conntrack;
pub mod model;
mod netlink;
pub mod pacer;
pub mod render;
pub mod sysctl;
pub mod userspace;

pub use model::Family;
