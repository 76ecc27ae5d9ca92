//! Who calls, by what is shown: bootstrap tokens, tokens of a file, and what is no good.

use crate::common;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::tokens::{SELF_REVIEWS, self_review};
use common::*;
use longshore_apiserver::{Anonymous, AuthenticationConfig, FrontProxyConfig, TokenConfig};
use longshore_serving::FrontProxyHeaders;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bootstrap_tokens_from_secrets() {
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
async fn bootstrap_token_secret_encoding() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_file_authentication_without_anonymous() {
    let cluster = Cluster::start_with(|config| {
        let file = config.cert_dir.with_file_name("tokens.csv");
        std::fs::write(&file, "open-sesame,ali,7,\"system:masters,forty\"\n").unwrap();
        config.authentication = AuthenticationConfig {
            front_proxy: None,
            anonymous: Anonymous::default(),
            bootstrap_tokens: false,
            token_file: Some(file),
            tokens: TokenConfig { audiences: vec!["api".into()], ..TokenConfig::default() },
            ..AuthenticationConfig::default()
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
    // No anonymous requests are served, not even public paths.
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
        &self_review(),
    ];
    let (code, text) = cluster.curl(SELF_REVIEWS, &as_other);
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
async fn hostile_tokens_get_401() {
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
    let (code, answer) = cluster
        .admin_curl(SELF_REVIEWS, &["-H", "content-type: application/json", "-d", &self_review()]);
    let id = answer["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0]
        .as_str();
    assert!(code == 201 && id.unwrap().starts_with("X509SHA256="), "{answer}");
    // Two credentials: what the connection proves counts, and a token beside it does not hurt.
    let (code, _) = cluster.admin_curl("/api/v1/nodes", &["-H", "authorization: Bearer x"]);
    assert_eq!(code, 200);
    assert_eq!(cluster.who(&good).0, 201);
}

/// A server with certificates of its own is a front proxy of its own, as which it calls aggregated servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn front_proxy_of_its_own_is_made_with_the_certificates() {
    let cluster = Cluster::start().await;
    let map = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let (_, map) = cluster.admin.get(map).await;
    let authority = std::fs::read_to_string(cluster.pki().join("front-proxy-ca.crt")).unwrap();
    assert_eq!(map["data"]["requestheader-client-ca-file"], authority);
    assert_ne!(map["data"]["client-ca-file"], authority);
    assert_eq!(map["data"]["requestheader-allowed-names"], "[\"front-proxy-client\"]");
    let body = self_review();
    let who = |stem: &str, headers: &[&str]| {
        let file = |end: &str| cluster.pki().join(format!("{stem}.{end}")).display().to_string();
        let (certificate, key) = (file("crt"), file("key"));
        let mut arguments = vec!["--cert", &certificate, "--key", &key, "-d", &body];
        arguments.extend(["-H", "content-type: application/json"]);
        arguments.extend(headers.iter().flat_map(|header| ["-H", header]));
        let (code, text) = cluster.curl(SELF_REVIEWS, &arguments);
        let review: Value = serde_json::from_str(&text).unwrap_or_default();
        (code, review["status"]["userInfo"]["username"].clone())
    };
    let (ann, masters) = ("x-remote-user: ann", "x-remote-group: system:masters");
    assert_eq!(who("front-proxy-client", &[ann]), (201, json!("ann")));
    // it is no user of the cluster itself, and nobody else names users
    assert_eq!(who("front-proxy-client", &[]).0, 401);
    let node = who("client-system_node_n1", &[ann, masters]);
    assert_eq!(node, (201, json!("system:node:n1")));
}

/// A front proxy names users in headers: with its certificate they count, without it they do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn front_proxy_headers_name_the_user() {
    let cluster = Cluster::start_with(|config| {
        let list = |name: &str| vec![name.to_owned()];
        config.authentication.front_proxy = Some(FrontProxyConfig {
            ca_file: config.cert_dir.join("ca.crt"),
            headers: FrontProxyHeaders {
                allowed_names: list("system:node:n1"),
                username_headers: list("X-Remote-User"),
                uid_headers: list("X-Remote-Uid"),
                group_headers: list("X-Remote-Group"),
                extra_prefixes: list("X-Remote-Extra-"),
            },
        });
    })
    .await;
    let headers = ["x-remote-user: ann", "x-remote-group: dev", "x-remote-extra-scopes: a"];
    let body = self_review();
    let who = |stem: &str| {
        let file = |end: &str| cluster.pki().join(format!("{stem}.{end}")).display().to_string();
        let (certificate, key) = (file("crt"), file("key"));
        let mut arguments = vec!["--cert", &certificate, "--key", &key, "-d", &body];
        arguments.extend(["-H", "content-type: application/json"]);
        for header in &headers {
            arguments.extend(["-H", header]);
        }
        let (code, text) = cluster.curl(SELF_REVIEWS, &arguments);
        let review: Value = serde_json::from_str(&text).unwrap_or_default();
        (code, review["status"]["userInfo"].clone())
    };
    let (code, user) = who("client-system_node_n1");
    assert_eq!((code, &user["username"]), (201, &json!("ann")), "{user}");
    assert_eq!(user["groups"], json!(["dev", "system:authenticated"]));
    assert_eq!(user["extra"]["scopes"], json!(["a"]));
    let (code, user) = who("client-kubernetes-admin");
    assert_eq!((code, &user["username"]), (201, &json!("kubernetes-admin")), "{user}");
    let map = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let (_, map) = cluster.admin.get(map).await;
    assert_eq!(map["data"]["requestheader-allowed-names"], "[\"system:node:n1\"]");
    assert_eq!(map["data"]["requestheader-username-headers"], "[\"X-Remote-User\"]");
}
