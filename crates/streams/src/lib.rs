//! Upgraded connections, for exec, attach and port-forward.
//!
//! [`pass`] passes a client's upgrade to a backend and copies bytes both ways, whatever the
//! protocol; only SPDY frames of clients are checked, as not every runtime does. Backends speak SPDY/3.1 and old WebSocket protocols; newer WebSocket clients are
//! served here: [`remote_command`] translates the channels of `v5.channel.k8s.io` to SPDY streams,
//! and [`tunnel`] unwraps the SPDY connection that port-forward puts into WebSocket messages. A
//! session ends when either side closes it, or after the idle time. When the client is gone, its streams are ended first,
//! so that a command which reads its input can end by itself.
//!
//! [`terminal`] is a client itself: it joins the terminal of this process to a command.
//!
//! Current limitations: as with upstream, a command that neither reads nor writes outlives a
//! client that goes away: the runtime has no call to end it.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod activity;
mod backend;
pub mod channel;
mod header_blocks;
mod output;
mod pass;
mod relay;
mod remote_command;
mod session;
pub mod spdy;
mod status;
mod terminal;
#[cfg(test)]
mod tests;
mod tunnel;
pub mod websocket;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Empty};
use hyper::body::Incoming;
use hyper::{Response, StatusCode};

pub use activity::Activity;
pub use backend::{
    REMOTE_COMMANDS, STREAM_PROTOCOL, dial, drop_credentials, drop_hop_headers, spdy_request,
    upgrade,
};
pub use output::{is_websocket_output, websocket_output};
pub use pass::{LINGER, close_on_refusal, is_spdy, is_upgrade, pass, pass_as};
pub use remote_command::{is_remote_command, remote_command};
pub use session::Streams;
pub use status::Status;
pub use terminal::{TerminalInput, terminal};
pub use tunnel::{accept_tunnel, is_tunnel, join_tunnel, tunnel, tunnel_uses};
pub use websocket::is_websocket;

/// The idle time of sessions that have none.
pub const NO_IDLE_TIMEOUT: Duration = Duration::from_secs(u32::MAX as u64);

/// Timeout of the creation of the streams of a session.
pub const CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a client that is not read from is asked whether it is still there.
pub const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The header of a SPDY stream that says what it carries.
pub const STREAM_TYPE: &str = "streamtype";

/// The response to a client: that of the backend, or a WebSocket handshake.
pub type Answer = Response<Either<Incoming, Empty<Bytes>>>;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client requests no upgrade.
    #[error("Upgrade request required")]
    NoUpgrade,
    /// The client's WebSocket handshake is invalid.
    #[error("invalid WebSocket handshake: {0}")]
    Handshake(&'static str),
    /// The backend cannot be reached.
    #[error("connect to {address}: {source}")]
    Connect {
        /// Its address.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The backend did not respond.
    #[error("request to the backend: {0}")]
    Http(#[from] hyper::Error),
    /// The backend timed out.
    #[error("no response from the backend in time")]
    Timeout,
    /// The backend responded with a redirect, which is not followed.
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
    /// The backend refused the upgrade.
    #[error("unable to upgrade connection: {text} ({status})")]
    Refused {
        /// Its status.
        status: StatusCode,
        /// The start of the response body.
        text: String,
    },
    /// The upgraded connection failed.
    #[error("connection broken: {0}")]
    Io(#[from] std::io::Error),
    /// The backend violated the protocol.
    #[error("SPDY: {0}")]
    Spdy(&'static str),
}
