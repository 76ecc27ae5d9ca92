//! Ranges of addresses, such as `10.96.0.0/12`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpAdd, IpNet};

/// A range of addresses in CIDR notation; the address may be any of it. As Go's lenient parser for
/// lengths, and as its strict one for addresses.
pub(crate) fn parse(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()
}

/// A range of service addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr(IpNet);

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
        let bits = self.0.max_prefix_len().saturating_sub(self.0.prefix_len());
        let all = 1u64.checked_shl(bits.into()).unwrap_or(u64::MAX);
        all.saturating_sub(if self.0.addr().is_ipv4() { 2 } else { 1 })
    }

    /// The address for services at an index from 0; 0 is that of `default/kubernetes`.
    pub fn address(&self, index: u64) -> IpAddr {
        let index = index.saturating_add(1);
        match self.0.network() {
            IpAddr::V4(first) => first.saturating_add(index.try_into().unwrap_or(u32::MAX)).into(),
            IpAddr::V6(first) => first.saturating_add(index.into()).into(),
        }
    }

    /// Whether a service may have this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let is_last = address.is_ipv4() && address == self.0.broadcast();
        self.0.contains(&address) && address != self.0.network() && !is_last
    }

    /// `IPv4` or `IPv6`, as in `spec.ipFamilies`.
    pub fn family(&self) -> &'static str {
        if self.0.addr().is_ipv4() { "IPv4" } else { "IPv6" }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let net = parse(text).ok_or_else(|| CidrError::Malformed(text.to_owned()))?;
        let (shortest, longest) = if net.addr().is_ipv4() { (8, 30) } else { (96, 126) };
        if !(shortest..=longest).contains(&net.prefix_len()) {
            return Err(CidrError::Length(text.to_owned(), shortest, longest));
        }
        Ok(Cidr(net.trunc()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
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
