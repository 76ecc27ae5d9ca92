//! Stale entries of connection tracking: UDP has no end that the kernel could
//! see, so a client that keeps sending keeps an entry to an endpoint that is gone. What is stale is
//! plain logic ([`StaleFlows::stale`]); [`reconcile`] reads the table of the kernel and removes that.
//!
//! As upstream's reconciler, but for two cases: flows of a service that has lost its last endpoint
//! are stale too (so the client gets to see the reject), and flows to somebody else's port of the
//! same number as a node port are not.

mod kernel;
mod stale;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;

use crate::Family;
pub use kernel::{delete, entries};
pub use stale::{StaleFlows, UdpPort};

/// The table of the kernel could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no netlink socket.
    #[error("conntrack over netlink: {0}")]
    Socket(#[source] io::Error),
    /// Entries could not be listed.
    #[error("list conntrack entries: {0}")]
    List(#[source] io::Error),
    /// An entry was not removed.
    #[error("delete conntrack entry {original}: {source}", original = .entry.original)]
    Delete {
        /// Which.
        entry: Box<Entry>,
        /// Why not.
        source: io::Error,
    },
}

/// Where packets of one direction come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
}

impl std::fmt::Display for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {}", self.source, self.destination)
    }
}

/// A UDP flow that the kernel tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// As its first packet was sent.
    pub original: Tuple,
    /// As answers are expected: from the endpoint that the service's address was changed to.
    pub reply: Tuple,
    /// Its zone; 0 by default.
    pub zone: u16,
    /// Its id, which a later flow between the same addresses does not have.
    pub id: u32,
}

/// Remove the stale entries of a family; how many there were.
pub async fn reconcile(family: Family, filter: &StaleFlows) -> Result<usize, Error> {
    if filter.is_empty() {
        return Ok(0);
    }
    let mut stale = Vec::new();
    entries(family, |entry| {
        if filter.is_stale(&entry) {
            stale.push(entry);
        }
    })
    .await?;
    delete(&stale).await
}
