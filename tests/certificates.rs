//! Bootstrap, certificates and apiserver connections of a node, with real components.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::{Cluster, FOREVER, TIMEOUT, client, container, manifest, script};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Client;
use kube::api::{Api, ListParams, LogParams};
use kube::config::{AuthInfo, Kubeconfig, NamedExtension};
use longshore_testkit::{Apiserver, Daemon, Host, Node, NodeOptions, wait_until};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair,
};
use serde_json::{Value, json};

/// An etcd on the host that is ready.
async fn etcd(host: &Host) -> (Daemon, String) {
    let url = "http://127.0.0.1:2379".to_owned();
    let mut command = host.command("etcd");
    command.args(["--data-dir", host.dir().join("etcd").to_str().unwrap()]);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync"]);
    let etcd = host.spawn("etcd", command).unwrap();
    wait_until(TIMEOUT, "etcd is ready", async || match etcd.log() {
        log if log.contains("ready to serve client requests") => Ok(()),
        log => Err(log),
    })
    .await
    .unwrap();
    (etcd, url)
}

fn options(config: Value, args: &[String]) -> NodeOptions {
    NodeOptions {
        config: config.as_object().cloned().unwrap(),
        args: args.to_vec(),
        env: vec![("RUST_LOG".to_owned(), "info,longshore=debug".to_owned())],
        ..NodeOptions::default()
    }
}

/// A copy of a kubeconfig, edited.
fn edited(from: &Path, to: PathBuf, edit: impl FnOnce(&mut Kubeconfig)) -> PathBuf {
    let mut kubeconfig = Kubeconfig::read_from(from).unwrap();
    edit(&mut kubeconfig);
    // JSON is YAML
    fs::write(&to, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    to
}

#[tokio::test]
async fn certificate_client_fails_over_to_another_apiserver() {
    let host = Host::start().unwrap();
    let (etcd, url) = etcd(&host).await;
    let mut first = Apiserver::start_on_etcd(&host, &url, 6443).unwrap();
    let second = Apiserver::start_on_etcd(&host, &url, 6444).unwrap();
    let both = host.dir().join("both.conf");
    let kubeconfig = edited(&first.node_kubeconfig(), both, |kubeconfig| {
        let cluster = kubeconfig.clusters[0].cluster.as_mut().unwrap();
        cluster.extensions = Some(vec![NamedExtension {
            name: "longshore/servers".to_owned(),
            extension: json!([second.url()]),
        }]);
    });
    let admin = edited(&first.admin_kubeconfig(), host.dir().join("second.conf"), |kubeconfig| {
        kubeconfig.clusters[0].cluster.as_mut().unwrap().server = Some(second.url());
    });
    let node =
        Node::start(&host, &kubeconfig, &first.client_ca(), options(json!({}), &[])).unwrap();
    let client = client(admin).await;
    first.daemon().check_running().unwrap();
    let mut cluster = Cluster { node, controllers: None, apiserver: second, client, host };
    cluster.create("before", script(FOREVER)).await;
    cluster.until_ready("before").await;

    first.daemon().kill().unwrap();
    // the watch of pods moved over: nothing that was said meanwhile is lost
    cluster.create("after", script(FOREVER)).await;
    cluster.until_ready("after").await;
    cluster.delete("before").await;
    cluster.until_gone("before").await;
    cluster.node_ready().await.unwrap();
    assert!(cluster.node.daemon().log().contains("apiserver is down"));

    first.restart(&cluster.host).unwrap();
    wait_until(TIMEOUT, "the first apiserver is used again", async || {
        match cluster.node.daemon().log() {
            log if log.contains("apiserver is up again") => Ok(()),
            log => Err(log.lines().last().unwrap_or_default().to_owned()),
        }
    })
    .await
    .unwrap();
    cluster.delete("after").await;
    cluster.until_gone("after").await;
    drop(cluster.node);
    drop((cluster.apiserver, first, etcd));
    cluster.host.assert_clean();
}

/// The node's certificate by the cluster's CA, over for an hour.
fn ended(apiserver: &Apiserver, host: &Host) -> (String, String) {
    let ca = apiserver.client_ca();
    let ca_key = KeyPair::from_pem(&fs::read_to_string(ca.with_extension("key")).unwrap()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&fs::read_to_string(&ca).unwrap(), ca_key).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", host.name()));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let hours = |hours: u64| SystemTime::now() - Duration::from_secs(3600 * hours);
    (params.not_before, params.not_after) = (hours(2).into(), hours(1).into());
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
}

/// A kubeconfig with a bootstrap token.
fn bootstrap_kubeconfig(apiserver: &Apiserver, host: &Host) -> PathBuf {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "stringData": {
            "token-id": "abcdef", "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
        },
    });
    apiserver.kubectl().apply(&secret.to_string()).unwrap();
    edited(&apiserver.node_kubeconfig(), host.dir().join("bootstrap.conf"), |kubeconfig| {
        kubeconfig.auth_infos[0].auth_info = Some(AuthInfo {
            token: Some("abcdef.0123456789abcdef".to_owned().into()),
            ..AuthInfo::default()
        });
    })
}

/// The requests of the nodes for that signer.
async fn requests(client: &Client, signer: &str) -> Vec<CertificateSigningRequest> {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let mut all = api.list(&ListParams::default()).await.unwrap().items;
    all.retain(|csr| csr.spec.signer_name == format!("kubernetes.io/{signer}"));
    all
}

const CLIENT: &str = "kube-apiserver-client-kubelet";
const SERVING: &str = "kubelet-serving";

#[tokio::test]
async fn certificate_bootstrap_and_renewal_after_downtime() {
    let host = Host::start().unwrap();
    let apiserver = Apiserver::start(&host).unwrap();
    let bootstrap = bootstrap_kubeconfig(&apiserver, &host);
    let (kubeconfig, pki) = (host.dir().join("kubelet.conf"), host.dir().join("node-pki"));
    let flags = [
        format!("--bootstrap-kubeconfig={}", bootstrap.display()),
        format!("--cert-dir={}", pki.display()),
    ];
    let config = json!({"rotateCertificates": true, "serverTLSBootstrap": true});
    let node = Node::start(&host, &kubeconfig, &apiserver.client_ca(), options(config, &flags));
    let client = client(apiserver.admin_kubeconfig()).await;
    let mut cluster = Cluster { node: node.unwrap(), controllers: None, apiserver, client, host };
    let ready = async |cluster: &Cluster| {
        wait_until(TIMEOUT, "the node is Ready", async || cluster.node_ready().await)
            .await
            .unwrap();
    };
    ready(&cluster).await;
    let current = pki.join("kubelet-client-current.pem");
    assert!(fs::read_to_string(&kubeconfig).unwrap().contains(current.to_str().unwrap()));
    let csrs = requests(&cluster.client, CLIENT).await;
    assert_eq!(csrs.len(), 1);
    assert_eq!(csrs[0].spec.username.as_deref(), Some("system:bootstrap:abcdef"));

    // the server has none before somebody has approved it
    cluster.create("said", script(&format!("echo hello; {FOREVER}"))).await;
    cluster.until_ready("said").await;
    let log = async |cluster: &Cluster| cluster.pods().logs("said", &LogParams::default()).await;
    assert!(log(&cluster).await.is_err());
    let csrs = requests(&cluster.client, SERVING).await;
    assert_eq!(csrs.len(), 1);
    let name = csrs[0].metadata.name.as_deref().unwrap();
    cluster.apiserver.kubectl().run(["certificate", "approve", name]).unwrap();
    wait_until(TIMEOUT, "the server shows its certificate", async || log(&cluster).await)
        .await
        .unwrap();
    assert!(pki.join("kubelet-server-current.pem").exists());

    // killed and started, it is who it was
    cluster.node.restart(&cluster.host).unwrap();
    cluster.create("second", script(FOREVER)).await;
    cluster.until_ready("second").await;
    assert_eq!(requests(&cluster.client, CLIENT).await.len(), 1);

    // off until its certificate has ended
    cluster.node.daemon().kill().unwrap();
    let (certificate, key) = ended(&cluster.apiserver, &cluster.host);
    let before = fs::canonicalize(&current).unwrap();
    fs::write(&before, format!("{certificate}{key}")).unwrap();
    cluster.node.restart(&cluster.host).unwrap();
    cluster.create("third", script(FOREVER)).await;
    cluster.until_ready("third").await;
    assert_eq!(requests(&cluster.client, CLIENT).await.len(), 2);
    assert_ne!(fs::canonicalize(&current).unwrap(), before);
    for pod in ["said", "second", "third"] {
        cluster.delete(pod).await;
        cluster.until_gone(pod).await;
    }
    drop(cluster.node);
    drop(cluster.apiserver);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn certificate_expiry_is_reported_and_recovered() {
    let host = Host::start().unwrap();
    let apiserver = Apiserver::start(&host).unwrap();
    let (certificate, key) = ended(&apiserver, &host);
    let pair = host.dir().join("ended.pem");
    fs::write(&pair, format!("{certificate}{key}")).unwrap();
    let file = host.dir().join("kubelet.conf");
    let kubeconfig = edited(&apiserver.node_kubeconfig(), file, |kubeconfig| {
        let user = kubeconfig.auth_infos[0].auth_info.as_mut().unwrap();
        (user.client_certificate_data, user.client_key_data) = (None, None);
        let pair = Some(pair.display().to_string());
        (user.client_certificate, user.client_key) = (pair.clone(), pair);
    });
    let manifests = Node::manifests_on(&host);
    fs::create_dir_all(&manifests).unwrap();
    let web = manifest("web", "Always", json!([container("c", FOREVER)]));
    fs::write(manifests.join("web.yaml"), web).unwrap();
    let node =
        Node::start(&host, &kubeconfig, &apiserver.client_ca(), options(json!({}), &[])).unwrap();
    let client = client(apiserver.admin_kubeconfig()).await;
    let mut cluster = Cluster { node, controllers: None, apiserver, client, host };
    wait_until(TIMEOUT, "the static pod runs", async || {
        match cluster.host.ctr(["tasks", "ls"]).unwrap() {
            tasks if tasks.matches("RUNNING").count() >= 2 => Ok(()),
            tasks => Err(tasks),
        }
    })
    .await
    .unwrap();
    let log = cluster.node.daemon().log();
    for said in
        ["ended.pem expired at 20", "no --bootstrap-kubeconfig is given", "kubeadm token create"]
    {
        assert!(log.contains(said), "{said} is not in\n{log}");
    }
    assert!(cluster.node_ready().await.is_err());

    // a person mends it; nothing is restarted
    fs::copy(cluster.apiserver.node_kubeconfig(), &kubeconfig).unwrap();
    wait_until(TIMEOUT, "the node is Ready", async || cluster.node_ready().await).await.unwrap();
    drop(cluster.node);
    drop(cluster.apiserver);
    cluster.host.assert_clean();
}
