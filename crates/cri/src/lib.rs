//! The Container Runtime Interface, v1: generated types, the client
//! [`Runtime`], and the server [`serve`].
//!
//! Current limitations: a list must fit into one response of at most 16 MiB, unless
//! its `Stream…` form is used (alpha in Kubernetes 1.36, gate CRIListStreaming).

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod call;
mod client;
mod container;
mod error;
mod image;
mod peer;
mod sandbox;
mod server;
mod stats;

pub use call::Observer;
pub use client::{Options, Runtime};
pub use error::Error;
pub use longshore_grpc::{Code, Server};
pub use sandbox::SandboxStatus;
pub use server::{InProcess, serve};

/// The limit of messages, as upstream's.
const MAX_MESSAGE: usize = 16 << 20;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The messages, clients and server traits generated from `proto/cri`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}
