use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn entry(to: &str, from: &str) -> Entry {
    let client = address(if to.starts_with('[') { "[fd00::9]:4000" } else { "10.9.9.9:4000" });
    Entry {
        original: Tuple { source: client, destination: address(to) },
        reply: Tuple { source: address(from), destination: client },
        zone: 0,
        id: 1,
    }
}

fn port(addresses: &[&str], port: u16, node_port: Option<u16>, endpoints: &[&str]) -> UdpPort {
    UdpPort {
        addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
        port,
        node_port,
        endpoints: endpoints.iter().map(|it| address(it)).collect(),
    }
}

#[test]
fn conntrack_flow_to_no_endpoint_of_its_service_is_stale() {
    let dns = ["10.0.0.1:53", "10.0.0.2:53"];
    let filter = StaleFlows::new(
        [
            port(&["10.96.0.10", "192.0.2.1"], 53, Some(30053), &dns),
            port(&["10.96.0.11"], 5353, Some(30054), &[]),
            port(&["10.96.0.12"], 30053, None, &["10.0.0.3:99"]),
            port(&["fd00:10::1"], 53, Some(30055), &["[fd00::1]:53"]),
        ],
        ["172.18.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
    );
    for (to, from, stale) in [
        // its endpoints
        ("10.96.0.10:53", "10.0.0.1:53", false),
        ("10.96.0.10:53", "10.0.0.2:53", false),
        ("192.0.2.1:53", "10.0.0.2:53", false),
        ("172.18.0.2:30053", "10.0.0.2:53", false),
        ("[fd00:10::1]:53", "[fd00::1]:53", false),
        ("[fd00::2]:30055", "[fd00::1]:53", false),
        // endpoints that are gone, or another port of one that is not
        ("10.96.0.10:53", "10.0.0.3:53", true),
        ("10.96.0.10:53", "10.0.0.1:54", true),
        ("192.0.2.1:53", "10.0.0.3:53", true),
        ("172.18.0.2:30053", "10.0.0.3:53", true),
        ("[fd00:10::1]:53", "[fd00::3]:53", true),
        ("[fd00::2]:30055", "[fd00::3]:53", true),
        // begun before there was a rule
        ("10.96.0.10:53", "10.96.0.10:53", true),
        ("172.18.0.2:30053", "172.18.0.2:30053", true),
        // the last endpoint is gone
        ("10.96.0.11:5353", "10.0.0.1:53", true),
        ("172.18.0.2:30054", "10.0.0.1:53", true),
        // another port of a service's address
        ("10.96.0.10:54", "10.0.0.3:53", false),
        // somebody else's port of the same number as a node port
        ("8.8.8.8:30053", "8.8.8.8:30053", false),
        ("10.96.0.12:30053", "10.0.0.3:99", false),
        ("10.96.0.12:30053", "10.0.0.1:53", true),
        // no service at all
        ("10.0.0.1:53", "10.0.0.1:53", false),
    ] {
        assert_eq!(filter.is_stale(&entry(to, from)), stale, "{to} {from}");
    }
}

#[test]
fn node_port_without_known_addresses_matches_any() {
    let filter = StaleFlows::new([port(&[], 53, Some(30053), &["10.0.0.1:53"])], []);
    assert!(filter.is_stale(&entry("172.18.0.9:30053", "10.0.0.2:53")));
    assert!(!filter.is_stale(&entry("172.18.0.9:30053", "10.0.0.1:53")));
    assert!(StaleFlows::new([], []).is_empty());
}

proptest! {
    /// Whatever the services: a flow that goes where one of them sends it now is kept, and a flow
    /// to nobody's address is kept.
    #[test]
    fn conntrack_valid_flows_are_kept(
        ports in vec((0u8..8, 1u16..4, proptest::option::of(30000u16..30004), vec((0u8..4, 1u16..4), 0..4)), 0..6),
        flow in (0u8..12, 1u16..4, 0u8..4, 1u16..4),
    ) {
        // One service a front, as the API guarantees.
        let mut fronts = std::collections::HashSet::new();
        let mut node_ports = std::collections::HashSet::new();
        let ports: Vec<UdpPort> = ports
            .into_iter()
            .filter(|(ip, port, ..)| fronts.insert((*ip, *port)))
            .map(|(ip, port, node_port, endpoints)| UdpPort {
                addresses: vec![[10, 96, 0, ip].into()],
                port,
                node_port: node_port.filter(|it| node_ports.insert(*it)),
                endpoints: endpoints.into_iter().map(|(ip, port)| ([10, 0, 0, ip], port).into()).collect(),
            })
            .collect();
        let filter = StaleFlows::new(ports.clone(), [[172, 18, 0, 2].into()]);
        let (ip, to_port, from, from_port) = flow;
        let to = SocketAddr::from(([10, 96, 0, ip], to_port));
        let from = SocketAddr::from(([10, 0, 0, from], from_port));
        let client = SocketAddr::from(([10, 9, 9, 9], 4000));
        let entry = Entry {
            original: Tuple { source: client, destination: to },
            reply: Tuple { source: from, destination: client },
            zone: 0,
            id: 0,
        };
        let service = ports.iter().find(|it| it.addresses.contains(&to.ip()) && it.port == to.port());
        let stale = service.is_some_and(|it| !it.endpoints.contains(&from));
        prop_assert_eq!(filter.is_stale(&entry), stale);
        prop_assert_eq!(filter.stale([&entry]).count(), usize::from(stale));
    }
}
