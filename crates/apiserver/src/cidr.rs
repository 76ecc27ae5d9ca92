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

/// The shortest and the longest prefix of a range.
const LENGTHS_V4: (u8, u8) = (8, 30);
const LENGTHS_V6: (u8, u8) = (64, 126);

/// The ranges of service addresses that a cluster is configured with: one, or one of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRanges {
    primary: Cidr,
    secondary: Option<Cidr>,
}

impl ServiceRanges {
    /// The first range. Its family is the one of services that ask for none.
    pub fn primary(&self) -> Cidr {
        self.primary
    }

    /// Both ranges, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Cidr> {
        [Some(self.primary), self.secondary].into_iter().flatten()
    }
}

impl FromStr for ServiceRanges {
    type Err = CidrError;

    /// `10.96.0.0/12`, or `10.96.0.0/12,fd00::/112`.
    fn from_str(text: &str) -> Result<ServiceRanges, CidrError> {
        let ranges: Vec<Cidr> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        match ranges.as_slice() {
            [primary] => Ok(ServiceRanges { primary: *primary, secondary: None }),
            [primary, second] if primary.family() == second.family() => Err(CidrError::Family),
            [primary, second] => Ok(ServiceRanges { primary: *primary, secondary: Some(*second) }),
            _ => Err(CidrError::Count),
        }
    }
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
    /// More than one range of each family.
    #[error("--service-cluster-ip-range must not contain more than two entries")]
    Count,
    /// Two ranges of one family.
    #[error(
        "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family"
    )]
    Family,
}

/// The families of addresses, as in `spec.ipFamilies` of services.
pub(crate) const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// The family of an address.
pub(crate) fn family_of(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

impl Cidr {
    /// A range of a ServiceCIDR, of any length that upstream's allocator takes addresses from.
    pub(crate) fn of_object(text: &str) -> Option<Cidr> {
        let net = parse(text)?;
        let is_usable = net.addr().is_ipv4() || net.prefix_len() >= LENGTHS_V6.0;
        is_usable.then(|| Cidr(net.trunc()))
    }

    /// How many addresses services can have: all but the first and, for IPv4, the last.
    pub fn size(&self) -> u64 {
        self.all().saturating_sub(if self.0.addr().is_ipv4() { 2 } else { 1 })
    }

    fn all(&self) -> u64 {
        let bits = self.0.max_prefix_len().saturating_sub(self.0.prefix_len());
        1u64.checked_shl(bits.into()).unwrap_or(u64::MAX)
    }

    /// How many of the first addresses are left for services that ask for them, as long as there are
    /// others.
    fn reserved(&self) -> u64 {
        match self.all() {
            0..=16 => 0,
            all => (all / 16).clamp(16, 256),
        }
    }

    /// All addresses for services, once each, from a random one behind the reserved ones on.
    pub(crate) fn candidates(&self, random: u64) -> impl Iterator<Item = IpAddr> {
        let range = *self;
        let (size, reserved) = (self.size(), self.reserved());
        let dynamic = size.saturating_sub(reserved);
        let turned = move |count: u64, first: u64, by: u64| {
            let by = by.checked_rem(count).unwrap_or(0);
            (by..count).chain(0..by).map(move |index| range.address(first.saturating_add(index)))
        };
        turned(dynamic, reserved, random).chain(turned(size.min(reserved), 0, random))
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
        family_of(self.0.addr())
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let net = parse(text).ok_or_else(|| CidrError::Malformed(text.to_owned()))?;
        let (shortest, longest) = if net.addr().is_ipv4() { LENGTHS_V4 } else { LENGTHS_V6 };
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
            "fd00::/63",
            "fd00::/127",
            "0.0.0.0/0",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn service_ranges_are_one_of_each_family() {
        let both: ServiceRanges = "fd00::/64,10.96.0.0/12".parse().unwrap();
        assert_eq!(both.primary().family(), "IPv6");
        assert_eq!(
            both.iter().map(|range| range.to_string()).collect::<Vec<_>>().join(" "),
            "fd00::/64 10.96.0.0/12"
        );
        for (text, error) in [
            ("10.0.0.0/24,10.0.1.0/24", CidrError::Family),
            ("10.0.0.0/24,fd00::/64,10.0.1.0/24", CidrError::Count),
            ("10.0.0.0/24,", CidrError::Malformed(String::new())),
        ] {
            assert_eq!(text.parse::<ServiceRanges>().unwrap_err(), error, "{text}");
        }
    }

    /// Each address is a candidate once; the reserved ones come last.
    #[test]
    fn service_ip_candidates_are_all_addresses_once() {
        for (text, reserved) in
            [("10.0.0.0/24", 16), ("10.0.0.0/28", 0), ("fd00::/122", 16), ("10.0.0.4/30", 0)]
        {
            let range: Cidr = text.parse().unwrap();
            for random in [0, 1, 13, u64::MAX] {
                let all: Vec<IpAddr> = range.candidates(random).collect();
                let distinct: std::collections::BTreeSet<IpAddr> = all.iter().copied().collect();
                assert_eq!((all.len() as u64, distinct.len() as u64), (range.size(), range.size()));
                assert!(all.iter().all(|address| range.contains(*address)));
                let last: Vec<_> = all.iter().rev().take(reserved).copied().collect();
                assert!(
                    (0..reserved as u64).all(|index| last.contains(&range.address(index))),
                    "{text}"
                );
            }
        }
        let huge: Cidr = "fd00::/64".parse().unwrap();
        for random in [0, u64::MAX / 2, u64::MAX] {
            assert!(huge.contains(huge.candidates(random).next().unwrap()));
        }
        assert_eq!(Cidr::of_object("fd00::/32"), None);
        for none in ["10.0.0.1/32", "10.0.0.0/31", "fd00::1/128"] {
            assert_eq!(Cidr::of_object(none).unwrap().candidates(7).next(), None, "{none}");
        }
        assert!(Cidr::of_object("0.0.0.0/0").unwrap().candidates(7).next().is_some());
    }
}
