use std::net::{IpAddr, SocketAddr};

use longshore_duration::GoDuration;

use crate::model::Cidr;

use super::{KubeProxyConfiguration, LocalMode, Mode};

impl KubeProxyConfiguration {
    /// Every value that is out of range or contradicts another; each begins with its field.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        self.numbers(&mut faults);
        self.periods(&mut faults);
        self.addresses(&mut faults);
        self.detection(&mut faults);
        faults
    }

    fn numbers(&self, faults: &mut Vec<String>) {
        let mut range = |field: &str, value: i32, least: i32, most: i32| {
            if !(least..=most).contains(&value) {
                faults.push(format!("{field}: {value} must be between {least} and {most}"));
            }
        };
        range("iptables.masqueradeBit", self.iptables.masquerade_bit, 0, 31);
        if self.mode == Mode::NfTables {
            range("nftables.masqueradeBit", self.nftables.masquerade_bit, 0, 31);
        }
        range("oomScoreAdj", self.oom_score_adj, -1000, 1000);
        range("conntrack.maxPerCore", self.conntrack.max_per_core, 0, i32::MAX);
        range("conntrack.min", self.conntrack.min, 0, i32::MAX);
        range("clientConnection.burst", self.client_connection.burst, 0, i32::MAX);
    }

    fn periods(&self, faults: &mut Vec<String>) {
        let (section, sync, min) = match self.mode {
            Mode::Ipvs => ("ipvs", self.ipvs.sync_period, self.ipvs.min_sync_period),
            Mode::NfTables => {
                ("nftables", self.nftables.sync_period, self.nftables.min_sync_period)
            }
            _ => ("iptables", self.iptables.sync_period, self.iptables.min_sync_period),
        };
        if sync <= GoDuration::ZERO {
            faults.push(format!("{section}.syncPeriod: {sync} must be greater than 0"));
        }
        if min > sync {
            faults.push(format!(
                "{section}.syncPeriod: {sync} must be minSyncPeriod ({min}) or more"
            ));
        }
        if self.config_sync_period <= GoDuration::ZERO {
            let period = self.config_sync_period;
            faults.push(format!("configSyncPeriod: {period} must be greater than 0"));
        }
        let conntrack = &self.conntrack;
        let mut not_negative = vec![
            ("conntrack.tcpEstablishedTimeout", conntrack.tcp_established_timeout),
            ("conntrack.tcpCloseWaitTimeout", conntrack.tcp_close_wait_timeout),
            ("conntrack.udpTimeout", conntrack.udp_timeout),
            ("conntrack.udpStreamTimeout", conntrack.udp_stream_timeout),
        ];
        if self.mode == Mode::Ipvs {
            not_negative.extend([
                ("ipvs.tcpTimeout", self.ipvs.tcp_timeout),
                ("ipvs.tcpFinTimeout", self.ipvs.tcp_fin_timeout),
                ("ipvs.udpTimeout", self.ipvs.udp_timeout),
            ]);
        }
        for (field, value) in not_negative {
            if value < GoDuration::ZERO {
                faults.push(format!("{field}: {value} must be 0 or greater"));
            }
        }
        if min < GoDuration::ZERO {
            faults.push(format!("{section}.minSyncPeriod: {min} must be 0 or greater"));
        }
    }

    fn addresses(&self, faults: &mut Vec<String>) {
        if self.bind_address.parse::<IpAddr>().is_err() {
            faults.push(format!("bindAddress: {:?} is not an IP address", self.bind_address));
        }
        let servers = [
            ("healthzBindAddress", &self.healthz_bind_address),
            ("metricsBindAddress", &self.metrics_bind_address),
        ];
        // an empty one is switched off
        for (field, value) in servers.into_iter().filter(|(_, value)| !value.is_empty()) {
            if !value.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0) {
                faults.push(format!("{field}: {value:?} is not an IP address with a port"));
            }
        }
        if self.port_range_bounds().is_none() {
            faults
                .push(format!("portRange: {:?} is not a range such as 4000-4100", self.port_range));
        }
        let primary = self.node_port_addresses.iter().position(|text| text == "primary");
        if primary.is_some() && self.node_port_addresses.len() > 1 {
            faults.push("nodePortAddresses: \"primary\" stands alone".to_owned());
        }
        let mut ranges = |field: &str, values: &[String]| {
            for (index, text) in values.iter().enumerate().filter(|(_, text)| *text != "primary") {
                if let Err(error) = text.parse::<Cidr>() {
                    faults.push(format!("{field}[{index}]: {error}"));
                }
            }
        };
        ranges("nodePortAddresses", &self.node_port_addresses);
        if self.mode == Mode::Ipvs {
            ranges("ipvs.excludeCIDRs", &self.ipvs.exclude_cidrs);
        }
    }

    fn detection(&self, faults: &mut Vec<String>) {
        let named = |name: &str, field: &str| {
            // longer names are no interface's, and blanks would end the argument
            let plain = (1..16).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
            (!plain).then(|| format!("detectLocal.{field}: {name:?} is not an interface name"))
        };
        let local = &self.detect_local;
        match self.detect_local_mode {
            LocalMode::BridgeInterface => {
                faults.extend(named(&local.bridge_interface, "bridgeInterface"));
            }
            LocalMode::InterfaceNamePrefix => {
                faults.extend(named(&local.interface_name_prefix, "interfaceNamePrefix"));
            }
            LocalMode::NodeCidr => {}
            LocalMode::ClusterCidr => {
                let mut families = Vec::new();
                for text in self.cluster_cidrs() {
                    match text.parse::<Cidr>() {
                        Ok(range) => families.push(range.family()),
                        Err(error) => faults.push(format!("clusterCIDR: {error}")),
                    }
                }
                let all = families.len();
                families.dedup();
                if all > 2 || families.len() < all {
                    faults.push(format!(
                        "clusterCIDR: {:?} must be one CIDR, or one of each family",
                        self.cluster_cidr
                    ));
                }
            }
        }
    }
}
