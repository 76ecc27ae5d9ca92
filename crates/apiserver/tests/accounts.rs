//! What namespaces and pods have of service accounts, and that it stays.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use serde_json::{Value, json};

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_account_defaults_of_every_namespace() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let ca = std::fs::read_to_string(cluster.pki().join("ca.crt")).unwrap();
    admin.create("/api/v1/namespaces", namespace("shop")).await;
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease", "shop"] {
        let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
        let map = format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt");
        let has_all = async || {
            let (code, found) = admin.get(&map).await;
            let is_intact = code == 200 && found["data"] == json!({"ca.crt": ca});
            is_intact && admin.get(&account).await.0 == 200
        };
        // There with the namespace: a pod may be made at once.
        assert!(has_all().await, "{namespace}");
        for path in [&account, &map] {
            assert_eq!(admin.call("DELETE", path, None).await.0, 200, "{path}");
            eventually("healing what was deleted", has_all).await;
        }
        for patch in [
            json!({"data": {"ca.crt": "mine"}}),
            json!({"data": null}),
            json!({"data": {"more": "x"}}),
            json!({"metadata": {"annotations": null}}),
        ] {
            assert_eq!(admin.call("PATCH", &map, Some(patch)).await.0, 200);
            eventually("healing what was edited", has_all).await;
        }
    }
    // A namespace that goes is not kept alive by what is made in it.
    assert_eq!(admin.call("DELETE", "/api/v1/namespaces/shop", None).await.0, 200);
    eventually("the end of the namespace", async || {
        admin.get("/api/v1/namespaces/shop").await.0 == 404
    })
    .await;
    let left = admin.get("/api/v1/configmaps").await.1["items"].as_array().unwrap().len();
    assert_eq!(left, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_account_token_in_pods() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let pods = "/api/v1/namespaces/default/pods";
    let made = admin.create(pods, pod("web", "")).await;
    let spec = &made["spec"];
    assert_eq!(
        (&spec["serviceAccountName"], &spec["serviceAccount"]),
        (&json!("default"), &json!("default"))
    );
    let (volume, mount) = (&spec["volumes"][0], &spec["containers"][0]["volumeMounts"][0]);
    assert_eq!(volume["name"], mount["name"]);
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3607);
    // Written back as it was read, the pod is the same.
    let (code, again) = admin.call("PUT", &format!("{pods}/web"), Some(made.clone())).await;
    assert_eq!((code, &again["spec"]), (200, &made["spec"]));

    let mut absent = pod("lost", "");
    absent["spec"]["serviceAccountName"] = "nobody".into();
    let (code, status) = admin.call("POST", pods, Some(absent)).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (
            403,
            "pods \"lost\" is forbidden: error looking up service account default/nobody: \
             serviceaccount \"nobody\" not found"
        )
    );
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": "strict",
            "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"},
        },
        "automountServiceAccountToken": false,
        "imagePullSecrets": [{"name": "pull"}],
    });
    admin.create("/api/v1/namespaces/default/serviceaccounts", account).await;
    let mut strict = pod("strict", "");
    strict["spec"]["serviceAccountName"] = "strict".into();
    let made = admin.create(pods, strict.clone()).await;
    assert!(made["spec"]["volumes"].as_array().is_none_or(Vec::is_empty), "{made}");
    assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    // Nor may a container be added later that has what the account does not name.
    let variable = json!({"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}});
    let debugger = json!({"name": "d", "image": "busybox", "env": [variable]});
    let patch = json!({"spec": {"ephemeralContainers": [debugger]}});
    let path = format!("{pods}/strict/ephemeralcontainers");
    let (code, status) = admin.call("PATCH", &path, Some(patch.clone())).await;
    assert_eq!(code, 403, "{status}");
    assert!(status["message"].as_str().unwrap().contains("ephemeral container d with envVar V"));
    let path = format!("{pods}/web/ephemeralcontainers");
    assert_eq!(admin.call("PATCH", &path, Some(patch)).await.0, 200);

    let mut mirror = pod("mirror", "");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    let made = admin.create(pods, mirror.clone()).await;
    assert!(
        made["spec"].get("serviceAccountName").is_none() && made["spec"].get("volumes").is_none()
    );
    mirror["metadata"]["name"] = "other".into();
    mirror["spec"]["serviceAccountName"] = "default".into();
    let (code, status) = admin.call("POST", pods, Some(mirror)).await;
    assert_eq!(code, 403, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_account_root_ca_file() {
    let cluster = Cluster::start_with(|config| {
        let other = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::default().self_signed(&other).unwrap().pem();
        let path = config.cert_dir.with_file_name("root.crt");
        std::fs::write(&path, pem).unwrap();
        config.root_ca = Some(path);
    })
    .await;
    let path = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt";
    let expected = std::fs::read_to_string(cluster.dir.path().join("root.crt")).unwrap();
    assert_eq!(cluster.admin.get(path).await.1["data"]["ca.crt"], expected);
}
