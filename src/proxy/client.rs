//! The way of kube-proxy to the apiserver: a kubeconfig, or the service account of its pod.
//!
//! Current limitations: with `--master`, and in a pod, certificates in files are read once (tokens
//! are followed), and `clientConnection.qps` and `burst` do not hold: there are three watches and
//! few events; nor are its requests counted (`rest_client_*`). `contentType` is JSON, whatever is asked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use longshore_metrics::RestClient;

use crate::client::{self, ClientError, Credentials, Limits};
use crate::config::ProxyConfig;

/// How long the apiserver may take to begin an answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] ClientError),
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {}: {source}", path.display())]
    Read {
        /// The kubeconfig file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// No kubeconfig is named, and this is no pod either.
    #[error("no kubeconfig is given, and this is no pod of a cluster: {0}")]
    NoPod(#[from] InClusterError),
    /// The address of the apiserver is none.
    #[error("--master: {0:?} is no address of an apiserver")]
    Master(String),
    /// The credentials cannot be used for a connection.
    #[error("client of the apiserver: {0}")]
    Connection(#[from] kube::Error),
}

/// The kubeconfig that the settings name.
pub(super) fn kubeconfig(config: &ProxyConfig) -> Option<&Path> {
    let path = config.settings.client_connection.kubeconfig.as_str();
    (!path.is_empty()).then(|| Path::new(path))
}

/// A client as the settings have it. Nothing is sent yet.
pub(super) async fn connect(config: &ProxyConfig, told: RestClient) -> Result<Client, Error> {
    let connection = &config.settings.client_connection;
    // part of a request a second is one; a negative number is no limit
    #[allow(clippy::cast_possible_truncation, reason = "it saturates")]
    let qps = connection.qps.max(0.0).ceil() as i32;
    let limits = Limits { qps, burst: connection.burst, timeout: TIMEOUT };
    let mut ours = match (kubeconfig(config), &config.master) {
        (Some(path), None) => {
            return Ok(client::connect(&Credentials::of(path), limits, told).await?);
        }
        (Some(path), Some(_)) => {
            let error = |source| Error::Read { path: path.to_owned(), source: Box::new(source) };
            let kubeconfig = Kubeconfig::read_from(path).map_err(error)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(error)?
        }
        // without credentials, as one asks a port of one's own machine
        (None, Some(master)) => Config::new(uri(master)?),
        (None, None) => Config::incluster()?,
    };
    if let Some(master) = &config.master {
        ours.cluster_url = uri(master)?;
    }
    ours.connect_timeout = Some(TIMEOUT);
    ours.write_timeout = Some(TIMEOUT);
    Ok(Client::try_from(ours)?)
}

fn uri(master: &str) -> Result<axum::http::Uri, Error> {
    let uri: Option<axum::http::Uri> = master.parse().ok();
    uri.filter(|uri| uri.host().is_some()).ok_or_else(|| Error::Master(master.to_owned()))
}
