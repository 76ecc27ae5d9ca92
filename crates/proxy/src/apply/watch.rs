//! The look-out for those who flush tables, a firewall that is reloaded for one: what they remove
//! is ours to put back. A chain without rules in each table goes with the others and so tells.

use std::io;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::sleep;
use tracing::{info, warn};

use super::nftables;
use super::{Error, Iptables, Table, Variant};
use crate::netlink::{Changes, Netfilter};
use crate::render::CANARY_CHAIN;

/// The chain by which kube-proxy notices a flush.
pub const CANARY: &str = CANARY_CHAIN;

/// Where jumps to our rules stand: such a chain has lost all its rules only when somebody took
/// them out. (A flush that leaves the chains leaves the canary too.)
const HOOKS: [(Table, &str); 5] = [
    (Table::Nat, "PREROUTING"),
    (Table::Nat, "OUTPUT"),
    (Table::Nat, "POSTROUTING"),
    (Table::Filter, "FORWARD"),
    (Table::Filter, "OUTPUT"),
];

/// The pause after a look: changes come in thousands when a big rule set is written.
const SETTLE: Duration = Duration::from_millis(20);
/// How often the small table is looked at where nothing tells of changes.
const GLANCE: Duration = Duration::from_secs(2);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Tell each time when tables were flushed, until dropped. Where the kernel tells of changes (nft)
/// that is at once; else `mangle` is looked at every other second. All is looked at every
/// `interval`. `canary` is the watcher's own: it makes it, and nobody else removes it but by a flush.
pub async fn watch(
    iptables: &Iptables,
    canary: &str,
    interval: Duration,
    mut flushed: impl FnMut(),
) {
    let mut up = false;
    let mut lost = None;
    loop {
        // Canaries are up again before anybody is told, and the kernel is listened to before they
        // are: no flush falls between two turns.
        let turn = async {
            let guard = match iptables.backend().variant {
                Variant::Nft => Some(Guard::new().map_err(Error::Netlink)?),
                Variant::Legacy => None,
            };
            for table in Table::ALL {
                if !iptables.ensure_chain(table, canary).await? && up {
                    lost.get_or_insert(table);
                }
            }
            up = true;
            if let Some(table) = lost.take() {
                info!(family = %iptables.family(), %table, "somebody flushed rules");
                flushed();
            }
            lost = Some(match guard {
                Some(guard) => {
                    guard.wait(iptables, canary, interval).await.map_err(Error::Netlink)?
                }
                None => look(iptables, canary, interval).await?,
            });
            Ok::<_, Error>(())
        };
        if let Err(error) = turn.await {
            warn!(family = %iptables.family(), %error, "flushed rules are not noticed now");
            sleep(PAUSE).await;
        }
    }
}

/// What it takes to hear of changes and to look.
struct Guard {
    changes: Changes,
    kernel: Netfilter,
}

impl Guard {
    fn new() -> io::Result<Self> {
        Ok(Self { changes: nftables::changes()?, kernel: Netfilter::open()? })
    }

    async fn wait(
        mut self,
        iptables: &Iptables,
        canary: &str,
        interval: Duration,
    ) -> io::Result<Table> {
        let mut ruled = [false; HOOKS.len()];
        loop {
            for table in Table::ALL {
                if self.uses(iptables, table, canary).await?.is_none() {
                    return Ok(table);
                }
            }
            for (ruled, (table, chain)) in ruled.iter_mut().zip(HOOKS) {
                let has = self.uses(iptables, table, chain).await?.is_some_and(|uses| uses > 0);
                if *ruled && !has {
                    return Ok(table);
                }
                *ruled = has;
            }
            sleep(SETTLE).await;
            tokio::select! {
                change = self.changes.next() => change?,
                () = sleep(interval) => {}
            }
            while let Some(more) = self.changes.next().now_or_never() {
                more?;
            }
        }
    }

    async fn uses(
        &mut self,
        iptables: &Iptables,
        table: Table,
        chain: &str,
    ) -> io::Result<Option<u32>> {
        nftables::uses(&mut self.kernel, iptables.family(), table, chain).await
    }
}

/// Looks time and again.
async fn look(iptables: &Iptables, canary: &str, interval: Duration) -> Result<Table, Error> {
    let glances = (interval.as_millis() / GLANCE.as_millis()).max(1);
    loop {
        for _ in 0..glances {
            sleep(GLANCE.min(interval)).await;
            if !iptables.has_chain(Table::Mangle, canary).await? {
                return Ok(Table::Mangle);
            }
        }
        for table in [Table::Nat, Table::Filter] {
            if !iptables.has_chain(table, canary).await? {
                return Ok(table);
            }
        }
    }
}
