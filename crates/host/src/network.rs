//! The network of a node's pods where nobody else makes one: a bridge by CNI, whose configuration is
//! written when the node has its range of addresses; routes to the ranges of the other nodes; and the
//! rules that let pods out. A process of its own (`longshore-host network`), which watches nodes.
//!
//! Where the runtime has another network configuration, nothing is done.
//!
//! Current limitations: IPv4; nodes must be neighbours, on one network without a router between.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use longshore_base::files::if_present;
use longshore_base::systemd;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::args::NetworkArgs;
use crate::error::At;
use crate::setup::run as execute;
use crate::tokens::printable;
use crate::{Error, Result, start};

/// The file of the network configuration.
pub const CNI_FILE: &str = "10-longshore.conflist";
/// The network's name, under which its addresses are kept.
pub const NETWORK: &str = "longshore";
/// The bridge of the pods.
pub const BRIDGE: &str = "longshore0";
/// The protocol of the routes, by which they are known again: a number that no routing daemon has.
pub const PROTOCOL: &str = "76";
/// Chains of iptables, each with its table and the chain that jumps to it.
pub const CHAINS: [(&str, &str, &str); 2] =
    [("nat", "POSTROUTING", "LONGSHORE-POSTROUTING"), ("filter", "FORWARD", "LONGSHORE-FORWARD")];

const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// How often everything is looked at again, whether nodes change or not.
const RESYNC: Duration = Duration::from_secs(60);
/// Credentials are read anew so often.
const SESSION: Duration = Duration::from_secs(1800);
const RETRY: Duration = Duration::from_secs(2);

/// What a node says of its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its address.
    address: Ipv4Addr,
    /// The range of its pods.
    pods: Ipv4Net,
    /// Since when the node is registered.
    since: Option<Timestamp>,
}

/// PURE: what a node says of its network; `None`: nothing yet, or nothing that can be used.
fn member(node: &Node) -> Option<Member> {
    let spec = node.spec.as_ref()?;
    let ranges = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    let pods = ranges.filter_map(|text| text.parse::<Ipv4Net>().ok()).next()?;
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().filter(|address| address.type_ == "InternalIP");
    let address = internal.filter_map(|address| address.address.parse().ok()).next()?;
    let since = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    Some(Member { address, pods: pods.trunc(), since })
}

/// PURE: the routes to the pods of other nodes. A range outside of the cluster's is nobody's, and one that
/// several nodes claim is the oldest's, after this machine's own: a node that lies draws no traffic of
/// others, and takes no routes away.
fn routes(
    members: &BTreeMap<String, Member>,
    own: &str,
    cluster: Ipv4Net,
) -> BTreeMap<Ipv4Net, Ipv4Addr> {
    let mut by_age: Vec<(&String, &Member)> = members.iter().collect();
    by_age
        .sort_by_key(|(name, member)| (*name != own, member.since.is_none(), member.since, *name));
    let overlaps = |one: &Ipv4Net, other: &Ipv4Net| one.contains(other) || other.contains(one);
    let mut claimed: Vec<Ipv4Net> = Vec::new();
    let mut found = BTreeMap::new();
    for (name, member) in by_age {
        let is_free = !claimed.iter().any(|other| overlaps(&member.pods, other));
        if name != own && (!is_free || !cluster.contains(&member.pods)) {
            continue;
        }
        claimed.push(member.pods);
        if name != own && !member.address.is_loopback() && !cluster.contains(&member.address) {
            found.insert(member.pods, member.address);
        }
    }
    found
}

/// PURE: the routes that `ip route show` lists: range and gateway of each.
fn listed(text: &str) -> BTreeMap<Ipv4Net, Option<Ipv4Addr>> {
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let range = words.first()?;
        let range = range.parse().or_else(|_| range.parse::<Ipv4Addr>().map(Ipv4Net::from)).ok()?;
        let via = words.iter().position(|word| *word == "via").and_then(|at| words.get(at + 1));
        Some((range, via.and_then(|word| word.parse().ok())))
    };
    text.lines().filter_map(route).collect()
}

/// PURE: CNI's configuration of the bridge.
fn conflist(pods: Ipv4Net, data: &Path) -> String {
    let config = json!({
        "cniVersion": "0.4.0",
        "name": NETWORK,
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": true,
                // A pod may reach itself through its own service.
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": pods.to_string()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": data,
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{config:#}\n")
}

/// PURE: the chains for iptables-restore: pods reach what is outside under the node's address, and traffic
/// of pods is forwarded whatever else is not.
fn rules(own: Ipv4Net, cluster: Ipv4Net) -> String {
    let [(_, _, masquerade), (_, _, forward)] = CHAINS;
    format!(
        "*nat\n:{masquerade} - [0:0]\n\
         -A {masquerade} -s {own} -d 224.0.0.0/4 -j RETURN\n\
         -A {masquerade} -s {own} ! -d {cluster} -j MASQUERADE\nCOMMIT\n\
         *filter\n:{forward} - [0:0]\n\
         -A {forward} -s {cluster} -j ACCEPT\n\
         -A {forward} -d {cluster} -j ACCEPT\nCOMMIT\n"
    )
}

/// PURE: whether a folder with these files has a network configuration of somebody else.
fn is_foreign<'a>(files: impl IntoIterator<Item = &'a str>) -> bool {
    files.into_iter().any(|name| {
        let kind = Path::new(name).extension().and_then(|kind| kind.to_str());
        name != CNI_FILE && matches!(kind, Some("conf" | "conflist" | "json"))
    })
}

fn has_foreign(folder: &Path) -> Result<bool> {
    let entries = if_present(std::fs::read_dir(folder)).at("read", folder)?.into_iter().flatten();
    let names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    Ok(is_foreign(names.iter().map(String::as_str)))
}

/// Keeps the network until `stop`.
///
/// # Errors
/// None: what fails is tried again.
pub async fn run(args: &NetworkArgs, stop: &CancellationToken) -> Result<()> {
    systemd::notify_ready();
    let mut last = String::new();
    while !stop.is_cancelled() {
        let session = tokio::time::timeout(SESSION, session(args));
        let outcome = tokio::select! {
            outcome = session => outcome,
            () = stop.cancelled() => return Ok(()),
        };
        if let Ok(Err(error)) = outcome {
            // The same reason once: the node may have no certificate for a while.
            let reason = error.to_string();
            if reason != last {
                warn!("{reason}");
                last = reason;
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => {}
            }
        }
    }
    Ok(())
}

async fn session(args: &NetworkArgs) -> Result<()> {
    let client = start::client(&args.kubeconfig).await?;
    let nodes: Api<Node> = Api::all(client);
    let mut events = watcher(nodes, watcher::Config::default()).boxed();
    let mut members: BTreeMap<String, Member> = BTreeMap::new();
    let mut is_listed = false;
    let mut resync = tokio::time::interval(RESYNC);
    loop {
        let event = tokio::select! {
            event = events.try_next() => {
                event.map_err(|error| Error::cluster("cannot watch nodes", printable(&error.to_string())))?
            }
            _ = resync.tick() => {
                if is_listed {
                    sync(args, &members)?;
                }
                continue;
            }
        };
        let before = members.clone();
        match event {
            None => return Ok(()),
            Some(Event::Init) => {
                members.clear();
                is_listed = false;
            }
            Some(Event::InitApply(node) | Event::Apply(node)) => match member(&node) {
                Some(member) => drop(members.insert(node.name_any(), member)),
                None => drop(members.remove(&node.name_any())),
            },
            Some(Event::Delete(node)) => drop(members.remove(&node.name_any())),
            Some(Event::InitDone) => {
                is_listed = true;
                sync(args, &members)?;
            }
        }
        if is_listed && members != before {
            sync(args, &members)?;
        }
    }
}

/// Makes the machine's network what the nodes say.
fn sync(args: &NetworkArgs, members: &BTreeMap<String, Member>) -> Result<()> {
    let Some(own) = members.get(&args.node_name) else { return Ok(()) };
    if has_foreign(&args.cni_conf_dir)? {
        return Ok(());
    }
    if std::fs::read_to_string(FORWARDING).unwrap_or_default().trim() != "1" {
        let path = Path::new(FORWARDING);
        std::fs::write(path, "1").at("write", path)?;
    }
    let mut failure = apply_routes(&routes(members, &args.node_name, args.cluster_cidr)).err();
    failure = failure.or(apply_rules(own.pods, args.cluster_cidr).err());
    let config = conflist(own.pods, &args.cni_data_dir);
    let path = args.cni_conf_dir.join(CNI_FILE);
    if std::fs::read_to_string(&path).ok().as_deref() != Some(config.as_str()) {
        std::fs::create_dir_all(&args.cni_conf_dir).at("create", &args.cni_conf_dir)?;
        longshore_base::files::replace(&path, config.as_bytes()).at("write", &path)?;
        info!(path = %path.display(), pods = %own.pods, "wrote the network configuration");
    }
    failure.map_or(Ok(()), Err)
}

pub(crate) fn ip(words: &str) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(words.split_whitespace());
    execute(command)
}

/// All of them are tried; the first failure is the result.
fn apply_routes(wanted: &BTreeMap<Ipv4Net, Ipv4Addr>) -> Result<()> {
    let present = listed(&ip(&format!("-4 route show proto {PROTOCOL}"))?);
    let mut failure = None;
    for range in present.keys().filter(|range| !wanted.contains_key(range)) {
        failure = failure.or(ip(&format!("-4 route del {range} proto {PROTOCOL}")).err());
        info!(%range, "removed a route");
    }
    for (range, gateway) in wanted {
        if present.get(range) == Some(&Some(*gateway)) {
            continue;
        }
        match ip(&format!("-4 route replace {range} via {gateway} proto {PROTOCOL}")) {
            Ok(_) => info!(%range, %gateway, "set a route"),
            Err(error) => {
                let error = Error::refused(format!(
                    "no route to the pods of {gateway}, which must be a neighbour of this machine: {error}"
                ));
                failure = failure.or(Some(error));
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

fn apply_rules(own: Ipv4Net, cluster: Ipv4Net) -> Result<()> {
    let file = tempfile_of(&rules(own, cluster))?;
    let mut command = Command::new("iptables-restore");
    command.args(["--noflush", "--wait"]).stdin(file);
    execute(command)?;
    for (table, from, chain) in CHAINS {
        let iptables = |action: &str| {
            let mut command = Command::new("iptables");
            command.args(["--wait", "-t", table, action, from, "-j", chain]);
            execute(command)
        };
        if iptables("-C").is_err() {
            iptables("-I")?;
        }
    }
    Ok(())
}

/// A file in memory with this content, to be read from its start.
pub(crate) fn tempfile_of(text: &str) -> Result<std::fs::File> {
    use std::io::{Seek, Write};
    let make = || -> std::io::Result<std::fs::File> {
        let memory = rustix::fs::memfd_create("rules", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(memory);
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok(file)
    };
    make().map_err(|error| Error::program("iptables-restore", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(pods: &str, addresses: &[(&str, &str)]) -> Node {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|(kind, address)| json!({"type": kind, "address": address}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "spec": {"podCIDRs": [pods], "podCIDR": pods},
            "status": {"addresses": addresses},
        }))
        .unwrap()
    }

    fn of(pods: &str, address: &str) -> Member {
        Member { pods: pods.parse().unwrap(), address: address.parse().unwrap(), since: None }
    }

    #[test]
    fn network_members_are_nodes_with_a_range_and_an_address() {
        let whole = node("10.244.1.0/24", &[("Hostname", "n"), ("InternalIP", "198.18.1.2")]);
        assert_eq!(member(&whole), Some(of("10.244.1.0/24", "198.18.1.2")));
        for odd in [
            node("", &[("InternalIP", "198.18.1.2")]),
            node("fd00::/64", &[("InternalIP", "198.18.1.2")]),
            node("10.244.1.0/24", &[("ExternalIP", "198.18.1.2")]),
            node("10.244.1.0/24", &[("InternalIP", "fd00::1")]),
            Node::default(),
        ] {
            assert_eq!(member(&odd), None, "{odd:?}");
        }
    }

    #[test]
    fn network_routes_lead_to_other_nodes_and_cannot_be_stolen() {
        let cluster: Ipv4Net = "10.244.0.0/16".parse().unwrap();
        let members = |all: &[(&str, Member)]| {
            all.iter().map(|(name, member)| ((*name).to_owned(), member.clone())).collect()
        };
        let good = members(&[
            ("a", of("10.244.0.0/24", "198.18.1.2")),
            ("b", of("10.244.1.0/24", "198.18.2.2")),
            ("c", of("10.244.2.0/24", "198.18.3.2")),
        ]);
        let found = routes(&good, "a", cluster);
        let gateways: Vec<String> = found.values().map(ToString::to_string).collect();
        assert_eq!(gateways, ["198.18.2.2", "198.18.3.2"]);
        for (pods, address) in [
            ("0.0.0.0/0", "198.18.2.2"),
            ("10.0.0.0/8", "198.18.2.2"),
            ("10.96.0.0/24", "198.18.2.2"),
            ("10.244.0.0/24", "198.18.2.2"),
            ("10.244.0.0/16", "198.18.2.2"),
            ("10.244.0.128/25", "198.18.2.2"),
            ("10.244.1.0/24", "127.0.0.1"),
            ("10.244.1.0/24", "10.244.0.7"),
        ] {
            let liar =
                members(&[("a", of("10.244.0.0/24", "198.18.1.2")), ("b", of(pods, address))]);
            assert_eq!(routes(&liar, "a", cluster), BTreeMap::new(), "{pods} via {address}");
        }
        // Nor does one that came later take away those of others.
        for pods in ["0.0.0.0/0", "10.244.0.0/16", "10.244.2.0/24", "10.244.2.7/32"] {
            let mut all = good.clone();
            for (second, member) in all.values_mut().enumerate() {
                member.since = Timestamp::from_second(second as i64).ok();
            }
            let since = Timestamp::from_second(9).ok();
            all.insert("0liar".to_owned(), Member { since, ..of(pods, "198.18.4.2") });
            assert_eq!(routes(&all, "a", cluster), found, "{pods}");
        }
    }

    #[test]
    fn network_reads_the_routes_of_ip() {
        let text = "10.244.1.0/24 via 198.18.2.2 dev eth0 proto 76 \n10.244.2.7 via 198.18.3.2 dev x\n\
                    10.244.3.0/24 dev eth0 scope link\nunreachable 10.244.4.0/24\n\nbroken\n";
        let found = listed(text);
        assert_eq!(found.len(), 3);
        assert_eq!(found[&"10.244.1.0/24".parse().unwrap()], Some(Ipv4Addr::new(198, 18, 2, 2)));
        assert_eq!(found[&"10.244.3.0/24".parse().unwrap()], None);
    }

    #[test]
    fn network_configuration_of_others_is_left_alone() {
        for (files, foreign) in [
            (vec![], false),
            (vec![CNI_FILE], false),
            (vec![CNI_FILE, "README", "calico-kubeconfig", "10-longshore.tmp"], false),
            (vec!["10-calico.conflist"], true),
            (vec![CNI_FILE, "87-podman.conf"], true),
            (vec!["a.json"], true),
        ] {
            assert_eq!(is_foreign(files.iter().copied()), foreign, "{files:?}");
        }
    }

    #[test]
    fn network_texts() {
        let (own, cluster) = ("10.244.1.0/24".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
        let text = rules(own, cluster);
        assert!(text.contains(
            "-A LONGSHORE-POSTROUTING -s 10.244.1.0/24 ! -d 10.244.0.0/16 -j MASQUERADE\n"
        ));
        let config: serde_json::Value =
            serde_json::from_str(&conflist(own, Path::new("/d"))).unwrap();
        assert_eq!(config["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.244.1.0/24");
        assert_eq!(config["plugins"][0]["ipam"]["dataDir"], "/d");
    }
}
