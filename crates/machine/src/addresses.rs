//! Node addresses: of `--node-ip`, or detected.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// Timeout of the lookup of the node name.
const LOOKUP: Duration = Duration::from_secs(2);

/// Errors of address detection.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// An address of `--node-ip` is not usable.
    #[error(
        "node IP {0} cannot be a node's address: it is loopback, multicast, link-local or unspecified"
    )]
    Unusable(IpAddr),
    /// An address of `--node-ip` is on no interface of this host.
    #[error("node IP {0} not found in the host's network interfaces")]
    Absent(IpAddr),
    /// No interface has a usable address.
    #[error(
        "can't get ip address of node {0}: no default route, and no interface with a global address"
    )]
    None(String),
}

/// An address on an interface of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Local {
    interface: String,
    ip: IpAddr,
}

/// The node's addresses, the preferred one first; at most one per family.
///
/// Without `--node-ip`, the address of the node name, if it is on this host, or else the address of the
/// interface with the default route.
pub async fn resolve(configured: &[IpAddr], node_name: &str) -> Result<Vec<IpAddr>, AddressError> {
    let local = local_addresses();
    if configured.iter().any(|ip| !ip.is_unspecified()) {
        configured.iter().try_for_each(|ip| check(*ip, &local))?;
        return Ok(configured.to_vec());
    }
    let prefer_v4 = configured.first().is_none_or(IpAddr::is_ipv4);
    let named: Vec<IpAddr> =
        match tokio::time::timeout(LOOKUP, tokio::net::lookup_host((node_name, 0))).await {
            Ok(Ok(found)) => {
                found.map(|address| address.ip()).filter(|ip| check(*ip, &local).is_ok()).collect()
            }
            _ => Vec::new(),
        };
    preferred(&named, prefer_v4)
        .or_else(|| by_route(&local, &default_interfaces(), prefer_v4))
        .map(|ip| vec![ip])
        .ok_or_else(|| AddressError::None(node_name.to_owned()))
}

/// Whether all of them are on interfaces of this host.
pub fn are_local(ips: &[IpAddr]) -> bool {
    let local = local_addresses();
    ips.iter().all(|ip| check(*ip, &local).is_ok())
}

/// All addresses of interfaces that are up.
pub fn host_addresses() -> Vec<IpAddr> {
    local_addresses().into_iter().map(|address| address.ip).collect()
}

fn check(ip: IpAddr, local: &[Local]) -> Result<(), AddressError> {
    if !is_global(ip) {
        return Err(AddressError::Unusable(ip));
    }
    match local.iter().any(|address| address.ip == ip) {
        true => Ok(()),
        false => Err(AddressError::Absent(ip)),
    }
}

fn is_global(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || link_local)
}

fn preferred(ips: &[IpAddr], v4: bool) -> Option<IpAddr> {
    ips.iter().find(|ip| ip.is_ipv4() == v4).or_else(|| ips.first()).copied()
}

/// The address of the first interface with a default route, of the preferred family if possible.
fn by_route(local: &[Local], interfaces: &[String], v4: bool) -> Option<IpAddr> {
    let ips: Vec<IpAddr> = interfaces
        .iter()
        .flat_map(|interface| local.iter().filter(move |address| address.interface == *interface))
        .map(|address| address.ip)
        .filter(|ip| is_global(*ip))
        .collect();
    preferred(&ips, v4)
}

/// Interfaces with a default route: the best of IPv4 first, then those of IPv6.
fn default_interfaces() -> Vec<String> {
    let mut routes = procfs::net::route().unwrap_or_default();
    routes.retain(|route| {
        route.destination == Ipv4Addr::UNSPECIFIED && route.mask == Ipv4Addr::UNSPECIFIED
    });
    routes.sort_by_key(|route| route.metrics);
    let v6 = std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    routes.into_iter().map(|route| route.iface).chain(default_interfaces_v6(&v6)).collect()
}

/// Format of the kernel: destination, prefix length, six more columns, flags, interface.
fn default_interfaces_v6(table: &str) -> Vec<String> {
    const REJECT: u32 = 0x200;
    let default = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [destination, prefix, _, _, _, _, _, _, flags, interface] = columns.as_slice() else {
            return None;
        };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let is_default = destination.bytes().all(|digit| digit == b'0') && *prefix == "00";
        (is_default && flags & REJECT == 0).then(|| (*interface).to_owned())
    };
    table.lines().filter_map(default).collect()
}

fn local_addresses() -> Vec<Local> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    interfaces
        .filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|interface| {
            let address = interface.address?;
            let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => IpAddr::V4(v4.ip()),
                (_, Some(v6)) => IpAddr::V6(v6.ip()),
                _ => return None,
            };
            Some(Local { interface: interface.interface_name, ip })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> Vec<Local> {
        [
            ("lo", "127.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "10.0.0.5"),
            ("eth0", "fd00::5"),
            ("eth1", "10.1.0.5"),
        ]
        .map(|(interface, ip)| Local { interface: interface.into(), ip: ip.parse().unwrap() })
        .into()
    }

    #[test]
    fn node_ip_must_be_on_this_host() {
        let check = |ip: &str| check(ip.parse().unwrap(), &local());
        assert_eq!(check("10.0.0.5"), Ok(()));
        assert!(matches!(check("10.0.0.6"), Err(AddressError::Absent(_))));
        for ip in ["127.0.0.1", "fe80::1", "224.0.0.1", "0.0.0.0", "169.254.0.1"] {
            assert!(matches!(check(ip), Err(AddressError::Unusable(_))), "{ip}");
        }
    }

    #[test]
    fn node_ip_defaults_to_the_default_route() {
        let by_route = |interfaces: &[&str], v4| {
            let interfaces: Vec<String> =
                interfaces.iter().map(|name| (*name).to_owned()).collect();
            by_route(&local(), &interfaces, v4).map(|ip| ip.to_string())
        };
        assert_eq!(by_route(&["eth0", "eth1"], true).as_deref(), Some("10.0.0.5"));
        assert_eq!(by_route(&["eth0"], false).as_deref(), Some("fd00::5"));
        assert_eq!(
            by_route(&["eth1"], false).as_deref(),
            Some("10.1.0.5"),
            "better the other family than none"
        );
        assert_eq!(by_route(&[], true), None);
    }

    #[test]
    fn node_ip_default_routes_of_ipv6() {
        let zero = "00000000000000000000000000000000";
        let table = format!(
            "fd000000000000000000000000000000 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001 eth9\n\
             {zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 00000003 eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
        );
        assert_eq!(default_interfaces_v6(&table), ["eth0"]);
    }
}
