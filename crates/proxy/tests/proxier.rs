//! Services and slices in, packets through: the whole way with both variants and both families.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::{in_netns, sh};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use longshore_proxy::Family;
use longshore_proxy::apply::{Backend, Limits, Table, Variant, cleanup, watch};
use longshore_proxy::model::{HealthCheck, Node, ServiceName, Tracker};
use longshore_proxy::pacer::Reason;
use longshore_proxy::proxier::{Proxier, Rules};
use longshore_proxy::render::{Accounting, LocalDetector, NodePorts, Settings};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

/// A node with addresses for pods, and one pod behind a veth pair, in both families.
const HOST: &str = "
    ip addr add 10.0.0.9/32 dev lo; ip -6 addr add fd00::9/128 dev lo nodad
    for i in 1 2 3; do
        ip addr add 10.1.0.$i/32 dev lo; ip -6 addr add fd00:1::$i/128 dev lo nodad
    done
    ip netns add pod
    ip link add pod0 type veth peer name eth0 netns pod
    pod='nsenter --net=/run/netns/pod'
    ip link set pod0 up; $pod ip link set eth0 up
    ip addr add 10.2.0.1/24 dev pod0; ip -6 addr add fd00:2::1/64 dev pod0 nodad
    $pod ip addr add 10.2.0.2/24 dev eth0; $pod ip -6 addr add fd00:2::2/64 dev eth0 nodad
    $pod ip route add default via 10.2.0.1; $pod ip -6 route add default via fd00:2::1
    ip route add 10.96.0.0/16 dev pod0 src 10.0.0.9
    ip -6 route add fd00:96::/64 dev pod0 src fd00::9
    echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";

/// One family on one variant.
struct World {
    family: Family,
    backend: Arc<Backend>,
    proxier: Proxier,
}

impl World {
    async fn new(variant: Variant, family: Family) -> Self {
        let backend = Backend::of(variant, Limits::default()).await.unwrap();
        let proxier = proxier(&backend, family);
        Self { family, backend, proxier }
    }

    /// An address by its number in a range: 0 for the node's, 1 for pods', 96 for services'.
    fn ip(&self, range: u8, number: u8) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::from([10, range, 0, number]),
            Family::V6 if range == 0 => format!("fd00::{number}").parse().unwrap(),
            Family::V6 => format!("fd00:{range}::{number}").parse().unwrap(),
        }
    }

    /// The service at address `number`, with the fields of its spec.
    fn service(&self, name: &str, number: u8, fields: Value) -> bool {
        let mut spec = json!({
            "type": "NodePort",
            "clusterIP": self.ip(96, number),
            "clusterIPs": [self.ip(96, number)],
            "ipFamilies": [self.family.as_str()],
            "ports": [{"name": "p", "port": 80, "nodePort": 30000 + u32::from(number)}],
        });
        merge(&mut spec, fields);
        let object = json!({"metadata": {"namespace": "default", "name": name}, "spec": spec});
        let object: Service = serde_json::from_value(object).unwrap();
        self.proxier.update(|tracker| tracker.apply_service(&object))
    }

    /// Its endpoints at port 8080 of pods by their numbers.
    fn endpoints(&self, name: &str, numbers: &[u8], fields: Value) -> bool {
        let endpoint = |number: &u8| {
            json!({
                "addresses": [self.ip(1, *number)],
                "nodeName": "node-a",
                "conditions": {"ready": true},
            })
        };
        let mut object = json!({
            "metadata": {
                "namespace": "default",
                "name": name,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": self.family.as_str(),
            "endpoints": numbers.iter().map(endpoint).collect::<Vec<_>>(),
            "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
        });
        merge(&mut object, fields);
        let object: EndpointSlice = serde_json::from_value(object).unwrap();
        self.proxier.update(|tracker| tracker.apply_slice(&object))
    }

    fn programs(&self) -> (&'static str, &'static str) {
        match (self.family, self.backend.variant) {
            (Family::V4, Variant::Nft) => ("iptables-nft", "iptables-nft-save"),
            (Family::V4, Variant::Legacy) => ("iptables-legacy", "iptables-legacy-save"),
            (Family::V6, Variant::Nft) => ("ip6tables-nft", "ip6tables-nft-save"),
            (Family::V6, Variant::Legacy) => ("ip6tables-legacy", "ip6tables-legacy-save"),
        }
    }

    /// Chains and rules of a table, sorted, with counters.
    async fn counted(&self, table: Table) -> Vec<String> {
        let text = sh(&format!("{} -c -t {table} | grep KUBE- || true", self.programs().1));
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// The same without.
    async fn rules(&self) -> Vec<String> {
        let mut all = Vec::new();
        for table in [Table::Filter, Table::Nat] {
            let saved = self.backend.family(self.family).save(table).await.unwrap();
            let rules = saved.lines().filter(|it| it.starts_with("-A") || it.starts_with(":KUBE"));
            all.extend(rules.map(|it| format!("{table} {}", it.split(" [").next().unwrap())));
        }
        all.sort();
        all
    }
}

fn merge(object: &mut Value, fields: Value) {
    for (field, value) in fields.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
}

fn proxier(backend: &Arc<Backend>, family: Family) -> Proxier {
    let node = Node { name: "node-a".to_owned(), zone: None };
    let node_ip = if family == Family::V4 { "10.0.0.9" } else { "fd00::9" };
    let settings = Settings {
        family,
        masquerade_all: false,
        masquerade_bit: 14,
        random_fully: backend.random_fully(),
        detector: LocalDetector::None,
        node_ip: node_ip.parse().unwrap(),
        node_ports: NodePorts::All,
        localhost_node_ports: true,
        drop_invalid: true,
        accounting: Accounting::default(),
    };
    Proxier::new(
        Tracker::new(family, node, Timestamp::UNIX_EPOCH),
        backend.family(family),
        settings,
    )
}

/// Whoever connects is told the address of who answers.
async fn server(ip: IpAddr) {
    let listener = TcpListener::bind((ip, 8080)).await.unwrap();
    let udp = UdpSocket::bind((ip, 8080)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.try_write(ip.to_string().as_bytes()).unwrap();
        }
    });
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = udp.recv_from(&mut buffer).await {
            let _ = udp.send_to(ip.to_string().as_bytes(), from).await;
        }
    });
}

async fn ask(ip: IpAddr, port: u16) -> Result<IpAddr, ErrorKind> {
    let asked = async {
        let mut text = String::new();
        TcpStream::connect((ip, port)).await?.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let answer = timeout(Duration::from_secs(3), asked).await.map_err(|_| ErrorKind::TimedOut)?;
    answer.map(|text| text.parse().unwrap()).map_err(|error| error.kind())
}

/// Who answers, of many times.
async fn answerers(ip: IpAddr, port: u16) -> BTreeSet<IpAddr> {
    let mut seen = BTreeSet::new();
    for _ in 0..30 {
        seen.insert(ask(ip, port).await.unwrap());
    }
    seen
}

/// Who answers in the pod.
async fn ask_in_pod(ip: IpAddr, port: u16) -> IpAddr {
    let script = format!("exec 3<>/dev/tcp/{ip}/{port}; cat <&3");
    let output = tokio::process::Command::new("nsenter")
        .args(["--net=/run/netns/pod", "timeout", "5", "bash", "-ec", &script])
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap().parse().unwrap()
}

/// Who answers a datagram.
async fn datagram(client: &UdpSocket, to: SocketAddr) -> Option<IpAddr> {
    client.send_to(b"who", to).await.ok()?;
    let mut buffer = [0; 64];
    let received = timeout(Duration::from_millis(500), client.recv_from(&mut buffer)).await;
    let (length, _) = received.ok()?.ok()?;
    std::str::from_utf8(&buffer[..length]).unwrap().parse().ok()
}

const NOTHING: usize = 0;

async fn services_work(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let (web, none) = (it.ip(96, 1), it.ip(96, 2));
    let (node, pods) = (it.ip(0, 9), [it.ip(1, 1), it.ip(1, 2), it.ip(1, 3)]);
    let all = |count: usize| pods[..count].iter().copied().collect::<BTreeSet<_>>();
    assert!(it.service("web", 1, json!({})));
    assert!(it.service("none", 2, json!({})));
    assert!(it.endpoints("web", &[1, 2], json!({})));
    let first = it.proxier.sync(Reason::Change).await.unwrap();
    assert!(first.full);
    assert_eq!((first.services, first.endpoints), (2, 2));
    assert_eq!(first.nat.written, first.nat.total + 3, "and the jumps");

    // From the node and from a pod, by each address.
    assert_eq!(answerers(web, 80).await, all(2));
    assert_eq!(answerers(node, 30001).await, all(2));
    assert!(all(2).contains(&ask_in_pod(web, 80).await));
    assert!(all(2).contains(&ask_in_pod(node, 30001).await));
    assert_eq!(ask(none, 80).await, Err(ErrorKind::ConnectionRefused), "at once");

    // Only what changes is written.
    assert!(it.endpoints("web", &[1, 2, 3], json!({})));
    assert!(!it.service("web", 1, json!({})), "that is not news");
    let second = it.proxier.sync(Reason::Change).await.unwrap();
    assert!(!second.full);
    assert_eq!((second.services, second.endpoints), (0, 1));
    assert_eq!(second.nat.total, first.nat.total + 3);
    assert!(second.nat.written < 8 && second.filter.written == 0, "{second:?}");
    assert_eq!(answerers(web, 80).await, all(3));
    assert!(it.endpoints("web", &[3], json!({})));
    it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!(answerers(web, 80).await, BTreeSet::from([pods[2]]));
    assert!(it.endpoints("web", &[], json!({})));
    it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!(ask(web, 80).await, Err(ErrorKind::ConnectionRefused));
    assert_eq!(ask(node, 30001).await, Err(ErrorKind::ConnectionRefused));
    assert!(!it.rules().await.iter().any(|it| it.contains("KUBE-SEP-")), "no chain is left");
    assert!(it.endpoints("web", &[1, 2], json!({})));
    let last = it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!((last.nat.total, last.filter.total), (first.nat.total, first.filter.total));

    // Another process takes over: nothing is written, so counters stay.
    answerers(web, 80).await;
    let before = [it.counted(Table::Filter).await, it.counted(Table::Nat).await];
    let again = World { proxier: proxier(&it.backend, family), ..it };
    again.service("web", 1, json!({}));
    again.service("none", 2, json!({}));
    again.endpoints("web", &[1, 2], json!({}));
    let taken = again.proxier.sync(Reason::Change).await.unwrap();
    assert!(taken.full);
    assert_eq!(taken.filter, Rules { written: NOTHING, ..first.filter });
    assert_eq!(taken.nat, Rules { written: NOTHING, ..first.nat });
    assert_eq!([again.counted(Table::Filter).await, again.counted(Table::Nat).await], before);

    // One that comes after a crash, when services went meanwhile, removes what is theirs.
    let it = World { proxier: proxier(&again.backend, family), ..again };
    it.service("none", 2, json!({}));
    it.proxier.sync(Reason::Change).await.unwrap();
    let rules = it.rules().await;
    assert!(!rules.iter().any(|it| it.contains("KUBE-SVC-") || it.contains("web")), "{rules:?}");

    cleanup(Limits::default()).await.unwrap();
    let left = it.rules().await;
    assert!(left.iter().all(|it| it.contains("KUBE-FIREWALL")), "only the kubelet's: {left:?}");
}

async fn damage_is_repaired(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let web = it.ip(96, 1);
    it.service("web", 1, json!({}));
    it.endpoints("web", &[1, 2], json!({}));
    it.proxier.sync(Reason::Change).await.unwrap();
    let good = it.rules().await;
    let (iptables, _) = it.programs();

    // A flush is noticed, and all is there again.
    let handle = it.backend.family(family);
    let watching = watch(&handle, Duration::from_millis(500), || it.proxier.resync());
    let test = async {
        for table in Table::ALL {
            while !handle.has_chain(table, longshore_proxy::apply::CANARY).await.unwrap() {
                sleep(Duration::from_millis(5)).await;
            }
        }
        // What was told before the first sync.
        let _ = timeout(Duration::ZERO, it.proxier.changes().notified()).await;
        sh(&format!("for t in nat filter; do {iptables} -t $t -F; {iptables} -t $t -X; done"));
        timeout(Duration::from_secs(10), it.proxier.changes().notified()).await.unwrap();
        let repaired = it.proxier.sync(Reason::Change).await.unwrap();
        assert!(repaired.full);
        assert!(repaired.nat.written > repaired.nat.total);
    };
    tokio::select! { () = watching => {}, () = test => {} }
    let without_canary = |rules: Vec<String>| {
        rules.into_iter().filter(|it| !it.contains("CANARY")).collect::<Vec<_>>()
    };
    assert_eq!(without_canary(it.rules().await), good);
    assert!(ask(web, 80).await.is_ok());

    // A rule that only a comparison finds: the first quiet moment repairs it.
    sh(&format!("{iptables} -t nat -F KUBE-NODEPORTS"));
    it.proxier.resync();
    let repaired = it.proxier.sync(Reason::Period).await.unwrap();
    assert_eq!((repaired.full, repaired.nat.written, repaired.filter.written), (true, 1, 0));
    assert_eq!(without_canary(it.rules().await), good);

    // A partial sync that the kernel refuses: the next is full.
    sh(&format!("{iptables} -t nat -F KUBE-SERVICES"));
    let gone = ServiceName::new("default", "web");
    it.proxier.update(|tracker| tracker.delete_service(&gone));
    let failed = it.proxier.sync(Reason::Change).await.unwrap_err();
    assert!(!failed.full);
    let words = format!("partial sync of {family} rules: ");
    assert!(failed.to_string().starts_with(&words), "{failed}");
    it.service("late", 3, json!({}));
    it.endpoints("late", &[3], json!({}));
    let repaired = it.proxier.sync(Reason::Retry).await.unwrap();
    assert!(repaired.full);
    assert_eq!(ask(it.ip(96, 3), 80).await, Ok(it.ip(1, 3)));
    assert!(!it.rules().await.iter().any(|it| it.contains("default/web")));
    cleanup(Limits::default()).await.unwrap();
}

async fn flows_and_facts(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let dns = SocketAddr::new(it.ip(96, 5), 53);
    let spec =
        json!({"type": "ClusterIP", "ports": [{"name": "p", "port": 53, "protocol": "UDP"}]});
    let udp = json!({"ports": [{"name": "p", "port": 8080, "protocol": "UDP"}]});
    it.service("dns", 5, spec);
    it.endpoints("dns", &[1], udp.clone());
    it.service(
        "lb",
        6,
        json!({
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000,
            "ports": [{"name": "p", "port": 80, "nodePort": 30006}],
        }),
    );
    it.endpoints("lb", &[1, 2], json!({}));
    it.proxier.sync(Reason::Change).await.unwrap();
    let checks = BTreeMap::from([(
        ServiceName::new("default", "lb"),
        HealthCheck { port: 32000, local_endpoints: 2 },
    )]);
    assert_eq!(it.proxier.health_checks(), checks);

    // A client that keeps its port: first the rules, then its flow, so it moves.
    let client = UdpSocket::bind((it.ip(0, 9), 0)).await.unwrap();
    assert_eq!(datagram(&client, dns).await, Some(it.ip(1, 1)));
    let changed =
        json!({"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z"});
    let metadata = json!({
        "namespace": "default",
        "name": "dns",
        "labels": {"kubernetes.io/service-name": "dns"},
        "annotations": changed,
    });
    let mut fields = udp;
    merge(&mut fields, json!({"metadata": metadata}));
    it.endpoints("dns", &[2], fields);
    let synced = it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!((synced.full, synced.stale_flows), (false, 1));
    let trigger: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    assert_eq!(synced.triggers, BTreeMap::from([(ServiceName::new("default", "dns"), trigger)]));
    assert!(synced.at > trigger);
    assert_eq!(datagram(&client, dns).await, Some(it.ip(1, 2)));

    // The service goes, and with it the flow.
    let gone = ServiceName::new("default", "dns");
    it.proxier.update(|tracker| tracker.delete_service(&gone));
    let synced = it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!((synced.stale_flows, synced.triggers.len()), (1, 0));
    assert_eq!(datagram(&client, dns).await, None);
    cleanup(Limits::default()).await.unwrap();
}

/// Each variant and family in turn, on one node.
fn everywhere(test: impl AsyncFn(Variant, Family)) {
    in_netns(async || {
        sh(HOST);
        for family in Family::ALL {
            let world = World::new(Variant::Nft, family).await;
            for number in 1..=3 {
                server(world.ip(1, number)).await;
            }
        }
        for variant in [Variant::Nft, Variant::Legacy] {
            for family in Family::ALL {
                println!("{variant:?} {family}");
                test(variant, family).await;
            }
        }
    });
}

#[test]
fn packets_reach_endpoints() {
    everywhere(services_work);
}

#[test]
fn what_others_break_is_repaired() {
    everywhere(damage_is_repaired);
}

#[test]
fn flows_end_and_facts_are_told() {
    everywhere(flows_and_facts);
}
