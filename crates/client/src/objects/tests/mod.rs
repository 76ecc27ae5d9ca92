use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection};
use serde_json::{Value, json};

use super::fake::FakeApi;
use super::*;

mod watched;

fn pod(uid: &str, pod_spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "ns", "uid": uid},
        "spec": pod_spec,
    }))
    .unwrap()
}

fn with_secret(uid: &str) -> Pod {
    let volume = json!({"name": "v", "secret": {"secretName": "s"}});
    pod(uid, json!({"containers": [], "volumes": [volume]}))
}

fn value(secret: &Secret) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()["k"].0.clone()).unwrap()
}

fn put(api: &FakeApi, version: u64, data: &str) {
    // The API carries secret data as base64; these are "one" and "two".
    api.put("secrets", "s", version, json!({"data": {"k": data}}));
}

fn asking(api: &FakeApi) -> Objects {
    Objects::new(Some(api.client()), Detection::Cache(Duration::from_secs(60)))
}

/// Fetches each time.
fn impatient(api: &FakeApi) -> Objects {
    let detection = Detection::Cache(Duration::from_secs(60));
    Objects::build(Some(api.client()), detection, Duration::ZERO, None, None)
}

fn cached(objects: &Objects) -> usize {
    match &objects.inner.secrets {
        Store::Cached(cache) => cache.len(),
        Store::Watched(watched) => watched.len(),
        Store::Uncached => 0,
    }
}

const ONE: &str = "b25l";
const TWO: &str = "dHdv";

#[tokio::test]
async fn cached_readers_share_a_request_and_a_new_pod_refetches() {
    let api = FakeApi::start().await;
    put(&api, 1, ONE);
    api.delay(Duration::from_millis(50));
    let objects = asking(&api);
    objects.register(&with_secret("a"));

    let secrets = join_all((0..20).map(|_| objects.secret("ns", "s"))).await;
    assert!(secrets.iter().all(|secret| value(secret.as_ref().unwrap()) == "one"));
    assert_eq!(api.requests().len(), 1, "{:?}", api.requests());

    put(&api, 2, TWO);
    assert_eq!(value(&objects.secret("ns", "s").await.unwrap()), "one", "cached");
    objects.register(&with_secret("a"));
    assert_eq!(value(&objects.secret("ns", "s").await.unwrap()), "one", "the pod was known");
    objects.register(&with_secret("b"));
    assert_eq!(value(&objects.secret("ns", "s").await.unwrap()), "two", "a new pod");
    assert_eq!(api.requests().len(), 2);
}

#[tokio::test]
async fn object_is_cached_while_a_pod_uses_it() {
    let api = FakeApi::start().await;
    put(&api, 1, ONE);
    let objects = asking(&api);
    objects.secret("ns", "s").await.unwrap();
    assert_eq!(cached(&objects), 0, "no pod uses it");
    objects.register(&with_secret("a"));
    objects.register(&with_secret("b"));
    objects.unregister("a");
    objects.unregister("a");
    assert_eq!(cached(&objects), 1);
    objects.register(&pod("b", json!({"containers": []})));
    assert_eq!(cached(&objects), 0, "the pod lost the reference");
    objects.unregister("b");
    assert!(objects.pods().is_empty());
}

#[tokio::test]
async fn cached_object_is_refreshed_after_its_ttl_and_never_older() {
    let api = FakeApi::start().await;
    put(&api, 5, ONE);
    let objects = impatient(&api);
    objects.register(&with_secret("a"));
    assert_eq!(value(&objects.secret("ns", "s").await.unwrap()), "one");
    put(&api, 10, TWO);
    assert_eq!(value(&objects.secret("ns", "s").await.unwrap()), "two");
    api.put_stale("secrets", "s", 5, json!({"data": {"k": ONE}}));
    assert_eq!(value(&objects.secret("ns", "s").await.unwrap()), "two", "a stale replica");
    api.fail(true);
    assert_eq!(value(&objects.secret("ns", "s").await.unwrap()), "two", "the last known");
    api.fail(false);
    api.delete("secrets", "s");
    assert!(objects.secret("ns", "s").await.unwrap_err().is_not_found());

    let paths: Vec<_> = api.requests().into_iter().map(|(path, _)| path).collect();
    assert!(!paths[0].contains("resourceVersion"), "the first look is at the truth: {paths:?}");
    assert!(paths[1].contains("resourceVersion=0"), "looks for changes are cheap: {paths:?}");
}

#[tokio::test]
async fn immutable_object_is_not_fetched_again() {
    let api = FakeApi::start().await;
    api.put("configmaps", "c", 1, json!({"data": {"k": "v"}, "immutable": true}));
    let objects = impatient(&api);
    let env = json!([{"configMapRef": {"name": "c"}}]);
    objects.register(&pod("a", json!({"containers": [{"name": "c", "envFrom": env}]})));
    for _ in 0..3 {
        objects.config_map("ns", "c").await.unwrap();
    }
    assert_eq!(api.requests().len(), 1);
}

#[tokio::test]
async fn object_errors_name_the_object_and_are_not_cached() {
    let api = FakeApi::start().await;
    let objects = asking(&api);
    objects.register(&with_secret("a"));
    let error = objects.secret("ns", "s").await.unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "secret \"s\" not found");
    let error = objects.config_map("ns", "c").await.unwrap_err();
    assert_eq!(error.to_string(), "configmap \"c\" not found");

    api.fail(true);
    let error = objects.secret("ns", "s").await.unwrap_err();
    assert!(!error.is_not_found());
    assert_eq!(error.to_string(), "failed to get secret ns/s: the store is away");

    api.fail(false);
    put(&api, 1, ONE);
    objects.secret("ns", "s").await.unwrap();

    let alone = Objects::new(None, Detection::Watch).secret("ns", "s").await.unwrap_err();
    assert_eq!(alone.to_string(), "failed to get secret ns/s: no apiserver is configured");
}

#[tokio::test]
async fn references_are_found_in_every_field() {
    let key = |kind: &str, name: &str| json!({"name": "E", "valueFrom": {kind: {"name": name, "key": "k"}}});
    let container = |n: u32| {
        json!({
            "name": format!("c{n}"),
            "env": [key("secretKeyRef", &format!("s{n}")), key("configMapKeyRef", &format!("c{n}")), {"name": "P"}],
            "envFrom": [{"secretRef": {"name": format!("sf{n}")}}, {"configMapRef": {"name": format!("cf{n}")}}],
        })
    };
    let pod = pod(
        "a",
        json!({
            "imagePullSecrets": [{"name": "pull"}, {"name": ""}],
            "initContainers": [container(1)],
            "containers": [container(2)],
            "ephemeralContainers": [container(3)],
            "volumes": [
                {"name": "a", "secret": {"secretName": "sv", "optional": true}},
                {"name": "b", "configMap": {"name": "cv"}},
                {"name": "c", "projected": {"sources": [{"secret": {"name": "sp"}}, {"configMap": {"name": "cp"}}]}},
                {"name": "d", "emptyDir": {}},
            ],
        }),
    );
    let secrets = ["s1", "s2", "s3", "sf1", "sf2", "sf3", "pull", "sv", "sp"];
    let config_maps = ["c1", "c2", "c3", "cf1", "cf2", "cf3", "cv", "cp"];
    let secrets = secrets.map(|name| Reference::Secret(cache::Key::new("ns", name)));
    let config_maps = config_maps.map(|name| Reference::ConfigMap(cache::Key::new("ns", name)));
    let expected: References = secrets.into_iter().chain(config_maps).collect();
    assert_eq!(references::of(&pod), expected);
}

#[tokio::test]
async fn token_is_bound_to_the_pod_and_renewed_in_time() {
    let api = FakeApi::start().await;
    let objects = asking(&api);
    let pod = pod("u-1", json!({"containers": [], "serviceAccountName": "robot"}));
    objects.register(&pod);
    let projection = ServiceAccountTokenProjection {
        audience: Some("vault".to_owned()),
        expiration_seconds: Some(7200),
        path: "token".to_owned(),
    };
    let first = objects.service_account_token(&pod, &projection).await.unwrap();
    assert_eq!(objects.service_account_token(&pod, &projection).await.unwrap(), first);
    let requests = api.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].0.starts_with("/api/v1/namespaces/ns/serviceaccounts/robot/token"));
    assert_eq!(
        requests[0].1["spec"],
        json!({
            "audiences": ["vault"],
            "expirationSeconds": 7200,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "pod-u-1", "uid": "u-1"},
        })
    );

    // Less than a fifth of its hour is left: it is renewed, and used on when that fails.
    api.token_life(600);
    let other = ServiceAccountTokenProjection { audience: None, ..projection.clone() };
    let short = objects.service_account_token(&pod, &other).await.unwrap();
    assert_ne!(short, first, "another audience is another token");
    assert!(api.requests()[1].1["spec"].get("audiences").is_none());
    api.fail(true);
    assert_eq!(objects.service_account_token(&pod, &other).await.unwrap(), short);
    api.fail(false);
    assert_ne!(objects.service_account_token(&pod, &other).await.unwrap(), short);

    // One that has ended is of no use.
    api.token_life(-1);
    objects.unregister("u-1");
    objects.register(&pod);
    objects.service_account_token(&pod, &other).await.unwrap();
    api.fail(true);
    let error = objects.service_account_token(&pod, &other).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to fetch token of service account ns/robot: the store is away"
    );

    let nobody = self::pod("u-2", json!({"containers": []}));
    assert!(objects.service_account_token(&nobody, &projection).await.is_err());
}

#[tokio::test]
async fn token_request_is_retried_on_403() {
    let api = FakeApi::start().await;
    let objects = asking(&api);
    let pod = pod("u-1", json!({"containers": [], "serviceAccountName": "robot"}));
    objects.register(&pod);
    let projection =
        ServiceAccountTokenProjection { path: "token".to_owned(), ..Default::default() };
    api.refuse_tokens(2);
    objects.service_account_token(&pod, &projection).await.expect("the third time");
    assert_eq!(api.requests().len(), 3);

    let projection =
        ServiceAccountTokenProjection { audience: Some("vault".to_owned()), ..projection };
    api.refuse_tokens(100);
    let error = objects.service_account_token(&pod, &projection).await.unwrap_err();
    assert!(error.to_string().ends_with("scheduled on a different node"), "{error}");
    assert_eq!(api.requests().len(), 7, "and then given up, for the worker to try later");
}
