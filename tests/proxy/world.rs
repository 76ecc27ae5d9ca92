//! A host with an apiserver and its node's object, and pods that are no more than addresses on it
//! with a server there.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Endpoints, Event, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use longshore_metrics::parse::{Page, parse};
use longshore_testkit::{Apiserver, Daemon, Host, KubeProxy, wait_until};
use nix::sched::{CloneFlags, setns};
use serde_json::{Map, Value, json};

use crate::common::{self, TIMEOUT};

/// The address of a pod by its number.
pub(crate) fn pod(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 201, 0, number)
}

pub(crate) struct World {
    pub(crate) proxy: Option<KubeProxy>,
    pub(crate) apiserver: Apiserver,
    pub(crate) client: Client,
    pub(crate) host: Host,
}

/// Runs something in the network of a host.
pub(crate) fn on<T: Send + 'static>(host: &Host, run: impl FnOnce() -> T + Send + 'static) -> T {
    inside(&host.netns(), run)
}

/// Runs something in a network namespace.
fn inside<T: Send + 'static>(netns: &Path, run: impl FnOnce() -> T + Send + 'static) -> T {
    let netns = File::open(netns).unwrap();
    let run = move || {
        setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
        run()
    };
    thread::spawn(run).join().unwrap()
}

impl World {
    /// No proxy yet.
    pub(crate) async fn new() -> Self {
        let host = Host::bare().expect("a host");
        Self::on(host).await
    }

    pub(crate) async fn on(host: Host) -> Self {
        let apiserver = Apiserver::start(&host).expect("an apiserver");
        let client = common::client(apiserver.admin_kubeconfig()).await;
        for number in 1..=3 {
            serve(&host, pod(number));
        }
        Self { proxy: None, apiserver, client, host }
    }

    /// The node's object, as a kubelet would make it.
    pub(crate) async fn create_node(&self, spec: Value) {
        let name = self.host.name();
        let node = json!({"metadata": {"name": name}, "spec": spec});
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let address = json!({"type": "InternalIP", "address": self.host.node_ip()});
        let status = json!({"status": {"addresses": [address]}});
        let patch = Patch::Merge(&status);
        nodes.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn patch_node(&self, patch: Value) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(&patch);
        nodes.patch(&self.host.name(), &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) fn start_proxy(&mut self, config: Value) {
        let fields = config.as_object().cloned().unwrap();
        let kubeconfig = self.apiserver.node_kubeconfig();
        self.proxy = Some(KubeProxy::start(&self.host, &kubeconfig, fields).expect("a proxy"));
    }

    /// Without a kubeconfig: the flag says where the apiserver is.
    pub(crate) fn start_proxy_at(&mut self, flag: &str) {
        let proxy = KubeProxy::start_at(&self.host, None, Map::new(), &[flag], None);
        self.proxy = Some(proxy.expect("a proxy"));
    }

    pub(crate) fn proxy(&mut self) -> &mut KubeProxy {
        self.proxy.as_mut().unwrap()
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// A service at port 80 with that spec; its address.
    pub(crate) async fn service(&self, name: &str, fields: Value) -> Service {
        let mut spec = json!({"ports": [{"name": "p", "port": 80, "targetPort": 8080}]});
        spec.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
        let service = json!({"metadata": {"name": name}, "spec": spec});
        let service = serde_json::from_value(service).unwrap();
        self.services().create(&PostParams::default(), &service).await.unwrap()
    }

    pub(crate) async fn delete_service(&self, name: &str) {
        self.services().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// The endpoints of a service: pods by their numbers.
    pub(crate) async fn endpoints(&self, service: &str, numbers: &[u8], node: Option<&str>) {
        let endpoints: Vec<Value> = numbers
            .iter()
            .map(|number| {
                json!({"addresses": [pod(*number)], "conditions": {"ready": true}, "nodeName": node})
            })
            .collect();
        let trigger = k8s_openapi::jiff::Timestamp::now().to_string();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {
                "name": service,
                "labels": {"kubernetes.io/service-name": service},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": trigger},
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
        }))
        .unwrap();
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), "default");
        match slices.get_opt(service).await.unwrap() {
            None => slices.create(&PostParams::default(), &slice).await.map(|_| ()).unwrap(),
            Some(old) => {
                let mut slice = slice;
                slice.metadata.resource_version = old.metadata.resource_version;
                slices.replace(service, &PostParams::default(), &slice).await.map(|_| ()).unwrap();
            }
        }
    }

    /// The endpoints of a service as they were before there were slices.
    pub(crate) async fn old_endpoints(&self, service: &str, numbers: &[u8]) {
        let addresses: Vec<Value> = numbers.iter().map(|it| json!({"ip": pod(*it)})).collect();
        let endpoints = json!({
            "metadata": {"name": service},
            "subsets": [{"addresses": addresses, "ports": [{"name": "p", "port": 8080}]}],
        });
        let api: Api<Endpoints> = Api::namespaced(self.client.clone(), "default");
        if api.get_opt(service).await.unwrap().is_none() {
            let endpoints = serde_json::from_value(endpoints).unwrap();
            api.create(&PostParams::default(), &endpoints).await.unwrap();
        } else {
            let patch = Patch::Merge(&endpoints);
            api.patch(service, &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// Who answers at an address from the host, or the error.
    pub(crate) fn request(&self, ip: IpAddr, port: u16) -> Result<Ipv4Addr, String> {
        let text = on(&self.host, move || receive(SocketAddr::new(ip, port)))?;
        text.parse().map_err(|_| text)
    }

    /// Sets the address of a service of the type LoadBalancer, as its cloud would.
    pub(crate) async fn set_ingress(&self, name: &str, ip: IpAddr) {
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
        let patch = Patch::Merge(&status);
        self.services().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Until a pod of that number, and no other, answers there.
    pub(crate) async fn until_served(&self, ip: IpAddr, port: u16, number: u8) {
        wait_until(TIMEOUT, &format!("pod {number} at {ip}:{port}"), async || {
            match self.request(ip, port) {
                Ok(answer) if answer == pod(number) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Until connections are refused.
    pub(crate) async fn until_refused(&self, ip: IpAddr, port: u16) {
        wait_until(TIMEOUT, &format!("no server at {ip}:{port}"), async || {
            match self.request(ip, port) {
                Err(error) if error.contains("refused") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The chains and rules of kube-proxy on the host, sorted.
    pub(crate) fn rules(&self) -> Vec<String> {
        let mut rules = Vec::new();
        for program in ["iptables-save", "ip6tables-save"] {
            let saved = self.host.run(program, [""; 0]).unwrap();
            let ours = saved.lines().filter(|line| line.contains("KUBE-"));
            rules.extend(ours.map(|line| line.split(" [").next().unwrap().to_owned()));
        }
        rules.sort();
        rules
    }

    pub(crate) fn sh(&self, script: &str) -> String {
        self.host.run("sh", ["-ec", script]).unwrap()
    }

    /// What a port of the proxy answers: status, headers and body.
    pub(crate) fn get(&self, port: u16, path: &str) -> Result<(u16, String, String), String> {
        let address = SocketAddr::from((self.host.node_ip(), port));
        let request = || {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        let answer = request().map_err(|error: std::io::Error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(answer.clone())?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Ok((status, head.to_lowercase(), body.to_owned()))
    }

    pub(crate) async fn until_status(&self, port: u16, path: &str, status: u16) -> String {
        wait_until(TIMEOUT, &format!("{status} at {path}"), async || match self.get(port, path) {
            Ok((code, _, body)) if code == status => Ok(body),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn metrics(&self) -> Result<Page, String> {
        let (status, _, body) = self.get(10249, "/metrics")?;
        assert_eq!(status, 200, "{body}");
        Ok(parse(&body).unwrap_or_else(|error| panic!("{error}\n{body}")))
    }

    /// Until so many full syncs of IPv4 are done.
    pub(crate) async fn until_synced(&self, count: f64) -> Page {
        wait_until(TIMEOUT, "a full sync", async || {
            let page = self.metrics()?;
            let name = "kubeproxy_sync_full_proxy_rules_duration_seconds_count";
            let done = page.sum(name, &[("ip_family", "IPv4")]).unwrap_or_default();
            if done >= count { Ok(page) } else { Err(format!("{done} full syncs")) }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Until there is an event of kube-proxy with that reason.
    pub(crate) async fn until_event(&self, reason: &str) -> Event {
        let events: Api<Event> = Api::all(self.client.clone());
        wait_until(TIMEOUT, &format!("event {reason}"), async || {
            let all = events.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let ours = |event: &Event| {
                event.reason.as_deref() == Some(reason)
                    && event.reporting_component.as_deref() == Some("kube-proxy")
            };
            let count = all.items.len();
            all.items.into_iter().find(ours).ok_or_else(|| format!("not among {count}"))
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn clean_up(mut self) {
        self.proxy = None;
        let Self { apiserver, host, .. } = self;
        drop(apiserver);
        host.assert_clean();
    }
}

/// What a server at an address sends, or the error.
fn receive(address: SocketAddr) -> Result<String, String> {
    let second = Duration::from_secs(1);
    let receive = || {
        let mut stream = TcpStream::connect_timeout(&address, second)?;
        stream.set_read_timeout(Some(second))?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    receive().map_err(|error: std::io::Error| error.to_string())
}

/// A machine beside the host, on a network of its own, that sends to any address through the host.
pub(crate) struct Neighbour {
    process: Daemon,
}

impl Neighbour {
    pub(crate) fn join(host: &Host) -> Self {
        let mut command = host.command("sh");
        command.args(["-c", "exec unshare --net sleep 600"]);
        let process = host.spawn("neighbour", command).unwrap();
        let pid = process.pid();
        let script = format!(
            "set -e
             until [ \"$(readlink /proc/{pid}/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.1; done
             ip link add beside0 type veth peer name beside1
             ip link set beside1 netns {pid}
             ip addr add 198.51.100.1/24 dev beside0
             ip link set beside0 up
             nsenter --net=/proc/{pid}/ns/net sh -ec '
                 ip addr add 198.51.100.2/24 dev beside1
                 ip link set beside1 up
                 ip route add default via 198.51.100.1'"
        );
        host.run("sh", ["-c", &script]).unwrap();
        Self { process }
    }

    /// Sends what is for loopback addresses to the host.
    pub(crate) fn lead_loopback(&self) {
        let netns = format!("--net=/proc/{}/ns/net", self.process.pid());
        let script = "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet
                      ip route add 127.0.0.0/8 via 198.51.100.1";
        let done = Command::new("nsenter").args([&netns, "sh", "-ec", script]).status().unwrap();
        assert!(done.success());
    }

    /// What a server at an address sends.
    pub(crate) fn receive(&self, ip: IpAddr, port: u16) -> Result<String, String> {
        let netns = PathBuf::from(format!("/proc/{}/ns/net", self.process.pid()));
        inside(&netns, move || receive(SocketAddr::new(ip, port)))
    }
}

/// The node port of a service.
pub(crate) fn node_port(service: &Service) -> u16 {
    let ports = service.spec.as_ref().unwrap().ports.as_ref().unwrap();
    u16::try_from(ports[0].node_port.unwrap()).unwrap()
}

/// The first address of a service.
pub(crate) fn cluster_ip(service: &Service) -> IpAddr {
    service.spec.as_ref().unwrap().cluster_ip.as_ref().unwrap().parse().unwrap()
}

/// An address on the host that is sent to all clients, by TCP and by UDP.
fn serve(host: &Host, ip: Ipv4Addr) {
    host.run("ip", ["addr", "add", &format!("{ip}/32"), "dev", "lo"]).unwrap();
    listen(host, SocketAddr::new(ip.into(), 8080), ip.to_string());
    let udp = on(host, move || UdpSocket::bind((ip, 8080)).unwrap());
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(ip.to_string().as_bytes(), from);
        }
    });
}

/// A program of the host that sends the same to all clients.
pub(crate) fn listen(host: &Host, address: SocketAddr, words: String) {
    let listener = on(host, move || TcpListener::bind(address).unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(words.as_bytes()));
        }
    });
}
