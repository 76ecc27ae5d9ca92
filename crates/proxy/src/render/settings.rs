use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::{Cidr, Family};

/// What rules of one family depend on besides services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The family.
    pub family: Family,
    /// All traffic to cluster IPs is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark for masquerading, 0 to 31.
    pub masquerade_bit: u8,
    /// Source ports are picked at random when masquerading (`--random-fully`).
    pub random_fully: bool,
    /// What is traffic of pods of this node.
    pub detector: LocalDetector,
    /// The node's address: whether load balancers' source ranges let the node through.
    pub node_ip: IpAddr,
    /// The addresses at which node ports are served.
    pub node_ports: NodePorts,
    /// Node ports are served at IPv4's loopback address too; `route_localnet` is set.
    pub localhost_node_ports: bool,
    /// Forwarded packets that conntrack finds invalid are dropped. Not with
    /// `nf_conntrack_tcp_be_liberal`, which finds almost none invalid.
    pub drop_invalid: bool,
    /// The counters that the kernel has.
    pub accounting: Accounting,
}

/// How traffic of this node's pods is detected.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetector {
    /// It is not.
    #[default]
    None,
    /// By source address: the cluster's or the node's range of pods.
    Cidr(Cidr),
    /// By the interface that it comes from, the bridge of pods.
    Bridge(String),
    /// By the interface that it comes from: all whose name begins so.
    InterfacePrefix(String),
}

/// The addresses at which node ports are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePorts {
    /// All of the node's.
    All,
    /// These.
    Addresses(BTreeSet<IpAddr>),
}

/// Which named counters (nfacct) exist; a rule with one that does not is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accounting {
    /// Packets dropped as invalid.
    pub invalid_dropped: bool,
    /// Connections to node ports at the loopback address.
    pub localhost_node_ports: bool,
}

impl NodePorts {
    /// The node's addresses that are within `ranges` (`nodePortAddresses`). No range of this
    /// family, or the range of everything, is all of them.
    pub fn within(family: Family, ranges: &[Cidr], addresses: &[IpAddr]) -> Self {
        let mut ranges = ranges.iter().filter(|range| range.family() == family).peekable();
        if ranges.peek().is_none() || ranges.clone().any(Cidr::is_all) {
            return NodePorts::All;
        }
        let within = |ip: &&IpAddr| ranges.clone().any(|range| range.contains(**ip));
        NodePorts::Addresses(addresses.iter().filter(within).copied().collect())
    }

    /// Whether `ranges` (`nodePortAddresses`) hold an IPv4 loopback address: only then can node
    /// ports be served at localhost.
    pub fn holds_v4_loopback(ranges: &[Cidr]) -> bool {
        let mut v4 = ranges.iter().filter(|range| range.family() == Family::V4).peekable();
        v4.peek().is_none() || v4.any(Cidr::has_v4_loopback)
    }
}

impl Settings {
    /// The mark for masquerading, as `iptables-save` prints it.
    pub(super) fn mark(&self) -> String {
        format!("{:#x}", 1u32.checked_shl(u32::from(self.masquerade_bit)).unwrap_or(0))
    }

    pub(super) fn is_v4(&self) -> bool {
        self.family == Family::V4
    }

    /// Whether node ports are really served at localhost: never in IPv6.
    pub(super) fn at_localhost(&self) -> bool {
        self.is_v4() && self.localhost_node_ports
    }
}
