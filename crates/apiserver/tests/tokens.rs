//! Who is known by what token, and for how long.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use common::*;
use longshore_apiserver::{AuthenticationConfig, TokenConfig};
use serde_json::{Value, json};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const PODS: &str = "/api/v1/namespaces/default/pods";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const API: &str = "https://kubernetes.default.svc.cluster.local";

fn request(spec: Value) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap_or_default()
}

/// What a token says, unverified.
fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

impl Cluster {
    async fn token(&self, account: &str, spec: Value) -> String {
        let path = format!("{ACCOUNTS}/{account}/token");
        let answer = self.admin.create(&path, request(spec)).await;
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Who one is with a token: code and user.
    fn who(&self, token: &str) -> (u16, Value) {
        let bearer = format!("authorization: Bearer {token}");
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let arguments =
            ["-H", &bearer, "-H", "content-type: application/json", "-d", &body.to_string()];
        let (code, text) = self.curl(WHO, &arguments);
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        match code {
            201 => (code, answer["status"]["userInfo"].clone()),
            _ => {
                assert_eq!(
                    (answer["kind"].as_str(), answer["reason"].as_str()),
                    (Some("Status"), Some("Unauthorized"))
                );
                (code, answer)
            }
        }
    }

    async fn review(&self, token: &str, audiences: Value) -> Value {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        });
        self.admin.create(REVIEWS, review).await["status"].take()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_token_is_the_pods_for_as_long_as_it_lives() {
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
async fn tokens_end_with_their_account_secret_or_node() {
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
async fn a_token_is_good_for_its_audiences_alone() {
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
async fn requests_for_tokens_that_are_refused() {
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
            "cannot bind token to object of type v1, Kind=ConfigMap",
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
        let (got, status) = admin.call("POST", path, Some(request(spec.clone()))).await;
        assert_eq!(got, code, "{spec} {status}");
        assert!(message(&status).contains(why), "{status}");
    }
    for (metadata, code) in [
        (json!({"name": "other"}), 422),
        (json!({"namespace": "other"}), 422),
        (json!({"uid": "other"}), 409),
        (json!({"name": "robot", "namespace": "default", "uid": account["metadata"]["uid"]}), 201),
    ] {
        let mut request = request(json!({}));
        request["metadata"] = metadata.clone();
        assert_eq!(admin.call("POST", &robot, Some(request)).await.0, code, "{metadata}");
    }
    assert_eq!(admin.get(&robot).await.0, 405);

    let answer = admin.create(&robot, request(json!({"expirationSeconds": 86400}))).await;
    assert_eq!(answer["spec"], json!({"audiences": [API], "expirationSeconds": 7200}));
    assert_eq!(answer["metadata"]["name"], "robot");
    let claims = claims(answer["status"]["token"].as_str().unwrap());
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 7200);
    let end: jiff::Timestamp =
        answer["status"]["expirationTimestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!(end.as_second(), claims["exp"].as_i64().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bootstrap_tokens_are_secrets_of_the_cluster() {
    let cluster = Cluster::start().await;
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let secret = |id: &str, expiration: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}")},
            "stringData": {
                "token-id": id,
                "token-secret": "0123456789abcdef",
                "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
                "expiration": expiration,
            },
        })
    };
    cluster.admin.create(secrets, secret("abcdef", "2100-01-01T00:00:00Z")).await;
    cluster.admin.create(secrets, secret("badbad", "2000-01-01T00:00:00Z")).await;
    let (code, user) = cluster.who("abcdef.0123456789abcdef");
    assert_eq!((code, &user["username"]), (201, &json!("system:bootstrap:abcdef")));
    assert_eq!(
        user["groups"],
        json!([
            "system:bootstrappers",
            "system:bootstrappers:kubeadm:default-node-token",
            "system:authenticated"
        ])
    );
    for token in ["abcdef.0123456789abcdee", "badbad.0123456789abcdef", "aaaaaa.0123456789abcdef"] {
        assert_eq!(cluster.who(token).0, 401, "{token}");
        let review = cluster.review(token, json!([])).await;
        assert!(!review.to_string().contains("0123456789abcdef"), "{review}");
    }
    let path = format!("{secrets}/bootstrap-token-abcdef");
    assert_eq!(cluster.admin.call("DELETE", &path, None).await.0, 200);
    assert_eq!(cluster.who("abcdef.0123456789abcdef").0, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_tokens_and_nobody_else() {
    let cluster = Cluster::start_with(|config| {
        let file = config.cert_dir.with_file_name("tokens.csv");
        std::fs::write(&file, "open-sesame,ali,7,\"system:masters,forty\"\n").unwrap();
        config.authentication = AuthenticationConfig {
            anonymous: false,
            bootstrap_tokens: false,
            token_file: Some(file),
            tokens: TokenConfig { audiences: vec!["api".into()], ..TokenConfig::default() },
        };
    })
    .await;
    let (code, user) = cluster.who("open-sesame");
    assert_eq!((code, &user["username"], &user["uid"]), (201, &json!("ali"), &json!("7")));
    assert_eq!(cluster.who("open-sesam").0, 401);
    assert_eq!(
        cluster.review("open-sesame", json!(["api", "x"])).await["audiences"],
        json!(["api"])
    );
    assert_eq!(cluster.review("open-sesame", json!(["x"])).await["authenticated"], Value::Null);
    let bearer = ["-H", "authorization: Bearer open-sesame"];
    assert_eq!(cluster.curl("/api/v1/nodes", &bearer).0, 200);
    // Nobody is served, not even with what anybody may see.
    assert_eq!(cluster.curl("/healthz", &[]).0, 401);
    assert_eq!(cluster.curl("/healthz", &bearer).0, 200);
    // Ali in a service account's place, down to its pod.
    let as_other = [
        "-H",
        "authorization: Bearer open-sesame",
        "-H",
        "impersonate-user: jane",
        "-H",
        "impersonate-uid: 42",
        "-H",
        "impersonate-extra-acme.com%2fproject: x",
        "-H",
        "content-type: application/json",
        "-d",
        r#"{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}"#,
    ];
    let (code, text) = cluster.curl(WHO, &as_other);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, 201, "{text}");
    assert_eq!(
        answer["status"]["userInfo"],
        json!({
            "username": "jane",
            "uid": "42",
            "groups": ["system:authenticated"],
            "extra": {"acme.com/project": ["x"]},
        })
    );
    let id = cluster.token("default", json!({"audiences": ["api"]})).await;
    let poor = format!("authorization: Bearer {id}");
    let (code, text) = cluster.curl("/healthz", &["-H", &poor, "-H", "impersonate-user: ali"]);
    assert_eq!(code, 403, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_can_verify_tokens_by_themselves() {
    let cluster = Cluster::start().await;
    let token = cluster.token("default", json!({})).await;
    let bearer = format!("authorization: Bearer {token}");
    for path in ["/.well-known/openid-configuration", "/openid/v1/jwks"] {
        assert_eq!(cluster.curl(path, &[]).0, 401, "{path}");
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
async fn hostile_tokens_get_a_401_and_nothing_else() {
    let cluster = Cluster::start().await;
    let good = cluster.token("default", json!({})).await;
    let file = cluster.dir.path().join("header");
    for token in [
        b"x".as_slice(),
        b"..",
        b"\xff\xfe\xfd",
        good.replace('.', "..").as_bytes(),
        good.to_uppercase().as_bytes(),
        format!("{good}.{good}").as_bytes(),
        &good.as_bytes()[..good.len() - 1],
        ".".repeat(50_000).as_bytes(),
        "a".repeat(50_000).as_bytes(),
        format!("{}.{}.x", "e30".repeat(9000), "e30".repeat(9000)).as_bytes(),
    ] {
        std::fs::write(&file, [b"authorization: Bearer ", token].concat()).unwrap();
        let header = format!("@{}", file.display());
        for version in ["--http1.1", "--http2"] {
            let (code, text) = cluster.curl("/healthz", &["-H", &header, version]);
            assert_eq!(code, 401, "{version} {}", String::from_utf8_lossy(token));
            assert!(text.len() < 500 && text.contains("Unauthorized"), "{text}");
        }
    }
    for token in [".".repeat(2 << 20), "\u{0}".into(), "é".repeat(1000), "{\"a\":".repeat(1000)] {
        let review = cluster.review(&token, json!([])).await;
        assert_eq!(review, json!({"user": {}, "error": "invalid bearer token"}));
    }
    // Two credentials: what the connection proves counts, and a token beside it does not hurt.
    let (code, _) = cluster.admin_curl("/api/v1/nodes", &["-H", "authorization: Bearer x"]);
    assert_eq!(code, 200);
    assert_eq!(cluster.who(&good).0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secrets_encoding_of_a_bootstrap_token_is_read_as_it_is() {
    let cluster = Cluster::start().await;
    let field = |text: &str| STANDARD.encode(text);
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef"},
        "data": {
            "token-id": field("abcdef"),
            "token-secret": field("0123456789abcdef"),
            "usage-bootstrap-authentication": field("true"),
        },
    });
    // In another namespace it is a secret like any other.
    cluster.admin.create("/api/v1/namespaces/default/secrets", secret.clone()).await;
    assert_eq!(cluster.who("abcdef.0123456789abcdef").0, 401);
    cluster.admin.create("/api/v1/namespaces/kube-system/secrets", secret).await;
    assert_eq!(cluster.who("abcdef.0123456789abcdef").0, 201);
}
