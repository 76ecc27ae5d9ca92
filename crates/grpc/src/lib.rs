//! gRPC over Unix sockets: endpoints ([`Endpoint`]), calls with a deadline ([`request`],
//! [`await_response`]), their failures ([`Failure`]), and a [`Server`].

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod call;
mod endpoint;
mod failure;
mod server;

pub use call::{await_response, request};
pub use endpoint::{Endpoint, InvalidEndpoint};
pub use failure::Failure;
pub use server::{Server, service_of};
pub use tonic::Code;
