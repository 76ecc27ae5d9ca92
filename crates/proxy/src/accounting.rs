//! Named counters of netfilter (nfacct), which rules count packets with for metrics. The kernel
//! refuses a rule whose counter does not exist, so they are made before the rules.

use std::io;

use longshore_netlink::{Attribute, NLM_F_ACK, NLM_F_CREATE, attribute};
use rustix::io::Errno;

use crate::Family;
use crate::netlink::{ACCOUNTING, Netfilter};
use crate::render::Accounting;

/// Packets dropped as invalid.
pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
/// Connections to node ports at the loopback address.
pub const LOCALHOST_NODE_PORTS: &str = "localhost_nps_accepted_pkts";

/// `NFNL_MSG_ACCT_NEW`, `NFNL_MSG_ACCT_GET`
const NEW: u16 = ACCOUNTING;
const GET: u16 = ACCOUNTING | 1;
/// Attributes of a counter.
const NAME: u16 = 1;
const PACKETS: u16 = 2;

/// Creates the missing counters in this network namespace, and returns those that exist.
pub async fn ensure() -> Accounting {
    let mut accounting = Accounting::default();
    for (name, there) in [
        (INVALID_DROPPED, &mut accounting.invalid_dropped),
        (LOCALHOST_NODE_PORTS, &mut accounting.localhost_node_ports),
    ] {
        match make(name).await {
            Ok(()) => *there = true,
            Err(error) => tracing::info!(counter = name, %error, "cannot count packets"),
        }
    }
    accounting
}

/// How many packets a counter has seen; `None`: there is no such counter.
pub async fn packets(name: &str) -> io::Result<Option<u64>> {
    let mut packets = None;
    let each = |answer: &[u8]| {
        let value = attribute(answer, PACKETS);
        packets = value.and_then(|it| it.try_into().ok()).map(u64::from_be_bytes);
    };
    match request(GET, 0, name, each).await {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(None),
        answered => answered.map(|()| packets),
    }
}

async fn make(name: &str) -> io::Result<()> {
    if packets(name).await?.is_some() {
        return Ok(());
    }
    match request(NEW, NLM_F_CREATE, name, |_| ()).await {
        // The other family's engine, or another program, was first.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::BUSY | Errno::EXIST)) => {
            Ok(())
        }
        made => made,
    }
}

async fn request(message: u16, flags: u16, name: &str, each: impl FnMut(&[u8])) -> io::Result<()> {
    let request = [Attribute::text(NAME, name)];
    // Counters are of no family.
    Netfilter::open()?.request(Family::V4, message, NLM_F_ACK | flags, &request, each).await
}
