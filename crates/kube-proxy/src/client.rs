//! The client of kube-proxy: from a kubeconfig, `--master`, or the service account of its pod.
//!
//! Current limitations: `contentType` is always JSON.

use std::path::Path;
use std::time::Duration;

use axum::http::Uri;
use kube::Client;
use longshore_client as client;
use longshore_client::{ClientError, ConfigSource, Limits};
use longshore_config::ProxyConfig;
use longshore_metrics::RestClient;

use super::COMPONENT;

/// How long the apiserver may take to begin an answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The credentials cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The address of the apiserver is none.
    #[error("--master: {0:?} is not the address of an apiserver")]
    Master(String),
}

/// The kubeconfig that the settings name.
pub(super) fn kubeconfig(config: &ProxyConfig) -> Option<&Path> {
    let path = config.settings.client_connection.kubeconfig.as_str();
    (!path.is_empty()).then(|| Path::new(path))
}

/// A client as the settings have it. Nothing is sent yet.
pub(super) async fn connect(config: &ProxyConfig, metrics: RestClient) -> Result<Client, Error> {
    let connection = &config.settings.client_connection;
    // part of a request a second is one; a negative number is no limit
    #[allow(clippy::cast_possible_truncation, reason = "it saturates")]
    let qps = connection.qps.max(0.0).ceil() as i32;
    let limits = Limits { component: COMPONENT, qps, burst: connection.burst, timeout: TIMEOUT };
    Ok(client::connect(&config_source(config)?.into(), limits, metrics).await?)
}

fn config_source(config: &ProxyConfig) -> Result<ConfigSource, Error> {
    let master = config.master.as_deref().map(address).transpose()?;
    Ok(match (kubeconfig(config).map(Path::to_owned), master) {
        (Some(path), None) => ConfigSource::Kubeconfig(path),
        (Some(kubeconfig), Some(master)) => ConfigSource::Redirected { kubeconfig, master },
        (None, Some(master)) => ConfigSource::Master(master),
        (None, None) => ConfigSource::Pod,
    })
}

/// The URL of a server; one without a scheme is `http`, as upstream.
fn address(master: &str) -> Result<String, Error> {
    let url = if master.contains("://") { master.to_owned() } else { format!("http://{master}") };
    let whole = |uri: &Uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
    };
    let is_good = url.parse::<Uri>().is_ok_and(|uri| whole(&uri));
    if is_good { Ok(url) } else { Err(Error::Master(master.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host() {
        for (master, expected) in [
            ("https://10.0.0.1:6443", "https://10.0.0.1:6443"),
            ("10.0.0.1:8080", "http://10.0.0.1:8080"),
            ("http://[fd00::1]:8080", "http://[fd00::1]:8080"),
        ] {
            assert_eq!(address(master).unwrap(), expected);
        }
        for master in ["", "https://", "http://a b", "://x"] {
            assert!(address(master).is_err(), "{master}");
        }
    }
}
