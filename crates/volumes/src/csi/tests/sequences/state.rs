//! The actual and the expected state of volumes, as lines of text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::super::paths::VolumePaths;
use super::super::world::{DRIVER, World};
use super::node::Node;
use super::{Kind, PODS};

const DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices";

/// Compares the actual with the expected state.
pub(super) fn compare(node: &Node) -> Result<(), String> {
    let (found, expected) = (found(node), expected(node));
    let without = |these: &[String], other_users: &[String]| -> Vec<String> {
        these.iter().filter(|line| !other_users.contains(line)).cloned().collect()
    };
    match found == expected {
        true => Ok(()),
        false => Err(format!(
            "left over: {:#?}, missing: {:#?}, of {found:#?}",
            without(&found, &expected),
            without(&expected, &found)
        )),
    }
}

fn expected(node: &Node) -> Vec<String> {
    let mut lines = BTreeSet::new();
    let root = node.world.root.join("node");
    let mut say = |what: &str, path: &dyn AsRef<Path>| {
        let path = path.as_ref();
        lines.insert(format!("{what} {}", path.strip_prefix(&root).unwrap_or(path).display()));
    };
    for pod in &node.wanted {
        let uid = PODS[*pod];
        for kind in &node.kinds[*pod] {
            let volume = kind.volume(uid);
            let volumes = format!("pods/{uid}/volumes/kubernetes.io~csi/{volume}");
            let Some(handle) = kind.handle(uid) else {
                if *kind == Kind::Local {
                    let volumes = format!("pods/{uid}/volumes/kubernetes.io~local-volume");
                    say("mount", &format!("{volumes}/{volume}"));
                    say("user", &format!("{uid} of kubernetes.io/local-volume/{volume}"));
                }
                continue;
            };
            if *kind != Kind::Inline {
                say("user", &format!("{uid} of kubernetes.io/csi/{DRIVER}^{handle}"));
            }
            let (staged, target) = if *kind == Kind::Raw {
                say("mount", &format!("{DEVICES}/{volume}/dev/{uid}"));
                say("loop", &format!("{DEVICES}/{volume}/dev/{uid}"));
                say("file", &format!("{DEVICES}/{volume}/data/vol_data.json"));
                say("file", &format!("pods/{uid}/volumeDevices/kubernetes.io~csi/{volume}"));
                let staged = format!("{DEVICES}/staging/{volume}");
                (root.join(staged), format!("{DEVICES}/publish/{volume}/{uid}"))
            } else {
                say("file", &format!("{volumes}/vol_data.json"));
                (VolumePaths::staged(&root, DRIVER, &handle).mount, format!("{volumes}/mount"))
            };
            say("mount", &target);
            say("published", &format!("{handle} at {}", root.join(target).display()));
            if node.stages && *kind != Kind::Inline {
                say("staged", &format!("{handle} at {}", staged.display()));
                match kind {
                    Kind::Raw => say("empty", &staged),
                    _ => {
                        say("mount", &staged);
                        say("file", &staged.with_file_name("vol_data.json"));
                    }
                }
            }
        }
    }
    lines.into_iter().collect()
}

/// The actual state; stacked mounts are separate lines.
fn found(node: &Node) -> Vec<String> {
    let world = &node.world;
    let root = world.root.join("node");
    let mounts = world.root.mounts();
    let mut lines = Vec::new();
    let mut say = |what: &str, path: &Path| {
        lines.push(format!("{what} {}", path.strip_prefix(&root).unwrap_or(path).display()));
    };
    mounts.iter().for_each(|point| say("mount", point));
    for dir in ["pods", "plugins"] {
        walk(&root.join(dir), &mounts, &mut say);
    }
    for (_, file) in loops(world) {
        say("loop", &file);
    }
    let unwanted = PODS.iter().enumerate().filter(|(pod, _)| !node.wanted.contains(pod));
    for (_, uid) in unwanted.filter(|(_, uid)| root.join("pods").join(uid).exists()) {
        say("pod", uid.as_ref());
    }
    let books = world.driver.volume_log();
    let staged = books.staged.into_iter().map(|staged| ("staged", staged));
    let published = books.published.into_iter().map(|published| ("published", published));
    lines.extend(staged.chain(published).map(|(what, (v, path))| format!("{what} {v} at {path}")));
    let users = world.volumes.devices().in_use().borrow().clone();
    for (device, uids) in users.users() {
        lines.extend(uids.iter().map(|uid| format!("user {uid} of {device}")));
    }
    lines.sort();
    lines
}

/// Files and empty directories, except for directories that are kept.
fn walk(dir: &Path, mounts: &[PathBuf], say: &mut impl FnMut(&str, &Path)) {
    // The second one may exist alone after an interrupted set-up.
    let of_driver = [DRIVER, "volumeDevices", "volumeDevices/staging", "volumeDevices/publish"];
    let of_driver = of_driver.map(|name| Path::new("plugins/kubernetes.io/csi").join(name));
    let stays = dir.ends_with("pods") || of_driver.iter().any(|stays| dir.ends_with(stays));
    let entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
    if entries.is_empty() && dir.exists() && !stays {
        say("empty", dir);
    }
    for entry in entries.iter().filter(|entry| !mounts.contains(&entry.path())) {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => walk(&entry.path(), mounts, say),
            false => say("file", &entry.path()),
        }
    }
}

/// The loop devices of the node's files.
pub(super) fn loops(world: &World) -> Vec<(PathBuf, PathBuf)> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let loops = devices.filter_map(|device| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        Some((Path::new("/dev").join(device.file_name()), PathBuf::from(file.trim_end())))
    });
    loops.filter(|(_, file)| file.starts_with(world.root.join("node"))).collect()
}
