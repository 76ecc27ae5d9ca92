//! Tokens of service accounts: what they say, for whom, and for how long.

use crate::common;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::tokens::{ACCOUNTS, API, token_request};
use common::*;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap_or_default()
}

/// What a token says, unverified.
fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_of_a_pod_is_valid_while_it_exists() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let node = admin.create("/api/v1/nodes", node).await;
    let account = admin.get(&format!("{ACCOUNTS}/default")).await.1;
    let made = admin.create(PODS, pod("web", "n1")).await;
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid});
    let spec = json!({"boundObjectRef": bound, "expirationSeconds": 3607});
    let token = cluster.token("default", spec).await;

    let claims = claims(&token);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let iat = claims["iat"].as_i64().unwrap();
    assert_eq!(
        claims,
        json!({
            "aud": [API],
            "exp": iat + 365 * 24 * 3600,
            "iat": iat,
            "iss": API,
            "jti": claims["jti"],
            "kubernetes.io": {
                "namespace": "default",
                "node": {"name": "n1", "uid": node["metadata"]["uid"]},
                "pod": {"name": "web", "uid": uid},
                "serviceaccount": {"name": "default", "uid": account["metadata"]["uid"]},
                "warnafter": iat + 3607,
            },
            "nbf": iat,
            "sub": "system:serviceaccount:default:default",
        })
    );
    let extra = |key: &str| format!("authentication.kubernetes.io/{key}");
    let user = json!({
        "username": "system:serviceaccount:default:default",
        "uid": account["metadata"]["uid"],
        "groups": ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"],
        "extra": {
            extra("credential-id"): [format!("JTI={}", text(&claims["jti"]))],
            extra("pod-name"): ["web"],
            extra("pod-uid"): [uid],
            extra("node-name"): ["n1"],
            extra("node-uid"): [node["metadata"]["uid"]],
        },
    });
    assert_eq!(cluster.who(&token), (201, user.clone()));
    let review = cluster.review(&token, json!([])).await;
    assert_eq!(review, json!({"authenticated": true, "user": user, "audiences": [API]}));

    // Another pod of its name is not the same pod.
    let now = format!("{PODS}/web?gracePeriodSeconds=0");
    assert_eq!(admin.call("DELETE", &now, None).await.0, 200);
    assert_eq!(cluster.who(&token).0, 401);
    let review = cluster.review(&token, json!([])).await;
    assert_eq!(review, json!({"user": {}, "error": "service account token has been invalidated"}));
    admin.create(PODS, pod("web", "n1")).await;
    assert_eq!(cluster.who(&token).0, 401);
    let review = cluster.review(&token, json!([])).await;
    assert!(review["error"].as_str().unwrap().starts_with("pod UID ("), "{review}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_is_invalidated_with_its_bound_object() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    admin.create(ACCOUNTS, account.clone()).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    admin.create("/api/v1/namespaces/default/secrets", secret).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    admin.create("/api/v1/nodes", node).await;
    for (kind, name, path) in [
        ("Secret", "s", "/api/v1/namespaces/default/secrets/s".to_owned()),
        ("Node", "n1", "/api/v1/nodes/n1".to_owned()),
        ("", "", format!("{ACCOUNTS}/robot")),
    ] {
        let spec = match kind {
            "" => json!({}),
            kind => json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}}),
        };
        let token = cluster.token("robot", spec).await;
        let (code, user) = cluster.who(&token);
        assert_eq!((code, &user["username"]), (201, &json!("system:serviceaccount:default:robot")));
        assert_eq!(admin.call("DELETE", &path, None).await.0, 200);
        assert_eq!(cluster.who(&token).0, 401, "{kind}");
    }
    // A new account of the name does not inherit the tokens of the old one.
    admin.create(ACCOUNTS, account.clone()).await;
    let token = cluster.token("robot", json!({})).await;
    admin.call("DELETE", &format!("{ACCOUNTS}/robot"), None).await;
    admin.create(ACCOUNTS, account).await;
    assert_eq!(cluster.who(&token).0, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_audiences_are_enforced() {
    let cluster = Cluster::start().await;
    let token = cluster.token("default", json!({"audiences": ["vault", "bank"]})).await;
    assert_eq!(cluster.who(&token).0, 401);
    for (asked, got) in [
        (json!(["vault"]), json!(["vault"])),
        (json!(["x", "bank", "vault"]), json!(["bank", "vault"])),
        (json!([]), Value::Null),
        (json!(["x"]), Value::Null),
    ] {
        let review = cluster.review(&token, asked.clone()).await;
        assert_eq!(review["audiences"], got, "{asked}");
        assert_eq!(review["authenticated"] == true, !got.is_null(), "{asked}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_requests_that_are_rejected() {
    let cluster = Cluster::start_with(|config| {
        config.authentication.tokens.max_expiration = Some(7200);
    })
    .await;
    let admin = &cluster.admin;
    admin.create(PODS, pod("web", "")).await;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    let account = admin.create(ACCOUNTS, account).await;
    let bind = |kind: &str, name: &str, uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}});
    let default = format!("{ACCOUNTS}/default/token");
    let robot = format!("{ACCOUNTS}/robot/token");
    for (path, spec, code, why) in [
        (
            &default,
            json!({"expirationSeconds": 599}),
            422,
            "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
        ),
        (
            &default,
            json!({"expirationSeconds": (1i64 << 32) + 1}),
            422,
            "may not specify a duration larger than 2^32 seconds",
        ),
        (
            &default,
            bind("Pod", "web", "other"),
            409,
            "the UID in the bound object reference (other) does not match",
        ),
        (&default, bind("Pod", "absent", ""), 404, "pods \"absent\" not found"),
        (
            &default,
            bind("ConfigMap", "x", ""),
            400,
            "cannot bind token to object of type /v1, Kind=ConfigMap",
        ),
        (
            &robot,
            bind("Pod", "web", ""),
            400,
            "cannot bind token for serviceaccount \"robot\" to pod running with different serviceaccount name.",
        ),
        (
            &format!("{ACCOUNTS}/absent/token"),
            json!({}),
            404,
            "serviceaccounts \"absent\" not found",
        ),
    ] {
        let (got, status) = admin.call("POST", path, Some(token_request(spec.clone()))).await;
        assert_eq!(got, code, "{spec} {status}");
        assert!(message(&status).contains(why), "{status}");
    }
    for (metadata, code) in [
        (json!({"name": "other"}), 422),
        (json!({"namespace": "other"}), 400),
        (json!({"uid": "other"}), 409),
        (json!({"name": "robot", "namespace": "default", "uid": account["metadata"]["uid"]}), 201),
    ] {
        let mut request = token_request(json!({}));
        request["metadata"] = metadata.clone();
        assert_eq!(admin.call("POST", &robot, Some(request)).await.0, code, "{metadata}");
    }
    assert_eq!(admin.get(&robot).await.0, 405);

    let answer = admin.create(&robot, token_request(json!({"expirationSeconds": 86400}))).await;
    assert_eq!(answer["spec"], json!({"audiences": [API], "expirationSeconds": 7200}));
    assert_eq!(answer["metadata"]["name"], "robot");
    let claims = claims(answer["status"]["token"].as_str().unwrap());
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 7200);
    let end: jiff::Timestamp =
        answer["status"]["expirationTimestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!(end.as_second(), claims["exp"].as_i64().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_verification_by_oidc_discovery() {
    let cluster = Cluster::start().await;
    let token = cluster.token("default", json!({})).await;
    let bearer = format!("authorization: Bearer {token}");
    for path in ["/.well-known/openid-configuration", "/openid/v1/jwks"] {
        assert_eq!(cluster.curl(path, &[]).0, 403, "{path}");
        assert_eq!(cluster.curl(path, &["-H", &bearer]).0, 200, "{path}");
    }
    let (_, document) = cluster.admin_curl("/.well-known/openid-configuration", &[]);
    assert_eq!(document["issuer"], API);
    assert_eq!(document["jwks_uri"], format!("https://{}/openid/v1/jwks", cluster.address));
    let header: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap())
            .unwrap();
    let (_, keys) = cluster.admin_curl("/openid/v1/jwks", &[]);
    assert_eq!(keys["keys"][0]["kid"], header["kid"]);
    assert!(keys["keys"][0].get("d").is_none(), "a private key: {keys}");
    let headers = cluster.curl("/openid/v1/jwks", &["-H", &bearer, "-D", "-", "-o", "/dev/null"]).1;
    assert!(headers.contains("application/jwk-set+json"), "{headers}");
    assert!(headers.contains("public, max-age=3600"), "{headers}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_request_by_a_node_only_for_its_pods() {
    let cluster = Cluster::start().await;
    let node = cluster.node().await;
    let (own, other) = (
        cluster.admin.create(PODS, pod("own", "n1")).await,
        cluster.admin.create(PODS, pod("other", "n2")).await,
    );
    let bind = |pod: &Value, audiences: Value| {
        let metadata = &pod["metadata"];
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]});
        json!({"boundObjectRef": bound, "audiences": audiences})
    };
    let unnamed = json!({"metadata": {"name": "own"}});
    let path = format!("{ACCOUNTS}/default/token");
    for (spec, code, why) in [
        (bind(&own, json!([])), 201, ""),
        (json!({}), 403, "node requested token not bound to a pod"),
        (bind(&unnamed, json!([])), 403, "node requested token with a pod binding without a uid"),
        (bind(&other, json!([])), 403, "bound to a pod scheduled on a different node"),
        (bind(&own, json!(["vault"])), 403, "audience \"vault\" not found in pod spec volume"),
    ] {
        let (got, answer) = node.call("POST", &path, Some(token_request(spec.clone()))).await;
        assert_eq!(got, code, "{spec} {answer}");
        assert!(message(&answer).contains(why), "{answer}");
    }
}
