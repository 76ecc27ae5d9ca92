//! Addresses, ranges of addresses, and URLs.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::opaque::Opaque;
use super::{Found, Function};
use crate::Error;
use crate::runtime::value::{Key, Map, Value};

/// A range of addresses. The address may have bits beyond the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) length: u8,
}

/// An absolute URL or an absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    host: String,
    path: String,
    query: String,
}

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "ip" => |_, args| match args {
            [Value::String(text)] => address(text).map(ip),
            [Value::Opaque(opaque)] => match &**opaque {
                Opaque::Cidr(cidr) => Ok(ip(cidr.address)),
                _ => Err(Error::no_such_overload()),
            },
            _ => Err(Error::no_such_overload()),
        },
        "isIP" => |_, args| of_text(args, |text| Ok(Value::Bool(address(text).is_ok()))),
        "ip.isCanonical" => {
            |_, args| of_text(args, |text| Ok(Value::Bool(address(text)?.to_string() == text)))
        }
        "family" => |_, args| of_ip(args, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => |_, args| of_ip(args, |ip| Value::Bool(ip.is_unspecified())),
        "isLoopback" => |_, args| of_ip(args, |ip| Value::Bool(ip.is_loopback())),
        "isLinkLocalMulticast" => |_, args| of_ip(args, |ip| Value::Bool(local_multicast(ip))),
        "isLinkLocalUnicast" => |_, args| of_ip(args, |ip| Value::Bool(link_local(ip))),
        "isGlobalUnicast" => |_, args| {
            of_ip(args, |ip| {
                let other = ip.is_unspecified()
                    || ip.is_loopback()
                    || ip.is_multicast()
                    || link_local(ip)
                    || ip == IpAddr::V4(Ipv4Addr::BROADCAST);
                Value::Bool(!other)
            })
        },
        "cidr" => {
            |_, args| of_text(args, |text| Ok(Value::Opaque(Arc::new(Opaque::Cidr(range(text)?)))))
        }
        "isCIDR" => |_, args| of_text(args, |text| Ok(Value::Bool(range(text).is_ok()))),
        "prefixLength" => |_, args| of_cidr(args, |cidr| Ok(Value::Int(cidr.length.into()))),
        "masked" => |_, args| {
            of_cidr(args, |cidr| {
                let masked = Cidr { address: cidr.masked(), ..cidr };
                Ok(Value::Opaque(Arc::new(Opaque::Cidr(masked))))
            })
        },
        "containsIP" => |_, args| {
            let other = match args.get(1) {
                Some(Value::String(text)) => address(text)?,
                Some(Value::Opaque(opaque)) => match &**opaque {
                    Opaque::Ip(ip) => *ip,
                    _ => return Err(Error::no_such_overload()),
                },
                _ => return Err(Error::no_such_overload()),
            };
            of_cidr(args, |cidr| Ok(Value::Bool(cidr.contains(other))))
        },
        "containsCIDR" => |_, args| {
            let other = match args.get(1) {
                Some(Value::String(text)) => range(text)?,
                Some(Value::Opaque(opaque)) => match &**opaque {
                    Opaque::Cidr(cidr) => *cidr,
                    _ => return Err(Error::no_such_overload()),
                },
                _ => return Err(Error::no_such_overload()),
            };
            of_cidr(args, |cidr| {
                let within = cidr.length <= other.length && cidr.contains(other.masked());
                Ok(Value::Bool(within))
            })
        },
        "url" => |_, args| {
            of_text(args, |text| {
                let url = parse_url(text).map_err(|why| {
                    Error::new(format!("URL parse error during conversion from string: {why}"))
                })?;
                Ok(Value::Opaque(Arc::new(Opaque::Url(url))))
            })
        },
        "isURL" => |_, args| of_text(args, |text| Ok(Value::Bool(parse_url(text).is_ok()))),
        "getScheme" => |_, args| of_url(args, |url| Value::text(url.scheme.clone())),
        "getHost" => |_, args| of_url(args, |url| Value::text(url.host.clone())),
        "getHostname" => |_, args| of_url(args, |url| Value::text(split_port(&url.host).0)),
        "getPort" => |_, args| of_url(args, |url| Value::text(split_port(&url.host).1)),
        "getEscapedPath" => |_, args| of_url(args, |url| Value::text(url.path.clone())),
        "getQuery" => |_, args| of_url(args, |url| query(&url.query)),
        _ => return None,
    })
}

fn of_text<'v>(args: &[Value<'v>], with: impl FnOnce(&str) -> Found<'v>) -> Found<'v> {
    match args {
        [Value::String(text)] => with(text),
        _ => Err(Error::no_such_overload()),
    }
}

fn opaque<'a>(args: &'a [Value<'_>]) -> Option<&'a Opaque> {
    match args.first() {
        Some(Value::Opaque(opaque)) => Some(opaque),
        _ => None,
    }
}

fn of_ip<'v>(args: &[Value<'v>], with: impl FnOnce(IpAddr) -> Value<'v>) -> Found<'v> {
    match opaque(args) {
        Some(Opaque::Ip(ip)) => Ok(with(*ip)),
        _ => Err(Error::no_such_overload()),
    }
}

fn of_cidr<'v>(args: &[Value<'v>], with: impl FnOnce(Cidr) -> Found<'v>) -> Found<'v> {
    match opaque(args) {
        Some(Opaque::Cidr(cidr)) => with(*cidr),
        _ => Err(Error::no_such_overload()),
    }
}

fn of_url<'v>(args: &[Value<'v>], with: impl FnOnce(&Url) -> Value<'v>) -> Found<'v> {
    match opaque(args) {
        Some(Opaque::Url(url)) => Ok(with(url)),
        _ => Err(Error::no_such_overload()),
    }
}

fn ip<'v>(address: IpAddr) -> Value<'v> {
    Value::Opaque(Arc::new(Opaque::Ip(address)))
}

fn local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => matches!(ip.octets(), [224, 0, 0, _]),
        IpAddr::V6(ip) => ip.segments().first().is_some_and(|first| first & 0xff0f == 0xff02),
    }
}

fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn address(text: &str) -> Result<IpAddr, Error> {
    if text.contains('%') && text.split('%').next().is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok())
    {
        let message = format!("IP address {text:?} with zone value is not allowed");
        return Err(Error::new(message));
    }
    match text.parse() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            let message = format!("IPv4-mapped IPv6 address {text:?} is not allowed");
            Err(Error::new(message))
        }
        Ok(ip) => Ok(ip),
        Err(_) => Err(Error::new(format!(
            "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"
        ))),
    }
}

fn range(text: &str) -> Result<Cidr, Error> {
    let failed = |why: &str| {
        Error::new(format!(
            "network address parse error during conversion from string: netip.ParsePrefix({text:?}): {why}"
        ))
    };
    let (ip, length) = text.split_once('/').ok_or_else(|| failed("no '/'"))?;
    let parsed: IpAddr = ip.parse().map_err(|_| failed("unable to parse IP"))?;
    if let IpAddr::V6(ip) = parsed
        && ip.to_ipv4_mapped().is_some()
    {
        let message = format!("IPv4-mapped IPv6 address {text:?} is not allowed");
        return Err(Error::new(message));
    }
    let most = if parsed.is_ipv4() { 32 } else { 128 };
    let plain =
        length.bytes().all(|b| b.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
    let length = length.parse::<u8>().ok().filter(|length| plain && *length <= most);
    let length = length.ok_or_else(|| failed("bad bits after slash"))?;
    Ok(Cidr { address: parsed, length })
}

impl Cidr {
    fn masked(self) -> IpAddr {
        match self.address {
            IpAddr::V4(ip) => {
                Ipv4Addr::from_bits(ip.to_bits() & mask(32, self.length) as u32).into()
            }
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & mask(128, self.length)).into(),
        }
    }

    fn contains(self, other: IpAddr) -> bool {
        self.address.is_ipv4() == other.is_ipv4()
            && self.masked() == Self { address: other, ..self }.masked()
    }
}

fn mask(bits: u32, length: u8) -> u128 {
    let free = bits.saturating_sub(length.into());
    u128::MAX.checked_shl(free).unwrap_or(0)
}

/// What Go's `url.ParseRequestURI` takes, closely.
pub(super) fn parse_url(text: &str) -> Result<Url, String> {
    let failed = |why: &str| Err(format!("parse {text:?}: {why}"));
    if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return failed("net/url: invalid control character in URL");
    }
    if text.is_empty() {
        return failed("empty url");
    }
    let scheme_end = text.find(':').filter(|end| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.get(..*end).is_some_and(|scheme| {
                scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
            })
    });
    if text.starts_with(':') {
        return failed("missing protocol scheme");
    }
    let (scheme, rest) = match scheme_end {
        Some(end) => {
            let scheme = text.get(..end).unwrap_or_default().to_ascii_lowercase();
            (scheme, text.get(end + 1..).unwrap_or_default())
        }
        None => (String::new(), text),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !rest.starts_with('/') {
        // an opaque part is for requests, too
        if scheme.is_empty() {
            return failed("invalid URI for request");
        }
        let (host, path) = (String::new(), String::new());
        return Ok(Url { scheme, host, path, query: query.to_owned() });
    }
    let (host, path) = match rest.strip_prefix("//") {
        Some(authority) if !scheme.is_empty() || !rest.starts_with("///") => {
            let end = authority.find('/').unwrap_or(authority.len());
            authority.split_at(end)
        }
        _ => ("", rest),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let port = split_port(host).1;
    let broken_port = !port.bytes().all(|b| b.is_ascii_digit());
    let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
    if host.starts_with('[') {
        if !host.contains(']') {
            return failed("missing ']' in host");
        }
        if !after.is_empty() && !after.starts_with(':') {
            return Err(format!("parse {text:?}: invalid port {after:?} after host"));
        }
    } else if let Some((_, port)) = host.split_once(':')
        && !port.bytes().all(|b| b.is_ascii_digit())
    {
        return Err(format!("parse {text:?}: invalid port {:?} after host", format!(":{port}")));
    }
    if broken_port || host.contains([' ', '"', '<', '>', '\\', '^', '`', '{', '|', '}']) {
        return failed("invalid character in host name");
    }
    if !escapes_are_valid(path) {
        return failed("invalid URL escape");
    }
    let host = host.to_owned();
    Ok(Url { scheme, host, path: escaped_path(path), query: query.to_owned() })
}

fn escapes_are_valid(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        let mut digits = after.bytes().take(2);
        let hex = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_hexdigit());
        hex(digits.next()) && hex(digits.next())
    })
}

fn escaped_path(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@%!'()*[]".contains(&byte);
        match plain {
            true => escaped.push(byte.into()),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

fn split_port(host: &str) -> (&str, &str) {
    let bare = |host| -> &str { str::trim_end_matches(str::trim_start_matches(host, '['), ']') };
    match host.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (bare(host), port),
        _ => (bare(host), ""),
    }
}

fn query<'v>(text: &str) -> Value<'v> {
    let mut found: BTreeMap<String, Vec<Value<'v>>> = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (unescaped(key), unescaped(value)) {
            found.entry(key).or_default().push(Value::text(value));
        }
    }
    let entries = found.into_iter().map(|(key, values)| {
        (Key::String(crate::runtime::value::Str::Shared(key.into())), Value::list(values))
    });
    Value::Map(Map::Owned(Arc::new(entries.collect())))
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}
