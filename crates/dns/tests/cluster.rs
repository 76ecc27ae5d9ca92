//! The server beside an apiserver: objects are created, and their names are answered.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use hickory_server::proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_server::proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use longshore_apiserver::args::Cli;
use longshore_client::{ConfigSource, Credentials, Limits};
use longshore_dns::{Config, PodNames, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    client: Client,
    dns: SocketAddr,
    ready: SocketAddr,
    metrics: SocketAddr,
    stop: CancellationToken,
    dir: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Cluster {
    async fn start(pods: PodNames) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (data, certificates) = (dir.path().join("data"), dir.path().join("pki"));
        let cli = Cli::try_parse_from([
            "longshore-apiserver",
            "--secure-port=0",
            "--bind-address=127.0.0.1",
            "--service-cluster-ip-range=10.96.0.0/24",
            &format!("--data-dir={}", data.display()),
            &format!("--cert-dir={}", certificates.display()),
        ])
        .unwrap();
        let apiserver =
            longshore_apiserver::Server::start(cli.serve.config().await.unwrap()).await.unwrap();
        let kubeconfig = apiserver.admin_kubeconfig().to_owned();
        let stop = CancellationToken::new();
        tokio::spawn(apiserver.run(stop.clone()));

        let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let config = Config {
            cluster_domain: "cluster.local".to_owned(),
            ttl: 30,
            pods,
            listen: vec![local],
            forward: Vec::new(),
            resolv_conf: None,
            metrics: Some(local),
            health: Some(local),
            ready: Some(local),
            lameduck: Duration::ZERO,
        };
        let server = Server::bind(&config).unwrap();
        let [metrics, _, ready] = server.port_addresses().map(Option::unwrap);
        let dns = server.addresses()[0];
        let credentials: Credentials = ConfigSource::Kubeconfig(kubeconfig).into();
        let limits = Limits { component: "test", qps: 0, burst: 0, timeout: PATIENCE };
        let client =
            longshore_client::connect(&credentials, limits, server.client_metrics()).await.unwrap();
        tokio::spawn(server.run(client.clone(), stop.clone()));
        Self { client, dns, ready, metrics, stop, dir }
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Message {
        ask(self.dns, name, kind).await.unwrap()
    }

    /// Asks until the answer is this one: a code, or records.
    async fn expect(&self, name: &str, kind: RecordType, expected: &str) {
        let mut last = String::new();
        let waiting = async {
            loop {
                let answer = self.ask(name, kind).await;
                let mut data: Vec<_> =
                    answer.answers.iter().map(|record| record.data.to_string()).collect();
                data.sort();
                last = match answer.metadata.response_code {
                    ResponseCode::NoError => data.join(", "),
                    other => format!("{other:?}"),
                };
                if last == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(PATIENCE, waiting).await.is_err() {
            panic!("{name} {kind}: {last}, not {expected}");
        }
    }

    async fn create<K>(&self, api: Api<K>, object: Value) -> K
    where
        K: kube::Resource
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + serde::Serialize,
    {
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), "shop")
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), "shop")
    }
}

async fn ask(server: SocketAddr, name: &str, kind: RecordType) -> std::io::Result<Message> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(server).await?;
    socket.send(&message.to_vec().unwrap()).await?;
    let mut buffer = [0; 4096];
    let length = timeout(PATIENCE, socket.recv(&mut buffer)).await??;
    Ok(Message::from_vec(&buffer[..length]).unwrap())
}

async fn page(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_names_follow_the_objects() {
    let cluster = Cluster::start(PodNames::Insecure).await;
    let ready = async {
        while !page(cluster.ready, "/ready").await.starts_with("HTTP/1.1 200") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, ready).await.unwrap();
    // the apiserver's own service
    let name = "kubernetes.default.svc.cluster.local.";
    cluster.expect(name, RecordType::A, "10.96.0.1").await;
    cluster.expect("1.0.96.10.in-addr.arpa.", RecordType::PTR, name).await;
    cluster.expect("shop.svc.cluster.local.", RecordType::A, "NXDomain").await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    cluster.create(namespaces, json!({"metadata": {"name": "shop"}})).await;
    cluster.expect("shop.svc.cluster.local.", RecordType::A, "").await;
    cluster.expect("10-1-2-3.shop.pod.cluster.local.", RecordType::A, "10.1.2.3").await;

    // A service with a cluster IP.
    let created = cluster
        .create(
            cluster.services(),
            json!({"metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}}),
        )
        .await;
    let address = created.spec.unwrap().cluster_ip.unwrap();
    let name = "web.shop.svc.cluster.local.";
    cluster.expect(name, RecordType::A, &address).await;
    cluster
        .expect(&format!("_http._tcp.{name}"), RecordType::SRV, &format!("0 100 80 {name}"))
        .await;
    let reverse = Name::from(address.parse::<IpAddr>().unwrap()).to_string();
    cluster.expect(&reverse, RecordType::PTR, name).await;
    cluster.services().delete("web", &DeleteParams::default()).await.unwrap();
    cluster.expect(name, RecordType::A, "NXDomain").await;
    cluster.expect(&reverse, RecordType::PTR, "Refused").await;

    // A headless one, whose endpoints come and go.
    cluster
        .create(
            cluster.services(),
            json!({"metadata": {"name": "db"}, "spec": {
                "clusterIP": "None", "selector": {"app": "db"}, "ports": [{"name": "sql", "port": 5432}],
            }}),
        )
        .await;
    let name = "db.shop.svc.cluster.local.";
    cluster.expect(name, RecordType::A, "NXDomain").await;
    let endpoint = |address: &str, hostname: &str| json!({"addresses": [address], "hostname": hostname, "conditions": {"ready": true}});
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    cluster
        .create(
            cluster.slices(),
            json!({
                "metadata": {
                    "name": "db-1",
                    "labels": {"kubernetes.io/service-name": "db"},
                    "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": now},
                },
                "addressType": "IPv4",
                "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}],
                "endpoints": [endpoint("10.244.0.5", "db-0")],
            }),
        )
        .await;
    cluster.expect(name, RecordType::A, "10.244.0.5").await;
    cluster.expect(&format!("db-0.{name}"), RecordType::A, "10.244.0.5").await;
    let more =
        json!({"endpoints": [endpoint("10.244.0.5", "db-0"), endpoint("10.244.0.6", "db-1")]});
    cluster.slices().patch("db-1", &PatchParams::default(), &Patch::Merge(&more)).await.unwrap();
    cluster.expect(name, RecordType::A, "10.244.0.5, 10.244.0.6").await;
    cluster
        .expect(
            &format!("_sql._tcp.{name}"),
            RecordType::SRV,
            &format!("0 50 5432 db-0.{name}, 0 50 5432 db-1.{name}"),
        )
        .await;
    cluster.slices().delete("db-1", &DeleteParams::default()).await.unwrap();
    cluster.expect(name, RecordType::A, "NXDomain").await;
    let metrics = page(cluster.metrics, "/metrics").await;
    let measured = r#"coredns_kubernetes_dns_programming_duration_seconds_count{service_kind="headless_with_selector"} 1"#;
    assert!(metrics.contains(measured), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_names_of_pods_are_verified() {
    let cluster = Cluster::start(PodNames::Verified).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "kube-system");
    cluster.create(accounts, json!({"metadata": {"name": "default"}})).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "kube-system");
    let containers = json!([{"name": "c", "image": "i"}]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers}});
    cluster.create(pods.clone(), pod).await;
    let name = "10-244-0-9.kube-system.pod.cluster.local.";
    cluster.expect(name, RecordType::A, "NXDomain").await;
    let status = json!({"status": {"phase": "Running", "podIP": "10.244.0.9",
        "podIPs": [{"ip": "10.244.0.9"}]}});
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    cluster.expect(name, RecordType::A, "10.244.0.9").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_answers_and_stops() {
    let cluster = Cluster::start(PodNames::Insecure).await;
    // Two that are free now, of an address where connections of others have no ports.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let own = std::net::Ipv4Addr::new(127, 64 | a, b, c.max(1));
    let free = || std::net::UdpSocket::bind((own, 0)).unwrap().local_addr().unwrap();
    let (dns, ready) = (free(), free());
    let kubeconfig = cluster.dir.path().join("pki/admin.conf");
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_longshore-dns"))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--listen={dns}"))
        .arg(format!("--ready-addr={ready}"))
        .args(["--metrics-addr=", "--health-addr=", "--upstream-resolv-conf=/dev/null"])
        .arg("--lameduck=0")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let name = "kubernetes.default.svc.cluster.local.";
    let answered = async {
        loop {
            let answer = ask(dns, name, RecordType::A).await;
            if answer.is_ok_and(|answer| !answer.answers.is_empty()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, answered).await.unwrap();
    let process = nix::unistd::Pid::from_raw(program.id().unwrap().try_into().unwrap());
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).unwrap();
    let ended = timeout(PATIENCE, program.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
}
