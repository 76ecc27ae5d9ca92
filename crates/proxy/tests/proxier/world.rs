//! A node with pods, and who asks and answers there.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use longshore_proxy::Family;
use longshore_proxy::apply::{Backend, Limits, Table, Variant};
use longshore_proxy::model::{Node, Tracker};
use longshore_proxy::proxier::Proxier;
use longshore_proxy::render::{Accounting, LocalDetector, NodePorts, Settings};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::common::{in_netns, sh};

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
    ip link add uplink type veth peer name wire; ip link set wire up; ip link set uplink up
    ip route add 10.96.0.0/16 dev uplink src 10.0.0.9
    ip -6 route add fd00:96::/64 dev uplink src fd00::9
    echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";

/// One family on one variant.
pub(crate) struct World {
    pub(crate) family: Family,
    pub(crate) backend: Arc<Backend>,
    pub(crate) proxier: Proxier,
}

impl World {
    pub(crate) async fn new(variant: Variant, family: Family) -> Self {
        let backend = Backend::of(variant, Limits::default()).await.unwrap();
        let proxier = proxier(&backend, family);
        Self { family, backend, proxier }
    }

    /// An address by its number in a range: 0 for the node's, 1 for pods', 96 for services'.
    pub(crate) fn ip(&self, range: u8, number: u8) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::from([10, range, 0, number]),
            Family::V6 if range == 0 => format!("fd00::{number}").parse().unwrap(),
            Family::V6 => format!("fd00:{range}::{number}").parse().unwrap(),
        }
    }

    /// The service at address `number`, with the fields of its spec.
    pub(crate) fn service(&self, name: &str, number: u8, fields: Value) -> bool {
        let object = self.service_object(name, number, fields);
        self.proxier.update(|tracker| tracker.apply_service(&object))
    }

    pub(crate) fn service_object(&self, name: &str, number: u8, fields: Value) -> Service {
        let mut spec = json!({
            "type": "NodePort",
            "clusterIP": self.ip(96, number),
            "clusterIPs": [self.ip(96, number)],
            "ipFamilies": [self.family.as_str()],
            "ports": [{"name": "p", "port": 80, "nodePort": 30000 + u32::from(number)}],
        });
        merge(&mut spec, fields);
        let metadata = json!({"namespace": "default", "name": name});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    /// Its endpoints at port 8080 of pods by their numbers.
    pub(crate) fn endpoints(&self, name: &str, numbers: &[u8], fields: Value) -> bool {
        let object = self.slice_object(name, numbers, fields);
        self.proxier.update(|tracker| tracker.apply_slice(&object))
    }

    pub(crate) fn slice_object(&self, name: &str, numbers: &[u8], fields: Value) -> EndpointSlice {
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
        serde_json::from_value(object).unwrap()
    }

    pub(crate) fn programs(&self) -> (&'static str, &'static str) {
        match (self.family, self.backend.variant) {
            (Family::V4, Variant::Nft) => ("iptables-nft", "iptables-nft-save"),
            (Family::V4, Variant::Legacy) => ("iptables-legacy", "iptables-legacy-save"),
            (Family::V6, Variant::Nft) => ("ip6tables-nft", "ip6tables-nft-save"),
            (Family::V6, Variant::Legacy) => ("ip6tables-legacy", "ip6tables-legacy-save"),
        }
    }

    /// Chains and rules of a table, sorted, with counters.
    pub(crate) async fn counted(&self, table: Table) -> Vec<String> {
        let text = sh(&format!("{} -c -t {table} | grep KUBE- || true", self.programs().1));
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// The chains and rules of both tables with counters, once no packet of what has ended is under way.
    pub(crate) async fn settled(&self) -> [Vec<String>; 2] {
        let mut last = [self.counted(Table::Filter).await, self.counted(Table::Nat).await];
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = [self.counted(Table::Filter).await, self.counted(Table::Nat).await];
            if now == last {
                break;
            }
            last = now;
        }
        last
    }

    /// Chains and rules of both tables, sorted.
    pub(crate) async fn rules(&self) -> Vec<String> {
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

pub(crate) fn merge(object: &mut Value, fields: Value) {
    for (field, value) in fields.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
}

pub(crate) fn proxier(backend: &Arc<Backend>, family: Family) -> Proxier {
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

/// Replies with the server's address.
pub(crate) async fn server(ip: IpAddr) {
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

pub(crate) async fn ask(ip: IpAddr, port: u16) -> Result<IpAddr, ErrorKind> {
    let asked = async {
        let mut text = String::new();
        TcpStream::connect((ip, port)).await?.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let answer = timeout(Duration::from_secs(3), asked).await.map_err(|_| ErrorKind::TimedOut)?;
    answer.map(|text| text.parse().unwrap()).map_err(|error| error.kind())
}

/// Who answers, of many times.
pub(crate) async fn answerers(ip: IpAddr, port: u16) -> BTreeSet<IpAddr> {
    let mut seen = BTreeSet::new();
    for _ in 0..30 {
        seen.insert(ask(ip, port).await.unwrap());
    }
    seen
}

/// What a shell in the pod that connects there prints, and what it complains of.
async fn connect_in_pod(ip: IpAddr, port: u16) -> (String, String) {
    let script = format!("exec 3<>/dev/tcp/{ip}/{port}; cat <&3");
    let output = tokio::process::Command::new("nsenter")
        .args(["--net=/run/netns/pod", "timeout", "5", "bash", "-ec", &script])
        .output()
        .await
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

/// Who answers in the pod.
pub(crate) async fn ask_in_pod(ip: IpAddr, port: u16) -> IpAddr {
    let (answer, error) = connect_in_pod(ip, port).await;
    answer.parse().unwrap_or_else(|_| panic!("{ip} {port}: {error}"))
}

/// Whether nothing at all comes back to the pod.
pub(crate) async fn is_dropped_in_pod(ip: IpAddr, port: u16) -> bool {
    let script = format!("exec 3<>/dev/tcp/{ip}/{port}");
    let output = tokio::process::Command::new("nsenter")
        .args(["--net=/run/netns/pod", "timeout", "2", "bash", "-ec", &script])
        .output()
        .await
        .unwrap();
    // the exit code of a command that `timeout` ended
    output.status.code() == Some(124)
}

/// The pod is refused.
pub(crate) async fn refused_in_pod(ip: IpAddr, port: u16) {
    let (_, error) = connect_in_pod(ip, port).await;
    assert!(error.contains("Connection refused"), "{ip} {port}: {error}");
}

/// Who answers a datagram.
pub(crate) async fn datagram(client: &UdpSocket, to: SocketAddr) -> Option<IpAddr> {
    client.send_to(b"who", to).await.ok()?;
    let mut buffer = [0; 64];
    let received = timeout(Duration::from_millis(500), client.recv_from(&mut buffer)).await;
    let (length, _) = received.ok()?.ok()?;
    std::str::from_utf8(&buffer[..length]).unwrap().parse().ok()
}

/// Each variant and family in turn, on one node.
pub(crate) fn everywhere(test: impl AsyncFn(Variant, Family)) {
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
