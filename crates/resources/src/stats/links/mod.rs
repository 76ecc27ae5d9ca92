//! Counters of the host's network devices, by one netlink request. The peer of a sandbox's veth
//! device is usually among them and has the same counters mirrored: reading the sandbox's own table
//! costs thirty times as much.

mod kernel;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kernel::{Counters, Kernel};
use parking_lot::Mutex;

use super::cgroup::Detail;
use super::process::Interface;

/// How long a sandbox without errors and drops is assumed to stay so: its peer does not count them.
const MAX_AGE: Duration = Duration::from_secs(60);

/// The host-side peer of a sandbox's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Not found yet.
    Unknown,
    /// None on the host, or several.
    NotOnHost,
    /// A device of the host.
    Host(HostPeer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostPeer {
    index: u32,
    /// Its counters when the sandbox's table was read, or just before.
    counters: Counters,
    /// The time of that.
    read: Instant,
    /// Whether the sandbox had no new errors and drops since the previous read of its table.
    lossless: bool,
}

/// All devices of the host.
#[derive(Default)]
pub(super) struct Links {
    /// By their index.
    counters: HashMap<u32, Counters>,
    /// Devices whose peer is in another network namespace, by the ID of that; `None` if several.
    cross_namespace_devices: OnceLock<HashMap<i32, Option<u32>>>,
    kernel: Mutex<Option<Kernel>>,
}

impl Links {
    /// Reads the network namespace of the calling thread. On errors every peer stays unknown.
    pub(super) fn at(detail: Detail) -> Self {
        if detail < Detail::Load {
            return Self::default();
        }
        let links = Self::read();
        links.inspect_err(|error| tracing::debug!(%error, "network devices")).unwrap_or_default()
    }

    fn read() -> io::Result<Self> {
        let mut kernel = Kernel::open()?;
        let counters = kernel.counters()?;
        Ok(Self {
            counters,
            cross_namespace_devices: OnceLock::new(),
            kernel: Mutex::new(Some(kernel)),
        })
    }

    /// Updates a sandbox's interface from its peer, if possible. Otherwise its table has to be
    /// read.
    pub(super) fn update_from_peer(&self, peer: &Peer, interfaces: &mut [Interface]) -> bool {
        let (Peer::Host(host_peer), [interfaces]) = (peer, interfaces) else { return false };
        let Some(now) = self.counters.get(&host_peer.index) else { return false };
        let unchanged = *now == host_peer.counters;
        if !unchanged && host_peer.lossless && host_peer.read.elapsed() < MAX_AGE {
            mirror(now, interfaces);
            return true;
        }
        unchanged
    }

    /// The peer of a process's interface, given its current and previous tables. It is accepted
    /// when the counters match; with traffic in between, it is retried next time.
    pub(super) fn peer(
        &self,
        peer: &Peer,
        pid: u32,
        before: &[Interface],
        interfaces: &[Interface],
    ) -> Peer {
        let [interfaces] = interfaces else { return Peer::Unknown };
        let lossless =
            matches!(before, [before] if loss_counters(before) == loss_counters(interfaces));
        let host_peer = |index| {
            let counters = *self.counters.get(&index)?;
            Some(HostPeer { index, counters, read: Instant::now(), lossless })
        };
        let known = match peer {
            Peer::NotOnHost => return Peer::NotOnHost,
            Peer::Host(known) => host_peer(known.index),
            Peer::Unknown => None,
        };
        if let Some(known) = known {
            return Peer::Host(known);
        }
        match self.find_peer(pid).map(|index| index.map(host_peer)) {
            Ok(None) => Peer::NotOnHost,
            Ok(Some(Some(host_peer))) if is_mirror(&host_peer.counters, interfaces) => {
                Peer::Host(host_peer)
            }
            Ok(_) => Peer::Unknown,
            Err(error) => {
                tracing::trace!(pid, %error, "failed to find the peer of a network device");
                Peer::Unknown
            }
        }
    }

    /// The only device of the host with a peer in the network namespace of a process.
    fn find_peer(&self, pid: u32) -> io::Result<Option<u32>> {
        let mut kernel = self.kernel.lock();
        let kernel = kernel.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let Some(id) = kernel.namespace(pid)? else { return Ok(None) };
        let cross_namespace_devices = match self.cross_namespace_devices.get() {
            Some(cross_namespace_devices) => cross_namespace_devices,
            None => {
                let cross_namespace_devices = kernel.cross_namespace_devices()?;
                self.cross_namespace_devices.get_or_init(|| cross_namespace_devices)
            }
        };
        Ok(cross_namespace_devices.get(&id).copied().flatten())
    }
}

/// One end has received what the other has sent.
fn mirror(counters: &Counters, other: &mut Interface) {
    let Interface { received, sent, .. } = other;
    [sent.packets, received.packets, sent.bytes, received.bytes, ..] = *counters;
}

fn is_mirror(counters: &Counters, other: &Interface) -> bool {
    let mut mirrored = other.clone();
    mirror(counters, &mut mirrored);
    mirrored == *other
}

/// Counters that are not mirrored by the peer.
fn loss_counters(peer: &Interface) -> [u64; 4] {
    let Interface { received, sent, .. } = peer;
    [received.errors, received.dropped, sent.errors, sent.dropped]
}
