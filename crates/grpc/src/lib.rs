//! gRPC over Unix sockets, as a node speaks it with what runs beside it: where a peer listens
//! ([`Endpoint`]), calls with a deadline ([`request`], [`answer`]), why one failed ([`Failure`]),
//! and a [`Server`], to be such a peer. What is said over it is the business of the crates above.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod call;
mod endpoint;
mod failure;
mod server;

pub use call::{answer, request};
pub use endpoint::{Endpoint, InvalidEndpoint};
pub use failure::Failure;
pub use server::{Server, service_of};
pub use tonic::Code;
