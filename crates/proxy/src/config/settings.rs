use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::model::{Cidr, Family};
use crate::render::{Accounting, LocalDetector, NodePorts, Settings};

use crate::sysctl;

use super::{KubeProxyConfiguration, LocalMode};

/// What settings of rules depend on besides the configuration.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// The node's addresses, at most one a family.
    pub node_ips: Vec<IpAddr>,
    /// The ranges of the node's pods, from its object.
    pub pod_cidrs: Vec<Cidr>,
    /// All addresses of its interfaces.
    pub addresses: Vec<IpAddr>,
    /// iptables knows `--random-fully`.
    pub random_fully: bool,
    /// `nf_conntrack_tcp_be_liberal` is set.
    pub tcp_be_liberal: bool,
    /// The counters that the kernel has.
    pub accounting: Accounting,
}

impl KubeProxyConfiguration {
    /// What the rules of a family depend on. Values that are no ranges are skipped: they do not
    /// pass [`KubeProxyConfiguration::faults`].
    pub fn settings(&self, family: Family, machine: &Machine) -> Settings {
        let ranges = self.node_port_ranges(machine);
        let unspecified = match family {
            Family::V4 => IpAddr::from([0; 4]),
            Family::V6 => IpAddr::from([0; 16]),
        };
        let node_ip = machine.node_ips.iter().find(|ip| Family::of(**ip) == family);
        Settings {
            family,
            masquerade_all: self.iptables.masquerade_all,
            masquerade_bit: u8::try_from(self.iptables.masquerade_bit).unwrap_or(14),
            random_fully: machine.random_fully,
            detector: self.detector(family, machine),
            node_ip: node_ip.copied().unwrap_or(unspecified),
            node_ports: NodePorts::within(family, &ranges, &machine.addresses),
            localhost_node_ports: self.localhost_node_ports(family, &ranges),
            drop_invalid: !machine.tcp_be_liberal,
            accounting: machine.accounting,
        }
    }

    /// `nodePortAddresses` as ranges; `primary` is the node's own addresses.
    fn node_port_ranges(&self, machine: &Machine) -> Vec<Cidr> {
        if self.node_port_addresses.iter().any(|text| text == "primary") {
            // loopback stands for an address that is not known
            let known = machine.node_ips.iter().filter(|ip| !ip.is_loopback());
            return known.copied().map(Cidr::host).collect();
        }
        self.node_port_addresses.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// `conntrack` as the kernel's settings.
    pub fn conntrack_sysctls(&self) -> sysctl::Conntrack {
        let conntrack = &self.conntrack;
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        sysctl::Conntrack {
            max_per_core: number(conntrack.max_per_core),
            min: number(conntrack.min),
            tcp_established: conntrack.tcp_established_timeout.get(),
            tcp_close_wait: conntrack.tcp_close_wait_timeout.get(),
            tcp_be_liberal: conntrack.tcp_be_liberal,
            udp: conntrack.udp_timeout.get(),
            udp_stream: conntrack.udp_stream_timeout.get(),
        }
    }

    /// The shortest and the longest time between two syncs, in modes of iptables.
    pub fn sync_periods(&self) -> (Duration, Duration) {
        (self.iptables.min_sync_period.get(), self.iptables.sync_period.get())
    }

    /// `portRange`, as `FIRST-LAST`, `FIRST+COUNT` or one port: where relays of the userspace mode
    /// listen. Any port if it is empty or 0; the outer option is none if it is no range.
    pub fn port_range_bounds(&self) -> Option<Option<RangeInclusive<u16>>> {
        let text = self.port_range.trim();
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (first.parse().ok()?, last.parse().ok()?)
        } else if let Some((first, count)) = text.split_once('+') {
            let first: u16 = first.parse().ok()?;
            (first, first.checked_add(count.parse().ok()?)?)
        } else if text.is_empty() {
            (0, 0)
        } else {
            let port = text.parse().ok()?;
            (port, port)
        };
        (first <= last).then(|| (last > 0).then(|| first.max(1)..=last))
    }

    fn localhost_node_ports(&self, family: Family, ranges: &[Cidr]) -> bool {
        family == Family::V4
            && self.iptables.localhost_node_ports
            && NodePorts::holds_v4_loopback(ranges)
    }

    fn detector(&self, family: Family, machine: &Machine) -> LocalDetector {
        let local = &self.detect_local;
        let first = |mut ranges: Box<dyn Iterator<Item = Cidr> + '_>| {
            let range = ranges.find(|range| range.family() == family);
            range.map_or(LocalDetector::None, LocalDetector::Cidr)
        };
        match self.detect_local_mode {
            LocalMode::ClusterCidr => {
                first(Box::new(self.cluster_cidrs().filter_map(|text| text.parse().ok())))
            }
            LocalMode::NodeCidr => first(Box::new(machine.pod_cidrs.iter().copied())),
            LocalMode::BridgeInterface => LocalDetector::Bridge(local.bridge_interface.clone()),
            LocalMode::InterfaceNamePrefix => {
                LocalDetector::InterfacePrefix(local.interface_name_prefix.clone())
            }
        }
    }
}
