//! Objects that are watched, and which pods are notified of their changes.

use tokio::time::{sleep, timeout};

use super::*;

const SOON: Duration = Duration::from_secs(10);

fn watching(api: &FakeApi) -> Objects {
    Objects::new(Some(api.client()), Detection::Watch)
}

fn with(uid: &str, secret: &str) -> Pod {
    let volume = json!({"name": "v", "secret": {"secretName": secret}});
    pod(uid, json!({"containers": [], "volumes": [volume]}))
}

async fn next_change(changes: &Changes) -> Changed {
    timeout(SOON, changes.next()).await.expect("a change is reported soon")
}

/// Whether no change is reported for a while.
async fn is_quiet(changes: &Changes) -> bool {
    timeout(Duration::from_millis(100), changes.next()).await.is_err()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn secret(objects: &Objects, name: &str) -> Result<String, Error> {
    objects.secret("ns", name).await.map(|secret| value(&secret))
}

fn lists(api: &FakeApi) -> usize {
    let requests = api.requests();
    requests.iter().filter(|(path, _)| !path.contains("watch=true")).count()
}

#[tokio::test]
async fn watch_is_shared_by_pods_and_ends_with_the_last() {
    let api = FakeApi::start().await;
    put(&api, 1, ONE);
    let objects = watching(&api);
    let pods: Vec<_> = (0..20).map(|n| with(&format!("u{n}"), "s")).collect();
    let changes: Vec<_> = pods.iter().map(|pod| objects.register(pod)).collect();
    let values = join_all((0..20).map(|_| secret(&objects, "s"))).await;
    assert!(values.iter().all(|value| value.as_deref().unwrap() == "one"), "{values:?}");
    until("one watch", || api.watches() == 1).await;
    assert_eq!(api.requests().len(), 2, "a list and a watch: {:?}", api.requests());
    assert!(is_quiet(&changes[0]).await, "what is read first is no change");

    put(&api, 2, TWO);
    for (pod, changes) in pods.iter().zip(&changes) {
        let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
        assert!(next_change(changes).await.touches(pod, volume));
    }
    assert_eq!(secret(&objects, "s").await.unwrap(), "two");
    assert_eq!(api.requests().len(), 2, "and nothing was asked");

    (0..20).for_each(|n| objects.unregister(&format!("u{n}")));
    until("no watch", || api.watches() == 0).await;
    assert_eq!(cached(&objects), 0);
}

#[tokio::test]
async fn watch_change_notifies_only_referring_pods() {
    let api = FakeApi::start().await;
    put(&api, 1, ONE);
    api.put("secrets", "other", 2, json!({"data": {"k": ONE}}));
    let objects = watching(&api);
    let concerned = objects.register(&with("a", "s"));
    let other = objects.register(&with("b", "other"));
    secret(&objects, "s").await.unwrap();
    secret(&objects, "other").await.unwrap();
    put(&api, 3, TWO);
    let changed = next_change(&concerned).await;
    assert!(is_quiet(&other).await);
    let volume = |source: Value| -> k8s_openapi::api::core::v1::Volume {
        let mut volume = source;
        volume["name"] = json!("v");
        serde_json::from_value(volume).unwrap()
    };
    for (source, expected) in [
        (json!({"secret": {"secretName": "s"}}), true),
        (json!({"secret": {"secretName": "other"}}), false),
        (json!({"configMap": {"name": "s"}}), false),
        (json!({"emptyDir": {}}), false),
        (
            json!({"projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}]}}),
            true,
        ),
        (
            json!({"projected": {"sources": [{"downwardAPI": {}}, {"serviceAccountToken": {"path": "t"}}]}}),
            false,
        ),
    ] {
        assert_eq!(changed.touches(&with("a", "s"), &volume(source.clone())), expected, "{source}");
    }
    for (source, expected) in [
        (json!({"downwardAPI": {}}), true),
        (json!({"projected": {"sources": [{"downwardAPI": {}}]}}), true),
        (json!({"secret": {"secretName": "s"}}), false),
    ] {
        let touches = Changed::pod().touches(&with("a", "s"), &volume(source.clone()));
        assert_eq!(touches, expected, "{source}");
    }
}

#[tokio::test]
async fn watch_notifies_creation_and_deletion_of_missing_objects() {
    let api = FakeApi::start().await;
    let objects = watching(&api);
    let changes = objects.register(&with("a", "s"));
    assert!(secret(&objects, "s").await.unwrap_err().is_not_found());
    put(&api, 1, ONE);
    next_change(&changes).await;
    assert_eq!(secret(&objects, "s").await.unwrap(), "one");
    api.delete("secrets", "s");
    next_change(&changes).await;
    assert!(secret(&objects, "s").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn watch_resumes_after_a_disconnect() {
    let api = FakeApi::start().await;
    put(&api, 1, ONE);
    let objects = watching(&api);
    let changes = objects.register(&with("a", "s"));
    secret(&objects, "s").await.unwrap();
    until("a watch", || api.watches() == 1).await;

    api.cut_watches();
    put(&api, 2, TWO);
    next_change(&changes).await;
    assert_eq!(secret(&objects, "s").await.unwrap(), "two");
    assert_eq!(lists(&api), 1, "{:?}", api.requests());

    // An unreachable server: the last known object is used, and missed changes are reported later.
    until("a watch", || api.watches() == 1).await;
    api.fail(true);
    api.cut_watches();
    put(&api, 3, ONE);
    until("another try", || api.watches() == 0).await;
    assert_eq!(secret(&objects, "s").await.unwrap(), "two");
    api.fail(false);
    next_change(&changes).await;
    assert_eq!(secret(&objects, "s").await.unwrap(), "one");
    assert!(is_quiet(&changes).await);

    // One that has forgotten what happened since: the object is read again.
    until("a watch", || api.watches() == 1).await;
    api.cut_watches();
    put(&api, 4, TWO);
    api.forget();
    next_change(&changes).await;
    assert_eq!(secret(&objects, "s").await.unwrap(), "two");
    assert_eq!(lists(&api), 2, "{:?}", api.requests());
}

#[tokio::test]
async fn watched_reader_ends_the_backoff() {
    let api = FakeApi::start().await;
    api.fail(true);
    let objects = watching(&api);
    let changes = objects.register(&with("a", "s"));
    let error = secret(&objects, "s").await.unwrap_err();
    assert_eq!(error.to_string(), "failed to get secret ns/s: the store is away");
    api.fail(false);
    put(&api, 1, ONE);
    let value = timeout(Duration::from_millis(700), secret(&objects, "s")).await.expect("at once");
    assert_eq!(value.unwrap(), "one");
    next_change(&changes).await;
}

#[tokio::test]
async fn immutable_objects_are_not_watched_but_read_again_for_a_new_pod() {
    let api = FakeApi::start().await;
    let immutable = |data: &str| json!({"data": {"k": data}, "immutable": true});
    api.put("secrets", "s", 1, immutable(ONE));
    let objects = watching(&api);
    objects.register(&with("a", "s"));
    assert_eq!(secret(&objects, "s").await.unwrap(), "one");
    sleep(Duration::from_millis(50)).await;
    assert_eq!((api.requests().len(), api.watches()), (1, 0));

    api.delete("secrets", "s");
    api.put("secrets", "s", 3, immutable(TWO));
    assert_eq!(secret(&objects, "s").await.unwrap(), "one", "as the pod has it");
    objects.register(&with("b", "s"));
    assert_eq!(secret(&objects, "s").await.unwrap(), "two");

    // One that becomes so is not watched any more.
    put(&api, 4, ONE);
    api.put("secrets", "late", 5, json!({"data": {"k": ONE}}));
    let changes = objects.register(&with("c", "late"));
    secret(&objects, "late").await.unwrap();
    until("a watch", || api.watches() == 1).await;
    api.put("secrets", "late", 6, immutable(TWO));
    next_change(&changes).await;
    until("no watch", || api.watches() == 0).await;
    assert_eq!(secret(&objects, "late").await.unwrap(), "two");
}

#[tokio::test]
async fn field_selector_names_are_escaped() {
    let api = FakeApi::start().await;
    put(&api, 1, ONE);
    let objects = watching(&api);
    let name = "s,metadata.namespace=other";
    objects.register(&with("a", name));
    assert!(secret(&objects, name).await.unwrap_err().is_not_found());
    let (path, _) = &api.requests()[0];
    assert!(
        path.ends_with("fieldSelector=metadata.name%3Ds%5C%2Cmetadata.namespace%5C%3Dother"),
        "{path}"
    );
}

#[tokio::test]
async fn change_detection_without_watches_polls_as_upstream() {
    let api = FakeApi::start().await;
    put(&api, 1, ONE);
    let period = Duration::from_millis(100);
    for (detection, asked) in [(Detection::Get(period), 3), (Detection::Cache(period), 1)] {
        let before = api.requests().len();
        let objects = Objects::new(Some(api.client()), detection);
        let pod = with("a", "s");
        let changes = objects.register(&pod);
        for _ in 0..3 {
            secret(&objects, "s").await.unwrap();
        }
        assert_eq!(api.requests().len() - before, asked, "{detection:?}");
        assert_eq!(api.watches(), 0);
        // There are no watches, so all of it is resynced periodically.
        let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
        assert!(next_change(&changes).await.touches(&pod, volume));
    }
}

#[tokio::test]
async fn token_renewal_is_notified_when_due() {
    let api = FakeApi::start().await;
    let objects = watching(&api);
    let token =
        json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
    let spec = json!({"containers": [], "serviceAccountName": "robot", "volumes": [token]});
    let pod = pod("u", spec);
    let changes = objects.register(&pod);
    let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
    let source = &volume.projected.as_ref().unwrap().sources.as_ref().unwrap()[0];
    let projection = source.service_account_token.as_ref().unwrap();
    objects.service_account_token(&pod, projection).await.unwrap();
    assert!(is_quiet(&changes).await);

    // A token with less than a fifth of its hour left is due at once; when it cannot be renewed,
    // that is tried again later and not all the time.
    objects.unregister("u");
    let changes = objects.register(&pod);
    api.token_life(600);
    let first = objects.service_account_token(&pod, projection).await.unwrap();
    let changed = next_change(&changes).await;
    assert!(changed.touches(&pod, volume));
    api.fail(true);
    assert_eq!(objects.service_account_token(&pod, projection).await.unwrap(), first);
    assert!(is_quiet(&changes).await);
    api.fail(false);
    api.token_life(3600);
    assert_ne!(objects.service_account_token(&pod, projection).await.unwrap(), first);
    assert!(is_quiet(&changes).await);
}
