//! Copies of a store: into a new file and back, and what is refused.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use longshore_store::backup::{Entry, SnapshotWriter, restore};
use longshore_store::{
    EmbeddedStore, Error, Expect, ListOptions, NewFile, Store, check_file, defragment_file,
};
use tempfile::TempDir;

async fn all(store: &EmbeddedStore) -> Vec<Entry> {
    let at = store.revision().await.unwrap();
    let (mut start, mut entries) = (String::new(), Vec::new());
    loop {
        let page = store.export(&start, at).await.unwrap();
        let Some(last) = page.last() else { return entries };
        start = format!("{}\0", last.key);
        entries.extend(page);
    }
}

fn entry(key: &str, revision: i64) -> Entry {
    Entry {
        key: key.to_owned(),
        value: Bytes::from_static(b"{}"),
        create_revision: revision,
        mod_revision: revision,
        deadline: None,
    }
}

/// More than one page, with changes, deletions and keys that go.
async fn filled(path: &Path) -> EmbeddedStore {
    let store = EmbeddedStore::open(path).await.unwrap();
    for i in 0..80 {
        let key = format!("/registry/pods/{}", i % 50);
        let expect = match store.get(&key).await.unwrap() {
            Some(kv) => Expect::Revision(kv.mod_revision),
            None => Expect::Absent,
        };
        let ttl = (i % 7 == 0).then_some(Duration::from_secs(3600));
        store.put(&key, vec![i; 200_000].into(), expect, ttl).await.unwrap();
    }
    let gone = store.get("/registry/pods/3").await.unwrap().unwrap();
    store.delete(&gone.key, gone.mod_revision).await.unwrap();
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_restores_keys_with_their_revisions() {
    let dir = TempDir::new().unwrap();
    let [old, new, snapshot] = ["old", "new", "snapshot"].map(|name| dir.path().join(name));
    let store = filled(&old).await;
    let (content, revision) = (all(&store).await, store.revision().await.unwrap());
    assert_eq!(content.len(), 49);
    assert!(content.iter().any(|entry| entry.deadline.is_some()));

    let out = File::create(&snapshot).unwrap();
    let mut writer = SnapshotWriter::begin(out, revision).unwrap();
    content.iter().for_each(|entry| writer.add(entry).unwrap());
    writer.finish().unwrap();
    // what comes later is not in it
    store.put("/later", Bytes::new(), Expect::Absent, None).await.unwrap();

    let done = restore(&snapshot, &new, 1000).unwrap();
    assert_eq!((done.revision, done.entries), (revision + 1000, 49));
    let restored = EmbeddedStore::open(&new).await.unwrap();
    assert_eq!(all(&restored).await, content);
    assert_eq!(restored.revision().await.unwrap(), revision + 1000);
    assert!(matches!(restored.watch("/", revision).await, Err(Error::Compacted { .. })));
    let list = restored.list("/registry/", ListOptions { limit: 2, ..Default::default() }).await;
    assert_eq!(list.unwrap().remaining, 47);
    let pod = restored.get("/registry/pods/1").await.unwrap().unwrap();
    let put = restored.put(&pod.key, Bytes::new(), Expect::Revision(pod.mod_revision), None);
    let written = put.await.unwrap();
    assert_eq!(written.mod_revision, revision + 1001);
    assert_eq!(written.create_revision, pod.create_revision);
    restored.compact(0).await.unwrap();
    drop(restored);

    let again = restore(&snapshot, &new, 0).unwrap_err().to_string();
    assert!(again.contains("is there already"), "{again}");
    let mut bytes = std::fs::read(&snapshot).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&snapshot, bytes).unwrap();
    let damaged = dir.path().join("damaged");
    assert!(restore(&snapshot, &damaged, 0).is_err());
    let mut left: Vec<_> =
        std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["new", "old", "snapshot"], "a store that is not whole is not there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_of_odd_entries() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("store");
    let mut file = NewFile::create(&path).unwrap();
    // etcd can write two keys at one revision; the store has one for each
    for key in ["a", "b", "c"] {
        file.add(entry(key, 5)).unwrap();
    }
    file.add(entry("d", 9)).unwrap();
    assert_eq!(file.finish(7).unwrap().revision, 11);
    let store = EmbeddedStore::open(&path).await.unwrap();
    let revisions: Vec<_> = all(&store).await.into_iter().map(|entry| entry.mod_revision).collect();
    assert_eq!(revisions, [5, 10, 11, 9]);

    let other = dir.path().join("other");
    let mut file = NewFile::create(&other).unwrap();
    for (key, create, revision) in
        [("", 1, 1), ("a", 0, 1), ("a", 2, 1), ("a", -1, -1), ("a", 1, i64::MAX)]
    {
        let odd = Entry { create_revision: create, ..entry(key, revision) };
        assert!(file.add(odd).is_err(), "{key} {create} {revision}");
    }
    file.add(entry("a", 1)).unwrap();
    file.add(entry("a", 2)).unwrap();
    let twice = file.finish(0).unwrap_err().to_string();
    assert!(twice.contains("twice"), "{twice}");
    assert!(!other.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_checks_and_packs_a_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("store");
    let store = filled(&path).await;
    let open = check_file(&path, |_, _| Ok(())).unwrap_err().to_string();
    assert!(open.contains("is open in another process"), "{open}");
    let (revision, content) = (store.revision().await.unwrap(), all(&store).await);
    store.compact(0).await.unwrap();
    drop(store);
    let checked = check_file(&path, |_, _| Ok(())).unwrap();
    assert_eq!((checked.revision, checked.keys, checked.total_faults), (revision, 49, 0));
    let bad = |key: &str, _: &[u8]| match key.ends_with("/7") {
        true => Err("odd".to_owned()),
        false => Ok(()),
    };
    let checked = check_file(&path, bad).unwrap();
    assert_eq!((checked.total_faults, &checked.faults[0][..]), (1, "/registry/pods/7: odd"));
    let (before, after) = defragment_file(&path).unwrap();
    assert!(after <= before && after > 0, "{before} {after}");
    let store = EmbeddedStore::open(&path).await.unwrap();
    assert_eq!(all(&store).await, content);
    let absent = dir.path().join("absent");
    assert!(check_file(&absent, |_, _| Ok(())).is_err() && defragment_file(&absent).is_err());
    assert!(!absent.exists(), "a check makes no file");
}
