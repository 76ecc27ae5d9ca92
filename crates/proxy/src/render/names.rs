use std::fmt;

use sha2::{Digest, Sha256};

/// What a chain of one service is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Lets those through that may use a load balancer.
    Firewall,
    /// Sorts out external traffic to a port.
    External,
    /// Balances over all endpoints.
    Cluster,
    /// Balances over the endpoints of this node.
    Local,
    /// Leads to one endpoint.
    Endpoint,
}

impl Kind {
    const ALL: [Kind; 5] =
        [Kind::Firewall, Kind::External, Kind::Cluster, Kind::Local, Kind::Endpoint];

    fn prefix(self) -> &'static str {
        match self {
            Kind::External => "KUBE-EXT-",
            Kind::Firewall => "KUBE-FW-",
            Kind::Cluster => "KUBE-SVC-",
            Kind::Local => "KUBE-SVL-",
            Kind::Endpoint => "KUBE-SEP-",
        }
    }
}

/// The name of a chain of one service, as upstream makes it: a prefix, and the first 16 digits in
/// base 32 of the SHA-256 of `namespace/name:port`, the protocol and, for an endpoint, its address.
/// Chains sort in an order in which each may refer to those after it only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainName {
    kind: Kind,
    hash: [u8; 16],
}

impl ChainName {
    /// The name of a chain of the port with this hash.
    pub(super) fn of_port(kind: Kind, hash: Hash) -> Self {
        Self { kind, hash: hash.0 }
    }

    /// The name of an endpoint's chain.
    pub(super) fn of_endpoint(port: &str, protocol: &str, address: &str) -> Self {
        Self { kind: Kind::Endpoint, hash: Hash::of(&[port, protocol, address]).0 }
    }

    /// Parses the name of a chain; none if it is not one of ours.
    pub(super) fn parse(chain: &str) -> Option<Self> {
        let of = |kind: Kind| {
            let hash = chain.strip_prefix(kind.prefix())?.as_bytes().try_into().ok()?;
            Some(Self { kind, hash })
        };
        Kind::ALL.into_iter().find_map(of)
    }

    /// Whether a chain with this name is one of a service.
    pub(super) fn is_ours(chain: &str) -> bool {
        Kind::ALL.iter().any(|kind| chain.starts_with(kind.prefix()))
    }

    /// Whether it leads to one endpoint: to no other chain of a service.
    pub(super) fn is_endpoint(chain: &str) -> bool {
        chain.starts_with(Kind::Endpoint.prefix())
    }

    fn hash(&self) -> &str {
        // only digits of base 32 get there
        std::str::from_utf8(&self.hash).unwrap_or_default()
    }

    /// Adds the name to a text.
    pub(super) fn write(&self, text: &mut String) {
        text.push_str(self.kind.prefix());
        text.push_str(self.hash());
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.prefix())?;
        f.write_str(self.hash())
    }
}

/// The hash in the names of chains of ports and endpoints.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hash([u8; 16]);

impl Hash {
    pub(super) fn of(parts: &[&str]) -> Self {
        let mut sha = Sha256::new();
        for part in parts {
            sha.update(part.as_bytes());
        }
        Self(base32(&sha.finalize()))
    }
}

/// The first 16 digits in base 32 (RFC 4648).
fn base32(bytes: &[u8]) -> [u8; 16] {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let start = bytes.iter().take(10).fold(0u128, |number, byte| number << 8 | u128::from(*byte));
    std::array::from_fn(|i| DIGITS[(start >> (75 - 5 * i)) as usize & 31])
}
