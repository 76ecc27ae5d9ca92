//! The rules of one service: those it has in shared chains, and its own chains.

use std::fmt::Write as _;

use crate::model::{Cidr, Endpoint, Family, Policy, PortView, Protocol, Service};

use super::fixed::{MARK_CHAIN, Shared, loopback_v4};
use super::names::{ChainName, Hash, Kind};
use super::rule::{Chain, Match, Rule, Target};
use super::settings::Settings;

/// Emits the rules of a service in shared chains, without their chain.
pub(super) fn shared_rules(
    service: &Service,
    settings: &Settings,
    emit: &mut impl FnMut(Shared, String),
) {
    for view in service.ports() {
        PortRules::new(view, settings).shared(&mut |shared, rule| {
            let mut text = String::with_capacity(192);
            rule.write(&mut text);
            emit(shared, text);
        });
    }
}

/// Emits the chains of a service, after those that they jump to. `brief`: no comments where there are many rules.
pub(super) fn chains(
    service: &Service,
    settings: &Settings,
    brief: bool,
    emit: &mut impl FnMut(ChainName, &Chain),
) {
    let mut chain = Chain::new("");
    for view in service.ports() {
        PortRules::new(view, settings).chains(brief, &mut chain, emit);
    }
}

/// One port, and what the rules for it need again and again.
struct PortRules<'a> {
    view: PortView<'a>,
    settings: &'a Settings,
    name: String,
    hash: Hash,
    /// Some node has an endpoint.
    any: bool,
    /// There is one for traffic to the cluster IP.
    internal: bool,
    /// There is one for other traffic.
    external: bool,
}

impl<'a> PortRules<'a> {
    fn new(view: PortView<'a>, settings: &'a Settings) -> Self {
        let name = view.to_string();
        let hash = Hash::of(&[&name, view.port.protocol.as_str()]);
        let any = view.has_endpoints();
        let reaches = |policy| {
            any && (policy == Policy::Cluster || view.endpoints_for(policy).next().is_some())
        };
        let internal = reaches(view.spec.internal_policy);
        let external = reaches(view.spec.external_policy);
        Self { view, settings, name, hash, any, internal, external }
    }

    fn chain(&self, kind: Kind) -> ChainName {
        ChainName::of_port(kind, self.hash)
    }

    fn policy_chain(&self, policy: Policy) -> ChainName {
        self.chain(match policy {
            Policy::Cluster => Kind::Cluster,
            Policy::Local => Kind::Local,
        })
    }

    fn has_firewall(&self) -> bool {
        let spec = self.view.spec;
        self.any && !spec.load_balancer_ips.is_empty() && !spec.source_ranges.is_empty()
    }

    /// Where traffic without an endpoint ends, and why: at once where there is none at all;
    /// unanswered where other nodes have some, so that load balancers try these.
    fn refusal(&self) -> (Target<'static>, &'static str) {
        if self.any {
            return (Target::Fixed("DROP"), " has no local endpoints");
        }
        let reject = match self.settings.family {
            Family::V4 => "REJECT --reject-with icmp-port-unreachable",
            Family::V6 => "REJECT --reject-with icmp6-port-unreachable",
        };
        (Target::Fixed(reject), " has no endpoints")
    }

    fn shared(&self, emit: &mut dyn FnMut(Shared, &Rule<'_>)) {
        let (spec, port) = (self.view.spec, self.view.port);
        let to = |ip| Rule {
            destination: Some(Match::Is(Cidr::host(ip))),
            protocol: Some(port.protocol),
            port: Some(port.port),
            ..Rule::default()
        };
        let (refused, why) = self.refusal();
        let refused = |rule| Rule { comment: &[], target: refused, ..rule };
        let why: [&str; 2] = [&self.name, why];

        if self.internal {
            let target = Target::Chain(self.policy_chain(spec.internal_policy));
            let comment: &[&str] = &[&self.name, " cluster IP"];
            emit(Shared::NatServices, &Rule { comment, target, ..to(spec.cluster_ip) });
        } else {
            emit(Shared::Services, &Rule { comment: &why, ..refused(to(spec.cluster_ip)) });
        }

        let external = Target::Chain(self.chain(Kind::External));
        let firewall = self.chain(Kind::Firewall);
        let balanced = if self.has_firewall() { Target::Chain(firewall) } else { external };
        let outside = [
            (&spec.external_ips, " external IP", external),
            (&spec.load_balancer_ips, " loadbalancer IP", balanced),
        ];
        for (ips, what, target) in outside {
            for ip in ips {
                if self.any {
                    let comment: &[&str] = &[&self.name, what];
                    emit(Shared::NatServices, &Rule { comment, target, ..to(*ip) });
                }
                if !self.external {
                    emit(Shared::ExternalServices, &Rule { comment: &why, ..refused(to(*ip)) });
                }
            }
        }
        if self.has_firewall() {
            let firewall = firewall.to_string();
            let comment: &[&str] = &[&self.name, " traffic not accepted by ", &firewall];
            for ip in &spec.load_balancer_ips {
                let target = Target::Fixed("DROP");
                emit(Shared::ProxyFirewall, &Rule { comment, target, ..to(*ip) });
            }
        }
        if let Some(node_port) = port.node_port {
            self.node_port(node_port, external, &why, emit);
        }
        if let Some(port) = spec.health_check_node_port {
            let rule = Rule {
                protocol: Some(Protocol::Tcp),
                port: Some(port),
                comment: &[&self.name, " health check node port"],
                target: Target::Fixed("ACCEPT"),
                ..Rule::default()
            };
            emit(Shared::HealthChecks, &rule);
        }
    }

    fn node_port(
        &self,
        node_port: u16,
        external: Target<'_>,
        why: &[&str],
        emit: &mut dyn FnMut(Shared, &Rule<'_>),
    ) {
        let rule = Rule {
            protocol: Some(self.view.port.protocol),
            port: Some(node_port),
            ..Rule::default()
        };
        if self.any {
            let rule = Rule { comment: &[&self.name], target: external, ..rule };
            if self.settings.at_localhost() && self.settings.accounting.localhost_node_ports {
                let counted = Rule {
                    destination: Some(Match::Is(loopback_v4())),
                    counter: "-m nfacct --nfacct-name  localhost_nps_accepted_pkts ",
                    ..rule
                };
                emit(Shared::NatNodePorts, &counted);
            }
            emit(Shared::NatNodePorts, &rule);
        }
        if !self.external {
            let matches = "-m addrtype --dst-type LOCAL ";
            let (target, _) = self.refusal();
            emit(Shared::ExternalServices, &Rule { comment: why, matches, target, ..rule });
        }
    }

    fn chains(&self, brief: bool, chain: &mut Chain, emit: &mut impl FnMut(ChainName, &Chain)) {
        if !self.any {
            return;
        }
        let mut emit = |name, chain: &mut Chain, fill: &dyn Fn(&mut Chain)| {
            chain.reset(name);
            fill(chain);
            emit(name, chain);
        };
        let reachable = self.view.endpoints.iter().filter(|endpoint| endpoint.is_reachable());
        let endpoints: Vec<_> = reachable.map(|e| Destination::new(self, e)).collect();
        for to in &endpoints {
            emit(to.chain, chain, &|chain| self.endpoint(to, brief, chain));
        }
        for (policy, kind) in [(Policy::Cluster, Kind::Cluster), (Policy::Local, Kind::Local)] {
            let of_policy = |to: &&Destination<'_>| match policy {
                Policy::Cluster => to.endpoint.for_cluster,
                Policy::Local => to.endpoint.for_local,
            };
            let chosen: Vec<_> = endpoints.iter().filter(of_policy).collect();
            if !chosen.is_empty() {
                let fill = |chain: &mut Chain| self.balance(policy, &chosen, brief, chain);
                emit(self.chain(kind), chain, &fill);
            }
        }
        if self.view.is_external() {
            emit(self.chain(Kind::External), chain, &|chain| self.external(chain));
        }
        if self.has_firewall() {
            emit(self.chain(Kind::Firewall), chain, &|chain| self.firewall(chain));
        }
    }

    /// Leads to one endpoint; what comes from it is masqueraded, else it would answer itself.
    fn endpoint(&self, to: &Destination<'_>, brief: bool, chain: &mut Chain) {
        let comment: &[&str] = if brief { &[] } else { &[&self.name] };
        let hairpin = Rule {
            source: Some(Match::Is(Cidr::host(to.endpoint.address.ip))),
            comment,
            target: Target::Fixed(MARK_CHAIN),
            ..Rule::default()
        };
        chain.add(&hairpin);
        let remember = match self.view.spec.affinity {
            Some(_) => format!("-m recent --set --name {} {} ", to.chain, self.by_source()),
            None => String::new(),
        };
        let lead = Rule {
            protocol: Some(self.view.port.protocol),
            comment,
            matches: &remember,
            target: Target::Dnat(&to.address),
            ..Rule::default()
        };
        chain.add(&lead);
    }

    /// The name of the list of the module `recent`.
    fn by_source(&self) -> &'static str {
        match self.settings.family {
            Family::V4 => "--mask 255.255.255.255 --rsource",
            Family::V6 => "--mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource",
        }
    }

    /// Balances over the endpoints of a policy.
    fn balance(&self, policy: Policy, chosen: &[&Destination<'_>], brief: bool, chain: &mut Chain) {
        let spec = self.view.spec;
        if self.internal && spec.internal_policy == policy {
            let mut rule = Rule {
                destination: Some(Match::Is(Cidr::host(spec.cluster_ip))),
                protocol: Some(self.view.port.protocol),
                port: Some(self.view.port.port),
                comment: &[&self.name, " cluster IP"],
                target: Target::Fixed(MARK_CHAIN),
                ..Rule::default()
            };
            // What comes from outside may have come by this node only: the answer must too.
            if self.settings.masquerade_all || rule.match_not_local(&self.settings.detector) {
                chain.add(&rule);
            }
        }
        let mut matches = String::new();
        let mut lead = |to: &Destination<'_>, matches: &str| {
            let comment: &[&str] = if brief { &[] } else { &[&self.name, " -> ", &to.address] };
            let target = Target::Chain(to.chain);
            chain.add(&Rule { comment, matches, target, ..Rule::default() });
        };
        if let Some(seconds) = spec.affinity {
            for to in chosen {
                matches.clear();
                // writing to a String cannot fail
                let _ = write!(
                    matches,
                    "-m recent --rcheck --seconds {seconds} --reap --name {} {} ",
                    to.chain,
                    self.by_source()
                );
                lead(to, &matches);
            }
        }
        for (index, to) in chosen.iter().enumerate() {
            matches.clear();
            let left = chosen.len() - index;
            if left > 1 {
                let _ = write!(
                    matches,
                    "-m statistic --mode random --probability {:.11} ",
                    probability(left)
                );
            }
            lead(to, &matches);
        }
    }

    /// Sorts out traffic to anything but the cluster IP.
    fn external(&self, chain: &mut Chain) {
        let policy = self.view.spec.external_policy;
        let comment = |start| [start, self.name.as_str(), " external destinations"];
        let mark = Target::Fixed(MARK_CHAIN);
        if policy == Policy::Cluster {
            // it may leave this node again
            let comment = comment("masquerade traffic for ");
            chain.add(&Rule { comment: &comment, target: mark, ..Rule::default() });
        } else {
            // Pods and processes of this node reach all endpoints, as they do by the cluster IP.
            let target = Target::Chain(self.chain(Kind::Cluster));
            let pods = comment("pod traffic for ");
            let mut pods = Rule { comment: &pods, target, ..Rule::default() };
            if pods.match_local(&self.settings.detector) {
                chain.add(&pods);
            }
            let matches = "-m addrtype --src-type LOCAL ";
            // the load balancer's address may be the node's own, and the source then
            let marked = comment("masquerade LOCAL traffic for ");
            chain.add(&Rule { comment: &marked, matches, target: mark, ..Rule::default() });
            let routed = comment("route LOCAL traffic for ");
            chain.add(&Rule { comment: &routed, matches, target, ..Rule::default() });
        }
        if self.external {
            let target = Target::Chain(self.policy_chain(policy));
            chain.add(&Rule { target, ..Rule::default() });
        }
    }

    /// Lets those through that may use the load balancer. What reaches the end was not redirected,
    /// and KUBE-PROXY-FIREWALL drops it.
    fn firewall(&self, chain: &mut Chain) {
        let spec = self.view.spec;
        let rule = Rule {
            comment: &[&self.name, " loadbalancer IP"],
            target: Target::Chain(self.chain(Kind::External)),
            ..Rule::default()
        };
        for range in &spec.source_ranges {
            chain.add(&Rule { source: Some(Match::Is(*range)), ..rule });
        }
        // The node itself may have the load balancer's address, and then uses it as its own.
        if spec.source_ranges.iter().any(|range| range.contains(self.settings.node_ip)) {
            for ip in &spec.load_balancer_ips {
                chain.add(&Rule { source: Some(Match::Is(Cidr::host(*ip))), ..rule });
            }
        }
        let end = Rule {
            comment: &["other traffic to ", &self.name, " will be dropped by KUBE-PROXY-FIREWALL"],
            ..Rule::default()
        };
        chain.add(&end);
    }
}

/// An endpoint with its chain.
struct Destination<'a> {
    endpoint: &'a Endpoint,
    address: String,
    chain: ChainName,
}

impl<'a> Destination<'a> {
    fn new(port: &PortRules<'_>, endpoint: &'a Endpoint) -> Self {
        let address = endpoint.address.to_string();
        let protocol = port.view.port.protocol.as_str();
        let chain = ChainName::of_endpoint(&port.name, protocol, &address);
        Self { endpoint, address, chain }
    }
}

/// One of `n` as the kernel keeps it: a multiple of 2⁻³¹, which is what is printed. Ten digits on
/// the way, as upstream gives it.
fn probability(n: usize) -> f64 {
    const STEPS: f64 = 2_147_483_648.0;
    let rounded = (1e10 / n as f64).round() / 1e10;
    (rounded * STEPS).round() / STEPS
}
