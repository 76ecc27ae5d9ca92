//! gRPC over Unix sockets: endpoints ([`Endpoint`]), connections that are kept up ([`Connection`]), calls
//! with a deadline ([`request`], [`await_response`]), their failures ([`Failure`]), a [`Server`]
//! with a [`RequestLimit`], and [`socket`]s to serve on.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod authority;
mod call;
mod connection;
mod endpoint;
mod failure;
mod request_limit;
mod server;
pub mod socket;

pub use call::{await_response, request};
pub use connection::{Connected, Connection, Stream, origin};
pub use endpoint::{Endpoint, InvalidEndpoint};
pub use failure::{Failure, code_name};
pub use request_limit::RequestLimit;
pub use server::{Server, contained, service_of};
pub use tonic::Code;
