//! What pods have of service accounts.

use crate::common;

use common::*;
use serde_json::json;

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
