//! Upgraded connections: what exec, attach and port-forward run over.
//!
//! [`pass`] hands a client's upgrade on to a backend and copies bytes both ways, whatever they
//! mean. Backends speak SPDY/3.1 and old WebSocket protocols; what newer WebSocket clients ask for
//! is answered here: [`remote_command`] translates the channels of `v5.channel.k8s.io` to SPDY
//! streams, and [`tunnel`] unwraps the SPDY connection that port-forward puts into WebSocket
//! messages. A session ends when either side goes, or when nothing moves for the idle time.
//!
//! Current limitations: as with upstream, a command that neither reads nor writes outlives a
//! client that goes away: the runtime has no call to end it.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod activity;
mod backend;
mod pass;
mod remote_command;
mod spdy;
#[cfg(test)]
mod tests;
mod tunnel;
mod websocket;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Empty};
use hyper::body::Incoming;
use hyper::{Response, StatusCode};

pub use backend::{drop_hop_headers, drop_proofs, spdy_request, upgrade};
pub use pass::{end_refused, is_upgrade, pass};
pub use remote_command::{Streams, is_remote_command, remote_command};
pub use tunnel::{is_tunnel, tunnel};
pub use websocket::is_websocket;

/// The idle time of sessions that have none.
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The answer to a client: the backend's own, or a handshake made here.
pub type Answer = Response<Either<Incoming, Empty<Bytes>>>;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client asks for no upgrade.
    #[error("Upgrade request required")]
    NoUpgrade,
    /// The client's WebSocket handshake is not one.
    #[error("invalid WebSocket handshake: {0}")]
    Handshake(&'static str),
    /// The backend cannot be reached.
    #[error("connect to {address}: {source}")]
    Connect {
        /// Where it should be.
        address: String,
        /// Why it is not.
        source: std::io::Error,
    },
    /// The backend gave no answer.
    #[error("request to the backend: {0}")]
    Http(#[from] hyper::Error),
    /// The backend took too long.
    #[error("no answer from the backend in time")]
    Timeout,
    /// The backend points elsewhere; where that leads is not for it to say.
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
    /// The backend said no.
    #[error("unable to upgrade connection: {text} ({status})")]
    Refused {
        /// Its status.
        status: StatusCode,
        /// The start of its text.
        text: String,
    },
    /// The upgraded connection broke.
    #[error("connection broken: {0}")]
    Io(#[from] std::io::Error),
    /// The backend broke its protocol.
    #[error("SPDY: {0}")]
    Spdy(&'static str),
}
