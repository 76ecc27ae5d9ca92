//! Reading and writing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_store::{Error, Expect, KeyValue, ListOptions, PAGE_BYTES, Page, Store};

pub(crate) type Shared = Arc<dyn Store>;

pub(crate) async fn create(store: &Shared, key: &str, value: &str) -> KeyValue {
    store.put(key, Bytes::copy_from_slice(value.as_bytes()), Expect::Absent, None).await.unwrap()
}

pub(crate) async fn update(store: &Shared, before: &KeyValue, value: &str) -> KeyValue {
    let expect = Expect::Revision(before.mod_revision);
    store.put(&before.key, Bytes::copy_from_slice(value.as_bytes()), expect, None).await.unwrap()
}

async fn list(store: &Shared, prefix: &str) -> Page {
    store.list(prefix, ListOptions::default()).await.unwrap()
}

fn keys(page: &Page) -> Vec<&str> {
    page.items.iter().map(|kv| &*kv.key).collect()
}

#[track_caller]
fn assert_conflict<T: std::fmt::Debug>(
    result: Result<T, Error>,
    key: &str,
    current: Option<&KeyValue>,
) {
    match result {
        Err(Error::Conflict { key: of, current: found }) => {
            assert_eq!((of.as_str(), found.as_ref()), (key, current));
        }
        other => panic!("expected a conflict, got {other:?}"),
    }
}

pub(crate) async fn create_update_delete(store: Shared) {
    let key = "/registry/pods/default/web";
    let before = store.revision().await.unwrap();
    assert_eq!(store.get(key).await.unwrap(), None);

    let one = create(&store, key, "one").await;
    assert_eq!((one.create_revision, one.mod_revision), (before + 1, before + 1));
    assert_eq!((&*one.key, &one.value[..]), (key, &b"one"[..]));
    assert_eq!(store.get(key).await.unwrap().as_ref(), Some(&one));
    assert_conflict(store.put(key, "x".into(), Expect::Absent, None).await, key, Some(&one));

    let two = update(&store, &one, "two").await;
    assert_eq!((two.create_revision, two.mod_revision), (before + 1, before + 2));
    let stale = Expect::Revision(one.mod_revision);
    assert_conflict(store.put(key, "x".into(), stale, None).await, key, Some(&two));
    assert_conflict(store.delete(key, one.mod_revision).await, key, Some(&two));
    assert_conflict(
        store.put("/other", "x".into(), Expect::Revision(before), None).await,
        "/other",
        None,
    );
    // no key has revision 0, so nothing may be created or deleted by it
    assert_conflict(
        store.put("/other", "x".into(), Expect::Revision(0), None).await,
        "/other",
        None,
    );
    assert_conflict(store.delete("/other", 0).await, "/other", None);
    assert_eq!(store.revision().await.unwrap(), before + 2, "a conflict writes nothing");

    let (deleted, revision) = store.delete(key, two.mod_revision).await.unwrap();
    assert_eq!((deleted, revision), (two.clone(), before + 3));
    assert_eq!(store.get(key).await.unwrap(), None);
    assert_conflict(store.delete(key, two.mod_revision).await, key, None);
    assert_eq!(store.revision().await.unwrap(), before + 3);
}

pub(crate) async fn recreated_key_is_a_new_key(store: Shared) {
    let first = create(&store, "/a", "first").await;
    store.delete("/a", first.mod_revision).await.unwrap();
    let second = create(&store, "/a", "second").await;
    assert_eq!(second.create_revision, second.mod_revision);
    assert!(second.create_revision > first.create_revision);
    let old = Expect::Revision(first.mod_revision);
    assert_conflict(store.put("/a", "x".into(), old, None).await, "/a", Some(&second));
    let at = |revision| store.list("/a", ListOptions { revision, ..ListOptions::default() });
    assert_eq!(at(first.mod_revision + 1).await.unwrap().items, []);
    assert_eq!(at(first.mod_revision).await.unwrap().items, [first]);
    assert_eq!(at(second.mod_revision).await.unwrap().items, [second]);
}

pub(crate) async fn list_pages_are_of_one_revision(store: Shared) {
    let mut created = Vec::new();
    for i in 0..10 {
        created.push(create(&store, &format!("/list/{i}"), "old").await);
    }
    create(&store, "/lisu", "a neighbour").await;
    let mut page =
        store.list("/list/", ListOptions { limit: 3, ..ListOptions::default() }).await.unwrap();
    let revision = page.revision;
    assert_eq!(revision, store.revision().await.unwrap());
    let mut found = page.items.clone();
    assert_eq!((found.len(), page.remaining), (3, 7));
    let uncounted = ListOptions { limit: 3, uncounted: true, ..ListOptions::default() };
    let some = store.list("/list/", uncounted).await.unwrap();
    assert_eq!(some.items.len(), 3);
    assert!((1..=7).contains(&some.remaining), "{some:?}");

    // what happens between the pages is not in them
    update(&store, &created[4], "new").await;
    store.delete("/list/5", created[5].mod_revision).await.unwrap();
    create(&store, "/list/55", "new").await;
    while page.remaining > 0 {
        let start = Some(format!("{}\0", page.items.last().unwrap().key));
        page = store
            .list("/list/", ListOptions { start, limit: 3, revision, ..ListOptions::default() })
            .await
            .unwrap();
        assert_eq!(page.revision, revision);
        found.extend(page.items.iter().cloned());
        assert_eq!(page.remaining, 10 - found.len() as u64);
    }
    assert_eq!(found, created);

    let now = list(&store, "/list/").await;
    assert_eq!((now.items.len(), now.remaining, now.revision), (10, 0, revision + 3));
    assert_eq!(now.items[4].value, "new");
    let from =
        |start: &str| ListOptions { start: Some(start.to_owned()), ..ListOptions::default() };
    assert_eq!(keys(&store.list("/list/", from("/list/8")).await.unwrap()), ["/list/8", "/list/9"]);
    assert_eq!(
        store.list("/list/", from("/a")).await.unwrap().items.len(),
        10,
        "a start before the prefix"
    );
    assert_eq!(store.list("/list/", from("/z")).await.unwrap().items, [], "a start after it");
    let exact =
        store.list("/list/", ListOptions { limit: 10, ..ListOptions::default() }).await.unwrap();
    assert_eq!((exact.items.len(), exact.remaining), (10, 0));
}

pub(crate) async fn list_pages_end_after_so_many_bytes(store: Shared) {
    const VALUE: usize = 256 << 10;
    // etcd is asked for so many before their size is known
    const AT_FIRST: usize = 32;
    let value = "x".repeat(VALUE);
    let mut created = Vec::new();
    for i in 0..20 {
        created.push(create(&store, &format!("/large/{i:03}"), "x").await);
    }
    for i in 20..120 {
        created.push(create(&store, &format!("/large/{i:03}"), &value).await);
    }
    let (mut found, mut start, mut revision) = (Vec::new(), None, 0);
    loop {
        let page = store
            .list("/large/", ListOptions { start, limit: 500, revision, ..ListOptions::default() })
            .await
            .unwrap();
        let bytes: usize = page.items.iter().map(|item| item.value.len()).sum();
        assert!(bytes <= PAGE_BYTES + AT_FIRST * VALUE, "{bytes}");
        found.extend(page.items);
        assert_eq!(page.remaining, 120 - found.len() as u64);
        if page.remaining == 0 {
            break;
        }
        (start, revision) = (found.last().map(|item| format!("{}\0", item.key)), page.revision);
    }
    assert!(found == created, "{} of {}", found.len(), created.len());
}

pub(crate) async fn list_prefixes_are_of_bytes(store: Shared) {
    let all = [
        "/registry/pods",
        "/registry/pods/a",
        "/registry/pods/a/b",
        "/registry/pods0",
        "/registry/podsx/a",
        "/registry/ø/ÿ",
        "/registry/\u{10ffff}",
    ];
    for key in all {
        create(&store, key, "").await;
    }
    assert_eq!(
        keys(&list(&store, "/registry/pods/").await),
        ["/registry/pods/a", "/registry/pods/a/b"]
    );
    assert_eq!(keys(&list(&store, "/registry/pods").await), &all[..5]);
    assert_eq!(keys(&list(&store, "/registry/podsx").await), ["/registry/podsx/a"]);
    assert_eq!(keys(&list(&store, "/registry/ø").await), ["/registry/ø/ÿ"]);
    assert_eq!(keys(&list(&store, "/registry/\u{10ffff}").await), ["/registry/\u{10ffff}"]);
    assert_eq!(keys(&list(&store, "").await), all);
    assert_eq!(list(&store, "/registry/pods/a/b/c").await.items, []);
    assert_eq!(store.get("/registry/pods/").await.unwrap(), None);
}

pub(crate) async fn values_of_any_size(store: Shared) {
    for size in [0, 1, 2048, 1 << 20] {
        let (key, value) = (format!("/size/{size}"), Bytes::from(vec![size as u8 ^ 0xa5; size]));
        let written = store.put(&key, value.clone(), Expect::Absent, None).await.unwrap();
        assert_eq!(written.value, value);
        assert_eq!(store.get(&key).await.unwrap().unwrap().value, value);
    }
    assert_eq!(list(&store, "/size/").await.items.len(), 4);
    // far beyond what one message or page holds
    for i in 0..10 {
        store
            .put(&format!("/many/{i}"), vec![7; 700_000].into(), Expect::Absent, None)
            .await
            .unwrap();
    }
    let (mut sum, mut start) = (0, None);
    loop {
        let page =
            store.list("/many/", ListOptions { start, ..ListOptions::default() }).await.unwrap();
        sum += page.items.iter().map(|kv| kv.value.len()).sum::<usize>();
        if page.remaining == 0 {
            break;
        }
        start = page.items.last().map(|last| format!("{}\0", last.key));
    }
    assert_eq!(sum, 7_000_000);
}

pub(crate) async fn compaction_removes_history(store: Shared) {
    let mut kv = create(&store, "/a", "0").await;
    let kept = create(&store, "/kept", "from before").await;
    let gone = create(&store, "/gone", "x").await;
    store.delete("/gone", gone.mod_revision).await.unwrap();
    for i in 1..10 {
        kv = update(&store, &kv, &i.to_string()).await;
    }
    let (at, newest) = (kv.mod_revision - 3, store.revision().await.unwrap());
    store.compact(at).await.unwrap();

    let read = |revision| store.list("/", ListOptions { revision, ..ListOptions::default() });
    for revision in [1, at - 1] {
        match read(revision).await {
            Err(Error::Compacted { requested, oldest }) => {
                assert_eq!((requested, oldest), (revision, at))
            }
            other => panic!("expected compacted, got {other:?}"),
        }
    }
    let then = read(at).await.unwrap();
    assert_eq!(keys(&then), ["/a", "/kept"]);
    assert_eq!(then.items[0].value, "6");
    assert_eq!(then.items[1], kept);
    assert_eq!(read(newest).await.unwrap().items[0].value, "9");
    assert_eq!(store.revision().await.unwrap(), newest, "compaction is no write");

    store.compact(at).await.expect("twice is as good as once");
    assert!(
        matches!(store.compact(at - 1).await, Err(Error::Compacted { oldest, .. }) if oldest == at)
    );
    assert!(
        matches!(store.compact(newest + 1).await, Err(Error::Future { newest: n, .. }) if n == newest)
    );
    store.compact(0).await.unwrap();
    assert!(
        matches!(read(newest - 1).await, Err(Error::Compacted { oldest, .. }) if oldest == newest)
    );
    assert_eq!(read(0).await.unwrap().items.len(), 2);
    let next = update(&store, &kv, "after").await;
    assert_eq!((next.create_revision, next.mod_revision), (kv.create_revision, newest + 1));
}

pub(crate) async fn watch_of_future_revision_is_rejected(store: Shared) {
    let newest = create(&store, "/a", "x").await.mod_revision;
    let revision = newest + 5;
    match store.list("/", ListOptions { revision, ..ListOptions::default() }).await {
        Err(Error::Future { requested, newest: n }) => {
            assert_eq!((requested, n), (revision, newest))
        }
        other => panic!("expected future, got {other:?}"),
    }
    match store.watch("/", revision).await.map(drop) {
        Err(Error::Future { requested, newest: n }) => {
            assert_eq!((requested, n), (revision, newest))
        }
        other => panic!("expected future, got {other:?}"),
    }
}

async fn gone_after(store: &Shared, prefix: &str) -> Duration {
    let started = Instant::now();
    while !list(store, prefix).await.items.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(15), "still there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    started.elapsed()
}

pub(crate) async fn ttl_keys_expire(store: Shared) {
    let ttl = Some(Duration::from_secs(2));
    create(&store, "/stays", "x").await;
    for i in 0..50 {
        store.put(&format!("/event/{i}"), "x".into(), Expect::Absent, ttl).await.unwrap();
    }
    let written = store.revision().await.unwrap();
    assert_eq!(list(&store, "/event/").await.items.len(), 50);
    let took = gone_after(&store, "/event/").await;
    assert!(took > Duration::from_millis(1500), "gone after {took:?} of 2 s");
    // an expiry is a deletion as any other
    assert!(store.revision().await.unwrap() > written);
    assert!(store.get("/stays").await.unwrap().is_some());
    create(&store, "/event/0", "again").await;
}

pub(crate) async fn ttl_ends_with_its_version(store: Shared) {
    let ttl = Some(Duration::from_secs(2));
    let brief = store.put("/a", "brief".into(), Expect::Absent, ttl).await.unwrap();
    let lasting = update(&store, &brief, "lasting").await;
    let other = store.put("/b", "brief".into(), Expect::Absent, ttl).await.unwrap();
    store.delete("/b", other.mod_revision).await.unwrap();
    let again = create(&store, "/b", "lasting").await;
    store.put("/c", "brief".into(), Expect::Absent, ttl).await.unwrap();
    gone_after(&store, "/c").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(store.get("/a").await.unwrap(), Some(lasting));
    assert_eq!(store.get("/b").await.unwrap(), Some(again));
}

pub(crate) async fn write_conflicts_lose_no_increment(store: Shared) {
    const TASKS: usize = 16;
    const TIMES: usize = 20;
    create(&store, "/counter", "0").await;
    let before = store.revision().await.unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..TIMES {
                    let mut current = store.get("/counter").await.unwrap().unwrap();
                    loop {
                        let next =
                            std::str::from_utf8(&current.value).unwrap().parse::<usize>().unwrap()
                                + 1;
                        let expect = Expect::Revision(current.mod_revision);
                        match store.put("/counter", next.to_string().into(), expect, None).await {
                            Ok(_) => break,
                            Err(Error::Conflict { current: Some(newer), .. }) => current = newer,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let counter = store.get("/counter").await.unwrap().unwrap();
    assert_eq!(counter.value, (TASKS * TIMES).to_string());
    assert_eq!(counter.mod_revision, before + (TASKS * TIMES) as i64);
}
