//! A range of service addresses, such as `10.96.0.0/12`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address range in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    first: IpAddr,
    prefix: u8,
}

/// Why a text is no range of service addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// Not `address/length`.
    #[error("{0:?} is not of the form address/length")]
    Malformed(String),
    /// The range has no room for services, or more than can be kept track of.
    #[error("{0:?} must have a length of {1} to {2}")]
    Length(String, u8, u8),
}

impl Cidr {
    /// How many addresses services can have: all but the first and, for IPv4, the last.
    pub fn size(&self) -> u64 {
        let hosts = 1u64 << (self.bits() - self.prefix);
        hosts.saturating_sub(if self.first.is_ipv4() { 2 } else { 1 })
    }

    /// The address for services at an index from 0; 0 is that of `default/kubernetes`.
    pub fn address(&self, index: u64) -> IpAddr {
        from_number(self.first, to_number(self.first) + u128::from(index) + 1)
    }

    /// Whether a service may have this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4()
            && (1..=u128::from(self.size()))
                .contains(&to_number(address).wrapping_sub(to_number(self.first)))
    }

    /// `IPv4` or `IPv6`, as in `spec.ipFamilies`.
    pub fn family(&self) -> &'static str {
        if self.first.is_ipv4() { "IPv4" } else { "IPv6" }
    }

    fn bits(&self) -> u8 {
        if self.first.is_ipv4() { 32 } else { 128 }
    }
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn from_number(like: IpAddr, number: u128) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from(number as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let malformed = || CidrError::Malformed(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(malformed)?;
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        let prefix: u8 = prefix.parse().map_err(|_| malformed())?;
        let (shortest, longest) = if address.is_ipv4() { (8, 30) } else { (96, 126) };
        if !(shortest..=longest).contains(&prefix) {
            return Err(CidrError::Length(text.to_owned(), shortest, longest));
        }
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let host_bits = bits - prefix;
        let first = to_number(address) >> host_bits << host_bits;
        Ok(Cidr { first: from_number(address, first), prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let range: Cidr = "10.96.3.9/12".parse().unwrap();
        assert_eq!(range.to_string(), "10.96.0.0/12");
        assert_eq!(range.address(0).to_string(), "10.96.0.1");
        for (address, inside) in [
            ("10.96.0.0", false),
            ("10.96.0.1", true),
            ("10.111.255.254", true),
            ("10.111.255.255", false),
            ("10.95.0.1", false),
            ("fd00::1", false),
        ] {
            assert_eq!(range.contains(address.parse().unwrap()), inside, "{address}");
        }
        let tiny: Cidr = "10.0.0.4/30".parse().unwrap();
        assert_eq!((tiny.size(), tiny.address(1).to_string().as_str()), (2, "10.0.0.6"));
        let six: Cidr = "fd00::/112".parse().unwrap();
        assert_eq!((six.address(0).to_string().as_str(), six.family()), ("fd00::1", "IPv6"));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/31",
            "x/8",
            "fd00::/64",
            "0.0.0.0/0",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
