//! Which entries are stale.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::Entry;

/// A UDP port of a service, as far as its flows go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpPort {
    /// Cluster, external and load balancer addresses.
    pub addresses: Vec<IpAddr>,
    /// The port of those.
    pub port: u16,
    /// The port of all nodes, if there is one.
    pub node_port: Option<u16>,
    /// All endpoints that serve, ready or terminating, here or elsewhere: policies decide where new
    /// flows go and leave those that are.
    pub endpoints: Vec<SocketAddr>,
}

/// The UDP services of one family.
#[derive(Debug, Default)]
pub struct StaleFlows {
    by_address: HashMap<SocketAddr, usize>,
    by_node_port: HashMap<u16, usize>,
    endpoints: Vec<HashSet<SocketAddr>>,
    /// Addresses that take node ports; any address, if none is known.
    nodes: HashSet<IpAddr>,
}

impl StaleFlows {
    /// For UDP ports and the addresses at which this node takes node ports.
    pub fn new(
        ports: impl IntoIterator<Item = UdpPort>,
        nodes: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let mut filter = Self { nodes: nodes.into_iter().collect(), ..Self::default() };
        for port in ports {
            let index = filter.endpoints.len();
            filter.endpoints.push(port.endpoints.into_iter().collect());
            let addresses = port.addresses.into_iter();
            filter
                .by_address
                .extend(addresses.map(|address| (SocketAddr::new(address, port.port), index)));
            filter.by_node_port.extend(port.node_port.map(|node_port| (node_port, index)));
        }
        filter
    }

    /// Whether no flow can be stale.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Whether a flow goes to a service and not to one of its endpoints. One that began before
    /// there was a rule for it goes to no endpoint either.
    pub fn is_stale(&self, entry: &Entry) -> bool {
        let to = entry.original.destination;
        let service = self.by_address.get(&to).or_else(|| {
            let here = self.nodes.is_empty() || self.nodes.contains(&to.ip());
            self.by_node_port.get(&to.port()).filter(|_| here)
        });
        let endpoints = service.and_then(|&index| self.endpoints.get(index));
        endpoints.is_some_and(|endpoints| !endpoints.contains(&entry.reply.source))
    }

    /// The stale ones of these entries.
    pub fn stale<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> impl Iterator<Item = &'a Entry> {
        entries.into_iter().filter(|entry| self.is_stale(entry))
    }
}
