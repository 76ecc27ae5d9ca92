//! Rules that redirect traffic for services to relays. Chains are written whole, a table at a time, so
//! that no traffic meets half of them.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::{Portal, Relay, Userspace};
use crate::apply::{Error, Iptables, Position, Table};
use crate::model::Cidr;

const PORTALS_CONTAINER: &str = "KUBE-PORTALS-CONTAINER";
const PORTALS_HOST: &str = "KUBE-PORTALS-HOST";
const NODEPORT_CONTAINER: &str = "KUBE-NODEPORT-CONTAINER";
const NODEPORT_HOST: &str = "KUBE-NODEPORT-HOST";
const NODEPORT_NON_LOCAL: &str = "KUBE-NODEPORT-NON-LOCAL";

const PORTALS: &[&str] = &[
    "-m",
    "comment",
    "--comment",
    "handle ClusterIPs; NOTE: this must be before the NodePort rules",
];
const NODEPORTS: &[&str] = &[
    "-m",
    "addrtype",
    "--dst-type",
    "LOCAL",
    "-m",
    "comment",
    "--comment",
    "handle service NodePorts; NOTE: this must be the last rule in the chain",
];
const NON_LOCAL: &[&str] =
    &["-m", "comment", "--comment", "Ensure that non-local NodePort traffic can flow"];

/// A jump from a chain of the kernel.
type Jump = (Position, Table, &'static str, &'static [&'static str], &'static str);

/// Portals come first: node ports match broadly.
const JUMPS: [Jump; 5] = [
    (Position::First, Table::Nat, "PREROUTING", PORTALS, PORTALS_CONTAINER),
    (Position::First, Table::Nat, "OUTPUT", PORTALS, PORTALS_HOST),
    (Position::Last, Table::Nat, "PREROUTING", NODEPORTS, NODEPORT_CONTAINER),
    (Position::Last, Table::Nat, "OUTPUT", NODEPORTS, NODEPORT_HOST),
    (Position::First, Table::Filter, "INPUT", NON_LOCAL, NODEPORT_NON_LOCAL),
];

impl Userspace {
    /// Put the rules into the kernel, all of them.
    pub async fn apply(&self, iptables: &Iptables) -> Result<(), Error> {
        iptables.restore(&self.rules(), false).await?;
        for (position, table, chain, matches, target) in JUMPS {
            let rule: Vec<&str> = matches.iter().copied().chain(["-j", target]).collect();
            iptables.ensure_rule(position, table, chain, &rule).await?;
        }
        Ok(())
    }

    /// The text of all rules but the jumps to them, for `iptables-restore`.
    pub fn rules(&self) -> String {
        let chains = [PORTALS_CONTAINER, PORTALS_HOST, NODEPORT_CONTAINER, NODEPORT_HOST];
        let (mut nat, mut filter) = (String::from("*nat\n"), String::from("*filter\n"));
        for chain in chains {
            declare(&mut nat, chain);
        }
        declare(&mut filter, NODEPORT_NON_LOCAL);
        let mut relays: Vec<&Relay> = self.relays.values().collect();
        relays.sort_by(|a, b| (&a.service.name, a.port).cmp(&(&b.service.name, b.port)));
        for relay in relays {
            for portal in &relay.service.portals {
                self.portal(&mut nat, relay, portal);
            }
            if let Some(node_port) = relay.service.node_port {
                let matches = matches(relay, node_port);
                let (container, host) = (self.redirect(relay), self.dnat(relay));
                rule(&mut nat, NODEPORT_CONTAINER, &matches, &container);
                rule(&mut nat, NODEPORT_HOST, &matches, &host);
                let matches = self::matches(relay, relay.port);
                let accept = "-m conntrack --ctstate NEW -j ACCEPT";
                rule(&mut filter, NODEPORT_NON_LOCAL, &matches, accept);
            }
        }
        nat + "COMMIT\n" + &filter + "COMMIT\n"
    }

    fn portal(&self, nat: &mut String, relay: &Relay, portal: &Portal) {
        let bits = if portal.address.is_ipv4() { 32 } else { 128 };
        let to = format!("-d {}/{bits} {}", portal.address, matches(relay, relay.service.port));
        let (container, host) = (self.redirect(relay), self.dnat(relay));
        if portal.external {
            // Not what passes over a bridge of this machine's pods, but what it sends itself.
            let passing = format!("{to} -m physdev ! --physdev-is-in");
            let local = format!("{to} -m addrtype --dst-type LOCAL");
            rule(nat, PORTALS_CONTAINER, &passing, &container);
            rule(nat, PORTALS_CONTAINER, &local, &container);
            rule(nat, PORTALS_HOST, &local, &host);
            return;
        }
        for source in sources(&portal.sources) {
            rule(nat, PORTALS_CONTAINER, &format!("{source}{to}"), &container);
            rule(nat, PORTALS_HOST, &format!("{source}{to}"), &host);
        }
    }

    /// What comes in: to where it came in, whose answers then come from there too.
    fn redirect(&self, relay: &Relay) -> String {
        if self.settings.listen.is_unspecified() {
            format!("-j REDIRECT --to-ports {}", relay.port)
        } else {
            dnat(self.settings.listen, relay.port)
        }
    }

    /// What this machine sends: loopback would not do, answers would come from elsewhere.
    fn dnat(&self, relay: &Relay) -> String {
        let any = self.settings.listen.is_unspecified();
        dnat(if any { self.settings.node } else { self.settings.listen }, relay.port)
    }
}

/// A match for each range that clients may come from; one that matches all, where none are named.
fn sources(ranges: &[Cidr]) -> Vec<String> {
    match ranges {
        [] => vec![String::new()],
        ranges => ranges.iter().map(|range| format!("-s {range} ")).collect(),
    }
}

fn dnat(address: IpAddr, port: u16) -> String {
    format!("-j DNAT --to-destination {}", SocketAddr::new(address, port))
}

fn matches(relay: &Relay, port: u16) -> String {
    let (name, protocol) = (&relay.service.name, relay.service.protocol);
    format!("-p {protocol} -m comment --comment {name} -m {protocol} --dport {port}")
}

fn declare(table: &mut String, chain: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(table, ":{chain} - [0:0]");
}

fn rule(table: &mut String, chain: &str, matches: &str, target: &str) {
    let _ = writeln!(table, "-A {chain} {matches} {target}");
}
