//! A cluster of one node on a test host, and the questions that tests ask of it.
#![allow(unreachable_pub)]

pub mod csi;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use longshore_testkit::fakecri::FaultProxy;
use longshore_testkit::{Apiserver, BUSYBOX, Controllers, Host, NodeOptions, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Enough for anything that works, on a machine that is busy.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Cluster {
    pub node: longshore_testkit::Node,
    pub controllers: Option<Controllers>,
    pub apiserver: Apiserver,
    pub client: Client,
    pub host: Host,
}

impl Cluster {
    pub async fn start() -> Self {
        Self::start_with(json!({})).await
    }

    /// With these fields in the node's configuration.
    pub async fn start_with(config: Value) -> Self {
        let host = Host::start().expect("a host");
        Self::on(host, config).await
    }

    /// The same with the controllers of volumes.
    pub async fn start_with_volumes(config: Value) -> Self {
        let mut cluster = Self::start_with(config).await;
        cluster.start_volume_controllers();
        cluster
    }

    pub fn start_volume_controllers(&mut self) {
        let admin = self.apiserver.admin_kubeconfig();
        let controllers = Controllers::start_for_volumes(&self.host, &admin);
        self.controllers = Some(controllers.expect("controllers"));
    }

    pub async fn on(host: Host, config: Value) -> Self {
        Self::with_env(host, config, &[]).await
    }

    /// With these variables in the node's environment, too.
    pub async fn with_env(host: Host, config: Value, env: &[(&str, &str)]) -> Self {
        Self::with_args(host, config, env, Vec::new()).await
    }

    /// With these flags, too.
    pub async fn with_args(
        host: Host,
        config: Value,
        env: &[(&str, &str)],
        args: Vec<String>,
    ) -> Self {
        let apiserver = Apiserver::start(&host).expect("an apiserver");
        let client = client(apiserver.admin_kubeconfig()).await;
        let options = NodeOptions {
            config: config.as_object().cloned().unwrap(),
            env: [("RUST_LOG", "info,longshore=debug")]
                .iter()
                .chain(env)
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            args,
            ..NodeOptions::default()
        };
        let node = longshore_testkit::Node::start(
            &host,
            &apiserver.node_kubeconfig(),
            &apiserver.client_ca(),
            options,
        )
        .expect("a node");
        Self { node, controllers: None, apiserver, client, host }
    }

    /// With a runtime that the node reaches through a proxy.
    pub async fn behind_proxy(host: Host, config: Value) -> (Self, FaultProxy) {
        let socket = host.dir().join("proxy.sock");
        let proxy = FaultProxy::start(&socket, host.socket()).expect("a proxy");
        let mut config = config;
        config["containerRuntimeEndpoint"] = json!(format!("unix://{}", socket.display()));
        (Self::on(host, config).await, proxy)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub async fn node_ready(&self) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.host.name()).await.map_err(|error| error.to_string())?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
        match ready {
            Some(ready) if ready.status == "True" => Ok(()),
            Some(ready) => Err(ready.message.clone().unwrap_or_default()),
            None => Err("no Ready condition".to_owned()),
        }
    }

    /// Create a pod that is bound to the node.
    pub async fn create(&self, name: &str, spec: Value) -> Pod {
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        pod.spec.as_mut().unwrap().node_name = Some(self.host.name());
        self.pods().create(&PostParams::default(), &pod).await.expect("a pod is created")
    }

    pub async fn pod(&self, name: &str) -> Pod {
        self.pods().get(name).await.expect("the pod is there")
    }

    /// Until the pod is as `check` wants it, which says what is missing.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        check: impl Fn(&Pod) -> Result<(), String>,
    ) -> Pod {
        let pods = self.pods();
        wait_until(TIMEOUT, &format!("pod {name}: {what}"), async || {
            let pod = pods.get(name).await.map_err(|error| error.to_string())?;
            check(&pod).map(|()| pod)
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn until_ready(&self, name: &str) -> Pod {
        self.until(name, "Running and Ready", |pod| {
            let ready = condition(pod, "Ready");
            match (phase(pod), ready.as_str()) {
                ("Running", "True") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    pub async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.expect("a delete is taken");
    }

    pub async fn until_gone(&self, name: &str) {
        let pods = self.pods();
        wait_until(TIMEOUT, &format!("pod {name} gone"), async || match pods.get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(pod)) => Err(format!("{:?}", pod.metadata.deletion_timestamp)),
            Err(error) => Err(error.to_string()),
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Until nothing of a pod is left on the host.
    pub async fn until_removed(&self, uid: &str) {
        wait_until(TIMEOUT, "removal of the pod", async || match self.host.pod_leftovers(uid) {
            Ok(left) if left.is_empty() => Ok(()),
            Ok(left) => Err(left.join(", ")),
            Err(error) => Err(error.to_string()),
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Until an event of that reason says something that contains `text`.
    pub async fn until_event(&self, reason: &str, text: &str) -> Event {
        let events: Api<Event> = Api::all(self.client.clone());
        wait_until(TIMEOUT, &format!("event {reason} with {text:?}"), async || {
            let all =
                events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let said: Vec<String> =
                all.items.iter().filter_map(|event| event.message.clone()).collect();
            let found = all.items.into_iter().find(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.message.as_deref().is_some_and(|message| message.contains(text))
            });
            found.ok_or_else(|| said.join(" | "))
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"))
    }
}

pub async fn client(kubeconfig: PathBuf) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a config");
    // Whatever proxy the machine has, it does not lead to a test host.
    config.proxy_url = None;
    Client::try_from(config).expect("a client")
}

/// A spec with one busybox container `c` that runs a script.
pub fn script(text: &str) -> Value {
    json!({
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
        "containers": [container("c", text)],
    })
}

pub fn container(name: &str, text: &str) -> Value {
    json!({"name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", text]})
}

/// The manifest of a static pod.
pub fn manifest(name: &str, restart: &str, containers: Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": restart, "terminationGracePeriodSeconds": 1, "containers": containers,
        },
    })
    .to_string()
}

/// The answer of a node's read-only port.
pub async fn get_json(node: Ipv4Addr, path: &str) -> Result<Value, String> {
    let body = get_text(node, path).await?;
    serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))
}

/// The same as text.
pub async fn get_text(node: Ipv4Addr, path: &str) -> Result<String, String> {
    let request = async {
        let mut connection = tokio::net::TcpStream::connect((node, 10255)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: node\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.map(|_| answer)
    };
    let answer = request.await.map_err(|error: std::io::Error| error.to_string())?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).ok_or(answer)
}

/// Runs until SIGTERM, and then stops at once.
pub const FOREVER: &str = "trap 'exit 0' TERM; while true; do sleep 1000 & wait $!; done";

pub fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap()
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub fn condition(pod: &Pod, type_: &str) -> String {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    let found = conditions.unwrap_or_default().iter().find(|condition| condition.type_ == type_);
    found.map(|condition| condition.status.clone()).unwrap_or_default()
}

/// Restart count and id of the container `c`.
pub fn run_of(pod: &Pod) -> (i32, String) {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let status = statuses.unwrap_or_default().iter().find(|status| status.name == "c");
    status
        .map(|s| (s.restart_count, s.container_id.clone().unwrap_or_default()))
        .unwrap_or_default()
}
