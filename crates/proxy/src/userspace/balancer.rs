//! Which endpoint a client gets: in turn, or the one it had before.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;

/// Clients remembered for affinity, at most: more are served in turn.
pub(super) const MOST_CLIENTS: usize = 1 << 16;

/// The endpoints of a service port and the session affinity of clients.
#[derive(Debug, Default)]
pub(super) struct Balancer {
    endpoints: Vec<SocketAddr>,
    next: usize,
    affinity: Option<Duration>,
    clients: HashMap<IpAddr, Visit>,
}

#[derive(Debug)]
struct Visit {
    endpoint: SocketAddr,
    last: Instant,
}

impl Balancer {
    /// Take over what is wanted now. Clients of endpoints that stay, stay with them; when endpoints
    /// change, the rotation restarts at `start`, which should be random: else nodes would favour the same.
    pub(super) fn set(
        &mut self,
        endpoints: &[SocketAddr],
        affinity: Option<Duration>,
        start: usize,
    ) {
        self.affinity = affinity;
        if affinity.is_none() {
            self.clients = HashMap::new();
        }
        if self.endpoints != endpoints {
            self.endpoints = endpoints.to_vec();
            self.next = start;
            let known: HashSet<_> = endpoints.iter().collect();
            self.clients.retain(|_, visit| known.contains(&visit.endpoint));
        }
    }

    /// The endpoint for a connection of this client, if there is any. `anew`: the one it was sent
    /// to does not answer.
    pub(super) fn pick(&mut self, client: IpAddr, anew: bool, now: Instant) -> Option<SocketAddr> {
        if let Some(affinity) = self.affinity
            && let Some(visit) = self.clients.get_mut(&client)
            && !anew
            && now.saturating_duration_since(visit.last) < affinity
        {
            visit.last = now;
            return Some(visit.endpoint);
        }
        self.next %= self.endpoints.len().max(1);
        let endpoint = *self.endpoints.get(self.next)?;
        self.next += 1;
        if let Some(affinity) = self.affinity {
            if self.clients.len() >= MOST_CLIENTS && !self.clients.contains_key(&client) {
                self.clients
                    .retain(|_, visit| now.saturating_duration_since(visit.last) < affinity);
            }
            if self.clients.len() < MOST_CLIENTS || self.clients.contains_key(&client) {
                self.clients.insert(client, Visit { endpoint, last: now });
            }
        }
        Some(endpoint)
    }
}
