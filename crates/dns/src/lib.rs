//! The DNS server of a cluster: the names of services, endpoints and pods (the Kubernetes DNS
//! specification 1.1.0), and all others by the servers of the host. It takes the place of CoreDNS as
//! kubeadm configures it, with its ports, metrics and answers.
//!
//! Flow: objects → `watches` → `model` (objects to records) → [`Zone`], an immutable snapshot that is
//! published at each change; datagrams and connections (`udp`, `tcp`) → `handler` → `message` (bytes
//! to a question) → `zone` (question to answer) → `message` (answer to bytes), or `forward` (`cache`,
//! `upstream`). No lock is taken between a question about the cluster and its answer.
//!
//! Messages and records are those of hickory-server. Its sockets are not used: it starts a task for
//! each datagram and connection without a bound, logs each question, and allocates for as many
//! questions as a header of 12 bytes says.
//!
//! Current limitations: `resolv.conf` is read once; no Corefile, stub domains or DNSSEC.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod args;
mod cache;
mod forward;
mod handler;
mod message;
mod metrics;
mod model;
mod names;
mod ports;
mod random;
mod shards;
mod tcp;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
mod udp;
mod upstream;
mod watches;
mod zone;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, select_all};
use kube::Client;
use longshore_metrics::{Registry, RestClient, register_process_metrics};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::forward::{Forwarder, resolv_conf, without_own};
use crate::handler::{Handler, Shared};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::names::Domain;
use crate::ports::Ready;

pub use crate::names::DomainError;
pub use crate::zone::{PodNames, Zone};

/// Sockets of one address: one for each thread, up to so many.
const MAX_SOCKETS: usize = 4;
/// How often a port is looked for that is free over UDP and TCP.
const PORT_TRIES: usize = 16;

/// Everything that a server is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The domain of the cluster's names.
    pub cluster_domain: String,
    /// The time to live of the cluster's records, in seconds.
    pub ttl: u32,
    /// Which names of pods are answered.
    pub pods: PodNames,
    /// Where to answer, over UDP and TCP; port 0 takes any free one.
    pub listen: Vec<SocketAddr>,
    /// Servers to ask about other names.
    pub forward: Vec<SocketAddr>,
    /// The file with such servers, read where `forward` is empty.
    pub resolv_conf: Option<PathBuf>,
    /// Where `/metrics` is.
    pub metrics: Option<SocketAddr>,
    /// Where `/health` is.
    pub health: Option<SocketAddr>,
    /// Where `/ready` is.
    pub ready: Option<SocketAddr>,
    /// How long it goes on answering when it is stopped.
    pub lameduck: Duration,
}

impl From<&args::Args> for Config {
    fn from(args: &args::Args) -> Self {
        Self {
            cluster_domain: args.cluster_domain.clone(),
            ttl: args.ttl,
            pods: args.pods,
            listen: args.listen.clone(),
            forward: args.forward.clone(),
            resolv_conf: Some(args.upstream_resolv_conf.clone()),
            metrics: args.metrics_addr.0,
            health: args.health_addr.0,
            ready: args.ready_addr.0,
            lameduck: args.lameduck(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster domain cannot be used.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// An address could not be listened on.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The file with the servers to ask could not be read.
    #[error("{path}: {source}")]
    ResolvConf {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A server that listens.
pub struct Server {
    sockets: Vec<(UdpSocket, SocketAddr)>,
    listeners: Vec<TcpListener>,
    ports: Vec<(TcpListener, axum::Router)>,
    addresses: Vec<SocketAddr>,
    port_addresses: [Option<SocketAddr>; 3],
    shared: Arc<Shared>,
    model: Model,
    pods: PodNames,
    ready: Ready,
    lameduck: Duration,
}

impl Server {
    /// Listens at all addresses.
    ///
    /// # Errors
    /// An address cannot be listened on, or the configuration cannot be used.
    pub fn bind(config: &Config) -> Result<Self, Error> {
        let domain = Domain::parse(&config.cluster_domain)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (mut sockets, mut listeners, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        for address in &config.listen {
            let listen = |source| Error::Listen { address: *address, source };
            let (socket, listener, address) = both(*address).map_err(listen)?;
            sockets.push((socket, address));
            for _ in 1..threads.min(MAX_SOCKETS) {
                sockets.push((udp::bind(address).map_err(listen)?, address));
            }
            listeners.push(listener);
            addresses.push(address);
        }
        let servers = servers(config, &addresses)?;
        info!(?servers, "other names are asked of");
        let metrics = Metrics::new(addresses.first().map_or(53, SocketAddr::port));
        register_process_metrics(&metrics.registry, tokio::runtime::Handle::current());
        let ready = Ready::default();
        let wanted = [
            (config.metrics, ports::metrics(metrics.registry.clone())),
            (config.health, ports::health()),
            (config.ready, ports::ready(ready.clone())),
        ];
        let mut ports = Vec::new();
        let mut port_addresses = [None; 3];
        for ((address, router), at) in wanted.into_iter().zip(&mut port_addresses) {
            let Some(address) = address else { continue };
            let listen = |source| Error::Listen { address, source };
            let listener = tcp::bind(address).map_err(listen)?;
            *at = Some(listener.local_addr().map_err(listen)?);
            ports.push((listener, router));
        }
        let forwarder = Forwarder::new(&servers, &metrics);
        Ok(Self {
            sockets,
            listeners,
            ports,
            addresses,
            port_addresses,
            shared: Arc::new(Shared { forwarder, metrics }),
            model: Model::new(domain, config.ttl, config.pods),
            pods: config.pods,
            ready,
            lameduck: config.lameduck,
        })
    }

    /// Where it answers.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where its metrics, its health and its readiness are.
    #[must_use]
    pub fn port_addresses(&self) -> [Option<SocketAddr>; 3] {
        self.port_addresses
    }

    /// The metrics of its client, on its page.
    #[must_use]
    pub fn client_metrics(&self) -> RestClient {
        RestClient::of_coredns(&self.shared.metrics.registry)
    }

    /// The registry of its metrics.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.shared.metrics.registry
    }

    /// Answers until `stop`, and for the time of grace after that.
    pub async fn run(self, client: Client, stop: CancellationToken) {
        let (changed, changes) = mpsc::unbounded_channel();
        let mut model = self.model;
        let (published, zone) = watch::channel(Arc::new(model.snapshot(0)));
        let metrics = self.shared.metrics.clone();
        let handler = Handler::new(self.shared.clone(), zone.clone());
        let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
        for (socket, _) in self.sockets {
            tasks.push(udp::serve(socket, handler.clone()).boxed());
        }
        for listener in self.listeners {
            tasks.push(tcp::serve(listener, handler.clone()).boxed());
        }
        for (listener, router) in self.ports {
            tasks.push(ports::serve(listener, router).boxed());
        }
        if let [_, Some(address), _] = self.port_addresses {
            let address = ports::reachable(address);
            tasks.push(ports::watch_health(address, metrics.health.clone()).boxed());
        }
        let pods = self.pods;
        tasks.push(async move { watches::follow(&client, pods, changed).await }.boxed());
        tasks.push(watches::apply(model, changes, published, metrics.programming.clone()).boxed());
        let ready = self.ready.clone();
        tasks.push(
            async move {
                let mut zone = zone;
                // an error: the publisher is gone, and this too
                if zone.wait_for(|zone| zone.synced).await.is_ok() {
                    ready.set(true);
                }
                std::future::pending().await
            }
            .boxed(),
        );
        let shared = self.shared.clone();
        tasks.push(
            async move {
                shared.forwarder.detect_loops().await;
                std::future::pending().await
            }
            .boxed(),
        );
        // Each on its own: answers do not wait for anything else.
        let tasks: Vec<_> = tasks
            .into_iter()
            .map(|task| tokio_util::task::AbortOnDropHandle::new(tokio::spawn(task)))
            .collect();
        let ended = select_all(tasks);
        tokio::select! {
            () = async {
                stop.cancelled().await;
                self.ready.set(false);
                info!("goes on answering for {:?}", self.lameduck);
                tokio::time::sleep(self.lameduck).await;
            } => {}
            _ = ended => tracing::error!("a part of the server ended"),
        }
    }
}

/// The servers that are asked about other names.
fn servers(config: &Config, own: &[SocketAddr]) -> Result<Vec<SocketAddr>, Error> {
    if !config.forward.is_empty() {
        return Ok(without_own(config.forward.clone(), own));
    }
    let Some(path) = &config.resolv_conf else { return Ok(Vec::new()) };
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(without_own(resolv_conf(&text), own)),
        Err(source) => Err(Error::ResolvConf { path: path.clone(), source }),
    }
}

/// A socket and a listener of one address.
fn both(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener, SocketAddr)> {
    let mut tries = 0;
    loop {
        let socket = udp::bind(address)?;
        let bound = socket.local_addr()?;
        match tcp::bind(bound) {
            Ok(listener) => return Ok((socket, listener, bound)),
            // Another has taken that port over TCP.
            Err(_) if address.port() == 0 && tries < PORT_TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}
