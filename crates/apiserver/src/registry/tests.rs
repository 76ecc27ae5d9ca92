#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use longshore_store::{EmbeddedStore, ListOptions, Page, WatchItem};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::kinds::lookup;
use crate::text::TextBuilder;

/// A real store that counts its watches.
struct Counting {
    store: EmbeddedStore,
    watches: AtomicUsize,
}

#[async_trait]
impl Store for Counting {
    async fn get(&self, key: &str) -> longshore_store::Result<Option<KeyValue>> {
        self.store.get(key).await
    }
    async fn list(&self, prefix: &str, options: ListOptions) -> longshore_store::Result<Page> {
        self.store.list(prefix, options).await
    }
    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        ttl: Option<Duration>,
    ) -> longshore_store::Result<KeyValue> {
        self.store.put(key, value, expect, ttl).await
    }
    async fn delete(
        &self,
        key: &str,
        expect: Revision,
    ) -> longshore_store::Result<(KeyValue, Revision)> {
        self.store.delete(key, expect).await
    }
    async fn watch(
        &self,
        prefix: &str,
        after: Revision,
    ) -> longshore_store::Result<BoxStream<'static, longshore_store::Result<WatchItem>>> {
        self.watches.fetch_add(1, Ordering::Relaxed);
        self.store.watch(prefix, after).await
    }
    async fn revision(&self) -> longshore_store::Result<Revision> {
        self.store.revision().await
    }
    async fn compact(&self, revision: Revision) -> longshore_store::Result<()> {
        self.store.compact(revision).await
    }
}

async fn registry() -> (tempfile::TempDir, Arc<Counting>, Registry) {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path().join("store")).await.unwrap();
    let store = Arc::new(Counting { store, watches: AtomicUsize::new(0) });
    let registry = Registry::new(store.clone());
    (dir, store, registry)
}

fn maps() -> &'static Resource {
    lookup("", "v1", "configmaps").unwrap()
}

fn map(name: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}})
}

#[tokio::test]
async fn registry_storage_keys_are_upstreams() {
    let (_dir, store, registry) = registry().await;
    let created = registry.create(maps(), map("a"), None).await.unwrap();
    let stored = store.get("/registry/configmaps/default/a").await.unwrap().unwrap();
    assert_eq!(object::resource_version(&created), stored.mod_revision.to_string());
    let raw: Value = serde_json::from_slice(&stored.value).unwrap();
    assert!(raw["metadata"].get("resourceVersion").is_none());
    for (group, plural, key) in [
        ("", "nodes", "/registry/minions/x"),
        ("", "services", "/registry/services/specs/ns/x"),
        ("", "endpoints", "/registry/services/endpoints/ns/x"),
        ("", "replicationcontrollers", "/registry/controllers/ns/x"),
        ("", "namespaces", "/registry/namespaces/x"),
        ("coordination.k8s.io", "leases", "/registry/leases/ns/x"),
        ("discovery.k8s.io", "endpointslices", "/registry/endpointslices/ns/x"),
        ("events.k8s.io", "events", "/registry/events/ns/x"),
    ] {
        let resource = lookup(group, "v1", plural).unwrap();
        assert_eq!(keys::object(resource, "ns", "x").unwrap(), key);
    }
    for (namespace, name) in
        [("ns", ""), ("ns", ".."), ("..", "x"), ("ns", "a/b"), ("ns", "a%2fb"), ("", "x")]
    {
        assert_eq!(
            keys::object(maps(), namespace, name).unwrap_err().code,
            400,
            "{namespace}/{name}"
        );
    }
}

/// Finding 13: one stored object that cannot be read failed every list that it was in.
#[tokio::test]
async fn registry_unreadable_object_leaves_the_others() {
    let (_dir, store, registry) = registry().await;
    registry.create(maps(), map("a"), None).await.unwrap();
    registry.create(maps(), map("z"), None).await.unwrap();
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let deep = format!(r#"{{"metadata":{{"name":"b","x":{deep}}}}}"#);
    let garbage = ["", "{", "7", "{}", "null", "k8s\0\n\x0b\n\x02v1", r#"{"metadata":[]}"#, &deep];
    for (index, text) in garbage.iter().enumerate() {
        let key = format!("/registry/configmaps/default/b{index}");
        let value = Bytes::copy_from_slice(text.as_bytes());
        store.put(&key, value, Expect::Absent, None).await.unwrap();
    }
    let selecting = |fields: &str| ListRequest {
        resource: maps(),
        namespace: "default",
        labels: Default::default(),
        fields: crate::selector::FieldSelector::parse(maps(), fields).unwrap(),
        limit: 0,
        continue_token: "",
        version: VersionMatch::Newest,
    };
    let names = async |fields: &str| {
        let mut names = Vec::new();
        let request = selecting(fields);
        let listed = registry.list(&request, |object| {
            names.push(object::name(&object).to_owned());
            Ok(())
        });
        listed.await.unwrap();
        names
    };
    assert_eq!(names("").await, ["a", "z"]);
    assert_eq!(names("metadata.name=b0").await, [""; 0]);
    for (index, text) in garbage.iter().enumerate() {
        let name = format!("b{index}");
        let error = registry.get(maps(), "default", &name).await.unwrap_err();
        assert_eq!(error.code, 500, "{text}");
        assert!(error.message.contains("cannot be read"), "{}", error.message);
        let place = ("default", name.as_str());
        let deleted = registry.delete_unreadable(maps(), place, false).await.unwrap().unwrap();
        assert_eq!(object::name(&deleted.object), name);
        assert_eq!(registry.get(maps(), "default", &name).await.unwrap_err().code, 404);
    }
    let place = ("default", "a");
    assert!(registry.delete_unreadable(maps(), place, false).await.unwrap().is_none());
}

/// Takes texts, and objects where there are none.
#[derive(Default)]
struct Listed {
    texts: Vec<Value>,
    objects: Vec<Value>,
}

impl Items for &mut Listed {
    fn object(&mut self, object: Value) -> Result<(), StatusError> {
        self.objects.push(object);
        Ok(())
    }

    fn takes_text(&self) -> bool {
        true
    }

    fn text(&mut self, text: ObjectText) -> Result<(), StatusError> {
        let mut written = TextBuilder::default();
        text.append(&mut written);
        self.texts.push(serde_json::from_slice(written.finish().join()).unwrap());
        Ok(())
    }
}

#[tokio::test]
async fn list_texts_are_what_the_objects_are() {
    let (_dir, store, registry) = registry().await;
    for name in ["a", "b"] {
        let mut map = map(name);
        map["data"] = json!({"metadata": "{\"metadata\":{}}", "\u{e4}": "\u{1}\\"});
        registry.create(maps(), map, None).await.unwrap();
    }
    // what others have written: with spaces, with a revision, damaged, of another kind
    for (name, text) in [
        (
            "c",
            r#" { "metadata" : { "name" : "c" } , "kind" : "ConfigMap" , "apiVersion" : "v1" } "#,
        ),
        (
            "d",
            r#"{"metadata":{"name":"d","resourceVersion":"1"},"kind":"ConfigMap","apiVersion":"v1"}"#,
        ),
        ("e", r#"{"metadata":{"name":"e"},"kind":"ConfigMap","apiVersion":"v1""#),
        ("f", r#"{"metadata":{"name":"f"},"kind":"ConfigMap","apiVersion":"v0"}"#),
    ] {
        let key = format!("/registry/configmaps/default/{name}");
        store.put(&key, text.into(), Expect::Absent, None).await.unwrap();
    }
    let request = |resource, labels: &str| ListRequest {
        resource,
        namespace: "default",
        labels: LabelSelector::parse(labels).unwrap(),
        fields: Default::default(),
        limit: 0,
        continue_token: "",
        version: VersionMatch::Newest,
    };
    let mut objects = Vec::new();
    let take = |object| {
        objects.push(object);
        Ok(())
    };
    registry.list(&request(maps(), ""), take).await.unwrap();
    let mut listed = Listed::default();
    registry.list(&request(maps(), ""), &mut listed).await.unwrap();
    let names = |objects: &[Value]| -> Vec<String> {
        objects.iter().map(|object| object::name(object).to_owned()).collect()
    };
    assert_eq!(names(&listed.texts), ["a", "b", "c"]);
    assert_eq!(names(&listed.objects), ["d", "f"]);
    let mut all = [listed.texts, listed.objects].concat();
    all.sort_by_key(|object| object::name(object).to_owned());
    assert_eq!(all, objects);
    for object in &objects {
        let mut text = registry.get_text(maps(), "default", object::name(object)).await.unwrap();
        assert_eq!(serde_json::from_slice::<Value>(text.join()).unwrap(), *object);
    }
    // what is known of a text is not that of the next one
    let key = "/registry/configmaps/default/c";
    let revision = store.get(key).await.unwrap().unwrap().mod_revision;
    let text = r#"{"kind":"ConfigMap","apiVersion":"v1","data":{"a":"{"},"metadata":{"name":"c"}}"#;
    store.put(key, text.into(), Expect::Revision(revision), None).await.unwrap();
    let expected = registry.get(maps(), "default", "c").await.unwrap();
    for _ in 0..2 {
        let mut listed = Listed::default();
        registry.list(&request(maps(), ""), &mut listed).await.unwrap();
        assert_eq!(listed.texts[2], expected);
    }
    assert_eq!(registry.get_text(maps(), "default", "e").await.unwrap_err().code, 500);
    assert_eq!(registry.get_text(maps(), "default", "x").await.unwrap_err().code, 404);
    // a selector has to see the object, and events are shown other than they are stored
    let mut selected = Listed::default();
    registry.list(&request(maps(), "a!=b"), &mut selected).await.unwrap();
    assert_eq!((selected.texts.len(), selected.objects.len()), (0, 5));
    let events = lookup("events.k8s.io", "v1", "events").unwrap();
    let event = json!({"kind": "Event", "apiVersion": "events.k8s.io/v1", "note": "n",
        "metadata": {"name": "e", "namespace": "default"}});
    registry.create(events, event, None).await.unwrap();
    let mut listed = Listed::default();
    registry.list(&request(events, ""), &mut listed).await.unwrap();
    assert_eq!((listed.texts.len(), listed.objects.len()), (0, 1));
}

#[tokio::test]
async fn watch_cache_shares_one_store_watch() {
    let (_dir, store, registry) = registry().await;
    let after = store.revision().await.unwrap();
    let mut watchers = Vec::new();
    for _ in 0..20 {
        watchers.push(registry.feeds().subscribe(maps(), after).await.unwrap());
    }
    registry.create(maps(), map("a"), None).await.unwrap();
    for watcher in &mut watchers {
        let change = watcher.next().await.unwrap().unwrap();
        assert_eq!(change.current.as_ref().unwrap().key(), "/registry/configmaps/default/a");
        assert_eq!(watcher.progress(), change.revision);
    }
    assert_eq!(store.watches.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn watch_cache_old_resource_version_catches_up() {
    let (_dir, store, registry) = registry().await;
    let first = registry.create(maps(), map("m0"), None).await.unwrap();
    let after: Revision = object::resource_version(&first).parse().unwrap();
    for i in 1..5 {
        registry.create(maps(), map(&format!("m{i}")), None).await.unwrap();
    }
    // The feed starts only now: it has not seen any of them.
    let mut late = registry.feeds().subscribe(maps(), after).await.unwrap();
    let mut names = Vec::new();
    for i in 5..8 {
        registry.create(maps(), map(&format!("m{i}")), None).await.unwrap();
    }
    while names.len() < 7 {
        let change = late.next().await.unwrap().unwrap();
        names.push(change.current.as_ref().unwrap().key().rsplit('/').next().unwrap().to_owned());
    }
    assert_eq!(names.join(" "), "m1 m2 m3 m4 m5 m6 m7");
    assert_eq!(store.watches.load(Ordering::Relaxed), 2);
    registry.feeds().subscribe(maps(), store.revision().await.unwrap()).await.unwrap();
    assert_eq!(store.watches.load(Ordering::Relaxed), 2, "the shared one");
    let error = registry.feeds().subscribe(maps(), 1_000_000).await.err().unwrap();
    assert_eq!(error.code, 504);
}

/// A store in which two objects went at once.
struct Together;

#[async_trait]
impl Store for Together {
    async fn get(&self, _: &str) -> longshore_store::Result<Option<KeyValue>> {
        Ok(None)
    }
    async fn list(&self, _: &str, _: ListOptions) -> longshore_store::Result<Page> {
        Ok(Page { items: Vec::new(), revision: 2, remaining: 0 })
    }
    async fn put(
        &self,
        _: &str,
        _: Bytes,
        _: Expect,
        _: Option<Duration>,
    ) -> longshore_store::Result<KeyValue> {
        Err(longshore_store::Error::Backend("read only".to_owned()))
    }
    async fn delete(&self, _: &str, _: i64) -> longshore_store::Result<(KeyValue, i64)> {
        Err(longshore_store::Error::Backend("read only".to_owned()))
    }
    async fn watch(
        &self,
        _: &str,
        after: i64,
    ) -> longshore_store::Result<BoxStream<'static, longshore_store::Result<WatchItem>>> {
        let event = |name: &str| {
            let key = format!("/registry/configmaps/default/{name}");
            let value = format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}").into();
            let (create_revision, mod_revision) = (1, 1);
            let previous =
                KeyValue { key: key.into(), value, create_revision, mod_revision, is_stale: false };
            Ok(WatchItem::Event(longshore_store::Event::Delete { previous, revision: 3 }))
        };
        let events = ["a", "b", "c"].map(event);
        let events = if after < 3 { events.into() } else { Vec::new() };
        Ok(futures::stream::iter(events).chain(futures::stream::pending()).boxed())
    }
    async fn revision(&self) -> longshore_store::Result<i64> {
        Ok(2)
    }
    async fn compact(&self, _: i64) -> longshore_store::Result<()> {
        Ok(())
    }
}

/// A lease of etcd that runs out takes many keys at one revision.
#[tokio::test]
async fn watch_cache_yields_all_changes_of_a_revision() {
    let registry = Registry::new(Arc::new(Together));
    // With all others, and from the store's own history.
    for after in [2, 1, 1] {
        let mut changes = registry.feeds().subscribe(maps(), after).await.unwrap();
        for expected in ["a", "b", "c"] {
            let change = changes.next().await.unwrap().unwrap();
            assert_eq!(change.previous.as_ref().unwrap().names(maps()), ("default", expected));
            tokio::task::yield_now().await;
        }
        let more = tokio::time::timeout(Duration::from_millis(20), changes.next()).await;
        assert!(more.is_err(), "a change came twice");
    }
}

#[tokio::test]
async fn watch_cache_slow_watcher_is_closed() {
    let (_dir, store, registry) = registry().await;
    let after = store.revision().await.unwrap();
    let mut slow = registry.feeds().subscribe(maps(), after).await.unwrap();
    let mut quick = registry.feeds().subscribe(maps(), after).await.unwrap();
    for i in 0..700 {
        let change = async {
            registry
                .write(maps(), ("default", "m"), None, false, |current| {
                    let mut new = current.clone();
                    new["data"] = json!({"n": i.to_string()});
                    Ok(Write::Put(new))
                })
                .await
                .unwrap();
        };
        match i {
            0 => drop(registry.create(maps(), map("m"), None).await.unwrap()),
            _ => change.await,
        }
        assert!(quick.next().await.unwrap().is_some());
    }
    assert!(slow.next().await.unwrap().is_none(), "cut off");
    // It may come back: the history reaches further back than it was behind.
    let mut resumed = registry.feeds().subscribe(maps(), after).await.unwrap();
    assert_eq!(resumed.next().await.unwrap().unwrap().revision, after + 1);
}

/// A client that reads nothing for a while must not have the server keep what others write meanwhile.
#[tokio::test]
async fn watch_cache_slow_watcher_of_large_objects_is_closed_sooner() {
    let (_dir, store, registry) = registry().await;
    let after = store.revision().await.unwrap();
    let mut slow = registry.feeds().subscribe(maps(), after).await.unwrap();
    let mut quick = registry.feeds().subscribe(maps(), after).await.unwrap();
    let filler = "x".repeat(1 << 20);
    let large = |i: usize| {
        let mut large = map("m");
        large["data"] = json!({"filler": filler, "n": i.to_string()});
        large
    };
    let mut kept = Vec::new();
    for i in 0..20 {
        match i {
            0 => drop(registry.create(maps(), large(i), None).await.unwrap()),
            _ => {
                let put = |_: &Value| Ok(Write::Put(large(i)));
                drop(registry.write(maps(), ("default", "m"), None, false, put).await.unwrap());
            }
        }
        let change = quick.next().await.unwrap().unwrap();
        kept.push(Arc::downgrade(&change));
    }
    let kept = kept.iter().filter(|change| change.upgrade().is_some()).count();
    assert!((1..=8).contains(&kept), "{kept} of 20, of 2 MiB each");
    assert!(slow.next().await.unwrap().is_none(), "cut off");
    drop(slow);
    let mut resumed = registry.feeds().subscribe(maps(), after).await.unwrap();
    assert_eq!(resumed.next().await.unwrap().unwrap().revision, after + 1);
}

/// Runs to its end while a write is being decided.
fn in_between<T: Send, E: std::fmt::Debug>(work: impl Future<Output = Result<T, E>> + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work).map(drop).unwrap();
        });
    });
}

#[tokio::test]
async fn registry_delete_of_a_vanished_object_succeeds() {
    let (_dir, _store, registry) = registry().await;
    for (marked, expected) in [(true, Ok(true)), (false, Err(404))] {
        let mut object = map("m");
        if marked {
            // A pod whose time is up: its node is about to delete it, too.
            object["metadata"]["deletionTimestamp"] = json!(object::now().to_string());
        }
        registry.create(maps(), object, None).await.unwrap();
        let key = keys::object(maps(), "default", "m").unwrap();
        let written = registry
            .write(maps(), ("default", "m"), None, false, |current| {
                let revision: Revision = object::resource_version(current).parse().unwrap();
                in_between(registry.store().delete(&key, revision));
                Ok(Write::Delete)
            })
            .await;
        let outcome = written.map(|written| written.deleted).map_err(|error| error.code);
        assert_eq!(outcome, expected, "marked: {marked}");
    }
}

#[tokio::test]
async fn registry_write_conflict_retries_on_the_newest_version() {
    let (_dir, _store, registry) = registry().await;
    registry.create(maps(), map("m"), None).await.unwrap();
    let attempts = AtomicUsize::new(0);
    let mut is_first = true;
    let written = registry
        .write(maps(), ("default", "m"), None, false, |current| {
            attempts.fetch_add(1, Ordering::Relaxed);
            if std::mem::take(&mut is_first) {
                // A conflict.
                let key = keys::object(maps(), "default", "m").unwrap();
                let revision: Revision = object::resource_version(current).parse().unwrap();
                let value = map("m").to_string().into();
                in_between(registry.store().put(&key, value, Expect::Revision(revision), None));
            }
            let mut new = current.clone();
            new["data"] = json!({"a": "b"});
            Ok(Write::Put(new))
        })
        .await
        .unwrap();
    assert_eq!(attempts.load(Ordering::Relaxed), 2);
    assert_eq!(written.object["data"]["a"], "b");
    let kept =
        registry.write(maps(), ("default", "m"), None, false, |_| Ok(Write::Keep)).await.unwrap();
    assert_eq!((kept.object, kept.deleted), (written.object, false));
    let gone =
        registry.write(maps(), ("default", "m"), None, false, |_| Ok(Write::Delete)).await.unwrap();
    assert!(gone.deleted);
    let absent = registry.write(maps(), ("default", "m"), None, false, |_| Ok(Write::Keep)).await;
    assert_eq!(absent.err().unwrap().code, 404);
}

proptest! {
    #[test]
    fn list_continue_tokens_are_validated(key in "[a-z0-9./-]{1,20}", revision in 1i64.., junk in ".{0,60}") {
        let prefix = "/registry/pods/";
        let token = continue_token::encode(prefix, &format!("{prefix}{key}"), revision).unwrap();
        match continue_token::decode(prefix, &token) {
            Ok((start, at)) => {
                prop_assert_eq!((start, at), (format!("{prefix}{key}\0"), revision));
                prop_assert!(key.split('/').all(is_path_segment));
            }
            Err(error) => {
                prop_assert_eq!(error.code, 400);
                prop_assert!(!key.split('/').all(is_path_segment));
            }
        }
        if let Ok((start, _)) = continue_token::decode(prefix, &junk) {
            prop_assert!(start.starts_with(prefix));
        }
    }
}
