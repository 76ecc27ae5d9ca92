//! The Container Storage Interface, v1: generated types; [`Driver`], the client of a driver's node
//! service; [`Plugin`], the client of a plugin registration socket; and [`serve_driver`] and
//! [`serve_registration`], the servers.
//!
//! Current limitations: the node service only, not the controller service.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod access;
mod call;
mod driver;
mod error;
mod plugin;
mod server;

pub use access::{access_mode, capability};
pub use call::Observer;
pub use driver::{Capabilities, Driver, Options};
pub use error::Error;
pub use longshore_grpc::{Code, Server};
pub use plugin::Plugin;
pub use server::{serve_driver, serve_registration};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The messages, clients and server traits generated from `proto/csi`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

/// The messages, client and server trait generated from `proto/plugins`.
#[allow(missing_docs, clippy::all)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
