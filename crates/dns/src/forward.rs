//! Questions about names of others: from the cache, or to the servers of the host.
//!
//! A server that sends our questions back to us, by whatever way, is detected at the start by a
//! question that nobody else asks, and left out; so the machine's own resolver may be configured to
//! ask this server.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_server::proto::op::Message;
use hickory_server::proto::rr::{Name, RecordType};
use longshore_base::time::later;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use crate::cache::{Cache, CacheKey};
use crate::metrics::{Metrics, code_name};
use crate::random::{Shuffle, unpredictable};
use crate::upstream::{Request, Upstream};

/// Questions at once, as kubeadm configures CoreDNS.
const MAX_CONCURRENT: usize = 1000;
/// How long one question may take, whatever number of servers it takes.
const DEADLINE: Duration = Duration::from_secs(5);
/// The port of name servers.
const PORT: u16 = 53;
/// Servers that are used, as CoreDNS.
const MAX_SERVERS: usize = 15;

/// Why a question was not answered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Failure {
    #[error("no server to ask")]
    NoServers,
    #[error("no server answered")]
    Unanswered,
}

/// A question that may be sent, while it is held.
pub(crate) struct Permit(
    #[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit,
);

/// The other servers.
pub(crate) struct Forwarder {
    upstreams: Vec<Upstream>,
    cache: Cache,
    concurrent: Arc<Semaphore>,
    /// The questions that detect loops, with the server that each was sent to.
    probes: Mutex<HashMap<Name, usize>>,
    metrics: Arc<Metrics>,
}

impl Forwarder {
    pub(crate) fn new(addresses: &[SocketAddr], metrics: &Arc<Metrics>) -> Self {
        Self {
            upstreams: addresses.iter().take(MAX_SERVERS).copied().map(Upstream::new).collect(),
            cache: Cache::new(metrics.clone()),
            concurrent: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            probes: Mutex::default(),
            metrics: metrics.clone(),
        }
    }

    /// Whether there are other servers.
    pub(crate) fn is_enabled(&self) -> bool {
        self.upstreams.iter().any(|upstream| !upstream.is_looped())
    }

    /// What is known already.
    pub(crate) fn cached(&self, key: &CacheKey) -> Option<Message> {
        self.cache.get(key)
    }

    /// Room for one more question; `None`: there are too many.
    pub(crate) fn admit(&self) -> Option<Permit> {
        let permit = Arc::clone(&self.concurrent).try_acquire_owned().ok();
        if permit.is_none() {
            self.metrics.forward.rejected.inc();
        }
        permit.map(Permit)
    }

    /// Asks one server after the other.
    pub(crate) async fn ask(&self, request: &Request) -> Result<Message, Failure> {
        if !self.is_enabled() {
            return Err(Failure::NoServers);
        }
        if !self.upstreams.iter().any(|upstream| upstream.is_healthy() && !upstream.is_looped()) {
            self.metrics.forward.broken.inc();
        }
        let deadline = later(Instant::now(), DEADLINE);
        for upstream in self.in_turn() {
            let asked = tokio::time::timeout_at(deadline, self.ask_one(upstream, request)).await;
            match asked {
                Ok(Some((message, bytes))) => {
                    self.cache.insert(request.key.clone(), &message, &bytes);
                    return Ok(message);
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
        Err(Failure::Unanswered)
    }

    /// The servers from a random one on, those that did not answer last time at the end.
    fn in_turn(&self) -> Vec<&Upstream> {
        let mut usable: Vec<_> =
            self.upstreams.iter().filter(|upstream| !upstream.is_looped()).collect();
        Shuffle::new().shuffle(&mut usable);
        usable.sort_by_key(|upstream| !upstream.is_healthy());
        // one that lost a datagram is tried again
        let again = usable.clone();
        usable.into_iter().chain(again).collect()
    }

    async fn ask_one(&self, upstream: &Upstream, request: &Request) -> Option<(Message, Vec<u8>)> {
        let to = upstream.address.to_string();
        let metrics = &self.metrics.forward;
        metrics.requests.with([&to]).inc();
        let began = Instant::now();
        match upstream.ask(request).await {
            Ok((message, bytes)) => {
                let code = code_name(message.metadata.response_code);
                metrics.responses.with([&to, code]).inc();
                metrics.duration.with(["forward", &to, code]).took(began.elapsed());
                Some((message, bytes))
            }
            Err(error) => {
                metrics.failures.with(["forward", &to]).inc();
                debug!(%error, "forward");
                None
            }
        }
    }

    /// Sends each server a question that nobody else asks.
    pub(crate) async fn detect_loops(&self) {
        let probe = |at: usize| async move {
            let Some(upstream) = self.upstreams.get(at) else { return };
            let label = || format!("{}{}", unpredictable(), unpredictable());
            let Ok(name) = Name::from_labels([label().as_bytes(), label().as_bytes()]) else {
                return;
            };
            self.probes().insert(name.clone(), at);
            let kind = RecordType::HINFO;
            let key =
                CacheKey { name: name.clone(), kind, dnssec_ok: false, checking_disabled: false };
            let request = Request { key, recursion_desired: true, edns: false };
            if let Err(error) = upstream.ask(&request).await {
                warn!(%error, "upstream server");
            }
            self.probes().remove(&name);
        };
        futures::future::join_all((0..self.upstreams.len()).map(probe)).await;
    }

    /// Whether this is a question that this server itself sent to detect loops.
    pub(crate) fn is_own_probe(&self, name: &Name) -> bool {
        let server = self.probes().get(name).copied();
        if let Some(upstream) = server.and_then(|at| self.upstreams.get(at))
            && upstream.set_looped()
        {
            error!(
                address = %upstream.address,
                "upstream server sends questions back to this one: it is not used"
            );
        }
        server.is_some()
    }

    fn probes(&self) -> parking_lot::MutexGuard<'_, HashMap<Name, usize>> {
        self.probes.lock()
    }
}

/// The name servers of a `resolv.conf`.
pub(crate) fn resolv_conf(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        // Of an address with a scope, the scope is a name or number of this host.
        address.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, PORT))
    };
    text.lines().filter_map(server).collect()
}

/// A server as a flag has it: an address with or without a port.
pub(crate) fn server(text: &str) -> Option<SocketAddr> {
    let bare = || text.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, PORT));
    text.parse::<SocketAddr>().ok().or_else(bare)
}

/// Those that are not this server itself.
pub(crate) fn without_own(servers: Vec<SocketAddr>, own: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_own = |server: &SocketAddr| own.contains(server);
    let mut kept: Vec<SocketAddr> = Vec::new();
    for server in servers.into_iter().filter(|server| !is_own(server)) {
        if !kept.contains(&server) {
            kept.push(server);
        }
    }
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn forward_servers_of_resolv_conf() {
        let text = "# nameserver 1.1.1.1\nsearch a.b\nnameserver 10.0.0.1\n  nameserver\t::1  \n\
                    nameserver\nnameserver x\nnameserver 10.0.0.1\noptions ndots:5\n";
        let all = resolv_conf(text);
        let expected: Vec<SocketAddr> =
            ["10.0.0.1:53", "[::1]:53", "10.0.0.1:53"].map(|text| text.parse().unwrap()).into();
        assert_eq!(all, expected);
        let own = ["[::1]:53".parse().unwrap(), "10.0.0.1:5353".parse().unwrap()];
        assert_eq!(without_own(all, &own), ["10.0.0.1:53".parse().unwrap()]);
        assert_eq!(server("10.0.0.1"), server("10.0.0.1:53"));
        assert_eq!(server("::1"), server("[::1]:53"));
        assert_eq!(server("dns.example"), None);
    }
}
