//! A cluster in this process: an apiserver on its embedded store, controllers by name, and kubelets
//! that run no containers.
#![allow(unreachable_pub)]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use longshore_apiserver::Server;
use longshore_apiserver::args::Cli;
use longshore_apiserver::pki::Pki;
use longshore_client::{AccountClients, ConfigSource, Limits};
use longshore_controllers::{Context, Settings};
use longshore_metrics::{Registry, RestClient};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    pub client: Client,
    pub stop: CancellationToken,
    pub dir: TempDir,
    tasks: Vec<JoinHandle<()>>,
    /// Counts what controllers request with their accounts.
    requests: Registry,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
        self.tasks.iter().for_each(JoinHandle::abort);
        if !std::thread::panicking() {
            let page = self.requests.text();
            let forbidden = page.lines().find(|line| line.contains("code=\"403\""));
            assert_eq!(forbidden, None, "a controller lacks a right");
        }
    }
}

impl Cluster {
    /// An apiserver with these controllers.
    pub async fn start(controllers: &[&str], adapt: impl FnOnce(&mut Settings)) -> Self {
        Self::start_in(controllers, |settings, _| adapt(settings)).await
    }

    /// The same; `adapt` is given the directory that has the apiserver's `pki`, too.
    pub async fn start_in(controllers: &[&str], adapt: impl FnOnce(&mut Settings, &Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        let cli = Cli::try_parse_from([
            "longshore-apiserver".to_owned(),
            format!("--data-dir={path}/data"),
            format!("--cert-dir={path}/pki"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--secure-port=0".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
        ])
        .unwrap();
        std::fs::create_dir_all(dir.path().join("data")).unwrap();
        let server = Server::start(cli.serve.config().await.unwrap()).await.unwrap();
        let kubeconfig = Kubeconfig::read_from(server.admin_kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let source = ConfigSource::Kubeconfig(server.admin_kubeconfig().to_owned());
        let requests = Registry::default();
        let limits = Limits { component: "test", qps: 0, burst: 0, timeout: PATIENCE };
        let metrics = RestClient::new(&requests);
        let account_clients =
            AccountClients::connect(client.clone(), source, "kube-system", limits, metrics);
        let account_clients = account_clients.await.unwrap();
        let stop = CancellationToken::new();
        let mut tasks = vec![tokio::spawn(server.run(stop.clone()))];
        // what pods of tests without the controller have
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some("default".into()), ..ObjectMeta::default() },
            ..ServiceAccount::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let mut settings = Settings::default();
        adapt(&mut settings, dir.path());
        let mut context = Context::new(client.clone(), settings);
        context.stop = stop.clone();
        // each with no rights but its own
        context.accounts = Some(Arc::new(account_clients));
        for name in controllers {
            let all = longshore_controllers::all();
            let controller = all.iter().find(|controller| controller.name == *name);
            let controller = controller.unwrap_or_else(|| panic!("no controller {name}"));
            tasks.push(tokio::spawn((controller.run)(context.of(controller))));
        }
        Self { client, stop, dir, tasks, requests }
    }

    /// A node whose kubelet reports pods as ready, and ends those that are deleted.
    pub async fn add_node(&mut self, name: &str) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "z1"}},
        }))
        .unwrap();
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True",
            "reason": "KubeletReady", "message": "", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let patch = Patch::Strategic(status);
        nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        self.tasks.push(tokio::spawn(kubelet(self.client.clone(), name.to_owned())));
    }

    /// A client as another user.
    pub async fn user(&self, user: &str, group: &str) -> Client {
        let pki = Pki::open(&self.dir.path().join("pki")).unwrap();
        let server = Kubeconfig::read_from(self.dir.path().join("pki/admin.conf")).unwrap();
        let server = server.clusters[0].cluster.clone().unwrap().server.unwrap();
        let kubeconfig = longshore_apiserver::kubeconfig(&pki, &server, user, group).unwrap();
        let path = self.dir.path().join(format!("{user}.conf"));
        kubeconfig.write(&path).unwrap();
        let kubeconfig = Kubeconfig::read_from(path).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        Client::try_from(config).unwrap()
    }

    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub async fn create<K>(&self, namespace: &str, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Serialize
            + DeserializeOwned
            + Clone
            + Debug,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>(namespace).create(&PostParams::default(), &object).await.unwrap()
    }

    /// The names of the objects.
    pub async fn names<K>(&self, namespace: &str) -> BTreeSet<String>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + Debug,
    {
        let list = self.api::<K>(namespace).list(&ListParams::default()).await.unwrap();
        list.items.into_iter().map(|object| object.meta().name.clone().unwrap()).collect()
    }

    /// A pod on a node, with further metadata.
    pub async fn pod(&self, namespace: &str, name: &str, node: &str, metadata: Value) -> Pod {
        self.pod_with(namespace, name, node, metadata, json!({})).await
    }

    pub async fn pod_with(
        &self,
        namespace: &str,
        name: &str,
        node: &str,
        metadata: Value,
        spec: Value,
    ) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "c", "image": "i", "ports": [
                    {"name": "http", "containerPort": 8080},
                ]}],
            },
        });
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        self.create(namespace, pod).await
    }
}

/// Tries until it is so, and says what was found last.
pub async fn eventually<T: Debug>(
    what: &str,
    probe: impl AsyncFn() -> T,
    is_it: impl Fn(&T) -> bool,
) -> T {
    let start = Instant::now();
    loop {
        let found = probe().await;
        if is_it(&found) {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: last found {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn kubelet(client: Client, node: String) {
    let pods: Api<Pod> = Api::all(client.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let mut next = 0_u8;
    loop {
        let list = pods.list(&of_node).await.map(|list| list.items).unwrap_or_default();
        for pod in list {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let name = pod.metadata.name.clone().unwrap_or_default();
            let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
                continue;
            }
            if pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()) {
                continue;
            }
            next = next.wrapping_add(1);
            let ip = format!("10.1.0.{next}");
            let status = json!({"status": {
                "phase": "Running",
                "podIP": ip,
                "podIPs": [{"ip": ip}],
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True",
                    "lastTransitionTime": "2026-01-01T00:00:05Z"}],
            }});
            let patch = Patch::Strategic(status);
            let _ = api.patch_status(&name, &PatchParams::default(), &patch).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An API of any kind.
pub fn dynamic(
    client: &Client,
    namespace: &str,
    api_version: &str,
    kind: &str,
    plural: &str,
) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = kube::core::ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural: plural.into(),
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}
