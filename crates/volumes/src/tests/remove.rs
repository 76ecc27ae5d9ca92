//! Taking down what containers, other programs and other versions have left.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};

use nix::mount::{MsFlags, mount, umount};

use super::{Root, bind, read};
use crate::dir::Dir;
use crate::error::Error;
use crate::remove;

const UID: &str = "uid-1";

fn take_down(root: &Root) -> Result<(), Error> {
    let pods = Dir::open_trusted(&root.join("pods")).unwrap();
    remove::pod(&pods, OsStr::new(UID))
}

fn volume(root: &Root, plugin: &str) -> std::path::PathBuf {
    let path = root.join(&format!("pods/{UID}/volumes/kubernetes.io~{plugin}/v"));
    fs::create_dir_all(&path).unwrap();
    path
}

/// CVE-2017-1002102, for the end of a volume.
#[test]
fn teardown_removes_links_without_following_as_root() {
    let root = Root::new();
    root.write("host/canary", "alive");
    for plugin in ["secret", "configmap", "empty-dir", "projected", "downward-api"] {
        let volume = volume(&root, plugin);
        symlink(root.join("host"), volume.join("link")).unwrap();
        symlink("../../../../../host", volume.join("..data")).unwrap();
        fs::create_dir(volume.join("locked")).unwrap();
        fs::write(volume.join("locked/file"), "x").unwrap();
        fs::set_permissions(volume.join("locked"), fs::Permissions::from_mode(0o0)).unwrap();
    }
    let volumes = root.join(&format!("pods/{UID}/volumes"));
    symlink(root.join("host"), volumes.join("kubernetes.io~secret/link")).unwrap();
    take_down(&root).unwrap();
    assert!(!root.join("pods").join(UID).exists());
    assert_eq!(read(root.join("host/canary")), "alive");

    take_down(&root).unwrap();
    symlink(root.join("host"), root.join("pods").join(UID)).unwrap();
    take_down(&root).unwrap_err();
    assert_eq!(read(root.join("host/canary")), "alive");
}

#[test]
fn teardown_keeps_foreign_mounts_as_root() {
    let root = Root::new();
    root.write("host/canary", "alive");
    let volume = volume(&root, "empty-dir");
    fs::create_dir_all(volume.join("a/b")).unwrap();
    fs::write(volume.join("own"), "x").unwrap();
    bind(&root.join("host"), &volume.join("a/b"));
    let error = take_down(&root).unwrap_err().to_string();
    let expected =
        format!("{} is a mount of something else, left in place", volume.join("a/b").display());
    assert_eq!(error, expected);
    assert!(!volume.join("own").exists(), "the rest is removed");
    assert_eq!(read(root.join("host/canary")), "alive");
    umount(&volume.join("a/b")).unwrap();
    take_down(&root).unwrap();
    assert!(!root.join("pods").join(UID).exists());
    assert_eq!(read(root.join("host/canary")), "alive");
}

#[test]
fn teardown_unmounts_tmpfs_before_removing_as_root() {
    let root = Root::new();
    let volume = volume(&root, "secret");
    fs::write(volume.join("below"), "x").unwrap();
    for _ in 0..2 {
        mount(Some("tmpfs"), &volume, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        fs::write(volume.join("file"), "x").unwrap();
    }
    take_down(&root).unwrap();
    assert_eq!(root.mounts(), Vec::<std::path::PathBuf>::new());
    assert!(!root.join("pods").join(UID).exists());
}

#[test]
fn teardown_keeps_data_of_persistent_volumes() {
    let root = Root::new();
    let volume = volume(&root, "nfs");
    let file = volume.join("data");
    fs::write(&file, "precious").unwrap();
    let error = take_down(&root).unwrap_err().to_string();
    assert_eq!(error, format!("{} holds data, left in place", file.display()));
    assert_eq!(read(&file), "precious");
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(volume.join("empty/dirs")).unwrap();
    take_down(&root).unwrap();
    assert!(!root.join("pods").join(UID).exists());
}

#[test]
fn teardown_removes_sub_path_binds_as_root() {
    let root = Root::new();
    let file = root.write("host/canary", "alive");
    let container = root.join(&format!("pods/{UID}/volume-subpaths/v/c"));
    fs::create_dir_all(container.join("0")).unwrap();
    fs::write(container.join("1"), "").unwrap();
    fs::create_dir(container.join("2")).unwrap();
    bind(&root.join("host"), &container.join("0"));
    bind(&file, &container.join("1"));
    take_down(&root).unwrap();
    assert!(root.mounts().is_empty() && !root.join("pods").join(UID).exists());
    assert_eq!(read(&file), "alive");
}

#[test]
fn teardown_of_deep_and_wide_trees_as_root() {
    let root = Root::new();
    let volume = volume(&root, "empty-dir");
    let deep = Dir::open_trusted(&volume).unwrap();
    let mut at = deep.make_dir("0", 0o755).unwrap();
    for level in 1..3000 {
        at = at.make_dir(level.to_string(), 0o755).unwrap();
        at.new_file("file".as_ref(), b"x", 0o644, (None, None)).unwrap();
    }
    // Taken names must not stop it.
    fs::DirBuilder::new().mode(0o700).create(volume.join(".longshore-removes-1")).unwrap();
    for number in 0..2500 {
        fs::write(volume.join(format!("f{number}")), "").unwrap();
    }
    take_down(&root).unwrap();
    assert!(!root.join("pods").join(UID).exists());
}
