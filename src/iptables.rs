//! The iptables chains of the kubelet: KUBE-IPTABLES-HINT, by which kube-proxy and CNI plugins detect
//! the iptables mode, and KUBE-FIREWALL, which protects loopback addresses when kube-proxy sets
//! `route_localnet`.
//!
//! They are created at the start of the node, restored after a flush, and kept when it stops. Without
//! iptables on the host they are skipped.

use std::time::Duration;

use futures::future::join_all;
use longshore_base::retry::Delays;
use longshore_proxy::Family;
use longshore_proxy::apply::{self, Backend, Error, Iptables, Limits, Position, Table};
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// Its existence shows the iptables mode in use.
const HINT: &str = "KUBE-IPTABLES-HINT";
/// The chain by which a flush is detected.
const CANARY: &str = "KUBE-KUBELET-CANARY";
/// Protects localhost; kube-proxy has the same rule there.
const FIREWALL: &str = "KUBE-FIREWALL";
/// Drops packets from elsewhere to a loopback address, except replies and DNAT. The same text as
/// kube-proxy's, so that the rule exists once.
const GUARD: [&str; 16] = [
    "!",
    "-s",
    "127.0.0.0/8",
    "-d",
    "127.0.0.0/8",
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];
/// Interval of full checks, besides notifications.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The delay after a failure, which doubles up to `MAX_BACKOFF`. The first is short: a flush that
/// runs beside the writing removes a chain between two steps.
const BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Keeps the chains until dropped.
pub async fn keep() {
    let mut delays = Delays::doubling(BACKOFF, MAX_BACKOFF);
    let backend = loop {
        match Backend::chosen(Limits::default()).await {
            Ok(backend) => break backend,
            Err(Error::NoPrograms) => {
                info!("iptables not found, skipping KUBE-IPTABLES-HINT and KUBE-FIREWALL");
                return;
            }
            Err(error) => warn!(%error, "cannot create iptables chains, retrying"),
        }
        sleep(delays.next_delay()).await;
    };
    join_all(Family::ALL.map(|family| keep_family(backend.family(family)))).await;
}

async fn keep_family(iptables: Iptables) {
    let family = iptables.family();
    if let Err(error) = iptables.supported().await {
        info!(%family, %error, "iptables not supported for this family, skipping its chains");
        return;
    }
    let flushed = Notify::new();
    flushed.notify_one();
    let write = async {
        let mut delays = Delays::doubling(BACKOFF, MAX_BACKOFF);
        loop {
            flushed.notified().await;
            while let Err(error) = write(&iptables).await {
                warn!(%family, %error, "cannot create iptables chains, retrying");
                sleep(delays.next_delay()).await;
            }
            delays.reset();
            debug!(%family, "iptables chains created");
        }
    };
    let watch = apply::watch(&iptables, CANARY, CHECK_INTERVAL, || flushed.notify_one());
    tokio::join!(write, watch);
}

async fn write(iptables: &Iptables) -> Result<(), Error> {
    iptables.ensure_chain(Table::Mangle, HINT).await?;
    // The kernel never delivers packets from elsewhere to `::1`.
    if iptables.family() == Family::V6 {
        return Ok(());
    }
    iptables.ensure_chain(Table::Filter, FIREWALL).await?;
    for chain in ["OUTPUT", "INPUT"] {
        let jump = ["-j", FIREWALL];
        iptables.ensure_rule(Position::First, Table::Filter, chain, &jump).await?;
    }
    iptables.ensure_rule(Position::Last, Table::Filter, FIREWALL, &GUARD).await?;
    Ok(())
}
