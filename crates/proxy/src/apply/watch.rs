//! Detects flushed tables, for example by the reload of a firewall: what was removed
//! is to be restored. A chain without rules in each table (the canary) shows a flush by its absence.

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

/// The chains with jumps to our rules: such a chain is empty only after its rules were flushed. (A
/// flush that keeps the chains keeps the canary too.)
const HOOKS: [(Table, &str); 5] = [
    (Table::Nat, "PREROUTING"),
    (Table::Nat, "OUTPUT"),
    (Table::Nat, "POSTROUTING"),
    (Table::Filter, "FORWARD"),
    (Table::Filter, "OUTPUT"),
];

/// The debounce after a check: a big rule set causes thousands of change notifications.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// The polling interval of the small table, where there are no change notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The backoff after a failure.
const BACKOFF: Duration = Duration::from_secs(1);

/// Calls `flushed` each time when tables were flushed, until dropped: at once where the kernel
/// notifies of changes (nft); else `mangle` is polled every two seconds. All tables are checked
/// every `interval`. The watcher creates the chain `canary`, which only a flush removes.
pub async fn watch(
    iptables: &Iptables,
    canary: &str,
    interval: Duration,
    mut flushed: impl FnMut(),
) {
    let mut up = false;
    let mut lost = None;
    loop {
        // The subscription comes before the canaries, and the canaries before the callback: no flush is
        // missed between two rounds.
        let round = async {
            let detector = match iptables.backend().variant {
                Variant::Nft => Some(FlushDetector::new().map_err(Error::Netlink)?),
                Variant::Legacy => None,
            };
            for table in Table::ALL {
                if !iptables.ensure_chain(table, canary).await? && up {
                    lost.get_or_insert(table);
                }
            }
            up = true;
            if let Some(table) = lost.take() {
                info!(family = %iptables.family(), %table, "rules were flushed");
                flushed();
            }
            lost = Some(match detector {
                Some(detector) => {
                    detector.wait(iptables, canary, interval).await.map_err(Error::Netlink)?
                }
                None => poll(iptables, canary, interval).await?,
            });
            Ok::<_, Error>(())
        };
        if let Err(error) = round.await {
            warn!(family = %iptables.family(), %error, "cannot detect flushed rules");
            sleep(BACKOFF).await;
        }
    }
}

/// The subscription to changes and the socket for queries.
struct FlushDetector {
    changes: Changes,
    kernel: Netfilter,
}

impl FlushDetector {
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
            sleep(DEBOUNCE).await;
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

/// Polls for the canaries.
async fn poll(iptables: &Iptables, canary: &str, interval: Duration) -> Result<Table, Error> {
    let polls = (interval.as_millis() / POLL_INTERVAL.as_millis()).max(1);
    loop {
        for _ in 0..polls {
            sleep(POLL_INTERVAL.min(interval)).await;
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
