use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;

/// A family of IP addresses: each has services, endpoints and rules of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order in which things are done.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// As the API and the metrics write it: `IPv4`, `IPv6`.
    pub fn as_str(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A transport protocol that services can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// As iptables writes it and as it goes into the hashes of chain names: `tcp`, `udp`, `sctp`.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// Reads the API's form; none is TCP, as the apiserver's default.
    pub(super) fn parse(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }
}

/// The name of a service; cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ServiceName {
    /// The service `name` of `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Whether this is valid in a rule: names go into comments of at most 255 bytes, and into
    /// text that has quotes and lines of its own.
    pub(super) fn is_plain(&self) -> bool {
        !self.namespace.is_empty()
            && !self.name.is_empty()
            && is_plain(&self.namespace)
            && is_plain(&self.name)
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// At most 63 bytes of letters, digits, `-`, `.` and `_`: a DNS label and a little more.
pub(super) fn is_plain(name: &str) -> bool {
    name.len() <= 63
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
}

/// A range of addresses; host bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr(IpNet);

/// Text that is no range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a CIDR such as 10.0.0.0/8 or fd00::/64")]
pub struct CidrError(String);

impl Cidr {
    /// The range of one address.
    pub fn host(address: IpAddr) -> Self {
        Self::new(address, u8::MAX)
    }

    /// The range of addresses that share their first `prefix` bits with `address`.
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        let net = IpNet::new(address, prefix);
        Self(net.map_or_else(|_| IpNet::from(address), |net| net.trunc()))
    }

    /// Its family.
    pub fn family(&self) -> Family {
        Family::of(self.0.addr())
    }

    /// Whether it holds every address of its family.
    pub fn is_all(&self) -> bool {
        self.0.prefix_len() == 0
    }

    /// Whether it is one of loopback addresses, or holds all of IPv4's.
    pub fn has_v4_loopback(&self) -> bool {
        match self.0.addr() {
            IpAddr::V4(v4) => v4.is_loopback() || self.contains(Ipv4Addr::new(127, 0, 0, 0).into()),
            IpAddr::V6(_) => false,
        }
    }

    /// Whether it holds `ip`.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip)
    }
}

impl std::str::FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parsed = text.split_once('/').and_then(|(address, prefix)| {
            let address: IpAddr = address.parse().ok()?;
            // as Go's parser: host bits are let through, "/08" and "/+8" are not
            let plain = prefix == "0" || prefix.starts_with(|c: char| matches!(c, '1'..='9'));
            let prefix = prefix.parse().ok().filter(|_| plain)?;
            Some(Self(IpNet::new(address, prefix).ok()?.trunc()))
        });
        parsed.ok_or_else(|| CidrError(text.to_owned()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
