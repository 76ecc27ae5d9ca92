//! What a call is sent to.

use std::fmt;
use std::sync::Arc;

use longshore_grpc::{Endpoint, InvalidEndpoint};
use tonic::transport::Channel;

use crate::InProcess;

/// A service of a runtime: its endpoint, for messages, and the channel to it.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) name: Arc<str>,
    pub(crate) channel: Channel,
}

impl Peer {
    /// What an endpoint means: a runtime in this process, or a socket. Must be called inside a tokio runtime.
    pub(crate) fn new(endpoint: &str, in_process: &[InProcess]) -> Result<Self, InvalidEndpoint> {
        if let Some(found) = in_process.iter().find(|known| known.endpoint == endpoint) {
            return Ok(Self { name: endpoint.into(), channel: found.channel.clone() });
        }
        let socket = Endpoint::parse(endpoint)?;
        Ok(Self { name: socket.to_string().into(), channel: socket.channel() })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
