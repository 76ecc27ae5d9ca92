//! Cleanup of pods that vanish while the daemon is down, with obstacles: mounts of others are not touched,
//! each error is logged once, and the cleanup completes once the obstacle is removed.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use common::{Cluster, FOREVER, script, uid};
use kube::api::DeleteParams;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

/// A bind of a directory of the host at one of a pod's volumes, until it is dropped.
struct Bind(PathBuf);

impl Bind {
    fn new(from: &Path, to: PathBuf, flags: MsFlags) -> Self {
        let none = None::<&str>;
        mount(Some(from), &to, none, MsFlags::MS_BIND, none).expect("a bind");
        let to = Self(to);
        let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags;
        mount(none, &to.0, none, again, none).expect("its flags");
        to
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// A file that cannot be removed, until this is dropped.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: PathBuf) -> Self {
        fs::write(&path, "x").unwrap();
        chattr("+i", &path);
        Self(path)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        chattr("-i", &self.0);
    }
}

fn chattr(change: &str, path: &Path) {
    let done = Command::new("chattr").arg(change).arg(path).status().expect("chattr runs");
    assert!(done.success(), "chattr {change} {}", path.display());
}

/// A process that works in a directory, until it is dropped.
struct Worker(Child);

impl Worker {
    fn new(dir: PathBuf) -> Self {
        Self(Command::new("sleep").arg("1000").current_dir(dir).spawn().expect("sleep runs"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn orphan_cleanup_keeps_and_reports_obstacles_once() {
    let mut cluster = Cluster::start().await;
    let names = ["bound", "frozen", "fixed", "busy", "shared"];
    let mut uids = Vec::new();
    for name in names {
        let mut spec = script(FOREVER);
        let medium = if name == "busy" { "Memory" } else { "" };
        spec["volumes"] = json!([{"name": "v", "emptyDir": {"medium": medium}}]);
        spec["containers"][0]["volumeMounts"] =
            json!([{"name": "v", "mountPath": "/v", "subPath": "sub"}]);
        uids.push(uid(&cluster.create(name, spec).await));
        cluster.until_ready(name).await;
    }
    let root = cluster.node.root_dir().join("pods");
    let dir = |name: &str| {
        let uid = &uids[names.iter().position(|known| *known == name).unwrap()];
        root.join(uid)
    };
    let volume = |name: &str| dir(name).join("volumes/kubernetes.io~empty-dir/v");
    let data = cluster.host.dir().join("data");
    fs::create_dir_all(data.join("deep")).unwrap();
    for file in ["file", "deep/file"] {
        fs::write(data.join(file), "precious").unwrap();
    }
    let (bound, frozen) = (volume("bound"), volume("frozen"));
    let shared = dir("shared").join("volumes/kubernetes.io~nfs/other");
    for path in [bound.join("a/b"), frozen.join("a"), shared.clone()] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(frozen.join("a/file"), "kept").unwrap();
    let fixed = volume("fixed").join("file");

    cluster.node.daemon().kill().unwrap();
    let log = cluster.node.daemon().log_path().to_owned();
    let lines = |text: &str| text.lines().count();
    let before = lines(&fs::read_to_string(&log).unwrap());
    for name in names {
        cluster.pods().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    let in_the_way = (
        Bind::new(&data, bound.join("a/b"), MsFlags::empty()),
        Bind::new(&frozen.join("a"), frozen.join("a"), MsFlags::MS_RDONLY),
        Bind::new(&data, dir("shared").join("volumes/kubernetes.io~nfs"), MsFlags::empty()),
        Immutable::new(fixed.clone()),
        Worker::new(volume("busy")),
    );
    cluster.node.restart(&cluster.host).unwrap();
    let reports = || {
        let log = fs::read_to_string(&log).unwrap();
        let new: Vec<String> = log.lines().skip(before).map(str::to_owned).collect();
        let about = |name: &str| {
            let dir = dir(name).display().to_string();
            let errors = new.iter().filter(|line| line.starts_with('W') && line.contains(&dir));
            errors.cloned().collect::<Vec<_>>()
        };
        names.map(about)
    };
    longshore_testkit::wait_until(common::TIMEOUT, "each error is reported", async || {
        let reports = reports();
        let missing = names.iter().zip(&reports).find(|(_, lines)| lines.is_empty());
        missing.map_or(Ok(()), |(name, _)| Err((*name).to_owned()))
    })
    .await
    .unwrap();
    // It is tried again all the time, and always in vain.
    tokio::time::sleep(Duration::from_secs(10)).await;
    for (name, lines) in names.iter().zip(reports()) {
        println!("{name}: {lines:#?}");
        assert_eq!(lines.len(), 1, "{name}: {lines:#?}");
    }
    for file in ["file", "deep/file"] {
        for place in [&data, &bound.join("a/b"), &dir("shared").join("volumes/kubernetes.io~nfs")] {
            assert_eq!(fs::read_to_string(place.join(file)).unwrap(), "precious", "{file}");
        }
    }
    assert_eq!(fs::read_to_string(frozen.join("a/file")).unwrap(), "kept");
    assert!(fixed.exists());

    drop(in_the_way);
    for uid in &uids {
        cluster.until_removed(uid).await;
    }
    for file in ["file", "deep/file"] {
        assert_eq!(fs::read_to_string(data.join(file)).unwrap(), "precious", "{file}");
    }
    cluster.host.assert_clean();
}
