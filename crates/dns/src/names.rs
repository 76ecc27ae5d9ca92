//! Names: of addresses (reverse names, the names of endpoints and pods), and the cluster domain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_server::proto::rr::Name;

/// Why the cluster domain cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cluster domain {0:?} is not a domain name")]
pub struct DomainError(String);

/// The cluster domain: lower case, with at least one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Domain(Name);

impl Domain {
    /// The domain of this text, such as `cluster.local`, with or without the final dot.
    ///
    /// # Errors
    /// It is not a domain name.
    pub(crate) fn parse(text: &str) -> Result<Self, DomainError> {
        let mut name =
            Name::from_ascii(text).map_err(|_| DomainError(text.to_owned()))?.to_lowercase();
        name.set_fqdn(true);
        // Names below it have to fit.
        if name.is_root() || name.len() > 100 {
            return Err(DomainError(text.to_owned()));
        }
        Ok(Self(name))
    }

    /// It as a name.
    pub(crate) fn name(&self) -> &Name {
        &self.0
    }

    /// A name below it of these labels. `None`: they are too long for a name.
    pub(crate) fn below(&self, labels: &[&[u8]]) -> Option<Name> {
        let below = |name: Name, label: &&[u8]| name.append_label(*label).ok();
        let name = labels.iter().try_fold(Name::new(), below)?;
        name.append_domain(&self.0).ok()
    }

    /// The labels of `name` before this domain, the last one first. `None`: it is not below it.
    pub(crate) fn strip<'a>(&self, name: &'a Name) -> Option<Vec<&'a [u8]>> {
        strip(name, &self.0)
    }
}

fn strip<'a>(name: &'a Name, domain: &Name) -> Option<Vec<&'a [u8]>> {
    let mut labels = name.iter().rev();
    let is_below = domain.iter().rev().all(|end| labels.next() == Some(end));
    is_below.then(|| labels.collect())
}

/// A zone of reverse names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reverse {
    V4,
    V6,
}

impl Reverse {
    /// The zone of the name, in lower case.
    pub(crate) fn of(name: &Name) -> Option<Self> {
        let mut labels = name.iter().rev();
        match (labels.next()?, labels.next()?) {
            (b"arpa", b"in-addr") => Some(Self::V4),
            (b"arpa", b"ip6") => Some(Self::V6),
            _ => None,
        }
    }

    /// The zone.
    pub(crate) fn name(self) -> Name {
        let label: &[u8] = match self {
            Self::V4 => b"in-addr",
            Self::V6 => b"ip6",
        };
        Name::from_labels([label, b"arpa".as_slice()]).unwrap_or_else(|_| Name::root())
    }

    /// The address that the name of this zone stands for; `None` unless it is a whole one.
    pub(crate) fn address(self, name: &Name) -> Option<IpAddr> {
        let labels = name.iter().rev().skip(2);
        match self {
            Self::V4 => {
                let octets: Vec<u8> = labels.map(octet).collect::<Option<_>>()?;
                Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?).into())
            }
            Self::V6 => {
                let digits: Vec<u128> = labels.map(digit).collect::<Option<_>>()?;
                let bits = digits.iter().fold(0, |bits, digit| bits << 4 | digit);
                (digits.len() == 32).then(|| Ipv6Addr::from_bits(bits).into())
            }
        }
    }
}

fn octet(label: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(label).ok()?;
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

fn digit(label: &[u8]) -> Option<u128> {
    match *label {
        [digit] => char::from(digit).to_digit(16).map(u128::from),
        _ => None,
    }
}

/// The name of an endpoint that has no hostname: its address with dashes.
pub(crate) fn dashed(address: IpAddr) -> String {
    let mut text = address.to_string().replace(['.', ':'], "-");
    // A label does not end with a dash.
    if text.ends_with('-') {
        text.push('0');
    }
    text
}

/// The address that the first label of a pod's name stands for.
pub(crate) fn undashed(label: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(label).ok()?;
    let is_v4 = text.bytes().filter(|byte| *byte == b'-').count() == 3 && !text.contains("--");
    text.replace('-', if is_v4 { "." } else { ":" }).parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap().to_lowercase()
    }

    #[test]
    fn reverse_names_are_addresses() {
        for (text, expected) in [
            ("1.0.96.10.in-addr.arpa.", Some("10.96.0.1")),
            ("1.0.96.10.IN-ADDR.ARPA.", Some("10.96.0.1")),
            ("0.96.10.in-addr.arpa.", None),
            ("x.1.0.96.10.in-addr.arpa.", None),
            ("256.0.96.10.in-addr.arpa.", None),
            ("01.0.96.10.in-addr.arpa.", None),
            ("in-addr.arpa.", None),
            (
                "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.",
                Some("fd00::7"),
            ),
            ("7.0.0.d.f.ip6.arpa.", None),
            ("ip6.arpa.", None),
        ] {
            let name = name(text);
            let found = Reverse::of(&name).unwrap().address(&name);
            assert_eq!(found, expected.map(|address| address.parse().unwrap()), "{text}");
        }
        assert_eq!(octet(b"+1"), None);
        assert_eq!(Reverse::of(&name("arpa.")), None);
        assert_eq!(Reverse::of(&name("a.cluster.local.")), None);
        assert_eq!(Reverse::V6.name(), name("ip6.arpa."));
    }

    #[test]
    fn dashed_names_are_addresses() {
        for (address, expected) in
            [("10.0.0.1", "10-0-0-1"), ("fd00::7", "fd00--7"), ("fd00::", "fd00--0")]
        {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(dashed(address), expected);
            assert_eq!(undashed(expected.as_bytes()), Some(address));
        }
        for label in ["", "a", "10-0-0", "10-0-0-256", "10-0-0-1-2", "1--2--3", "\u{e9}-1"] {
            assert_eq!(undashed(label.as_bytes()), None, "{label}");
        }
        assert_eq!(undashed(b"\xff-1"), None);
    }

    #[test]
    fn domain_is_a_name() {
        let domain = Domain::parse("Cluster.Local").unwrap();
        assert_eq!(domain, Domain::parse("cluster.local.").unwrap());
        assert_eq!(domain.strip(&name("a.b.cluster.local.")).unwrap(), [b"b", b"a"]);
        assert_eq!(domain.strip(&name("cluster.local.")).unwrap().len(), 0);
        assert_eq!(domain.strip(&name("local.")), None);
        assert_eq!(domain.strip(&name("a.xcluster.local.")), None);
        assert_eq!(domain.below(&[b"a", b"svc"]).unwrap(), name("a.svc.cluster.local."));
        assert_eq!(domain.below(&[&[b'a'; 64]]), None);
        for bad in ["", ".", "a..b", &"a.".repeat(80)] {
            assert!(Domain::parse(bad).is_err(), "{bad}");
        }
    }
}
