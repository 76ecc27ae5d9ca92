use serde_json::{Value, json};

use crate::model::Family;
use crate::render::{LocalDetector, NodePorts};

use super::*;

fn decode(fields: Value) -> Result<KubeProxyConfiguration, ConfigError> {
    let mut tree = fields;
    tree["kind"] = "KubeProxyConfiguration".into();
    tree["apiVersion"] = "kubeproxy.config.k8s.io/v1alpha1".into();
    KubeProxyConfiguration::decode(tree)
}

#[test]
fn config_empty_is_all_defaults() {
    assert_eq!(decode(json!({})), Ok(KubeProxyConfiguration::default()));
    // as kubeadm writes it: everything there, and zero
    let kubeadm = json!({
        "bindAddress": "0.0.0.0", "bindAddressHardFail": false,
        "clientConnection": {"acceptContentTypes": "", "burst": 0, "contentType": "", "kubeconfig": "", "qps": 0},
        "clusterCIDR": "", "configSyncPeriod": "0s",
        "conntrack": {"maxPerCore": null, "min": null, "tcpBeLiberal": false, "tcpCloseWaitTimeout": null, "tcpEstablishedTimeout": null, "udpStreamTimeout": "0s", "udpTimeout": "0s"},
        "detectLocal": {"bridgeInterface": "", "interfaceNamePrefix": ""}, "detectLocalMode": "",
        "enableProfiling": false, "healthzBindAddress": "", "hostnameOverride": "",
        "iptables": {"localhostNodePorts": null, "masqueradeAll": false, "masqueradeBit": null, "minSyncPeriod": "0s", "syncPeriod": "0s"},
        "ipvs": {"excludeCIDRs": null, "minSyncPeriod": "0s", "scheduler": "", "strictARP": false, "syncPeriod": "0s", "tcpFinTimeout": "0s", "tcpTimeout": "0s", "udpTimeout": "0s"},
        "logging": {}, "metricsBindAddress": "", "mode": "",
        "nftables": {"masqueradeAll": false, "masqueradeBit": null, "minSyncPeriod": "0s", "syncPeriod": "0s"},
        "nodePortAddresses": null, "oomScoreAdj": null, "portRange": "", "showHiddenMetricsForVersion": "",
        "winkernel": {"enableDSR": false, "forwardHealthCheckVip": false, "networkName": "", "rootHnsEndpointName": "", "sourceVip": ""},
    });
    assert_eq!(decode(kubeadm), Ok(KubeProxyConfiguration::default()));
}

#[test]
fn config_round_trip() {
    let config = decode(json!({"mode": "userspace", "iptables": {"syncPeriod": "1m30s"}})).unwrap();
    assert_eq!(KubeProxyConfiguration::decode(config.to_tree()), Ok(config.clone()));
    assert_eq!(config.to_tree()["iptables"]["syncPeriod"], "1m30s");
    assert_eq!(config.mode, Mode::Userspace);
}

#[test]
fn config_server_addresses_follow_the_bind_address_family() {
    let config = decode(json!({"bindAddress": "::"})).unwrap();
    assert_eq!(config.healthz_bind_address, "[::]:10256");
    assert_eq!(config.metrics_bind_address, "[::1]:10249");
    let config =
        decode(json!({"healthzBindAddress": "10.0.0.1", "metricsBindAddress": "::1"})).unwrap();
    assert_eq!(config.healthz_bind_address, "10.0.0.1:10256");
    assert_eq!(config.metrics_bind_address, "[::1]:10249");
}

#[test]
fn config_unknown_fields_are_named() {
    let error = |fields| decode(fields).unwrap_err().to_string();
    let unknown = error(json!({"iptables": {"masqBit": 3}}));
    assert!(unknown.starts_with("iptables.masqBit: unknown field `masqBit`"), "{unknown}");
    let mistyped = error(json!({"conntrack": {"min": "many"}}));
    assert!(mistyped.starts_with("conntrack.min: invalid type: string \"many\""), "{mistyped}");
    let mode = error(json!({"mode": "ebpf"}));
    assert!(mode.starts_with("mode: unknown variant `ebpf`"), "{mode}");
    let other = KubeProxyConfiguration::decode(json!({"kind": "KubeletConfiguration"}));
    assert_eq!(
        other.unwrap_err().to_string(),
        "expected a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1, found kind \"KubeletConfiguration\" of apiVersion null"
    );
    assert!(KubeProxyConfiguration::decode(json!([1])).is_err());
}

#[test]
fn config_fields_of_other_versions_are_ignored() {
    let tree = json!({
        "kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "udpIdleTimeout": "250ms", "iptables": {"masqBit": 3, "masqueradeBit": 3}, "mode": "iptables",
    });
    let (config, passed_over) = KubeProxyConfiguration::decode_lenient(tree).unwrap();
    assert_eq!((config.iptables.masquerade_bit, config.mode), (3, Mode::IpTables));
    let mut fields: Vec<_> = passed_over.iter().filter_map(|it| it.split(':').next()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["iptables.masqBit", "udpIdleTimeout"]);
    let mistyped = json!({
        "kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "iptables": {"masqBit": 3, "masqueradeBit": "3"},
    });
    let error = KubeProxyConfiguration::decode_lenient(mistyped).unwrap_err().to_string();
    assert!(error.starts_with("iptables.masqueradeBit: invalid type"), "{error}");
}

#[test]
fn port_ranges_of_relays() {
    for (text, range) in [
        ("", Some(None)),
        ("0", Some(None)),
        ("0-0", Some(None)),
        ("4000", Some(Some(4000..=4000))),
        ("4000-4100", Some(Some(4000..=4100))),
        ("4000+10", Some(Some(4000..=4010))),
        ("0-10", Some(Some(1..=10))),
        ("4100-4000", None),
        ("65535+1", None),
        ("many", None),
    ] {
        let config = KubeProxyConfiguration { port_range: text.to_owned(), ..Default::default() };
        assert_eq!(config.port_range_bounds(), range, "{text}");
        assert_eq!(config.faults().is_empty(), range.is_some(), "{text}");
    }
}

#[test]
fn node_port_unknown_address_is_not_served() {
    let machine = Machine {
        node_ips: vec!["192.168.0.2".parse().unwrap(), "::1".parse().unwrap()],
        addresses: vec!["192.168.0.2".parse().unwrap(), "::1".parse().unwrap()],
        ..Machine::default()
    };
    let config = decode(json!({"nodePortAddresses": ["primary"]})).unwrap();
    assert_eq!(config.settings(Family::V6, &machine).node_ports, NodePorts::All);
}

#[test]
fn config_errors_name_their_fields() {
    let table = [
        (
            json!({"iptables": {"masqueradeBit": 32}}),
            "iptables.masqueradeBit: 32 must be between 0 and 31",
        ),
        (json!({"oomScoreAdj": 1001}), "oomScoreAdj: 1001 must be between -1000 and 1000"),
        (json!({"conntrack": {"min": -1}}), "conntrack.min: -1 must be between 0 and 2147483647"),
        (
            json!({"conntrack": {"udpTimeout": "-1s"}}),
            "conntrack.udpTimeout: -1s must be 0 or greater",
        ),
        (
            json!({"iptables": {"syncPeriod": "1s", "minSyncPeriod": "2s"}}),
            "iptables.syncPeriod: 1s must be minSyncPeriod (2s) or more",
        ),
        (
            json!({"iptables": {"syncPeriod": "-1s", "minSyncPeriod": "-2s"}}),
            "iptables.syncPeriod: -1s must be greater than 0; iptables.minSyncPeriod: -2s must be 0 or greater",
        ),
        (json!({"configSyncPeriod": "-1s"}), "configSyncPeriod: -1s must be greater than 0"),
        (json!({"bindAddress": "here"}), "bindAddress: \"here\" is not an IP address"),
        (
            json!({"healthzBindAddress": "1.2.3.4:0"}),
            "healthzBindAddress: \"1.2.3.4:0\" is not an IP address with a port",
        ),
        (
            json!({"metricsBindAddress": "x:1"}),
            "metricsBindAddress: \"x:1\" is not an IP address with a port",
        ),
        (
            json!({"nodePortAddresses": ["10.0.0.1"]}),
            "nodePortAddresses[0]: \"10.0.0.1\" is not a CIDR such as 10.0.0.0/8 or fd00::/64",
        ),
        (
            json!({"nodePortAddresses": ["10.0.0.0/8", "primary"]}),
            "nodePortAddresses: \"primary\" stands alone",
        ),
        (
            json!({"clusterCIDR": "10.0.0.0/8,10.1.0.0/16"}),
            "clusterCIDR: \"10.0.0.0/8,10.1.0.0/16\" must be one CIDR, or one of each family",
        ),
        (
            json!({"clusterCIDR": "pods"}),
            "clusterCIDR: \"pods\" is not a CIDR such as 10.0.0.0/8 or fd00::/64",
        ),
        (
            json!({"detectLocalMode": "BridgeInterface"}),
            "detectLocal.bridgeInterface: \"\" is not an interface name",
        ),
        (
            json!({"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "a b"}}),
            "detectLocal.interfaceNamePrefix: \"a b\" is not an interface name",
        ),
        (
            json!({"mode": "ipvs", "ipvs": {"excludeCIDRs": ["x"], "tcpTimeout": "-1s"}}),
            "ipvs.tcpTimeout: -1s must be 0 or greater; ipvs.excludeCIDRs[0]: \"x\" is not a CIDR such as 10.0.0.0/8 or fd00::/64",
        ),
    ];
    for (fields, message) in table {
        assert_eq!(decode(fields).unwrap_err().to_string(), message);
    }
}

#[test]
fn settings_of_each_family() {
    let machine = Machine {
        node_ips: vec!["192.168.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        pod_cidrs: vec!["10.244.3.0/24".parse().unwrap()],
        addresses: ["127.0.0.1", "192.168.0.2", "10.9.9.9", "fd00::2"]
            .map(|ip| ip.parse().unwrap())
            .into(),
        random_fully: true,
        ..Machine::default()
    };
    let of = |family, fields| decode(fields).unwrap().settings(family, &machine);
    let plain = of(Family::V4, json!({"clusterCIDR": "10.244.0.0/16,fd00:1::/48"}));
    assert_eq!(plain.detector, LocalDetector::Cidr("10.244.0.0/16".parse().unwrap()));
    assert_eq!(plain.node_ports, NodePorts::All);
    assert!(plain.localhost_node_ports && plain.drop_invalid && plain.random_fully);
    assert_eq!((plain.node_ip.to_string(), plain.masquerade_bit), ("192.168.0.2".to_owned(), 14));
    let six = of(Family::V6, json!({"clusterCIDR": "10.244.0.0/16,fd00:1::/48"}));
    assert_eq!(six.detector, LocalDetector::Cidr("fd00:1::/48".parse().unwrap()));
    assert!(!six.localhost_node_ports);
    assert_eq!(
        of(Family::V6, json!({"detectLocalMode": "NodeCIDR"})).detector,
        LocalDetector::None
    );
    assert_eq!(
        of(Family::V4, json!({"detectLocalMode": "NodeCIDR"})).detector,
        LocalDetector::Cidr("10.244.3.0/24".parse().unwrap())
    );
    let bridge =
        json!({"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": "cbr0"}});
    assert_eq!(of(Family::V6, bridge).detector, LocalDetector::Bridge("cbr0".to_owned()));
    let at =
        |ips: &[&str]| NodePorts::Addresses(ips.iter().map(|ip| ip.parse().unwrap()).collect());
    let primary = of(Family::V4, json!({"nodePortAddresses": ["primary"]}));
    assert_eq!((primary.node_ports, primary.localhost_node_ports), (at(&["192.168.0.2"]), false));
    let some = of(Family::V4, json!({"nodePortAddresses": ["10.0.0.0/8", "127.0.0.0/8"]}));
    assert_eq!(
        (some.node_ports, some.localhost_node_ports),
        (at(&["10.9.9.9", "127.0.0.1"]), true)
    );
    let other_family = of(Family::V6, json!({"nodePortAddresses": ["10.0.0.0/8"]}));
    assert_eq!(other_family.node_ports, NodePorts::All);
}
