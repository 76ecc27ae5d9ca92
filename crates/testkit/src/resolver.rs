//! Name resolution on a host with egress. The stub resolver of the machine listens on its loopback,
//! which a network namespace cannot reach, so its upstream servers are used.
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::error::{AtPath, Error, Result};
use crate::net;
use crate::slot::Names;

/// The file that all programs read.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The files of systemd-resolved and NetworkManager with the upstream servers.
const UPSTREAMS: [&str; 2] =
    ["/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf"];

/// The resolver configuration for a node on the host.
pub(crate) fn file(names: Names) -> PathBuf {
    names.dir().join("resolv.conf")
}

/// Writes the file, and redirects the servers of the machine's `/etc/resolv.conf` on the host:
/// containerd reads no other file.
pub(crate) fn configure(names: Names) -> Result<()> {
    let upstreams = UPSTREAMS.iter().filter_map(|path| fs::read_to_string(path).ok());
    let resolver = choose(&fs::read_to_string(RESOLV_CONF).unwrap_or_default(), upstreams)
        .ok_or_else(|| {
            Error::Machine(format!(
                "{RESOLV_CONF} names no IPv4 server outside of the machine's loopback"
            ))
        })?;
    fs::write(file(names), &resolver.text).at(file(names))?;
    match resolver.stubs[..] {
        [] => Ok(()),
        _ => redirect(names, &resolver.stubs, resolver.upstream),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Resolver {
    /// A `resolv.conf` with servers that the host reaches.
    text: String,
    /// The loopback addresses that programs use.
    stubs: Vec<Ipv4Addr>,
    /// The server to redirect them to.
    upstream: Ipv4Addr,
}

fn choose(own: &str, upstreams: impl IntoIterator<Item = String>) -> Option<Resolver> {
    if let Some(upstream) = reachable(own) {
        return Some(Resolver { text: without_unreachable(own), stubs: Vec::new(), upstream });
    }
    let (text, upstream) =
        upstreams.into_iter().find_map(|text| reachable(&text).map(|server| (text, server)))?;
    let mut stubs: Vec<_> = own.lines().filter_map(server).filter_map(ipv4).collect();
    if stubs.is_empty() {
        // The default of a resolver without configuration.
        stubs.push(Ipv4Addr::LOCALHOST);
    }
    Some(Resolver { text: without_unreachable(&text), stubs, upstream })
}

fn reachable(text: &str) -> Option<Ipv4Addr> {
    text.lines().filter_map(server).filter_map(ipv4).find(|server| !server.is_loopback())
}

fn without_unreachable(text: &str) -> String {
    let keep = |line: &&str| {
        server(line).is_none_or(|server| ipv4(server).is_some_and(|ip| !ip.is_loopback()))
    };
    text.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

/// The address of a `nameserver` line.
fn server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
}

fn ipv4(server: IpAddr) -> Option<Ipv4Addr> {
    match server {
        IpAddr::V4(server) => Some(server),
        IpAddr::V6(_) => None,
    }
}

/// Redirects requests to the stubs to `upstream`, by rules in the network of the host.
pub(crate) fn redirect(names: Names, stubs: &[Ipv4Addr], upstream: Ipv4Addr) -> Result<()> {
    let mut script = String::from(
        "echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet
         iptables -w -t nat -A POSTROUTING -s 127.0.0.0/8 -o eth0 -j MASQUERADE\n",
    );
    for stub in stubs {
        for protocol in ["udp", "tcp"] {
            script.push_str(&format!(
                "iptables -w -t nat -A OUTPUT -d {stub} -p {protocol} --dport 53 \
                 -j DNAT --to-destination {upstream}\n"
            ));
        }
    }
    net::inside(names, &script).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(resolver: Option<Resolver>) -> Option<(String, Vec<String>, String)> {
        let resolver = resolver?;
        let stubs = resolver.stubs.iter().map(ToString::to_string).collect();
        Some((resolver.text, stubs, resolver.upstream.to_string()))
    }

    #[test]
    fn resolver_on_loopback_is_replaced() {
        let stub = "# stub\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch example\n";
        let behind = "nameserver fe80::1\nnameserver 192.0.2.1\nsearch example\n";
        let table = [
            // The server is reachable: no redirection.
            ("nameserver 192.0.2.7\n", "", Some(("nameserver 192.0.2.7\n", vec![], "192.0.2.7"))),
            (
                "nameserver 127.0.0.1\nnameserver 192.0.2.7\noptions rotate",
                "",
                Some(("nameserver 192.0.2.7\noptions rotate\n", vec![], "192.0.2.7")),
            ),
            (
                stub,
                behind,
                Some(("nameserver 192.0.2.1\nsearch example\n", vec!["127.0.0.53"], "192.0.2.1")),
            ),
            (
                "",
                behind,
                Some(("nameserver 192.0.2.1\nsearch example\n", vec!["127.0.0.1"], "192.0.2.1")),
            ),
            (stub, "", None),
            (stub, "nameserver ::1\nnameserver 127.0.0.1\nnameserver\nnameserver x", None),
        ];
        for (own, upstream, expected) in table {
            let expected = expected.map(|(text, stubs, upstream)| {
                let stubs = stubs.into_iter().map(str::to_owned).collect();
                (text.to_owned(), stubs, upstream.to_owned())
            });
            assert_eq!(servers(choose(own, [upstream.to_owned()])), expected, "{own:?}");
        }
    }
}
