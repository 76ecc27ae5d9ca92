//! Name resolution on a host with a way out. The machine's own stub resolver listens on its
//! loopback, where a network namespace cannot reach it, so what it would ask is asked instead.
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::error::{AtPath, Error, Result};
use crate::net;
use crate::slot::Names;

/// What every program reads, whatever we would like it to.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where systemd-resolved and NetworkManager name the servers behind their stub.
const UPSTREAMS: [&str; 2] =
    ["/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf"];

/// The resolver configuration for a node on the host.
pub(crate) fn file(names: Names) -> PathBuf {
    names.dir().join("resolv.conf")
}

/// Writes the file, and makes the servers of the machine's `/etc/resolv.conf` answer on the host:
/// containerd reads nothing else.
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
    /// A `resolv.conf` of servers that the host reaches.
    text: String,
    /// The loopback addresses that programs ask.
    stubs: Vec<Ipv4Addr>,
    /// Who is to answer in their stead.
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
        // What a resolver asks that is told nothing.
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

/// Sends what is asked of the stubs to `upstream`, by rules of the host's own network.
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
    fn servers_on_the_loopback_are_replaced_by_those_behind_them() {
        let stub = "# stub\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch example\n";
        let behind = "nameserver fe80::1\nnameserver 192.0.2.1\nsearch example\n";
        let table = [
            // A server that is reached as it is: nobody is redirected.
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
