//! The client of a plugin registration socket.

use std::path::Path;
use std::time::Duration;

use longshore_grpc::{Code, Endpoint, Failure, await_response, code_name, request};
use tonic::transport::Channel;

use crate::registration::registration_client::RegistrationClient;
use crate::registration::{InfoRequest, PluginInfo, RegistrationStatus};

/// Timeout of registration calls.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of versions that a plugin may have.
const MOST_VERSIONS: usize = 128;

/// A call to a plugin failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No socket can have that path.
    #[error("invalid socket of a plugin: {endpoint:?}: {reason}")]
    Socket {
        /// The path.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The call failed. The message has the format of gRPC's Go library.
    #[error("{socket}: {call}: rpc error: code = {} desc = {message}", code_name(*.code))]
    Call {
        /// The socket.
        socket: String,
        /// The call.
        call: &'static str,
        /// The gRPC code.
        code: Code,
        /// The plugin's message, or the local cause.
        message: String,
    },
    /// The plugin's description of itself is not usable.
    #[error("{socket}: GetInfo: {reason}")]
    Info {
        /// The socket.
        socket: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A client of one registration socket.
pub(crate) struct Client {
    socket: String,
    client: RegistrationClient<Channel>,
}

impl Client {
    /// A client of the plugin that listens at `socket`. Must be made inside a tokio runtime.
    pub(crate) fn new(socket: &Path) -> Result<Self, Error> {
        let socket = socket.display().to_string();
        let endpoint = Endpoint::parse(&socket).map_err(|invalid| Error::Socket {
            endpoint: invalid.endpoint,
            reason: invalid.reason,
        })?;
        Ok(Self { client: RegistrationClient::new(endpoint.channel()), socket })
    }

    /// The plugin's description of itself.
    pub(crate) async fn info(&self) -> Result<PluginInfo, Error> {
        let mut client = self.client.clone();
        let sent = client.get_info(request(InfoRequest {}, Some(TIMEOUT)));
        let answer = await_response(Some(TIMEOUT), sent).await;
        let info = answer.map_err(|failure| self.failed("GetInfo", failure))?;
        let unusable = |reason| Err(Error::Info { socket: self.socket.clone(), reason });
        if info.name.is_empty() {
            return unusable("the response has no name");
        }
        if info.supported_versions.len() > MOST_VERSIONS {
            return unusable("the response has more than 128 versions");
        }
        Ok(info)
    }

    /// Notifies the plugin of its registration status; `refusal` is the error.
    pub(crate) async fn notify(&self, refusal: Option<&str>) -> Result<(), Error> {
        let status = RegistrationStatus {
            plugin_registered: refusal.is_none(),
            error: refusal.unwrap_or_default().to_owned(),
        };
        let mut client = self.client.clone();
        let sent = client.notify_registration_status(request(status, Some(TIMEOUT)));
        let answer = await_response(Some(TIMEOUT), sent).await;
        answer.map(drop).map_err(|failure| self.failed("NotifyRegistrationStatus", failure))
    }

    fn failed(&self, call: &'static str, failure: Failure) -> Error {
        let (socket, code) = (self.socket.clone(), failure.code());
        Error::Call { socket, call, code, message: failure.into_message() }
    }
}
