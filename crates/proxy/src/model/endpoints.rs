use std::fmt;
use std::net::IpAddr;

/// An address and a port; `10.0.0.1:80` or `[fd00::1]:80` as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            IpAddr::V4(ip) => write!(f, "{ip}:{}", self.port),
            IpAddr::V6(ip) => write!(f, "[{ip}]:{}", self.port),
        }
    }
}

/// One endpoint of one port of a service, with what this node does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it listens.
    pub address: Address,
    /// Takes new connections: ready and not terminating, or the service publishes those that are
    /// not ready too.
    pub ready: bool,
    /// Is ready whether it terminates or not.
    pub serving: bool,
    /// Its pod is being deleted.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// This node sends traffic of the policy `Cluster` to it.
    pub for_cluster: bool,
    /// This node sends traffic of the policy `Local` to it.
    pub for_local: bool,
}

impl Endpoint {
    /// Whether some node may send new traffic to it: it is ready, or serves while it terminates.
    pub fn is_usable(&self) -> bool {
        self.ready || (self.serving && self.terminating)
    }

    /// Whether this node sends traffic to it by one policy or the other.
    pub fn is_reachable(&self) -> bool {
        self.for_cluster || self.for_local
    }
}
