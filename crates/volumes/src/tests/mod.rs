//! Tests on real file systems and mounts (as root), with the API scripted.

mod atomic;
mod claims;
mod crash;
mod fc;
mod flex;
mod host_path;
mod iscsi;
mod local;
mod nfs;
mod node;
mod ownership;
mod pods;
mod pure;
mod remove;
mod sequences;
mod shared;
mod stats;
mod sub_path;
mod wanted;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Pod;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory of a test; whatever a failed test leaves mounted below is taken down with it.
pub(super) struct Root(TempDir);

impl Root {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn join(&self, path: &str) -> PathBuf {
        self.path().join(path)
    }

    /// Makes a directory on the way and a file.
    fn write(&self, path: &str, data: &str) -> PathBuf {
        let path = self.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, data).unwrap();
        path
    }

    /// The mount points below, the latest first.
    pub(super) fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let points = points.map(|point| PathBuf::from(point.replace("\\040", " ")));
        let mut below: Vec<_> = points.filter(|point| point.starts_with(self.path())).collect();
        below.reverse();
        below
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for point in self.mounts() {
            let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
            umount2(&point, flags).unwrap();
        }
    }
}

/// Tells another thread that the test is over, be it by a panic.
#[derive(Default)]
struct Done(AtomicBool);

impl Done {
    fn is_done(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn when_dropped(&self) -> impl Drop {
        struct Setter<'a>(&'a AtomicBool);
        impl Drop for Setter<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        Setter(&self.0)
    }
}

fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "ns", "uid": "uid-1",
            "labels": {"app": "web"}, "annotations": {"note": "one"},
        },
        "spec": spec,
    }))
    .unwrap()
}
