//! The certificate that the node's server shows, when the cluster signs it (`serverTLSBootstrap`):
//! for the names and addresses of the Node object, requested again when they change.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::CredentialState;
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::Client;
use longshore_config::Config;
use tokio::sync::watch;

use super::manager::{CertificateManager, Parts};
use super::metrics::CertificateMetrics;
use super::request::{Signer, Template};
use super::store::{Store, StoreError};

const NAME: &str = "kubelet-server";

/// Where the pair is for the server's port; nothing is there before the cluster has signed one.
pub fn pair_path(cert_dir: &Path) -> PathBuf {
    cert_dir.join(format!("{NAME}-current.pem"))
}

/// Rotates the serving certificate of the node in `node`. The task never ends; drop it to stop.
pub fn keep(
    config: &Config,
    client: Client,
    node: watch::Receiver<Option<Arc<Node>>>,
    metrics: CertificateMetrics,
) -> Result<impl Future<Output = ()> + Send + use<>, StoreError> {
    let store = Store::open(&config.cert_dir, NAME)?;
    let dns_only = config.gates.enabled("AllowDNSOnlyNodeCSR");
    let (wanted, template) = watch::channel(None);
    let manager = CertificateManager::new(Parts {
        store,
        signer: Signer::Serving,
        template,
        new_client: Box::new(move |_| futures::future::ready(Ok(client.clone())).boxed()),
        renew: true,
        state_without: Box::new(CredentialState::Lacking),
        state: watch::Sender::new(CredentialState::Lacking(String::new())),
        metrics,
    });
    let name = config.node_name.clone();
    Ok(async move {
        tokio::join!(follow(&name, dns_only, node, wanted), manager.run());
    })
}

async fn follow(
    name: &str,
    dns_only: bool,
    mut node: watch::Receiver<Option<Arc<Node>>>,
    wanted: watch::Sender<Option<Template>>,
) {
    loop {
        let addresses = node
            .borrow_and_update()
            .as_ref()
            .and_then(|node| node.status.as_ref().and_then(|status| status.addresses.clone()));
        // a node that is not known now has the addresses that it had
        if let Some(addresses) = addresses {
            let template = template(name, &addresses, dns_only);
            wanted.send_if_modified(|last| {
                let changed = *last != template;
                *last = template;
                changed
            });
        }
        if node.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The template of the request; `None`: there are not enough addresses for one.
pub(super) fn template(name: &str, addresses: &[NodeAddress], dns_only: bool) -> Option<Template> {
    let (mut dns, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for NodeAddress { address, type_ } in addresses.iter().filter(|one| !one.address.is_empty()) {
        match (type_.as_str(), address.parse::<IpAddr>()) {
            ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => {
                ips.insert(ip);
            }
            ("Hostname" | "InternalDNS" | "ExternalDNS", _) => {
                dns.insert(address.clone());
            }
            _ => {}
        }
    }
    let enough = !ips.is_empty() || dns_only && !dns.is_empty();
    enough.then(|| Template { dns, ips, ..Template::node(name) })
}
