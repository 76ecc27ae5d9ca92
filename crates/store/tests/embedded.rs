//! What only a store in a file has: reopening, giving space back, a full disk.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use longshore_store::{EmbeddedStore, Error, Expect, KeyValue, ListOptions, Store, WatchItem};
use tempfile::TempDir;

async fn put(store: &EmbeddedStore, key: &str, value: impl Into<Bytes>) -> Result<KeyValue, Error> {
    let current = store.get(key).await?;
    let expect = current.map_or(Expect::Absent, |kv| Expect::Revision(kv.mod_revision));
    store.put(key, value.into(), expect, None).await
}

async fn all(store: &EmbeddedStore) -> Vec<KeyValue> {
    store.list("", ListOptions::default()).await.unwrap().items
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_lists_of_any_length_are_whole() {
    let folder = TempDir::new().unwrap();
    let store = EmbeddedStore::open(folder.path().join("store")).await.unwrap();
    // few keys, many versions; many keys; large values
    for i in 0..200 {
        put(&store, &format!("/few/{}", i % 3), "x").await.unwrap();
        put(&store, &format!("/many/{i:03}"), "x").await.unwrap();
    }
    for i in 0..5 {
        put(&store, &format!("/large/{i}"), vec![0; 30 << 10]).await.unwrap();
    }
    for (prefix, count) in [("/few/", 3), ("/many/", 200), ("/large/", 5), ("/none/", 0)] {
        let page = store.list(prefix, ListOptions::default()).await.unwrap();
        assert_eq!((page.items.len(), page.remaining), (count, 0), "{prefix}");
        let first = ListOptions { limit: 2, ..ListOptions::default() };
        let page = store.list(prefix, first).await.unwrap();
        assert_eq!(page.items.len(), count.min(2), "{prefix}");
        assert_eq!(page.remaining, count.saturating_sub(2) as u64, "{prefix}");
    }
}

fn length(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_compaction_frees_space() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let store = EmbeddedStore::open(&path).await.unwrap();
    for i in 0..1500 {
        put(&store, &format!("/pods/{}", i % 50), vec![i as u8; 4000]).await.unwrap();
    }
    let (before, content) = (length(&path), all(&store).await);
    // others go on reading and writing
    let store = std::sync::Arc::new(store);
    let compaction = tokio::spawn({
        let store = store.clone();
        async move { store.compact(0).await }
    });
    let mut meanwhile = 0;
    for i in 0.. {
        put(&store, "/other", vec![i as u8; 100]).await.unwrap();
        assert_eq!(store.list("/pods/", ListOptions::default()).await.unwrap().items, content);
        if compaction.is_finished() {
            break;
        }
        meanwhile += 1;
    }
    compaction.await.unwrap().unwrap();
    let after = length(&path);
    assert!(after < before / 4, "{before} bytes before, {after} after");
    assert!(meanwhile > 0, "others waited for the whole compaction");
    let files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["store"], "a single file");
    drop(store);
    let store = EmbeddedStore::open(&path).await.unwrap();
    assert_eq!(store.list("/pods/", ListOptions::default()).await.unwrap().items, content);
}

#[tokio::test]
async fn embedded_watch_behind_compaction_gets_an_error() {
    let folder = TempDir::new().unwrap();
    let store = EmbeddedStore::open(folder.path().join("store")).await.unwrap();
    let start = store.revision().await.unwrap();
    let mut lagging = store.watch("/", start).await.unwrap();
    // more than is kept in memory
    for i in 0..40 {
        put(&store, &format!("/{}", i % 4), vec![0; 100_000]).await.unwrap();
    }
    let newest = store.revision().await.unwrap();
    store.compact(0).await.unwrap();
    match lagging.next().await {
        Some(Err(Error::Compacted { requested, oldest })) => {
            assert_eq!((requested, oldest), (start, newest))
        }
        other => panic!("{other:?}"),
    }
    assert!(lagging.next().await.is_none());
}

#[tokio::test]
async fn embedded_data_survives_reopening() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let store = EmbeddedStore::open(&path).await.unwrap();
    let one = put(&store, "/a", "1").await.unwrap();
    let two = put(&store, "/a", "2").await.unwrap();
    let gone = put(&store, "/gone", "x").await.unwrap();
    let (_, deleted) = store.delete("/gone", gone.mod_revision).await.unwrap();
    let brief = Some(Duration::from_secs(1));
    store.put("/brief", Bytes::new(), Expect::Absent, brief).await.unwrap();
    let mut watch = store.watch("/none/", 0).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(WatchItem::Progress(_)))));
    drop(store);
    assert!(
        matches!(watch.next().await, Some(Err(Error::Closed))),
        "the watch ends with its store"
    );
    assert!(watch.next().await.is_none());

    let store = EmbeddedStore::open(&path).await.unwrap();
    let then = |revision| store.list("/a", ListOptions { revision, ..ListOptions::default() });
    assert_eq!(then(one.mod_revision).await.unwrap().items, [one]);
    // a compaction takes the newest row, the revision stays
    store.compact(deleted).await.unwrap();
    assert_eq!(then(0).await.unwrap().items, std::slice::from_ref(&two));
    drop(store);
    // it expires while the file is closed
    tokio::time::sleep(Duration::from_secs(3)).await;
    let store = EmbeddedStore::open(&path).await.unwrap();
    while store.get("/brief").await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.revision().await.unwrap(), deleted + 2);
    store.compact(0).await.unwrap();
    drop(store);
    let store = EmbeddedStore::open(&path).await.unwrap();
    assert_eq!(store.revision().await.unwrap(), deleted + 2);
    assert_eq!(all(&store).await, [two]);
}

#[tokio::test]
async fn embedded_too_large_values_are_rejected() {
    let folder = TempDir::new().unwrap();
    let store = EmbeddedStore::open(folder.path().join("store")).await.unwrap();
    for (key, size) in [(String::new(), 1), ("k".repeat(5000), 1), ("/a".to_owned(), 17 << 20)] {
        let refused = store.put(&key, vec![0; size].into(), Expect::Absent, None).await;
        assert!(
            matches!(&refused, Err(Error::Backend(why)) if why.contains("bytes")),
            "{refused:?}"
        );
    }
    assert_eq!(all(&store).await, []);
}

const FOLDER: &str = "LONGSHORE_FULL_DISK_TEST";

/// In a mount namespace of its own, which takes the little disk with it when the child ends.
#[test]
fn embedded_full_disk_is_survived() {
    let folder = TempDir::new().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--", "sh", "-c"])
        .arg("mount -t tmpfs -o size=6m tmpfs \"$0\" && exec \"$1\" --exact embedded::full_disk_child --nocapture")
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

/// Not a test of its own: runs where the disk is small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    let path = folder.join("store");
    let store = EmbeddedStore::open(&path).await.unwrap();
    std::fs::write(folder.join("ballast"), vec![1; 2 << 20]).unwrap();
    let start = store.revision().await.unwrap();
    let mut watch = store.watch("/", start).await.unwrap();
    let mut written = Vec::new();
    let error = loop {
        match store
            .put(&format!("/{:04}", written.len()), vec![2; 20_000].into(), Expect::Absent, None)
            .await
        {
            Ok(kv) => written.push(kv),
            Err(error) => break error.to_string(),
        }
        assert!(written.len() < 1000, "the disk is never full");
    };
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    // reads go on, and writes go on failing in the same clear way
    for _ in 0..3 {
        assert_eq!(all(&store).await[..written.len()], written);
        if let Err(error) = put(&store, "/big", vec![3; 2 << 20]).await {
            assert!(error.to_string().contains("No space left"), "{error}");
        }
    }

    std::fs::remove_file(folder.join("ballast")).unwrap();
    let started = Instant::now();
    let last = loop {
        match put(&store, "/last", "x").await {
            Ok(kv) => break kv,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error}"),
        }
    };
    let stored = all(&store).await;
    assert_eq!(stored[..written.len()], written, "what was acknowledged is there");
    // the watcher has it all, in order, whatever became of the writes that failed
    for revision in start + 1..=last.mod_revision {
        match watch.next().await {
            Some(Ok(WatchItem::Event(event))) => assert_eq!(event.revision(), revision),
            other => panic!("{other:?}"),
        }
    }
    assert!(watch.next().now_or_never().is_none());
}
