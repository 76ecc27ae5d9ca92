//! The page of `--dashboard`: what `longshore top` shows, for browsers on this machine.

use std::net::{IpAddr, SocketAddr};

use kube::Client;
use longshore_base::connections;
use longshore_config::Config;
use longshore_cri::Runtime;
use longshore_node_view::{Inspector, dashboard};
use longshore_server::{ServerError, serve_plain};
use tracing::info;

/// Opens the port. The page is served by what is returned.
pub(crate) fn bind(
    config: &Config,
    address: SocketAddr,
    client: Option<&Client>,
    runtime: Runtime,
) -> Result<impl Future<Output = ()> + Send + use<>, ServerError> {
    let listener =
        connections::listen(address).map_err(|source| ServerError::Listen { address, source })?;
    info!(%address, "dashboard");
    let page = dashboard(inspector(config, client, runtime));
    Ok(serve_plain(listener, page))
}

fn inspector(config: &Config, client: Option<&Client>, runtime: Runtime) -> Inspector {
    let inspector = Inspector::new(&config.node_name).with_shared_runtime(runtime);
    let inspector = match health_address(config) {
        Some(address) => inspector.with_health(address),
        None => inspector,
    };
    match client {
        Some(client) => inspector.with_cluster(client),
        None => inspector.without("the apiserver: the node has no kubeconfig"),
    }
}

/// Where the node says how it is, by an address that this machine reaches.
fn health_address(config: &Config) -> Option<SocketAddr> {
    let port = u16::try_from(config.kubelet.healthz_port).ok().filter(|port| *port != 0)?;
    let address: IpAddr = config.kubelet.healthz_bind_address.parse().ok()?;
    let reached = match address {
        IpAddr::V4(any) if any.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(any) if any.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        address => address,
    };
    Some((reached, port).into())
}
