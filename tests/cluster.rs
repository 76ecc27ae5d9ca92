//! A cluster of two nodes on two hosts: what only shows when controllers, scheduler, kube-proxy and
//! nodes work together. The parts share one cluster, as it takes a while to start.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::TIMEOUT;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node as ApiNode, Pod, Service};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use longshore_testkit::{
    Apiserver, BUSYBOX, Controllers, Host, Node, NodeOptions, kube_proxy_configuration, wait_until,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const SHOP: &str = "shop";
const REPLICAS: i32 = 10;
/// A rollout of ten pods on a busy machine.
const ROLLOUT: Duration = Duration::from_secs(180);

struct Cluster {
    nodes: [Node; 2],
    /// Two copies, of which one leads.
    controllers: [Controllers; 2],
    _apiserver: Apiserver,
    client: Client,
    hosts: [Host; 2],
}

impl Cluster {
    async fn start() -> Self {
        let hosts = [Host::start().expect("a host"), Host::start().expect("a host")];
        hosts[0].join(&hosts[1]).expect("a link");
        let other = format!("--node-name={}", hosts[1].name());
        let apiserver = Apiserver::start_alone(&hosts[0], &[&other]).expect("an apiserver");
        let client = common::client(apiserver.admin_kubeconfig()).await;
        let first = Self::start_controllers(&hosts[0], &apiserver);
        let own = Self {
            nodes: [0, 1].map(|index| Self::start_node(&hosts[index], &apiserver)),
            controllers: [first, Self::follow(&hosts[0], &apiserver, &client).await],
            _apiserver: apiserver,
            client,
            hosts,
        };
        own.until_nodes_ready().await;
        own
    }

    fn start_node(host: &Host, apiserver: &Apiserver) -> Node {
        let options =
            NodeOptions { proxy: Some(kube_proxy_configuration(host)), ..NodeOptions::default() };
        let kubeconfig = apiserver.kubeconfig_of_node(&host.name());
        Node::start(host, &kubeconfig, &apiserver.client_ca(), options).expect("a node")
    }

    /// A copy of controllers and scheduler that finds out soon that a leader or a node is gone.
    fn start_controllers(host: &Host, apiserver: &Apiserver) -> Controllers {
        let mut flags = apiserver.signing_flags();
        flags.extend(
            [
                "--secure-port=0",
                "--leader-elect=true",
                "--leader-elect-lease-duration=12s",
                "--leader-elect-renew-deadline=10s",
                "--leader-elect-retry-period=1s",
                "--node-monitor-period=1s",
                "--node-monitor-grace-period=20s",
            ]
            .map(str::to_owned),
        );
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Controllers::start(host, &apiserver.admin_kubeconfig(), &flags).expect("controllers")
    }

    /// The second copy starts when the first one leads.
    async fn follow(host: &Host, apiserver: &Apiserver, client: &Client) -> Controllers {
        until_leader(client, None).await;
        Self::start_controllers(host, apiserver)
    }

    async fn until_nodes_ready(&self) {
        let nodes: Api<ApiNode> = Api::all(self.client.clone());
        wait_until(TIMEOUT, "both nodes to be ready", async || {
            let all = nodes.list(&ListParams::default()).await.map_err(|e| e.to_string())?.items;
            let ready = |node: &&ApiNode| {
                let status = node.status.as_ref();
                let conditions = status.and_then(|status| status.conditions.as_ref());
                conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
            };
            match all.iter().filter(ready).count() {
                2 => Ok(()),
                count => Err(format!("{count} of {}", all.len())),
            }
        })
        .await
        .unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), SHOP)
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), SHOP)
    }

    async fn create_shop(&self) -> u16 {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = json!({"metadata": {"name": SHOP}});
        let namespace = serde_json::from_value(namespace).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        // The account of its pods is made by a controller.
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.client.clone(), SHOP);
        wait_until(TIMEOUT, "the service account", async || {
            accounts.get("default").await.map(drop)
        })
        .await
        .unwrap();
        let deployment = serde_json::from_value(deployment("v1")).unwrap();
        self.deployments().create(&PostParams::default(), &deployment).await.unwrap();
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"type": "NodePort", "selector": {"app": "web"},
                "ports": [{"port": 80, "targetPort": 8080}]},
        }))
        .unwrap();
        let services: Api<Service> = Api::namespaced(self.client.clone(), SHOP);
        let service = services.create(&PostParams::default(), &service).await.unwrap();
        let port = service.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
        u16::try_from(port).unwrap()
    }

    async fn roll_to(&self, version: &str) {
        let patch = json!({"spec": {"template": deployment(version)["spec"]["template"]}});
        let parameters = PatchParams::default();
        self.deployments().patch("web", &parameters, &Patch::Strategic(patch)).await.unwrap();
    }

    /// Pods that are not on their way out, by version: how many, and how many of them are ready.
    async fn versions(&self) -> Result<BTreeMap<String, (i32, i32)>, String> {
        let parameters = ListParams::default().labels("app=web");
        let pods = self.pods().list(&parameters).await.map_err(|error| error.to_string())?;
        let mut all = BTreeMap::new();
        for pod in pods.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            let version = version_of(pod);
            let (count, ready): &mut (i32, i32) = all.entry(version).or_default();
            *count += 1;
            *ready += i32::from(common::condition(pod, "Ready") == "True");
        }
        Ok(all)
    }

    async fn until_rolled(&self, version: &str) {
        let wanted = BTreeMap::from([(version.to_owned(), (REPLICAS, REPLICAS))]);
        wait_until(ROLLOUT, &format!("all pods to be of {version}"), async || {
            let all = self.versions().await?;
            if all == wanted { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await
        .unwrap();
    }

    /// Until some pods of a version are there, and not all.
    async fn until_half_way(&self, version: &str) {
        wait_until(ROLLOUT, &format!("some pods to be of {version}"), async || {
            let all = self.versions().await?;
            let (count, _) = all.get(version).copied().unwrap_or_default();
            if count > 0 { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await
        .unwrap();
        let all = self.versions().await.unwrap();
        let (_, ready) = all.get(version).copied().unwrap_or_default();
        assert!(ready < REPLICAS, "{all:?}");
    }
}

fn version_of(pod: &Pod) -> String {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get("version")).cloned().unwrap_or_default()
}

/// A server that says its version, and goes on while it is taken out of its service.
fn deployment(version: &str) -> serde_json::Value {
    let script = format!(
        "trap 'exit 0' TERM; mkdir -p /www && echo {version} >/www/index.html; \
         httpd -f -p 8080 -h /www & wait"
    );
    // Pods leave a node that is gone after two seconds rather than after five minutes.
    let leaves = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2});
    json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 3}},
            "template": {
                "metadata": {"labels": {"app": "web", "version": version}},
                "spec": {
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 15,
                    "tolerations": [
                        leaves("node.kubernetes.io/not-ready"),
                        leaves("node.kubernetes.io/unreachable"),
                    ],
                    "containers": [{
                        "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
                        "command": ["sh", "-c", script],
                        "readinessProbe": {
                            "httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
                        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                    }],
                },
            },
        },
    })
}

/// Until a copy leads, or another one than before; its identity.
async fn until_leader(client: &Client, before: Option<&str>) -> String {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    wait_until(TIMEOUT, "a leader", async || {
        let lease = leases.get("kube-controller-manager").await.map_err(|e| e.to_string())?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        match before {
            _ if holder.is_empty() => Err("nobody".to_owned()),
            Some(before) if holder == before => Err(holder),
            _ => Ok(holder),
        }
    })
    .await
    .unwrap()
}

/// One request of a new connection: the first line of the page.
async fn ask(address: SocketAddr) -> Result<String, String> {
    let exchange = async {
        let mut connection = TcpStream::connect(address).await?;
        connection.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.map(|_| answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), exchange).await;
    let answer = answer.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.trim().to_owned()),
        _ => Err(answer),
    }
}

/// Clients of a service that ask it again and again.
struct Load {
    is_over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Answers>>,
}

/// What one client got.
#[derive(Default)]
struct Answers {
    count: usize,
    pages: BTreeSet<String>,
    failures: Vec<String>,
}

impl Load {
    fn start(addresses: [SocketAddr; 2]) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let clients = addresses.into_iter().map(|address| {
            let is_over = is_over.clone();
            tokio::spawn(async move {
                let mut own = Answers::default();
                while !is_over.load(Ordering::Relaxed) {
                    own.count += 1;
                    match ask(address).await {
                        Ok(page) => drop(own.pages.insert(page)),
                        Err(error) => own.failures.push(error),
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                own
            })
        });
        Self { clients: clients.collect(), is_over }
    }

    /// The pages that were served; no request may have failed.
    async fn end(self) -> BTreeSet<String> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut pages = BTreeSet::new();
        for client in self.clients {
            let own = client.await.unwrap();
            assert_eq!(own.failures, [] as [String; 0], "of {} requests", own.count);
            pages.extend(own.pages);
        }
        pages
    }
}

/// UIDs of all pods of each version that there ever were.
struct Census(JoinHandle<()>, Arc<parking_lot::Mutex<BTreeMap<String, BTreeSet<String>>>>);

impl Census {
    fn start(pods: Api<Pod>) -> Self {
        let seen = Arc::new(parking_lot::Mutex::new(BTreeMap::new()));
        let own = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                // Pods live for seconds: none comes and goes between two looks.
                let all = pods.list(&ListParams::default().labels("app=web")).await;
                for pod in all.map(|list| list.items).unwrap_or_default() {
                    let mut seen = own.lock();
                    let uids: &mut BTreeSet<String> = seen.entry(version_of(&pod)).or_default();
                    uids.insert(common::uid(&pod));
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Self(task, seen)
    }

    fn count(&self, version: &str) -> usize {
        self.1.lock().get(version).map_or(0, BTreeSet::len)
    }
}

impl Drop for Census {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test]
async fn cluster_of_two_nodes_rolls_survives_kills_moves_pods_and_cleans_up() {
    let mut cluster = Cluster::start().await;
    let port = cluster.create_shop().await;
    let census = Census::start(cluster.pods());
    cluster.until_rolled("v1").await;
    let addresses =
        [0, 1].map(|index: usize| SocketAddr::from((cluster.hosts[index].node_ip(), port)));
    until_served(addresses, "v1").await;

    leader_is_killed_in_mid_rollout_under_load(&mut cluster, &census, addresses).await;
    all_controllers_are_killed_in_mid_rollout(&mut cluster, &census).await;
    node_is_killed(&mut cluster, addresses[0]).await;
    namespace_is_deleted(&cluster).await;

    drop(census);
    let Cluster { hosts: [first, second], .. } = cluster;
    second.assert_clean();
    first.assert_clean();
}

async fn until_served(addresses: [SocketAddr; 2], version: &str) {
    for address in addresses {
        wait_until(TIMEOUT, &format!("{version} at {address}"), async || {
            let page = ask(address).await?;
            if page == version { Ok(()) } else { Err(page) }
        })
        .await
        .unwrap();
    }
}

/// No request fails while all pods are replaced, whichever node is asked. Another copy of the controllers
/// finishes what one has begun, and does nothing twice.
async fn leader_is_killed_in_mid_rollout_under_load(
    cluster: &mut Cluster,
    census: &Census,
    addresses: [SocketAddr; 2],
) {
    let leader = until_leader(&cluster.client, None).await;
    let load = Load::start(addresses);
    cluster.roll_to("v2").await;
    cluster.until_half_way("v2").await;
    cluster.controllers[0].daemon().kill().expect("killed");
    cluster.until_rolled("v2").await;
    until_leader(&cluster.client, Some(&leader)).await;
    until_served(addresses, "v2").await;
    let pages: Vec<String> = load.end().await.into_iter().collect();
    assert_eq!(pages, ["v1", "v2"]);
    assert_eq!(census.count("v2"), usize::try_from(REPLICAS).unwrap());
}

/// Whoever is started again finishes what was begun.
async fn all_controllers_are_killed_in_mid_rollout(cluster: &mut Cluster, census: &Census) {
    cluster.roll_to("v3").await;
    cluster.until_half_way("v3").await;
    cluster.controllers[1].daemon().kill().expect("killed");
    let host = &cluster.hosts[0];
    cluster.controllers[0].restart(host).expect("started again");
    cluster.until_rolled("v3").await;
    assert_eq!(census.count("v3"), usize::try_from(REPLICAS).unwrap());
}

/// Its pods are made anew on the other node, and serve.
async fn node_is_killed(cluster: &mut Cluster, address: SocketAddr) {
    let (left, gone) = (cluster.hosts[0].name(), cluster.hosts[1].name());
    let all = cluster.pods();
    let on = async |node: &str| {
        let parameters = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = all.list(&parameters).await.map_err(|error| error.to_string())?;
        let ready = |pod: &&Pod| {
            common::condition(pod, "Ready") == "True" && pod.metadata.deletion_timestamp.is_none()
        };
        Ok::<_, String>(pods.items.iter().filter(ready).count())
    };
    assert!(on(&gone).await.unwrap() > 0, "pods are on both nodes");
    cluster.nodes[1].daemon().kill().expect("killed");
    wait_until(ROLLOUT, "all pods on the node that is left", async || match on(&left).await? {
        10 => Ok(()),
        count => Err(count.to_string()),
    })
    .await
    .unwrap();
    // Those of the node that is gone are no endpoints any more: every request is answered.
    wait_until(TIMEOUT, "answers only of pods that live", async || {
        for _ in 0..30 {
            ask(address).await?;
        }
        Ok::<_, String>(())
    })
    .await
    .unwrap();
    // When it comes back, it ends what was moved.
    cluster.nodes[1].restart(&cluster.hosts[1]).expect("started again");
    cluster.until_nodes_ready().await;
    wait_until(TIMEOUT, "pods of the node that was gone to end", async || {
        let parameters = ListParams::default().fields(&format!("spec.nodeName={gone}"));
        let pods = cluster.pods().list(&parameters).await.map_err(|error| error.to_string())?;
        let old = pods.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
        match old.count() {
            0 => Ok(()),
            count => Err(format!("{count} are on their way out")),
        }
    })
    .await
    .unwrap();
}

/// Everything in it ends, on the nodes too.
async fn namespace_is_deleted(cluster: &Cluster) {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.delete(SHOP, &DeleteParams::default()).await.unwrap();
    wait_until(ROLLOUT, "the namespace to be gone", async || {
        match namespaces.get_opt(SHOP).await {
            Ok(None) => Ok(()),
            Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
    .unwrap();
    assert_eq!(cluster.pods().list(&ListParams::default()).await.unwrap().items.len(), 0);
    for host in &cluster.hosts {
        wait_until(TIMEOUT, "containers to be gone", async || {
            let left = host.ctr(["containers", "ls", "-q"]).map_err(|error| error.to_string())?;
            if left.trim().is_empty() { Ok(()) } else { Err(left) }
        })
        .await
        .unwrap();
    }
}
