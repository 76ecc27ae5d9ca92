//! The atomic writer, and what a container may have planted in its way.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::{Done, Root, read};
use crate::atomic::write;
use crate::dir::Dir;
use crate::payload::Payload;

fn payload(files: &[(&str, &str)]) -> Payload {
    let mut payload = Payload::default();
    for (path, data) in files {
        payload.add(path, data.as_bytes().to_vec(), 0o644, None).unwrap();
    }
    payload
}

fn volume(root: &Root) -> Dir {
    let path = root.join("volume");
    fs::create_dir_all(&path).unwrap();
    Dir::open_trusted(&path).unwrap()
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn data_dir(root: &Root) -> PathBuf {
    fs::read_link(root.join("volume/..data")).unwrap()
}

#[test]
fn atomic_writer_replaces_the_data_link() {
    let root = Root::new();
    let volume = volume(&root);
    write(&volume, &payload(&[("a", "1"), ("d/b", "2"), ("d/e/c", "3")]), None).unwrap();
    let first = data_dir(&root);
    let visible = |name: &str| root.join("volume").join(name);
    assert_eq!(fs::read_link(visible("a")).unwrap(), Path::new("..data/a"));
    assert_eq!(fs::read_link(visible("d")).unwrap(), Path::new("..data/d"));
    assert_eq!(read(visible("d/e/c")), "3");

    write(&volume, &payload(&[("a", "1"), ("d/b", "2"), ("d/e/c", "3")]), None).unwrap();
    assert_eq!(data_dir(&root), first, "nothing has changed");

    write(&volume, &payload(&[("a", "new"), ("x", "4")]), None).unwrap();
    let second = data_dir(&root);
    assert_ne!(second, first);
    assert_eq!(read(visible("a")), "new");
    let mut left = vec!["..data".to_owned(), "a".to_owned(), "x".to_owned()];
    left.insert(0, second.display().to_string());
    assert_eq!(names(volume.path()), left, "old data and old names are gone");

    write(&volume, &payload(&[("a", "new")]), None).unwrap();
    assert_ne!(data_dir(&root), second, "a file less is a change");
    write(&volume, &payload(&[]), None).unwrap();
    assert_eq!(names(volume.path()).len(), 2, "{:?}", names(volume.path()));
}

#[test]
fn atomic_writer_sets_owner_group_and_modes_as_root() {
    let root = Root::new();
    let volume = volume(&root);
    let mut payload = Payload::default();
    payload.add("d/private", b"x".to_vec(), 0o400, Some(1000)).unwrap();
    payload.add("script", b"x".to_vec(), 0o755, None).unwrap();
    write(&volume, &payload, Some(2000)).unwrap();
    let stat = |name: &str| {
        let metadata = fs::metadata(root.join("volume").join(name)).unwrap();
        (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
    };
    assert_eq!(stat("d/private"), (0o440, 1000, 2000));
    assert_eq!(stat("script"), (0o755, 0, 2000));
    assert_eq!(stat("d"), (0o2755, 0, 2000));
    assert_eq!(stat("..data"), (0o2755, 0, 2000));
}

/// CVE-2017-1002102: what a container plants in a volume must not lead the node elsewhere.
#[test]
fn atomic_writer_does_not_follow_planted_links() {
    let root = Root::new();
    root.write("host/canary", "alive");
    root.write("host/..2020_dir/canary", "alive");
    let volume = volume(&root);
    write(&volume, &payload(&[("key", "1"), ("d/deep", "2"), ("gone", "3")]), None).unwrap();
    let at = |name: &str| root.join("volume").join(name);
    let plant = |target: &str, name: &str| {
        let _ = fs::remove_file(at(name));
        symlink(root.join(target), at(name)).unwrap();
    };

    // The current data seems to be a directory of the host; so does a name, and an old directory.
    plant("host", "..data");
    plant("host/canary", "key");
    plant("host", "d");
    plant("host", "..2001_01_01_00_00_00.1");
    symlink(root.join("host"), at("..data_tmp")).unwrap();
    write(&volume, &payload(&[("key", "new"), ("d/deep", "new")]), None).unwrap();
    assert_eq!(read(at("key")), "new");
    assert_eq!(read(at("d/deep")), "new");

    // By a way up, by a name that looks like its own, and with directories where links belong.
    for target in ["../host", "../host/..2020_dir", "..", ".", "..data"] {
        let _ = fs::remove_file(at("..data"));
        symlink(target, at("..data")).unwrap();
        write(&volume, &payload(&[("key", target)]), None).unwrap();
        assert_eq!(read(at("key")), target);
    }
    fs::remove_file(at("..data")).unwrap();
    fs::create_dir_all(at("..data/key")).unwrap();
    fs::create_dir_all(at("..data_tmp/x")).unwrap();
    write(&volume, &payload(&[("key", "dirs")]), None).unwrap();
    assert_eq!(read(at("key")), "dirs");

    // Inside of the data directory, where contents are compared.
    fs::remove_file(at("..data/key")).unwrap();
    symlink(root.join("host/canary"), at("..data/key")).unwrap();
    write(&volume, &payload(&[("key", "alive")]), None).unwrap();
    assert!(fs::symlink_metadata(at("..data/key")).unwrap().is_file(), "not the host's file");

    assert_eq!(names(&root.join("host")), ["..2020_dir", "canary"]);
    assert_eq!(read(root.join("host/canary")), "alive");
    assert_eq!(read(root.join("host/..2020_dir/canary")), "alive");
}

#[test]
fn atomic_writer_keeps_old_data_on_failure() {
    let root = Root::new();
    let volume = volume(&root);
    write(&volume, &payload(&[("a", "1")]), None).unwrap();
    let before = names(volume.path());
    // A file cannot be a directory too.
    write(&volume, &payload(&[("a", "2"), ("b", "2"), ("b/c", "2")]), None).unwrap_err();
    assert_eq!(names(volume.path()), before);
    assert_eq!(read(root.join("volume/a")), "1");
}

#[test]
fn atomic_writer_keeps_nested_mount_points() {
    let root = Root::new();
    let volume = volume(&root);
    fs::create_dir(root.join("volume/nested")).unwrap();
    for data in ["1", "2"] {
        write(&volume, &payload(&[("nested", data), ("a", data)]), None).unwrap();
        assert!(fs::symlink_metadata(root.join("volume/nested")).unwrap().is_dir());
    }
}

#[test]
fn atomic_writer_readers_see_whole_updates() {
    let root = Root::new();
    let volume = volume(&root);
    write(&volume, &payload(&[("a", "0"), ("b", "0")]), None).unwrap();
    let done = Done::default();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0;
            while !done.is_done() {
                assert!(root.join("volume/..data").is_symlink(), "there is always data");
                // Held open, the directory is one version; it may be removed meanwhile.
                let Ok(dir) = fs::File::open(root.join("volume/..data")) else { continue };
                let at = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir));
                let pair = (fs::read(format!("{at}/a")), fs::read(format!("{at}/b")));
                if let (Ok(a), Ok(b)) = pair {
                    assert_eq!(a, b);
                    seen += 1;
                }
            }
            seen
        });
        let stop = done.when_dropped();
        for turn in 1..300 {
            let turn = turn.to_string();
            write(&volume, &payload(&[("a", &turn), ("b", &turn)]), None).unwrap();
        }
        drop(stop);
        assert!(reader.join().unwrap() > 0);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever came before, the volume shows the last payload and nothing else.
    #[test]
    fn atomic_writer_shows_the_last_payload(
        turns in prop::collection::vec(
            prop::collection::btree_map("[a-c](/[d-e]){0,2}\\.f", "[xy]{0,2}", 0..5), 1..5)
    ) {
        let root = Root::new();
        let volume = volume(&root);
        for files in &turns {
            let files: Vec<_> = files.iter().map(|(path, data)| (path.as_str(), data.as_str())).collect();
            write(&volume, &payload(&files), None).unwrap();
        }
        let mut seen = BTreeMap::new();
        collect(&root.join("volume"), Path::new(""), &mut seen);
        prop_assert_eq!(&seen, turns.last().unwrap());
    }
}

fn collect(volume: &Path, at: &Path, seen: &mut BTreeMap<String, String>) {
    for name in names(&volume.join(at)) {
        if name.starts_with("..") {
            continue;
        }
        let path = at.join(&name);
        if volume.join(&path).is_dir() {
            collect(volume, &path, seen);
        } else {
            seen.insert(path.display().to_string(), read(volume.join(&path)));
        }
    }
}
