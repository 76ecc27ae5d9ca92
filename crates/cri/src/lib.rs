//! The Container Runtime Interface, v1: generated types, and [`Runtime`], the
//! client through which the node asks its container runtime for everything;
//! and [`serve`], to be such a runtime.
//!
//! Current limitations: a list comes in one answer of at most 16 MiB; the
//! `Stream…` forms of the lists (alpha in Kubernetes 1.36) are not used.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod call;
mod client;
mod container;
mod error;
mod image;
mod sandbox;
mod server;
mod stats;

pub use call::Observer;
pub use client::{Options, Runtime};
pub use error::Error;
pub use longshore_grpc::{Code, Server};
pub use sandbox::SandboxStatus;
pub use server::serve;

/// The longest message that is accepted, as upstream's.
const MAX_MESSAGE: usize = 16 << 20;

/// What a call gives: its answer, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

/// The messages, clients and server traits generated from `proto/cri`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}
