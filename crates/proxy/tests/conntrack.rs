//! Flows of real datagrams through rules of iptables, in the kernel's table.

use crate::common;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use common::{in_netns, sh};
use longshore_proxy::Family;
use longshore_proxy::conntrack::{Entry, StaleFlows, UdpPort, delete, entries, reconcile};

const ADDRESSES: &str = "
    for i in 1 2; do ip addr add 10.0.0.$i/32 dev lo; ip addr add fd00::$i/128 dev lo nodad; done
    ip route add 10.96.0.0/16 dev lo src 10.0.0.1; ip -6 route add fd96::/64 dev lo src fd00::1";

/// A service's address that leads to one endpoint, by a rule like kube-proxy's.
const RULES: &str = "
    iptables -t nat -N KUBE-SVC; iptables -t nat -A OUTPUT -p udp --dport 53 -d 10.96.0.10 -j KUBE-SVC
    ip6tables -t nat -N KUBE-SVC; ip6tables -t nat -A OUTPUT -p udp --dport 53 -d fd96::10 -j KUBE-SVC";

/// Waits until a new address of IPv6 gets what is sent to it: that takes the kernel a moment.
fn set_up() {
    sh(ADDRESSES);
    let (one, two) = (endpoint("[fd00::1]:0"), endpoint("[fd00::2]:9"));
    two.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let passes = || {
        one.send_to(b"x", two.local_addr().unwrap()).unwrap();
        two.recv(&mut [0]).is_ok()
    };
    assert!((0..100).any(|_| passes()));
    sh(RULES);
}

fn endpoint(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// A datagram from the client arrives at the endpoint, and its answer comes back.
fn flows(client: &UdpSocket, to: &str, endpoint: &UdpSocket) -> bool {
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    client.send_to(b"ask", to).unwrap();
    let mut buffer = [0; 16];
    let Ok((_, from)) = endpoint.recv_from(&mut buffer) else { return false };
    endpoint.send_to(b"answer", from).unwrap();
    let (length, from) = client.recv_from(&mut buffer).unwrap();
    &buffer[..length] == b"answer" && from == to.parse().unwrap()
}

async fn all(family: Family) -> Vec<Entry> {
    let mut all = Vec::new();
    entries(family, |entry| all.push(entry)).await.unwrap();
    all
}

fn service(address: &str, endpoints: &[&str]) -> UdpPort {
    UdpPort {
        addresses: vec![address.parse().unwrap()],
        port: 53,
        node_port: None,
        endpoints: endpoints.iter().map(|it| it.parse().unwrap()).collect(),
    }
}

fn conntrack_stale_flows_are_deleted(
    family: Family,
    iptables: &str,
    service_ip: &str,
    ips: [&str; 2],
) {
    let host = |ip: &str, port: u16| SocketAddr::new(ip.parse().unwrap(), port).to_string();
    let (front, ends) = (host(service_ip, 53), ips.map(|ip| host(ip, 5353)));
    in_netns(async || {
        set_up();
        let [first, second] = ends.each_ref().map(|it| endpoint(it));
        let dnat = |to: &str| {
            sh(&format!(
                "{iptables} -t nat -F KUBE-SVC
                 {iptables} -t nat -A KUBE-SVC -p udp -j DNAT --to-destination '{to}'"
            ))
        };
        dnat(&ends[0]);
        let [one, two] = [ips[0], ips[0]].map(|ip| endpoint(&host(ip, 0)));
        assert!(flows(&one, &front, &first));
        // A second client, and a flow that has nothing to do with services.
        assert!(flows(&two, &front, &first));
        assert!(flows(&one, &ends[1], &second));
        let before = all(family).await;
        assert_eq!(before.len(), 3, "{before:?}");
        let to: HashSet<_> = before.iter().map(|it| it.original.destination.to_string()).collect();
        assert_eq!(to, HashSet::from([front.clone(), ends[1].clone()]));

        // Good flows are kept.
        let filter = StaleFlows::new([service(service_ip, &[&ends[0], &ends[1]])], []);
        assert_eq!(reconcile(family, &filter).await.unwrap(), 0);
        assert_eq!(all(family).await.len(), 3);

        // The endpoint is replaced: rules alone do not move the flow, the reconciler does.
        dnat(&ends[1]);
        assert!(!flows(&one, &front, &second));
        let filter = StaleFlows::new([service(service_ip, &[&ends[1]])], []);
        assert_eq!(reconcile(family, &filter).await.unwrap(), 2);
        assert!(flows(&one, &front, &second));
        assert_eq!(reconcile(family, &filter).await.unwrap(), 0);
        assert_eq!(all(family).await.len(), 2);

        // The last endpoint is gone: the client gets to know by the reject.
        sh(&format!(
            "{iptables} -t nat -F KUBE-SVC
             {iptables} -A OUTPUT -p udp -d {service_ip} -j REJECT"
        ));
        let filter = StaleFlows::new([service(service_ip, &[])], []);
        assert_eq!(reconcile(family, &filter).await.unwrap(), 1);
        one.connect(&front).unwrap();
        let _ = one.send(b"ask");
        assert!(one.send(b"ask").is_err(), "the flow is not rejected");
        let left = all(family).await;
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].original.destination.to_string(), ends[1]);

        // What has ended meanwhile is not missed; no other takes its place.
        assert_eq!(delete(&left).await.unwrap(), 1);
        assert_eq!(delete(&left).await.unwrap(), 0);
        assert!(flows(&two, &ends[1], &second));
    });
}

#[test]
fn conntrack_stale_flows_are_deleted_ipv4() {
    conntrack_stale_flows_are_deleted(
        Family::V4,
        "iptables",
        "10.96.0.10",
        ["10.0.0.1", "10.0.0.2"],
    );
}

#[test]
fn conntrack_stale_flows_are_deleted_ipv6() {
    conntrack_stale_flows_are_deleted(Family::V6, "ip6tables", "fd96::10", ["fd00::1", "fd00::2"]);
}

#[test]
fn conntrack_lists_udp_of_the_family_and_deletes_by_id() {
    in_netns(async || {
        set_up();
        // Without a rule that needs it nothing is tracked.
        sh("for it in iptables ip6tables; do
                $it -A INPUT -m conntrack --ctstate NEW -j ACCEPT
            done");
        let server = endpoint("10.0.0.2:5353");
        let client = endpoint("10.0.0.1:0");
        assert!(flows(&client, "10.0.0.2:5353", &server));
        let tcp = std::net::TcpListener::bind("10.0.0.2:5353").unwrap();
        let _stream = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let six = endpoint("[fd00::2]:5353");
        assert!(flows(&endpoint("[fd00::1]:0"), "[fd00::2]:5353", &six));
        assert!(
            std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap().contains("tcp")
        );
        let entries = all(Family::V4).await;
        let [entry] = entries[..] else { panic!("{entries:?}") };
        assert_eq!(entry.original.source, client.local_addr().unwrap());
        assert_eq!(entry.reply.source, "10.0.0.2:5353".parse().unwrap());
        assert_eq!(all(Family::V6).await.len(), 1);
        // A later flow between the same addresses has another id.
        let later = Entry { id: entry.id.wrapping_add(1), ..entry };
        assert_eq!(delete(&[later]).await.unwrap(), 0);
        let elsewhere = Entry { zone: 7, ..entry };
        assert_eq!(delete(&[elsewhere]).await.unwrap(), 0);
        assert_eq!(delete(&[entry]).await.unwrap(), 1);
        assert_eq!(all(Family::V4).await, []);
    });
}

#[test]
fn apply_reads_a_large_table() {
    in_netns(async || {
        set_up();
        sh("sysctl -qw net.ipv4.ip_local_port_range='1024 65000'");
        let (front, gone): (IpAddr, _) = ("10.96.0.10".parse().unwrap(), "10.0.0.2:5353");
        sh(&format!("iptables -t nat -A KUBE-SVC -p udp -j DNAT --to-destination {gone}"));
        let _server = endpoint(gone);
        const FLOWS: u16 = 5000;
        for port in 0..FLOWS {
            let client = endpoint(&format!("10.0.0.1:{}", 2000 + port));
            client.send_to(b"ask", SocketAddr::new(front, 53)).unwrap();
        }
        assert_eq!(all(Family::V4).await.len(), usize::from(FLOWS));
        let filter = StaleFlows::new([service("10.96.0.10", &["10.0.0.9:53"])], []);
        let start = std::time::Instant::now();
        assert_eq!(reconcile(Family::V4, &filter).await.unwrap(), usize::from(FLOWS));
        println!("{FLOWS} flows removed in {:?}", start.elapsed());
        let start = std::time::Instant::now();
        assert_eq!(all(Family::V4).await, []);
        println!("an empty table read in {:?}", start.elapsed());
    });
}
