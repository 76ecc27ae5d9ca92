//! A daemon is killed at any point of a set-up or teardown: the next one completes or undoes it,
//! and nothing is left over.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{PodMounts, SubPath, Volumes};
use k8s_openapi::api::core::v1::Pod;
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_client::objects::fake::FakeApi;
use longshore_testkit::wait_until;
use nix::sys::statvfs::{FsFlags, statvfs};
use serde_json::{Value, json};

use super::world::{Disk, LIMIT, World, open, pod_with};
use super::{bind, read};

const UID: &str = "u1";
/// Number of points at which it is killed.
const ROUNDS: u32 = 16;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Environment variables of the daemon.
const ROOT: &str = "LONGSHORE_TEST_ROOT";
const API: &str = "LONGSHORE_TEST_API";
const WORK: &str = "LONGSHORE_TEST_WORK";
const SET_UP: &str = "set up";
const TAKE_DOWN: &str = "take down";

/// A pod with a volume of each kind that needs no driver.
fn pod(root: &Path) -> Pod {
    let mut pod = serde_json::to_value(pod_with(UID, &["a", "b", "c"], json!({"fsGroup": 77})));
    let pod = pod.as_mut().unwrap();
    let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
    volumes[0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    let more = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "nfs", "nfs": {"server": "s", "path": "/x"}},
        {"name": "host", "hostPath": {"path": root.join("host"), "type": "DirectoryOrCreate"}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "info", "downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        ]}},
        {"name": "projected", "projected": {"sources": [
            {"secret": {"name": "s"}},
            {"configMap": {"name": "c"}},
            {"serviceAccountToken": {"path": "token"}},
        ]}},
    ]);
    volumes.extend(more.as_array().unwrap().clone());
    pod["spec"]["serviceAccountName"] = json!("default");
    serde_json::from_value(pod.take()).unwrap()
}

/// As the pod's worker does it.
async fn set_up(volumes: &Volumes, pod: &Pod) -> PodMounts {
    volumes.inner.objects.register(pod);
    let mounts = volumes.mount(pod).await.unwrap();
    for (index, (volume, path)) in [("disk", "made/here"), ("a", "file")].into_iter().enumerate() {
        let volume_path = &mounts[volume].path;
        let sub_path = SubPath { volume, mount: volume, volume_path, container: "c", index, path };
        volumes.sub_path(UID, sub_path).await.unwrap();
    }
    mounts
}

/// Not a test, but the daemon that the test below kills.
#[tokio::test(flavor = "multi_thread")]
async fn daemon() {
    let Some(root) = std::env::var_os(ROOT).map(PathBuf::from) else { return };
    let client = FakeApi::connect(&std::env::var(API).unwrap());
    let pod_events = PodEventRecorder::new(Recorder::start(None, "n1").0);
    let volumes = open(&root, client, &pod_events, LIMIT, None);
    println!("{WORK}");
    match std::env::var(WORK).unwrap().as_str() {
        SET_UP => drop(set_up(&volumes, &pod(&root)).await),
        _ => volumes.remove_pod(UID).await.unwrap(),
    }
}

struct Daemon {
    process: Child,
    output: BufReader<ChildStdout>,
    began: Instant,
}

impl Daemon {
    /// A daemon that has just begun that work.
    fn begin(world: &World, work: &str) -> Self {
        let (_, module) = module_path!().split_once("::").unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg(format!("{module}::daemon"))
            .args(["--exact", "--nocapture"])
            .env(ROOT, world.root.path())
            .env(API, world.api.url())
            .env(WORK, work)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(WORK) {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "it does not begin");
        }
        Self { process, output, began: Instant::now() }
    }

    /// Runs it to its end; returns how long that took.
    fn finish(mut self) -> Duration {
        assert!(self.process.wait().unwrap().success(), "{:?}", self.output.lines());
        self.began.elapsed()
    }

    fn kill(mut self, after: Duration) {
        std::thread::sleep(after.saturating_sub(self.began.elapsed()));
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Tools that a daemon has started may go on when it is killed.
async fn until_tools_are_done(root: &Path) {
    let root = root.display().to_string();
    wait_until(TIMEOUT, "all tools have ended", async || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut environments =
            processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
        match environments.any(|all| String::from_utf8_lossy(&all).contains(&root)) {
            true => Err("not yet"),
            false => Ok(()),
        }
    })
    .await
    .unwrap();
}

async fn world() -> (World, [Disk; 2]) {
    let world = World::start().await;
    let disks = ["disk-b", "disk-c"].map(|name| Disk::new(&world.root.join(name)));
    let [file_system, raw] = &disks;
    world.root.write("data/file", "x");
    world.root.write("export/file", "x");
    let directory = json!({"path": world.root.join("data")});
    world.claim("a", json!({"mountOptions": ["noexec"], "local": directory}));
    world.claim("b", json!({"local": {"path": file_system.device}}));
    world.claim("c", json!({"volumeMode": "Block", "local": {"path": raw.device}}));
    world.api.put("secrets", "s", 1, json!({"data": {"password": "b25l"}}));
    world.api.put("configmaps", "c", 1, json!({"data": {"setting": "one"}}));
    world.tool("mount.nfs", "exit 0");
    world.tool(
        "mount",
        "here=\"${0%/bin/mount}\"\nfor last; do :; done\n\
         case \"$*\" in *nfs*) exec /bin/mount --bind \"$here/export\" \"$last\" ;; esac\n\
         exec /bin/mount \"$@\"",
    );
    (world, disks)
}

fn check(world: &World, mounts: &PodMounts) {
    let at = |volume: &str, path: &str| mounts[volume].path.join(path);
    for (volume, path, expected) in [
        ("a", "file", "x"),
        ("nfs", "file", "x"),
        ("secret", "password", "one"),
        ("config", "setting", "one"),
        ("info", "name", "pod-u1"),
        ("projected", "password", "one"),
        ("projected", "setting", "one"),
    ] {
        assert_eq!(read(at(volume, path)), expected, "{volume}");
    }
    let read_only = FsFlags::ST_RDONLY | FsFlags::ST_NOEXEC;
    assert!(statvfs(&mounts["a"].path).unwrap().flags().contains(read_only));
    assert!(fs::metadata(&mounts["c"].path).unwrap().file_type().is_block_device());
    assert!(at("b", "lost+found").is_dir(), "it has a file system");
    for volume in ["disk", "memory"] {
        let root = fs::metadata(&mounts[volume].path).unwrap();
        assert_eq!((root.mode() & 0o2777, root.gid()), (0o2777, 77), "{volume}");
    }
    let sub_paths = world.node("pods/u1/volume-subpaths");
    assert_eq!(read(sub_paths.join("a/c/1")), "x");
    assert_eq!(world.mounted().iter().filter(|path| path.contains("subpaths")).count(), 2);
}

#[tokio::test]
async fn crash_recovery_sets_missing_mount_options_and_modes_as_root() {
    let world = World::start().await;
    world.root.write("data/file", "x");
    let directory = json!({"path": world.root.join("data")});
    world.claim("a", json!({"mountOptions": ["noexec"], "local": directory}));
    let volumes = world.node("pods/u1/volumes");
    let local = volumes.join("kubernetes.io~local-volume/pv-a");
    let empty = volumes.join("kubernetes.io~empty-dir/disk");
    for dir in [&local, &empty] {
        fs::create_dir_all(dir).unwrap();
    }
    bind(&world.root.join("data"), &local);
    let mut pod = pod_with(UID, &["a"], Value::Null);
    let disk = serde_json::from_value(json!({"name": "disk", "emptyDir": {}})).unwrap();
    pod.spec.as_mut().unwrap().volumes.as_mut().unwrap().push(disk);
    let mounts = world.mount(&pod).await.unwrap();
    assert_eq!(mounts["a"].path, local);
    assert!(statvfs(&local).unwrap().flags().contains(FsFlags::ST_NOEXEC));
    assert_eq!(fs::metadata(&empty).unwrap().mode() & 0o7777, 0o777);
    world.remove(UID).await;
    world.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_recovery_after_a_kill_at_any_step_as_root() {
    let (mut world, _disks) = world().await;
    let pod = pod(world.root.path());
    let whole = [SET_UP, TAKE_DOWN].map(|work| Daemon::begin(&world, work).finish());
    world.assert_clean();
    for round in 0..ROUNDS {
        let [set_up_after, take_down_after] = whole.map(|whole| whole * round / ROUNDS);
        Daemon::begin(&world, SET_UP).kill(set_up_after);
        until_tools_are_done(world.root.path()).await;
        // Every second pod is removed before the next daemon starts.
        if round % 2 == 0 {
            world.restart();
            let mounts = set_up(&world.volumes, &pod).await;
            check(&world, &mounts);
        }
        Daemon::begin(&world, TAKE_DOWN).kill(take_down_after);
        until_tools_are_done(world.root.path()).await;
        world.restart();
        world.remove(UID).await;
        world.assert_clean();
        assert_eq!(read(world.root.join("data/file")), "x");
        assert_eq!(read(world.root.join("export/file")), "x");
    }
}
