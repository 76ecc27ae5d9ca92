//! The way to the apiserver: a [`kube::Client`] from a kubeconfig, or what stands for one, that keeps to a rate limit,
//! gives up on a silent server, goes to another one if the cluster has several, and takes up
//! renewed certificates and edits of the kubeconfig.
//!
//! Everything that speaks with the apiserver is given a client made here.
//!
//! Current limitations: `NO_PROXY` is matched as kube does, by the proxy and not by the server.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod answer;
pub mod certificates;
mod connection_pool;
pub(crate) mod decode;
pub mod events;
mod kubeconfig;
mod mutex;
pub mod objects;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod scripted;
#[cfg(test)]
mod tests;
mod transport;
mod way;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Client;
use kube::client::ClientBuilder;
use kube::config::KubeconfigError;
use longshore_metrics::RestClient;
use tokio::sync::watch;

pub use self::connection_pool::SharesConnection;
pub use self::decode::{Item, Reports, Unreadable, object, optional};
pub(crate) use self::kubeconfig::{current_cluster, current_user, decoded};
use self::transport::{Shared, Transport};
pub use self::way::Way;

/// How long a connection may be silent; a watch hears a bookmark each minute.
const SILENCE: Duration = Duration::from_secs(300);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig, or a file that it names, cannot be used.
    #[error("{way}: {source}")]
    Kubeconfig {
        /// Where it comes from.
        way: Way,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig says what cannot be.
    #[error("{way}: {reason}")]
    Invalid {
        /// Where it comes from.
        way: Way,
        /// What is wrong with it.
        reason: String,
    },
    /// The credentials cannot be used for a connection.
    #[error("{way}: {source}")]
    Connection {
        /// Where they come from.
        way: Way,
        /// What is wrong with it.
        source: Box<kube::Error>,
    },
}

/// The manners of one client.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Who asks, as the header `User-Agent` begins.
    pub component: &'static str,
    /// Requests in a second; 0: no limit.
    pub qps: i32,
    /// Requests at once.
    pub burst: i32,
    /// How long the apiserver may take to begin its answer.
    pub timeout: Duration,
}

/// Where a client is to go, and as whom.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The way to the cluster, and the user unless there is an identity.
    pub way: Way,
    /// A pair that the daemon keeps by itself.
    pub identity: Option<Identity>,
}

impl Credentials {
    /// Those of a kubeconfig alone.
    pub fn of(kubeconfig: &Path) -> Self {
        Way::Kubeconfig(kubeconfig.to_owned()).into()
    }

    fn standing(&self) -> CredentialState {
        let identity = self.identity.as_ref();
        identity.map_or(CredentialState::Kubeconfig, |identity| identity.standing.borrow().clone())
    }
}

impl From<Way> for Credentials {
    /// Those that the way itself has.
    fn from(way: Way) -> Self {
        Self { way, identity: None }
    }
}

/// A certificate with its key that is shown to the apiserver, and renewed from time to time.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The file with both.
    pub path: PathBuf,
    /// What is to be shown now.
    pub standing: watch::Receiver<CredentialState>,
}

/// What is to be shown to the apiserver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialState {
    /// Nothing yet, or nothing any more, and why: requests wait.
    Lacking(String),
    /// What the kubeconfig has.
    Kubeconfig,
    /// The pair of the [`Identity`]; another number: another pair.
    Kept(u64),
}

/// A client with these credentials.
///
/// Nothing is sent yet: a server that is down shows with the first request. How requests go is
/// told to `metrics`.
pub async fn connect(
    credentials: &Credentials,
    limits: Limits,
    metrics: RestClient,
) -> Result<Client, ClientError> {
    let transport = Transport(Shared::open(credentials.clone(), limits, metrics).await?);
    // the daemon names the namespace of all that it asks for
    Ok(ClientBuilder::new(transport, "default").build())
}
