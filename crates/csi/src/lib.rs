//! The Container Storage Interface, v1: generated types; [`Driver`], the client of a driver's node
//! service; and [`serve_driver`], the server.
//!
//! Current limitations: the node service only, not the controller service.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod access;
mod call;
mod driver;
mod error;
mod server;

pub use access::{access_mode, capability};
pub use call::Observer;
pub use driver::{Capabilities, Driver, Options};
pub use error::Error;
pub use longshore_grpc::{Code, Server};
pub use server::serve_driver;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The messages, clients and server traits generated from `proto/csi`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}
