//! Services and their endpoints as this node sees them, one [`Tracker`] an IP family. Pure: events
//! of the watches go in, and what changed since it was last asked comes out ([`Changes`]). Which
//! endpoints a node uses (topology hints, terminating ones, local ones) is decided here; `render`
//! and the userspace proxy only follow it.
//!
//! Current limitations: endpoint ports without a number ("all ports") are left out, as upstream.

mod derived;
mod endpoints;
mod names;
mod service;
mod slice;
mod state;
mod topology;
mod tracker;
mod warnings;

pub use derived::{Frontends, HealthCheck, NoLocalEndpoints};
pub use endpoints::{Address, Endpoint};
pub use names::{Cidr, CidrError, Family, Protocol, ServiceName};
pub use service::{Policy, Port, PortView, Service, Spec};
pub use state::{Change, Changes, State};
pub use tracker::{Node, Tracker};
pub use warnings::Warning;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
