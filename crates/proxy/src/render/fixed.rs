//! What does not depend on services: the fixed chains and what leads to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::Cidr;

use super::existing::Table;
use super::rule::{Chain, Match, Rule, Target};
use super::settings::{NodePorts, Settings};

/// The canary chain in each table, which only shows whether the table was flushed.
pub const CANARY_CHAIN: &str = "KUBE-PROXY-CANARY";

/// Marks packets for masquerading.
pub(super) const MARK_CHAIN: &str = "KUBE-MARK-MASQ";
/// Masquerades marked packets.
pub(super) const POSTROUTING_CHAIN: &str = "KUBE-POSTROUTING";
/// Lets forwarded traffic of services pass.
pub(super) const FORWARD_CHAIN: &str = "KUBE-FORWARD";
/// Guards localhost; the kubelet has the same rule there.
pub(super) const FIREWALL_CHAIN: &str = "KUBE-FIREWALL";

/// A chain in which services have rules side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Shared {
    /// filter: cluster IPs that have no endpoints.
    Services,
    /// filter: other addresses that have no endpoints.
    ExternalServices,
    /// filter: health-check ports are let in.
    HealthChecks,
    /// filter: clients outside of the source ranges of a load balancer.
    ProxyFirewall,
    /// nat: all addresses of services.
    NatServices,
    /// nat: node ports.
    NatNodePorts,
}

impl Shared {
    pub(super) const ALL: [Shared; 6] = [
        Shared::Services,
        Shared::ExternalServices,
        Shared::HealthChecks,
        Shared::ProxyFirewall,
        Shared::NatServices,
        Shared::NatNodePorts,
    ];

    pub(super) fn table(self) -> Table {
        match self {
            Shared::NatServices | Shared::NatNodePorts => Table::Nat,
            _ => Table::Filter,
        }
    }

    pub(super) fn chain(self) -> &'static str {
        match self {
            Shared::Services | Shared::NatServices => "KUBE-SERVICES",
            Shared::ExternalServices => "KUBE-EXTERNAL-SERVICES",
            Shared::HealthChecks | Shared::NatNodePorts => "KUBE-NODEPORTS",
            Shared::ProxyFirewall => "KUBE-PROXY-FIREWALL",
        }
    }
}

/// A rule of a built-in chain that leads to one of ours. Rules are put at the head of their chain
/// one after the other, where they are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    /// The table.
    pub table: Table,
    /// The built-in chain.
    pub from: &'static str,
    /// Our chain.
    pub to: &'static str,
    /// The rule without its chain, as `iptables-save` prints it.
    pub rule: &'static str,
    /// Shared with the kubelet: it stays when kube-proxy is cleaned up.
    pub kubelet: bool,
}

const fn jump(table: Table, from: &'static str, to: &'static str, rule: &'static str) -> Jump {
    Jump { table, from, to, rule, kubelet: false }
}

const EXTERNAL: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES";
const PORTALS: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
const BALANCERS: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL";
const NAT_PORTALS: &str = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
const GUARD: &str = "-j KUBE-FIREWALL";

/// All jumps, in the order in which they are made.
pub const JUMPS: [Jump; 14] = [
    jump(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", EXTERNAL),
    jump(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", EXTERNAL),
    jump(
        Table::Filter,
        "INPUT",
        "KUBE-NODEPORTS",
        "-m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS",
    ),
    jump(Table::Filter, "FORWARD", "KUBE-SERVICES", PORTALS),
    jump(Table::Filter, "OUTPUT", "KUBE-SERVICES", PORTALS),
    jump(
        Table::Filter,
        "FORWARD",
        FORWARD_CHAIN,
        "-m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD",
    ),
    jump(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", BALANCERS),
    jump(Table::Filter, "OUTPUT", "KUBE-PROXY-FIREWALL", BALANCERS),
    jump(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", BALANCERS),
    Jump { kubelet: true, ..jump(Table::Filter, "INPUT", FIREWALL_CHAIN, GUARD) },
    Jump { kubelet: true, ..jump(Table::Filter, "OUTPUT", FIREWALL_CHAIN, GUARD) },
    jump(Table::Nat, "OUTPUT", "KUBE-SERVICES", NAT_PORTALS),
    jump(Table::Nat, "PREROUTING", "KUBE-SERVICES", NAT_PORTALS),
    jump(
        Table::Nat,
        "POSTROUTING",
        POSTROUTING_CHAIN,
        "-m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
    ),
];

/// The chains of table nat that others jump to.
pub(super) fn nat_chains(settings: &Settings) -> [Chain; 2] {
    let mark = settings.mark();
    let postrouting = [
        Rule {
            matches: &format!("-m mark ! --mark {mark}/{mark} "),
            target: Target::Fixed("RETURN"),
            ..Rule::default()
        },
        // the mark is taken off: the packet may come through here again
        Rule { target: Target::Fixed(&format!("MARK --set-xmark {mark}/0x0")), ..Rule::default() },
        Rule {
            comment: &["kubernetes service traffic requiring SNAT"],
            target: Target::Fixed(if settings.random_fully {
                "MASQUERADE --random-fully"
            } else {
                "MASQUERADE"
            }),
            ..Rule::default()
        },
    ];
    let set_mark = Rule {
        target: Target::Fixed(&format!("MARK --set-xmark {mark}/{mark}")),
        ..Rule::default()
    };
    [Chain::of(POSTROUTING_CHAIN, &postrouting), Chain::of(MARK_CHAIN, &[set_mark])]
}

/// The chain of table filter that lets forwarded traffic pass.
pub(super) fn forward_chain(settings: &Settings) -> Chain {
    let mark = settings.mark();
    let invalid = Rule {
        matches: "-m conntrack --ctstate INVALID ",
        counter: if settings.accounting.invalid_dropped {
            "-m nfacct --nfacct-name  ct_state_invalid_dropped_pkts "
        } else {
            ""
        },
        target: Target::Fixed("DROP"),
        ..Rule::default()
    };
    let marked = Rule {
        comment: &["kubernetes forwarding rules"],
        matches: &format!("-m mark --mark {mark}/{mark} "),
        target: Target::Fixed("ACCEPT"),
        ..Rule::default()
    };
    let known = Rule {
        comment: &["kubernetes forwarding conntrack rule"],
        matches: "-m conntrack --ctstate RELATED,ESTABLISHED ",
        target: Target::Fixed("ACCEPT"),
        ..Rule::default()
    };
    let from = usize::from(!settings.drop_invalid);
    Chain::of(FORWARD_CHAIN, &[invalid, marked, known][from..])
}

/// The guard of localhost: `route_localnet` would open it to neighbours. None where nothing is
/// served there; the chain is then the kubelet's alone.
pub(super) fn guard_chain(settings: &Settings) -> Option<Chain> {
    let loopback = loopback_v4();
    let guard = Rule {
        source: Some(Match::Not(loopback)),
        destination: Some(Match::Is(loopback)),
        comment: &["block incoming localnet connections"],
        matches: "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT ",
        target: Target::Fixed("DROP"),
        ..Rule::default()
    };
    settings.at_localhost().then(|| Chain::of(FIREWALL_CHAIN, &[guard]))
}

/// Ends nat's KUBE-SERVICES: traffic to the node's own addresses.
pub(super) fn add_node_ports(chain: &mut Chain, settings: &Settings) {
    let rule = Rule {
        comment: &["kubernetes service nodeports; NOTE: this must be the last rule in this chain"],
        target: Target::Fixed(Shared::NatNodePorts.chain()),
        ..Rule::default()
    };
    match &settings.node_ports {
        NodePorts::All => {
            let destination = if !settings.is_v4() {
                Some(Match::Not(Cidr::host(Ipv6Addr::LOCALHOST.into())))
            } else if !settings.localhost_node_ports {
                Some(Match::Not(loopback_v4()))
            } else {
                None
            };
            chain.add(&Rule { destination, matches: "-m addrtype --dst-type LOCAL ", ..rule });
        }
        NodePorts::Addresses(addresses) => {
            let served = |ip: &&IpAddr| !ip.is_loopback() || settings.at_localhost();
            for ip in addresses.iter().filter(served) {
                chain.add(&Rule { destination: Some(Match::Is(Cidr::host(*ip))), ..rule });
            }
        }
    }
}

/// 127.0.0.0/8.
pub(super) fn loopback_v4() -> Cidr {
    Cidr::new(Ipv4Addr::new(127, 0, 0, 0).into(), 8)
}
