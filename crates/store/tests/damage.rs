//! Files that are torn, cut, foreign or in use: a clear error that names the file, or a store that
//! works; never a panic.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use longshore_store::{EmbeddedStore, Error, Expect, ListOptions, Store};
use proptest::prelude::*;
use tempfile::TempDir;

async fn new_database(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("store.db");
    let store = EmbeddedStore::open(&path).await.unwrap();
    for i in 0..60 {
        let value = Bytes::from(vec![i as u8; 100 + i * 40]);
        store.put(&format!("/key/{i:03}"), value, Expect::Absent, None).await.unwrap();
    }
    path
}

/// What opening this file says. It must name the file.
async fn refusal(path: &Path) -> String {
    let error = EmbeddedStore::open(path).await.err().expect("not to be opened").to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error:?} does not name {path:?}");
    error
}

#[tokio::test]
async fn embedded_file_is_opened_once() {
    let folder = TempDir::new().unwrap();
    let path = new_database(&folder).await;
    let store = EmbeddedStore::open(&path).await.unwrap();
    assert!(refusal(&path).await.contains("is open in another process"));
    // the refused one has not harmed it
    assert!(store.put("/more", Bytes::new(), Expect::Absent, None).await.is_ok());
    drop(store);
    let store = EmbeddedStore::open(&path).await.unwrap();
    assert_eq!(store.list("/", ListOptions::default()).await.unwrap().items.len(), 61);
}

#[tokio::test]
async fn embedded_foreign_files_are_rejected_unchanged() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notes");
    let contents: [&[u8]; 4] = [b"", b"x", b"SQLite format 3\0", &[b'n'; 100_000]];
    for content in contents {
        std::fs::write(&path, content).unwrap();
        let error = refusal(&path).await;
        assert!(error.contains("is not a store"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    refusal(folder.path()).await;
    refusal(&folder.path().join("absent/store")).await;
    let error = longshore_store::open("zookeeper://localhost").await.err().unwrap().to_string();
    assert!(error.contains("zookeeper"), "{error}");
    let error = longshore_store::open("etcd://127.0.0.1:1").await.err().unwrap().to_string();
    assert!(error.contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn embedded_foreign_database_is_rejected() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("other");
    let other = redb::Database::create(&path).unwrap();
    let transaction = other.begin_write().unwrap();
    transaction
        .open_table(redb::TableDefinition::<u64, u64>::new("theirs"))
        .unwrap()
        .insert(1, 1)
        .unwrap();
    transaction.commit().unwrap();
    drop(other);
    assert!(refusal(&path).await.contains("another program's"));
}

static PANICS: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Debug)]
enum Damage {
    Cut(usize),
    Overwrite(usize, Vec<u8>),
    Zero(usize, usize),
    Swap(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    // most of the file is free space: aim at its beginning too
    let place = || prop_oneof![0usize..4096, 4096usize..200_000, any::<usize>()];
    prop_oneof![
        place().prop_map(Damage::Cut),
        (place(), prop::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(at, bytes)| Damage::Overwrite(at, bytes)),
        (place(), 1usize..20_000).prop_map(|(at, length)| Damage::Zero(at, length)),
        (0usize..64, 0usize..64).prop_map(|(one, other)| Damage::Swap(one, other)),
    ]
}

fn apply(damage: &Damage, bytes: &mut Vec<u8>) {
    let length = bytes.len();
    match damage {
        Damage::Cut(at) => bytes.truncate(at % length),
        Damage::Overwrite(at, with) => {
            let at = at % length;
            let end = (at + with.len()).min(length);
            bytes[at..end].copy_from_slice(&with[..end - at]);
        }
        Damage::Zero(at, count) => {
            let at = at % length;
            let end = (at + count).min(length);
            bytes[at..end].fill(0);
        }
        Damage::Swap(one, other) => {
            for i in 0..4096 {
                if let (a, b) = (one * 4096 + i, other * 4096 + i)
                    && a.max(b) < length
                {
                    bytes.swap(a, b);
                }
            }
        }
    }
}

/// Uses a damaged store as far as it lets itself be used.
async fn use_it(path: &Path, whole: bool) {
    let store = match EmbeddedStore::open(path).await {
        Err(error) => {
            REFUSED.fetch_add(1, Ordering::Relaxed);
            assert!(!whole && error.to_string().contains(path.to_str().unwrap()), "{error}");
            return;
        }
        Ok(store) => store,
    };
    let (mut keys, mut failures) = (0, Vec::<Error>::new());
    match store.list("/key/", ListOptions::default()).await {
        Ok(page) => {
            keys = page.items.len();
            for kv in page.items {
                let i: usize = kv.key["/key/".len()..].parse().unwrap();
                assert!(
                    kv.value.len() == 100 + i * 40 && kv.value.iter().all(|b| *b == i as u8),
                    "{}",
                    kv.key
                );
            }
        }
        Err(error) => failures.push(error),
    }
    failures.extend(store.put("/new", Bytes::new(), Expect::Absent, None).await.err());
    failures.extend(store.compact(0).await.err());
    assert!(keys <= 60);
    assert!(!whole || (keys == 60 && failures.is_empty()), "{keys} keys, {failures:?}");
}

#[test]
fn embedded_damaged_file_never_panics() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        PANICS.fetch_add(1, Ordering::Relaxed);
    }));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = TempDir::new().unwrap();
    let path = runtime.block_on(new_database(&folder));
    let closed = std::fs::read(&path).unwrap();
    // as a crash leaves it
    let store = runtime.block_on(EmbeddedStore::open(&path)).unwrap();
    runtime.block_on(store.put("/last", Bytes::new(), Expect::Absent, None)).unwrap();
    let crashed = std::fs::read(&path).unwrap();
    drop(store);
    let config =
        ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result =
        runner.run(&(any::<bool>(), prop::collection::vec(damage(), 0..4)), |(crash, damages)| {
            let before = PANICS.load(Ordering::Relaxed);
            let good = if crash { &crashed } else { &closed };
            let mut bytes = good.clone();
            for damage in &damages {
                if !bytes.is_empty() {
                    apply(damage, &mut bytes);
                }
            }
            let whole = bytes == *good;
            std::fs::write(&path, bytes).unwrap();
            runtime.block_on(use_it(&path, whole));
            prop_assert_eq!(PANICS.load(Ordering::Relaxed), before, "a panic");
            Ok(())
        });
    let _ = std::panic::take_hook();
    result.unwrap();
    let refused = REFUSED.load(Ordering::Relaxed);
    assert!(
        (20..380).contains(&refused),
        "{refused} of 400 refused: the damage is too little or too much"
    );
}
