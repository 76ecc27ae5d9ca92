//! The chains of iptables that a kubelet keeps, though for others: a hint which iptables this machine
//! uses (kube-proxy and network plug-ins look for it), and the guard of loopback addresses, which
//! kube-proxy's `route_localnet` would open to neighbours.
//!
//! They are there from the start of the node, come back when somebody flushes tables, and stay when
//! it stops. A machine without iptables does without them.

use std::time::Duration;

use futures::future::join_all;
use longshore_proxy::Family;
use longshore_proxy::apply::{self, Backend, Error, Iptables, Limits, Position, Table};
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// Tells others by its presence.
const HINT: &str = "KUBE-IPTABLES-HINT";
/// The chain by which a flush is noticed.
const CANARY: &str = "KUBE-KUBELET-CANARY";
/// Guards localhost; kube-proxy has the same rule there.
const FIREWALL: &str = "KUBE-FIREWALL";
/// From elsewhere to a loopback address, unless it is an answer or was sent there by a rule: word by
/// word what kube-proxy writes, so that there is one of it.
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
/// How often all is looked at, whatever the kernel tells.
const LOOK: Duration = Duration::from_secs(60);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(60);

/// Keep them, until dropped.
pub async fn keep() {
    let backend = loop {
        match Backend::chosen(Limits::default()).await {
            Ok(backend) => break backend,
            Err(Error::NoPrograms) => {
                info!("there is no iptables: its chains for others are not made");
                return;
            }
            Err(error) => warn!(%error, "the chains of iptables for others are not made"),
        }
        sleep(PAUSE).await;
    };
    join_all(Family::ALL.map(|family| keep_family(backend.family(family)))).await;
}

async fn keep_family(iptables: Iptables) {
    let family = iptables.family();
    if let Err(error) = iptables.supported().await {
        info!(%family, %error, "no tables of this family: its chains for others are not made");
        return;
    }
    let flushed = Notify::new();
    flushed.notify_one();
    let write = async {
        loop {
            flushed.notified().await;
            while let Err(error) = write(&iptables).await {
                warn!(%family, %error, "the chains of iptables for others are not made");
                sleep(PAUSE).await;
            }
            debug!(%family, "the chains of iptables for others are made");
        }
    };
    let watch = apply::watch(&iptables, CANARY, LOOK, || flushed.notify_one());
    tokio::join!(write, watch);
}

async fn write(iptables: &Iptables) -> Result<(), Error> {
    iptables.ensure_chain(Table::Mangle, HINT).await?;
    // The kernel delivers nothing from elsewhere to `::1`, whatever is set.
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
