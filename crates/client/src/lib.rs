//! The client of the apiserver: a [`kube::Client`] from a kubeconfig, `--master` or a service account,
//! with a rate limit, timeouts, failover if the cluster has several servers, and reloading of rotated
//! certificates and of the kubeconfig.
//!
//! Everything that talks to the apiserver uses a client made here.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod accounts;
pub mod certificates;
mod config_source;
mod connection_pool;
pub(crate) mod decode;
pub mod events;
mod kubeconfig;
mod named;
pub mod objects;
pub mod pod_certificates;
mod response_body;
pub mod reviews;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod scripted;
mod selectors;
#[cfg(test)]
mod tests;
mod transport;
mod watches;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Client;
use kube::client::ClientBuilder;
use kube::config::KubeconfigError;
use longshore_metrics::RestClient;
use tokio::sync::watch;

pub use self::accounts::AccountClients;
pub use self::config_source::ConfigSource;
pub use self::decode::{Item, Reports, Unreadable, object, optional};
pub(crate) use self::kubeconfig::{current_cluster, current_user, decoded};
pub use self::named::named;
pub use self::selectors::field_selector;
use self::transport::{Shared, Transport};
pub use self::watches::{Encoded, watch, watch_encoded};

/// An error of a request as Go's clients print it: the message of the apiserver alone.
pub fn error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The read timeout of a connection; a watch gets a bookmark each minute.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig, or a file that it names, cannot be used.
    #[error("{config_source}: {source}")]
    Kubeconfig {
        /// Where it comes from.
        config_source: ConfigSource,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig is invalid.
    #[error("{config_source}: {reason}")]
    Invalid {
        /// Where it comes from.
        config_source: ConfigSource,
        /// What is wrong with it.
        reason: String,
    },
    /// The plugin of the user gives no credential.
    #[error("{config_source}: getting credentials: {source}")]
    Plugin {
        /// Where it comes from.
        config_source: ConfigSource,
        /// Why it gives none.
        source: longshore_exec_credentials::Error,
    },
    /// The credentials cannot be used for a connection.
    #[error("{config_source}: {source}")]
    Connection {
        /// Where they come from.
        config_source: ConfigSource,
        /// What is wrong with it.
        source: Box<kube::Error>,
    },
}

/// The limits of one client.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The component, with which the header `User-Agent` begins.
    pub component: &'static str,
    /// Requests in a second; 0: no limit.
    pub qps: i32,
    /// Requests at once.
    pub burst: i32,
    /// How long the apiserver may take to begin its response.
    pub timeout: Duration,
}

/// The server and the user of a client.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The cluster, and the user unless there is an identity.
    pub config_source: ConfigSource,
    /// A certificate that the daemon rotates.
    pub identity: Option<Identity>,
    /// Whether the cluster alone is used, and nothing that its user could show.
    pub anonymous: bool,
}

impl Credentials {
    /// Those of a kubeconfig alone.
    pub fn of(kubeconfig: &Path) -> Self {
        ConfigSource::Kubeconfig(kubeconfig.to_owned()).into()
    }

    fn state(&self) -> CredentialState {
        let identity = self.identity.as_ref();
        identity.map_or(CredentialState::Kubeconfig, |identity| identity.state.borrow().clone())
    }
}

impl From<ConfigSource> for Credentials {
    /// The credentials in the source itself.
    fn from(config_source: ConfigSource) -> Self {
        Self { config_source, identity: None, anonymous: false }
    }
}

/// A client certificate with its key that is rotated.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The file with both.
    pub path: PathBuf,
    /// The state of the credential.
    pub state: watch::Receiver<CredentialState>,
}

/// Which client credential is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialState {
    /// There is none, and why: requests wait.
    Lacking(String),
    /// That of the kubeconfig.
    Kubeconfig,
    /// The certificate of the [`Identity`]; the number changes with it.
    Certificate(u64),
}

/// A client with these credentials.
///
/// Nothing is sent yet: a server that is down is detected by the first request. Requests are
/// recorded in `metrics`.
pub async fn connect(
    credentials: &Credentials,
    limits: Limits,
    metrics: RestClient,
) -> Result<Client, ClientError> {
    let transport = Transport(Shared::open(credentials.clone(), limits, metrics).await?);
    // all requests name their namespace
    Ok(ClientBuilder::new(transport, "default").build())
}
