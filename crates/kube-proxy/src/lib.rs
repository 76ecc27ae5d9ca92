//! kube-proxy as a daemon, by itself ([`run`]) or beside the kubelet ([`beside_kubelet`]): what the
//! apiserver has goes to one engine a family ([`engine`]), which `crates/proxy` is made of; here
//! are the watches, the pace, the ports and the words about it.
//!
//! Rules stay when it stops, and its next start takes them over as they are.
//!
//! Current limitations: `ipvs` and `nftables` are refused by name.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod client;
mod engine;
mod health_ports;
mod metrics;
mod own_node;
mod server;
mod start;
mod sync;
mod watches;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use longshore_base::panics::{Panicked, contain};
use longshore_client::events::Recorder;
use longshore_config::{ProxyConfig, ProxyTask};
use longshore_proxy::apply::{self, Limits};
use longshore_proxy::sysctl;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::metrics::Metrics;

/// The name it goes by.
const COMPONENT: &str = "kube-proxy";
/// How long the last events may take.
const DRAIN: Duration = Duration::from_secs(5);
/// The pause before a proxy that failed beside the kubelet begins again.
const BACKOFF: Duration = Duration::from_secs(10);
/// How often the configuration file is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Why kube-proxy cannot start, or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no configuration of the apiserver.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// iptables cannot be used.
    #[error(transparent)]
    IpTables(#[from] apply::Error),
    /// The kernel does not take a setting.
    #[error("kernel settings: {0}")]
    Sysctl(#[from] sysctl::Error),
    /// The node has no ranges of pods.
    #[error(transparent)]
    NoPodCidrs(#[from] own_node::NoPodCidrs),
    /// The family of the node's address cannot be served.
    #[error("the node's address is of {0}, which the kernel's iptables does not support")]
    Family(longshore_proxy::Family),
    /// All ranges for the detection of local traffic are of the other family.
    #[error("{what} is not of {primary}, the only family of the node")]
    OtherFamily {
        /// The setting.
        what: &'static str,
        /// The node's family.
        primary: longshore_proxy::Family,
    },
    /// A part that never ends has ended.
    #[error("task {0:?} ended: it returned before kube-proxy was stopped")]
    Task(&'static str),
    /// A part panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// A port that must be open is not.
    #[error(transparent)]
    Port(#[from] server::Error),
    /// The configuration is another one now.
    #[error("{0} has changed: the proxy must be restarted")]
    Changed(String),
}

/// Runs kube-proxy in a process of its own until it is stopped, or the operation of its flags.
pub async fn run(
    config: ProxyConfig,
    task: ProxyTask,
    stop: CancellationToken,
) -> Result<(), Error> {
    let config = Arc::new(config);
    if task == ProxyTask::CleanUp {
        return Ok(apply::cleanup(Limits::default()).await?);
    }
    let metrics = Metrics::new(&config.gates);
    let client = client::connect(&config, metrics.rest_client.clone()).await?;
    longshore_machine::process::set_oom_score(config.settings.oom_score_adj);
    let run_proxy = async {
        match (&config.file, task) {
            (_, ProxyTask::Init) => serve(&config, &metrics, client, true).await,
            (None, _) => serve(&config, &metrics, client, false).await,
            (Some(file), _) => tokio::select! {
                result = serve(&config, &metrics, client, false) => result,
                () = changed(file) => Err(Error::Changed(file.display().to_string())),
            },
        }
    };
    tokio::select! {
        result = run_proxy => result,
        () = stop.cancelled() => {
            info!("kube-proxy stopped; its rules remain");
            Ok(())
        }
    }
}

/// Runs kube-proxy in the kubelet's process until dropped, with the kubelet's client of the apiserver
/// unless its own kubeconfig is another. However it fails or panics, the kubelet goes on, and
/// it begins again.
pub async fn beside_kubelet(
    config: ProxyConfig,
    kubeconfig: Option<std::path::PathBuf>,
    shared: Option<Client>,
) {
    let metrics = Metrics::new(&config.gates);
    let config = Arc::new(config);
    loop {
        let client = match (client::kubeconfig(&config), &shared) {
            (None, None) => {
                warn!("kube-proxy does not run: there is no kubeconfig");
                return;
            }
            (own, Some(shared)) if own.is_none() || own == kubeconfig.as_deref() => {
                Ok(shared.clone())
            }
            _ => client::connect(&config, metrics.rest_client.clone()).await,
        };
        let result = match client {
            Ok(client) => {
                let served = contain(serve(&config, &metrics, client, false)).await;
                served.map_err(Error::from).flatten()
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = result {
            error!(%error, again = ?BACKOFF, "kube-proxy failed");
        }
        sleep(BACKOFF).await;
    }
}

/// Sets up, and works until it fails; to set up is all if `init`.
async fn serve(
    config: &Arc<ProxyConfig>,
    metrics: &Metrics,
    client: Client,
    init: bool,
) -> Result<(), Error> {
    info!("{}", longshore_config::proxy_banner(config));
    config.notes.iter().for_each(|note| warn!("{note}"));
    let (recorder, written) =
        Recorder::start_as(COMPONENT, Some(client.clone()), &config.node_name);
    let (sender, node) = watch::channel(None);
    let following = watches::node(client.clone(), &config.node_name, sender);
    let run_proxy = async {
        let parts = start::set_up(config, node, &recorder).await?;
        if init {
            return Ok(());
        }
        sync::run_proxy(config, metrics, client.clone(), parts, &recorder).await
    };
    let result = tokio::select! {
        result = run_proxy => result,
        () = following => Err(Error::Task("watch of the node")),
    };
    drop(recorder);
    let _ = timeout(DRAIN, written.finish()).await;
    result
}

/// Waits until a file says something else.
async fn changed(file: &Path) {
    let read = || std::fs::read(file).ok();
    let begun = read();
    loop {
        sleep(CHECK_INTERVAL).await;
        // one that is not there is about to be put there again
        let now = read();
        if now.is_some() && now != begun {
            return;
        }
    }
}
