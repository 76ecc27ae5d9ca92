//! Certificates requested, awaited and rotated, against a cluster that signs.

use std::sync::Arc;
use std::time::Duration;

use crate::certificates::{
    BootstrapError, CertificateMetrics, ClientCertificate, keep_serving, serving_pair_path,
};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::Api;
use kube::api::WatchParams;
use longshore_metrics::parse::parse;
use longshore_metrics::{Registry, RestClient};
use serde_json::Value;
use tokio::sync::watch;

use crate::{CredentialState, Limits};
use longshore_config::{Command, Config, from_args};

use super::cluster::{Cluster, Policy};
use super::*;

const LIMITS: Limits =
    Limits { component: "kubelet", qps: 0, burst: 0, timeout: Duration::from_millis(500) };
const TIMEOUT: Duration = Duration::from_secs(20);
const GOOD: Policy = Policy::Sign(-HOUR, HOUR);

/// A node's directory: `etc` for kubeconfigs, `pki`.
struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn config(&self, more: &[&str]) -> Config {
        let path_flag = |flag: &str, name: &str| format!("--{flag}={}", self.path(name).display());
        let own = [
            "kubelet".to_owned(),
            "--fail-cgroupv1=false".to_owned(),
            "--hostname-override=n1".to_owned(),
            path_flag("cert-dir", "pki"),
            path_flag("kubeconfig", "kubelet.conf"),
            path_flag("bootstrap-kubeconfig", "bootstrap.conf"),
        ];
        let args = own.into_iter().chain(more.iter().map(|flag| (*flag).to_owned()));
        match from_args(args).unwrap() {
            Command::Kubelet(config) => *config,
            other => panic!("{other:?}"),
        }
    }

    /// Puts the bootstrap kubeconfig in its place, with the token `joker`.
    fn invite(&self, cluster: &Cluster) {
        self.kubeconfig("bootstrap.conf", cluster, "token: joker");
    }

    fn kubeconfig(&self, name: &str, cluster: &Cluster, user: &str) {
        let text = format!(
            "current-context: c\nclusters: [{{name: k, cluster: {{server: '{}'}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n",
            cluster.url
        );
        fs::write(self.path(name), text).unwrap();
    }

    fn store(&self) -> Store {
        Store::open(&self.path("pki"), "kubelet-client").unwrap()
    }

    /// A kubeconfig that points at the store, and in that a pair of this life.
    fn member(&self, cluster: &Cluster, from: i64, until: i64) {
        let (certificate, key) = issued(from, until);
        self.store().update(&certificate, &key, Timestamp::UNIX_EPOCH).unwrap();
        let pair = self.store().current_path();
        let user = format!("client-certificate: {0}, client-key: {0}", pair.display());
        self.kubeconfig("kubelet.conf", cluster, &user);
    }

    fn until(&self) -> Timestamp {
        self.store().current().unwrap().expect("a pair").until
    }
}

async fn connect(credentials: &crate::Credentials) -> kube::Client {
    crate::connect(credentials, LIMITS, RestClient::new(&Registry::default())).await.unwrap()
}

fn prepare(config: &Config) -> Result<Option<ClientCertificate>, BootstrapError> {
    let registry = Registry::default();
    let metrics = CertificateMetrics::new(&registry);
    ClientCertificate::prepare(config, LIMITS, &RestClient::new(&registry), &metrics)
}

/// Ends with the test.
struct Running {
    credentials: crate::Credentials,
    _task: tokio_util::task::AbortOnDropHandle<()>,
}

fn run(config: &Config) -> Running {
    let prepared = prepare(config).unwrap().expect("an apiserver");
    let manager = prepared.manager.expect("a certificate manager");
    let task = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(manager.run()));
    Running { credentials: prepared.credentials, _task: task }
}

impl Running {
    async fn wait_until_certificate(&self) {
        let mut state = self.credentials.identity.clone().unwrap().state;
        let kept = state.wait_for(|state| matches!(state, CredentialState::Certificate(_)));
        tokio::time::timeout(TIMEOUT, kept).await.expect("a certificate comes").unwrap();
    }

    async fn wait_until_lacking(&self, what: &str) {
        let mut state = self.credentials.identity.clone().unwrap().state;
        let lacking = state
            .wait_for(|state| matches!(state, CredentialState::Lacking(why) if why.contains(what)));
        let lacking = tokio::time::timeout(TIMEOUT, lacking).await;
        assert!(lacking.is_ok(), "{:?}", self.credentials.identity);
    }
}

fn field<'a>(csr: &'a Value, pointer: &str) -> &'a str {
    csr.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[tokio::test]
async fn bootstrap_token_is_exchanged_for_a_certificate() {
    let (site, cluster) = (Site::new(), Cluster::start(Policy::Hold).await);
    site.invite(&cluster);
    let node = run(&site.config(&[]));
    cluster.wait_until_requested(1).await;
    let csr = &cluster.requests()[0];
    assert!(field(csr, "/metadata/name").starts_with("node-csr-"), "{csr}");
    assert_eq!(field(csr, "/spec/signerName"), "kubernetes.io/kube-apiserver-client-kubelet");
    assert_eq!(csr["spec"]["usages"], serde_json::json!(["digital signature", "client auth"]));
    assert_eq!(cluster.askers(), ["Bearer joker"]);
    let nodes: Api<Node> = Api::all(connect(&node.credentials).await);
    let error = nodes.watch(&WatchParams::default(), "0").await.err().unwrap().to_string();
    assert!(error.contains("there is no certificate at"), "{error}");

    cluster.set(GOOD);
    node.wait_until_certificate().await;
    let kept = site.store().current().unwrap().unwrap();
    assert_eq!(kept.name, "system:node:n1");
    assert_eq!(kept.groups, ["system:nodes".to_owned()].into());
    assert!(nodes.watch(&WatchParams::default(), "0").await.is_ok(), "with the certificate");
    let left = names(&site.path("pki"));
    assert!(left.len() == 2 && !left.contains("kubelet-client.key.tmp"), "{left:?}");
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(site.path("kubelet.conf")), mode(site.store().current_path())),
        (0o600, 0o600)
    );

    // the next start requests nothing
    drop(node);
    run(&site.config(&[])).wait_until_certificate().await;
    assert_eq!(cluster.requests().len(), 1);
}

#[tokio::test]
async fn certificate_request_is_resumed_after_a_restart() {
    let (site, cluster) = (Site::new(), Cluster::start(Policy::Hold).await);
    site.invite(&cluster);
    for _ in 0..3 {
        let node = run(&site.config(&["--rotate-certificates"]));
        let asked = cluster.askers().len();
        let again = async {
            while cluster.askers().len() == asked {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, again).await.unwrap();
        drop(node);
    }
    // signed while the daemon was not running
    cluster.set(GOOD);
    assert_eq!(cluster.requests().len(), 1, "one key, one request");
    run(&site.config(&["--rotate-certificates"])).wait_until_certificate().await;
    assert_eq!(cluster.requests().len(), 1);
}

#[tokio::test]
async fn certificate_expired_while_off_is_requested_again() {
    let (site, cluster) = (Site::new(), Cluster::start(GOOD).await);
    site.member(&cluster, -2 * HOUR, -HOUR);
    site.invite(&cluster);
    for flags in [&["--rotate-certificates"][..], &[]] {
        site.member(&cluster, -2 * HOUR, -HOUR);
        let node = run(&site.config(flags));
        node.wait_until_certificate().await;
        assert!(site.until() > Timestamp::now());
    }
    assert!(cluster.askers().iter().all(|asker| asker == "Bearer joker"), "{:?}", cluster.askers());
}

#[tokio::test]
async fn bootstrap_without_credential_reports_what_is_missing() {
    let (site, cluster) = (Site::new(), Cluster::start(GOOD).await);
    site.member(&cluster, -2 * HOUR, -HOUR);
    let node = run(&site.config(&["--rotate-certificates"]));
    node.wait_until_lacking("expired at").await;
    let missing = format!("the bootstrap kubeconfig {}", site.path("bootstrap.conf").display());
    node.wait_until_lacking(&missing).await;
    let nodes: Api<Node> = Api::all(connect(&node.credentials).await);
    let error = nodes.list(&Default::default()).await.err().unwrap().to_string();
    assert!(error.contains(&missing) && error.contains("kubeadm token create"), "{error}");

    site.invite(&cluster);
    node.wait_until_certificate().await;
    assert!(site.until() > Timestamp::now());
}

#[tokio::test]
async fn bootstrap_token_expired_is_reported() {
    let (site, cluster) = (Site::new(), Cluster::start(Policy::Refuse).await);
    site.invite(&cluster);
    let node = run(&site.config(&["--rotate-certificates"]));
    node.wait_until_lacking("does not accept the credential (401)").await;
    cluster.set(GOOD);
    node.wait_until_certificate().await;
}

#[tokio::test]
async fn bootstrap_without_any_credential_fails() {
    let site = Site::new();
    let error = prepare(&site.config(&[])).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, BootstrapError::NoCredential { .. }), "{text}");
    for part in ["kubelet.conf", "does not exist", "bootstrap.conf does not exist"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn certificate_rotation_before_expiry_reconnects_watches() {
    let (site, cluster) = (Site::new(), Cluster::start(Policy::Hold).await);
    site.member(&cluster, -95, 5 + 60);
    let node = run(&site.config(&[]));
    node.wait_until_certificate().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(cluster.requests().is_empty(), "renewal is not switched on");
    drop(node);

    // 95 % of its life are over, whatever the jitter
    site.member(&cluster, -9500, 500);
    let node = run(&site.config(&["--rotate-certificates"]));
    let nodes: Api<Node> = Api::all(connect(&node.credentials).await);
    let mut watch = nodes.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    cluster.wait_until_requested(1).await;
    assert!(futures::poll!(watch.next()).is_pending());
    assert!(field(&cluster.requests()[0], "/metadata/name").starts_with("csr-"));
    cluster.set(GOOD);
    let end = tokio::time::timeout(TIMEOUT, watch.next()).await.expect("the watch is cut");
    assert!(end.is_none_or(|event| event.is_err()));
    assert!(site.until() > Timestamp::now() + SignedDuration::from_mins(30));
    assert!(cluster.askers().iter().all(String::is_empty), "asked as the node itself");
}

#[tokio::test]
async fn certificate_request_denied_is_reported_and_gets_a_new_key() {
    let (site, cluster) = (Site::new(), Cluster::start(Policy::Deny).await);
    site.invite(&cluster);
    let node = run(&site.config(&["--rotate-certificates"]));
    cluster.wait_until_requested(1).await;
    let rejected = async {
        while site.path("pki/kubelet-client.key.tmp").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, rejected).await.expect("the key is given up");
    node.wait_until_lacking("was denied: as requested").await;
    drop(node);
    cluster.set(GOOD);
    run(&site.config(&["--rotate-certificates"])).wait_until_certificate().await;
    assert_eq!(cluster.requests().len(), 2);
}

#[tokio::test]
async fn token_kubeconfig_is_used_until_there_is_a_certificate() {
    let (site, cluster) = (Site::new(), Cluster::start(Policy::Hold).await);
    site.kubeconfig("kubelet.conf", &cluster, "token: mine");
    let before = fs::read(site.path("kubelet.conf")).unwrap();
    let node = run(&site.config(&["--rotate-certificates"]));
    let nodes: Api<Node> = Api::all(connect(&node.credentials).await);
    assert!(nodes.watch(&WatchParams::default(), "0").await.is_ok());
    cluster.wait_until_requested(1).await;
    assert_eq!(cluster.askers(), ["Bearer mine"]);
    cluster.set(GOOD);
    node.wait_until_certificate().await;
    assert_eq!(fs::read(site.path("kubelet.conf")).unwrap(), before, "it is left as it is");
    drop(node);
    let prepared = prepare(&site.config(&[])).unwrap().unwrap();
    assert!(prepared.manager.is_none(), "nothing is rotated without rotateCertificates");
}

#[tokio::test]
async fn certificate_replaced_on_disk_is_reloaded() {
    let (site, cluster) = (Site::new(), Cluster::start(Policy::Hold).await);
    site.member(&cluster, -HOUR, 10 * HOUR);
    let config = site.config(&["--rotate-certificates"]);
    let registry = Registry::default();
    let metrics = CertificateMetrics::new(&registry);
    let ttl = || {
        let page = parse(&registry.text()).unwrap();
        page.sum("kubelet_certificate_manager_client_ttl_seconds", &[]).unwrap()
    };
    let prepared =
        ClientCertificate::prepare(&config, LIMITS, &RestClient::new(&registry), &metrics)
            .unwrap()
            .unwrap();
    let state = prepared.credentials.identity.unwrap().state;
    let (mut manager, before) = (prepared.manager.unwrap(), state.borrow().clone());
    manager.reload();
    assert_eq!(*state.borrow(), before);
    let left = ttl();
    site.member(&cluster, -HOUR, 20 * HOUR);
    manager.reload();
    assert_ne!(*state.borrow(), before);
    assert!(ttl() > left + 9.0 * HOUR as f64);
    fs::write(site.store().current_path(), "rubbish").unwrap();
    manager.reload();
    assert!(matches!(&*state.borrow(), CredentialState::Lacking(_)));
}

#[tokio::test]
async fn serving_certificate_follows_the_node_addresses() {
    let (site, cluster) = (Site::new(), Cluster::start(GOOD).await);
    site.kubeconfig("kubelet.conf", &cluster, "token: mine");
    let credentials = crate::Credentials::of(&site.path("kubelet.conf"));
    let client = connect(&credentials).await;
    let node = |ip: Option<&str>| {
        let address = |(type_, address): (&str, &str)| NodeAddress {
            type_: type_.to_owned(),
            address: address.to_owned(),
        };
        let addresses = ip.map(|ip| ("InternalIP", ip)).into_iter().chain([("Hostname", "n1")]);
        let status =
            NodeStatus { addresses: Some(addresses.map(address).collect()), ..Default::default() };
        Some(Arc::new(Node { status: Some(status), ..Node::default() }))
    };
    let nodes = watch::Sender::new(node(None));
    let config = site.config(&["--rotate-server-certificates"]);
    let registry = Registry::default();
    let metrics = CertificateMetrics::new(&registry);
    let keep = keep_serving(&config, client, nodes.subscribe(), metrics.clone()).unwrap();
    let _task = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(keep));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(cluster.requests().is_empty(), "nothing is asked for without an address");

    let path = serving_pair_path(&config.cert_dir);
    for (times, ip) in [(1, "10.0.0.1"), (2, "10.0.0.2")] {
        nodes.send_replace(node(Some(ip)));
        cluster.wait_until_requested(times).await;
        let csr = &cluster.requests()[times - 1];
        assert_eq!(field(csr, "/spec/signerName"), "kubernetes.io/kubelet-serving");
        assert_eq!(csr["spec"]["usages"], serde_json::json!(["digital signature", "server auth"]));
        let kept = async {
            loop {
                let found = fs::read(&path).ok().and_then(|pem| pair(&pem).ok());
                match found {
                    Some(leaf) if leaf.ips == [ip.parse().unwrap()].into() => return leaf,
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let leaf = tokio::time::timeout(TIMEOUT, kept).await.expect("a pair for the address");
        assert_eq!((leaf.name.as_str(), leaf.dns), ("system:node:n1", ["n1".to_owned()].into()));
    }
    let value = |name: &str| parse(&registry.text()).unwrap().sum(name, &[]).unwrap_or(0.0);
    let counted = async {
        while value("kubelet_certificate_manager_server_rotation_seconds_count") != 1.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, counted).await.expect("one has replaced another");
    assert!(value("kubelet_certificate_manager_server_ttl_seconds") > 0.0);
    assert_eq!(value("kubelet_server_expiration_renew_errors"), 0.0);
}
