//! Certificates of nodes and users, bootstrap tokens and aggregated roles over a real apiserver.

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{Cluster, eventually};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use longshore_controllers::{Settings, SignerFiles};
use longshore_csr::{Authority, Signer};
use longshore_tls::testing::certificate_request;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, from_value, json};

const APPROVER: &str = "certificatesigningrequest-approving-controller";
const SIGNER: &str = "certificatesigningrequest-signing-controller";

/// The signers with the apiserver's CAs.
fn sign(settings: &mut Settings, dir: &Path) {
    let of = |signer, ca: &str| SignerFiles {
        signer,
        certificate: dir.join(format!("pki/{ca}.crt")),
        key: dir.join(format!("pki/{ca}.key")),
    };
    settings.cluster.signers = vec![
        of(Signer::KubeletClient, "ca"),
        of(Signer::Client, "ca"),
        of(Signer::KubeletServing, "kubelet-serving-ca"),
    ];
}

fn request(
    name: &str,
    signer: &str,
    user: &str,
    group: &str,
    names: &[&str],
) -> CertificateSigningRequest {
    let (_, pem) = certificate_request(user, group, names);
    let purpose = if signer == "kubelet-serving" { "server auth" } else { "client auth" };
    from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "request": ByteString(pem.into_bytes()),
            "signerName": format!("kubernetes.io/{signer}"),
            "usages": ["digital signature", purpose],
        },
    }))
    .unwrap()
}

async fn post(client: &Client, request: CertificateSigningRequest) {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    api.create(&PostParams::default(), &request).await.unwrap();
}

async fn read(client: &Client, name: &str) -> Value {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    serde_json::to_value(api.get(name).await.unwrap()).unwrap()
}

/// The certificate, in PEM.
async fn certificate(client: &Client, name: &str) -> String {
    let found = eventually(
        "a certificate",
        async || read(client, name).await,
        |found| found["status"]["certificate"].is_string(),
    )
    .await;
    let certificate: ByteString = from_value(found["status"]["certificate"].clone()).unwrap();
    String::from_utf8(certificate.0).unwrap()
}

async fn approve(client: &Client, name: &str) {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let patch = json!({"status": {"conditions": [
        {"type": "Approved", "status": "True", "reason": "Test", "message": ""},
    ]}});
    let patch = Patch::Merge(patch);
    api.patch_subresource("approval", name, &PatchParams::default(), &patch).await.unwrap();
}

/// The authority's certificate that verifies one in PEM: `ca` or `kubelet-serving-ca`.
fn issuer(cluster: &Cluster, pem: &str) -> Vec<&'static str> {
    let der = |pem: &str| {
        let pem = x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes()).next().unwrap().unwrap();
        pem.contents
    };
    let der_of = der(pem);
    let own = x509_parser::parse_x509_certificate(&der_of).unwrap().1;
    let is_of = |ca: &&str| {
        let ca = std::fs::read_to_string(cluster.dir.path().join(format!("pki/{ca}.crt"))).unwrap();
        let ca = der(&ca);
        let ca = x509_parser::parse_x509_certificate(&ca).unwrap().1;
        *own.issuer() == *ca.subject()
    };
    ["ca", "kubelet-serving-ca"].into_iter().filter(is_of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn csr_of_a_bootstrapping_node_is_approved_and_signed() {
    let cluster = Cluster::start_in(&[APPROVER, SIGNER], sign).await;
    let kubelet = "kube-apiserver-client-kubelet";
    let bootstrapper = cluster.user("system:bootstrap:abcdef", "system:bootstrappers").await;
    post(&bootstrapper, request("first", kubelet, "system:node:n7", "system:nodes", &[])).await;
    // nobody has granted these users anything
    post(&cluster.client, request("odd", kubelet, "n7", "system:nodes", &[])).await;
    let pem = certificate(&bootstrapper, "first").await;
    assert_eq!(issuer(&cluster, &pem), ["ca"]);
    let approval = &read(&cluster.client, "first").await["status"]["conditions"][0];
    assert_eq!(approval["reason"], "AutoApproved");
    assert_eq!(
        approval["message"],
        "Auto approving kubelet client certificate after SubjectAccessReview."
    );
    // A node renews its own certificate.
    let node = cluster.user("system:node:n1", "system:nodes").await;
    post(&node, request("own", kubelet, "system:node:n1", "system:nodes", &[])).await;
    certificate(&node, "own").await;
    let approval = &read(&cluster.client, "own").await["status"]["conditions"][0];
    assert_eq!(
        approval["message"],
        "Auto approving self kubelet client certificate after SubjectAccessReview."
    );
    assert!(read(&cluster.client, "odd").await["status"]["conditions"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn csr_is_signed_once_it_is_approved() {
    let cluster = Cluster::start_in(&[APPROVER, SIGNER], sign).await;
    let client = &cluster.client;
    post(client, request("jane", "kube-apiserver-client", "jane", "team", &[])).await;
    let mut odd = request("odd", "kubelet-serving", "system:node:n1", "system:nodes", &["n1"]);
    odd.spec.usages = Some(vec!["client auth".to_owned()]);
    post(client, odd).await;
    approve(client, "odd").await;
    let failed = eventually(
        "the failure",
        async || read(client, "odd").await,
        |found| found["status"]["conditions"][1]["type"] == "Failed",
    )
    .await;
    assert_eq!(failed["status"]["conditions"][1]["reason"], "SignerValidationFailure");
    assert!(read(client, "jane").await["status"]["certificate"].is_null());
    approve(client, "jane").await;
    assert_eq!(issuer(&cluster, &certificate(client, "jane").await), ["ca"]);

    // A new CA is used from the moment on that its files are there.
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "another");
    let pem = params.self_signed(&key).unwrap().pem();
    assert!(Authority::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes()).is_ok());
    std::fs::write(cluster.dir.path().join("pki/ca.crt"), pem).unwrap();
    post(client, request("joe", "kube-apiserver-client", "joe", "", &[])).await;
    approve(client, "joe").await;
    // only half of it is: the signer waits for the rest
    std::fs::write(cluster.dir.path().join("pki/ca.key"), key.serialize_pem()).unwrap();
    let joe = certificate(client, "joe").await;
    assert_eq!(issuer(&cluster, &joe), ["ca"]);
}

/// Issue 18, finding 9: a node writes its own addresses, so what it says is no proof that they are its
/// own.
#[tokio::test(flavor = "multi_thread")]
async fn csr_serving_certificate_names_nothing_but_the_node() {
    let cluster = Cluster::start_in(&[APPROVER, SIGNER], |settings, dir| {
        sign(settings, dir);
        settings.cluster.approve_kubelet_serving = true;
        settings.cluster.apiserver_host = Some("10.7.7.7".to_owned());
        settings.cluster.service_ranges = vec!["10.96.0.0/24".parse().unwrap()];
    })
    .await;
    let node = cluster.user("system:node:n1", "system:nodes").await;
    let foreign = [
        "kubernetes",
        "web.shop.svc.cluster.local",
        "127.0.0.1",
        "10.7.7.7",
        "10.96.0.1",
        "10.96.0.77",
        "n2",
        "10.2.2.2",
    ];
    let address = |address: &str| json!({"type": "InternalIP", "address": address});
    let create = async |client: &Client, name: &str, addresses: Value| {
        let node: Node = from_value(json!({
            "metadata": {"name": name}, "status": {"addresses": addresses}}))
        .unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    };
    create(&cluster.client, "n2", json!([address("10.2.2.2")])).await;
    let own: Vec<Value> = foreign.into_iter().chain(["10.1.2.3"]).map(address).collect();
    create(&node, "n1", json!(own)).await;
    let of = |name: &str, names: &[&str]| {
        request(name, "kubelet-serving", "system:node:n1", "system:nodes", names)
    };
    for (i, name) in foreign.iter().enumerate() {
        post(&node, of(&format!("foreign-{i}"), &["n1", name])).await;
    }
    post(&node, of("good", &["n1", "10.1.2.3"])).await;
    let pem = certificate(&node, "good").await;
    assert_eq!(issuer(&cluster, &pem), ["kubelet-serving-ca"]);
    for (i, name) in foreign.iter().enumerate() {
        let found = read(&node, &format!("foreign-{i}")).await;
        assert!(found["status"]["conditions"].is_null(), "{name}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_tokens_sign_cluster_info_and_end() {
    let cluster =
        Cluster::start_in(&["bootstrap-signer-controller", "token-cleaner-controller"], |_, _| {})
            .await;
    let token = |id: &str, expiration: &str| {
        json!({
            "metadata": {"name": format!("bootstrap-token-{id}")},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {"token-id": id, "token-secret": "0123456789abcdef",
                "usage-bootstrap-signing": "true", "expiration": expiration},
        })
    };
    cluster.create::<Secret>("kube-system", token("abcdef", "")).await;
    let other = json!({"metadata": {"name": "bootstrap-token-ghijkl"}, "stringData": {"a": "b"}});
    cluster.create::<Secret>("kube-system", other).await;
    cluster.create::<Secret>("kube-system", token("ended0", "2020-01-01T00:00:00Z")).await;
    let info = json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "c"}});
    cluster.create::<ConfigMap>("kube-public", info).await;
    let maps = cluster.api::<ConfigMap>("kube-public");
    let data = async || maps.get("cluster-info").await.unwrap().data.unwrap();
    let is_signed = |data: &BTreeMap<String, String>| data.contains_key("jws-kubeconfig-abcdef");
    let signed = eventually("a signature", data, is_signed).await;
    assert_eq!(signed.len(), 2);
    let secrets = async || cluster.names::<Secret>("kube-system").await;
    eventually("the end of a token", secrets, |names| {
        names.contains("bootstrap-token-ghijkl") && !names.contains("bootstrap-token-ended0")
    })
    .await;
    let secrets = cluster.api::<Secret>("kube-system");
    secrets.delete("bootstrap-token-abcdef", &Default::default()).await.unwrap();
    eventually("no signature", data, |data| !is_signed(data)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregated_roles_follow_their_parts() {
    let cluster = Cluster::start_in(&["clusterrole-aggregation-controller"], |_, _| {}).await;
    let api: Api<ClusterRole> = Api::all(cluster.client.clone());
    let rules = async |name: &str| api.get(name).await.unwrap().rules.unwrap_or_default();
    // in turn: view is part of edit, and edit of admin
    eventually(
        "the rules of admin",
        async || rules("admin").await,
        |rules| {
            rules.iter().any(|rule| {
                rule.resources.iter().flatten().any(|name| name == "configmaps")
                    && rule.verbs.iter().any(|verb| verb == "list")
            })
        },
    )
    .await;
    let part: ClusterRole = from_value(json!({
        "metadata": {"name": "part", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["things"]}],
    }))
    .unwrap();
    api.create(&PostParams::default(), &part).await.unwrap();
    let has = |rules: &Vec<k8s_openapi::api::rbac::v1::PolicyRule>| {
        rules.iter().any(|rule| rule.resources.iter().flatten().any(|name| name == "things"))
    };
    eventually("a new part", async || rules("admin").await, has).await;
    api.delete("part", &Default::default()).await.unwrap();
    eventually("no part", async || rules("admin").await, |rules| !has(rules)).await;
}
