//! FlexVolume drivers: scripts that note what they are asked, and answer as their files say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use longshore_testkit::wait_until;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::read;
use super::world::{Disk, LIMIT, World, pod_with};
use crate::flex;
use crate::persistent::PersistentSource;
use crate::task::Task;

const DRIVER: &str = "example.com/share";

/// A driver: `answers/COMMAND` is what it prints; `mount` and `mountdevice` mount a tmpfs, and the others
/// unmount it.
const SCRIPT: &str = r#"#!/bin/sh
here="${0%/flex/*}"
echo "$*" >>"$here/asked"
answer="$here/answers/$1"
case "$1" in
mount | mountdevice) grep -q Success "$answer" 2>/dev/null && mount -t tmpfs tmpfs "$2" ;;
unmount | unmountdevice) grep -q Success "$answer" 2>/dev/null && umount "$2" ;;
esac
[ -e "$answer" ] || { echo '{"status": "Not supported"}'; exit 1; }
cat "$answer"
grep -q Failure "$answer" && exit 1
exit 0
"#;

const OK: &str = r#"{"status": "Success"}"#;

struct Vendor(World);

impl Vendor {
    async fn start(answers: &[(&str, &str)]) -> Self {
        let world = World::start().await;
        world.root.write("asked", "");
        let vendor = Self(world);
        vendor.install(SCRIPT);
        answers.iter().for_each(|(command, answer)| vendor.answer(command, answer));
        vendor
    }

    fn install(&self, script: &str) {
        let path = self.0.root.write("flex/example.com~share/new", script);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(path, self.0.root.join("flex/example.com~share/share")).unwrap();
    }

    fn answer(&self, command: &str, answer: &str) {
        self.0.root.write(&format!("answers/{command}"), answer);
    }

    /// What was asked since the last time, by command and arguments.
    fn asked(&self) -> Vec<String> {
        let path = self.0.root.join("asked");
        let asked = read(&path);
        fs::write(path, "").unwrap();
        let node = format!("{}/", self.0.node("").display());
        asked.lines().map(|line| line.replace(node.trim_end_matches('/'), "/node")).collect()
    }

    fn commands(&self) -> Vec<String> {
        let first = |line: String| line.split(' ').next().unwrap_or_default().to_owned();
        self.asked().into_iter().map(first).collect()
    }
}

/// The options of a call.
fn options(line: &str) -> Value {
    let start = line.find('{').unwrap();
    let end = line.rfind('}').unwrap();
    serde_json::from_str(&line[start..=end]).unwrap()
}

fn inline(uid: &str, source: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "ns", "uid": uid},
        "spec": {
            "containers": [], "serviceAccountName": "builder",
            "securityContext": {"fsGroup": 5},
            "volumes": [{"name": "data", "flexVolume": source}],
        },
    }))
    .unwrap()
}

const NO_ATTACH: (&str, &str) =
    ("init", r#"{"status": "Success", "capabilities": {"attach": false}}"#);

#[tokio::test]
async fn flex_volume_is_mounted_for_its_pod_with_its_secret_as_root() {
    let vendor = Vendor::start(&[NO_ATTACH, ("mount", OK), ("unmount", OK)]).await;
    let secret = json!({"type": DRIVER, "data": {"password": "cHc="}});
    vendor.0.api.put("secrets", "share", 1, secret);
    let source = json!({
        "driver": DRIVER, "fsType": "x", "readOnly": false, "secretRef": {"name": "share"},
        "options": {"server": "s", "kubernetes.io/pod.uid": "of another"},
    });
    let pod = inline("u1", source);
    let mounted = vendor.0.mount(&pod).await.unwrap()["data"].clone();
    assert_eq!(mounted.path, vendor.0.node("pods/u1/volumes/example.com~share/data"));
    assert!(mounted.relabel && !mounted.read_only);
    let asked = vendor.asked();
    assert_eq!(asked[0], "init");
    assert!(
        asked[1].starts_with("mount /node/pods/u1/volumes/example.com~share/data {"),
        "{asked:?}"
    );
    assert_eq!(
        options(&asked[1]),
        json!({
            "kubernetes.io/fsType": "x", "kubernetes.io/readwrite": "rw", "server": "s",
            "kubernetes.io/pvOrVolumeName": "data", "kubernetes.io/secret/password": "cHc=",
            "kubernetes.io/mounterArgs.FsGroup": "5", "kubernetes.io/pod.name": "pod-u1",
            "kubernetes.io/pod.namespace": "ns", "kubernetes.io/pod.uid": "u1",
            "kubernetes.io/serviceAccount.name": "builder",
        })
    );
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(&mounted.path).unwrap().gid(), 5);
    assert_eq!(vendor.0.volumes.devices().in_use().borrow().attached(), [""; 0], "not attached");
    vendor.0.mount(&pod).await.unwrap();
    assert_eq!(vendor.asked(), [""; 0], "it is mounted already");
    vendor.0.remove("u1").await;
    assert_eq!(vendor.asked(), ["unmount /node/pods/u1/volumes/example.com~share/data"]);
    vendor.0.assert_clean();
}

#[tokio::test]
async fn flex_secret_of_another_type_is_refused_as_root() {
    let vendor = Vendor::start(&[NO_ATTACH, ("mount", OK), ("unmount", OK)]).await;
    vendor.0.api.put("secrets", "share", 1, json!({"type": "Opaque", "data": {"a": "cHc="}}));
    let source = json!({"driver": DRIVER, "secretRef": {"name": "share"}});
    let error = vendor.0.mount(&inline("u1", source)).await.unwrap_err();
    let expected = format!(
        "MountVolume.SetUp failed for volume \"data\" : FlexVolume driver {DRIVER}: cannot get secret \
         of type {DRIVER}"
    );
    assert_eq!(error, expected);
    assert_eq!(vendor.commands(), ["init"]);
}

#[tokio::test]
async fn flex_volume_that_the_node_attaches_as_root() {
    let mut vendor = Vendor::start(&[
        ("init", OK),
        ("attach", r#"{"status": "Success", "device": "/dev/x"}"#),
        ("waitforattach", r#"{"status": "Success", "device": "/dev/y"}"#),
        ("mountdevice", OK),
        ("unmountdevice", OK),
        ("detach", OK),
    ])
    .await;
    vendor.0.claim("a", json!({"flexVolume": {"driver": DRIVER, "options": {"id": "7"}}}));
    let [one, two] = ["u1", "u2"].map(|uid| pod_with(uid, &["a"], json!({})));
    let mounted = vendor.0.mount(&one).await.unwrap()["a"].clone();
    fs::write(mounted.path.join("file"), "x").unwrap();
    let asked = vendor.asked();
    let starts = [
        "init",
        "attach {",
        "waitforattach /dev/x {",
        "mountdevice /node/plugins/kubernetes.io/flexvolume/example.com/share/mounts/pv-a /dev/y {",
        "mount /node/pods/u1/volumes/example.com~share/pv-a {",
    ];
    assert_eq!(asked.len(), starts.len(), "{asked:?}");
    for (line, start) in asked.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
    assert!(asked[1].ends_with("} n1"), "the node's name: {}", asked[1]);
    let device = format!("{DRIVER}/pv-a");
    assert_eq!(vendor.0.volumes.devices().in_use().borrow().attached(), [device.as_str()]);
    let second = vendor.0.mount(&two).await.unwrap()["a"].clone();
    assert_eq!(read(second.path.join("file")), "x", "one mount for all pods");
    assert_eq!(vendor.asked(), [""; 0], "what it does not support is not asked again");

    vendor.0.restart();
    assert_eq!(vendor.0.users()[&device].len(), 2);
    vendor.0.remove("u1").await;
    assert_eq!(vendor.commands(), ["init", "unmount"]);
    vendor.0.remove("u2").await;
    let global = "/node/plugins/kubernetes.io/flexvolume/example.com/share/mounts/pv-a";
    assert_eq!(vendor.asked(), [format!("unmountdevice {global}"), "detach pv-a n1".to_owned()]);
    vendor.0.assert_clean();
}

/// The driver is asked to undo what it has done, until it has, and nothing else.
#[tokio::test]
async fn flex_end_that_fails_is_tried_again_as_root() {
    const FAILURE: &str = r#"{"status": "Failure", "message": "busy"}"#;
    let mut vendor = Vendor::start(&[("init", OK), ("attach", FAILURE)]).await;
    vendor.0.claim("a", json!({"flexVolume": {"driver": DRIVER}}));
    vendor.0.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap_err();
    assert_eq!(vendor.commands(), ["init", "attach"]);
    vendor.0.remove("u1").await;
    assert_eq!(vendor.commands(), [""; 0], "it was neither attached nor mounted");
    vendor.0.assert_clean();

    for (command, answer) in
        [("attach", OK), ("mountdevice", OK), ("unmountdevice", FAILURE), ("detach", FAILURE)]
    {
        vendor.answer(command, answer);
    }
    vendor.0.mount(&pod_with("u2", &["a"], json!({}))).await.unwrap();
    vendor.asked();
    let device = format!("{DRIVER}/pv-a");
    for (command, asked) in [
        ("unmountdevice", vec!["unmount", "unmountdevice"]),
        ("detach", vec!["init", "unmountdevice", "detach"]),
    ] {
        vendor.0.volumes.remove_pod("u2").await.unwrap_err();
        assert_eq!(vendor.commands(), asked);
        assert_eq!(vendor.0.users()[&device].len(), 1, "in use until it has succeeded");
        vendor.answer(command, OK);
        vendor.0.restart();
        assert_eq!(vendor.0.users()[&device].len(), 1);
    }
    vendor.0.remove("u2").await;
    assert_eq!(vendor.commands(), ["init", "detach"]);
    vendor.0.assert_clean();
}

#[tokio::test]
async fn flex_volume_that_the_control_plane_attaches_as_root() {
    let mut vendor = Vendor::start(&[("init", OK)]).await;
    let disk = Disk::new(&vendor.0.root.join("disk"));
    vendor.0.claim("a", json!({"flexVolume": {"driver": DRIVER, "fsType": "ext4"}}));
    let managed = "volumes.kubernetes.io/controller-managed-attach-detach";
    let attached = json!([{"name": format!("{DRIVER}/pv-a"), "devicePath": disk.device}]);
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "n1", "annotations": {managed: "true"}},
        "status": {"volumesAttached": attached},
    }))
    .unwrap();
    let (_known, node) = watch::channel(Some(Arc::new(node)));
    vendor.0.set_node(node);
    vendor.0.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap();
    let global = "plugins/kubernetes.io/flexvolume/example.com/share/mounts/pv-a";
    assert!(vendor.0.mounted().contains(global), "formatted and mounted by the node");
    assert_eq!(vendor.commands(), ["init", "waitforattach", "mountdevice", "mount"]);
    vendor.0.remove("u1").await;
    assert_eq!(vendor.commands(), ["unmount", "unmountdevice"], "not detached by the node");
    vendor.0.assert_clean();
}

/// A volume that the control plane has detached meanwhile is an error, and no lock is held until it is
/// attached again.
#[tokio::test]
async fn flex_volume_that_is_detached_again_is_an_error_as_root() {
    let mut vendor = Vendor::start(&[("init", OK)]).await;
    vendor.0.claim("a", json!({"flexVolume": {"driver": DRIVER}}));
    let managed = "volumes.kubernetes.io/controller-managed-attach-detach";
    let metadata = json!({"name": "n1", "annotations": {managed: "true"}});
    let node: Node = serde_json::from_value(json!({"metadata": metadata})).unwrap();
    let (_known, node) = watch::channel(Some(Arc::new(node)));
    vendor.0.set_node(node);
    let pod = pod_with("u1", &["a"], json!({}));
    let resolved = vendor.0.volumes.resolve(&pod).await.0.remove(0).unwrap().unwrap();
    let PersistentSource::Flex(source) = &resolved.source else { panic!("{resolved:?}") };
    let task = Task { node: &vendor.0.volumes.inner, pod: &pod, persistent: &resolved };
    let error = timeout(LIMIT, flex::set_up(&task, source)).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "volume not attached according to node status");
    vendor.0.remove("u1").await;
    vendor.0.assert_clean();
}

/// What sets a volume up may take longer than other tools may, which is an event. Only the end of the pod
/// ends it, and then it is undone.
#[tokio::test(flavor = "multi_thread")]
async fn flex_mount_that_takes_long_is_waited_for_until_its_pod_ends_as_root() {
    let mut vendor = Vendor::start(&[NO_ATTACH, ("mount", OK), ("unmount", OK)]).await;
    // After its mount it waits for a file.
    vendor.install(&SCRIPT.replace(
        "cat \"$answer\"",
        "case \"$1\" in mount) until [ -e \"$here/go-on\" ]; do sleep 0.05; done ;; esac\ncat \"$answer\"",
    ));
    vendor.0.limit(Duration::from_secs(2));
    let slow = |uid: &str| {
        let (volumes, pod) = (vendor.0.volumes.clone(), inline(uid, json!({"driver": DRIVER})));
        tokio::spawn(async move { volumes.mount(&pod).await })
    };
    let waited = slow("u1");
    let (kind, message) = vendor.0.events("FailedMount", 1).await.remove(0);
    assert_eq!(
        (kind.as_str(), message.as_str()),
        (
            "Pod",
            "MountVolume.SetUp for volume \"data\" is not done yet: FlexVolume driver \
             example.com/share has not ended its mount command after 2s; it is waited for"
        )
    );
    assert!(!waited.is_finished());
    vendor.0.root.write("go-on", "");
    waited.await.unwrap().unwrap();
    vendor.0.remove("u1").await;

    fs::remove_file(vendor.0.root.join("go-on")).unwrap();
    let ended = slow("u2");
    wait_until(LIMIT, "it is mounted", async || match vendor.0.mounted().is_empty() {
        true => Err("not yet"),
        false => Ok(()),
    })
    .await
    .unwrap();
    vendor.asked();
    vendor.0.remove("u2").await;
    let error = ended.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("and was killed"), "{error}");
    assert_eq!(vendor.commands(), ["unmount"]);
    vendor.0.assert_clean();
}

/// A driver that was killed, or whose volume could not be given to the pod's group, has left a mount that
/// lacks something: it is not taken for the volume.
#[tokio::test]
async fn flex_volume_that_was_not_completed_is_mounted_anew_as_root() {
    let vendor = Vendor::start(&[
        ("init", OK),
        ("mount", OK),
        ("unmount", OK),
        ("mountdevice", OK),
        ("unmountdevice", OK),
    ])
    .await;
    for failing in ["mountdevice", "mount"] {
        // It fails after the mount.
        vendor.answer(failing, r#"{"status": "Failure", "message": "Success of a half"}"#);
        let pod = inline("u1", json!({"driver": DRIVER}));
        vendor.0.mount(&pod).await.unwrap_err();
        assert!(!vendor.0.mounted().is_empty());
        vendor.answer(failing, OK);
        vendor.asked();
        vendor.0.mount(&pod).await.unwrap();
        let expected: &[&str] = match failing {
            "mountdevice" => &["unmountdevice", "mountdevice", "mount"],
            _ => &["unmount", "mount"],
        };
        assert_eq!(vendor.commands(), expected);
        vendor.0.mount(&pod).await.unwrap();
        assert_eq!(vendor.commands(), [""; 0], "it is complete");
        vendor.0.remove("u1").await;
        vendor.0.assert_clean();
    }
}

/// A driver expands the file system, or the node does it.
#[tokio::test]
async fn flex_volume_is_expanded_as_root() {
    let vendor = Vendor::start(&[("init", OK), ("unmountdevice", OK)]).await;
    let file = vendor.0.root.join("disk");
    let disk = Disk::new(&file);
    let device = json!({"status": "Success", "device": disk.device}).to_string();
    vendor.answer("attach", &device);
    let source = json!({"flexVolume": {"driver": DRIVER, "fsType": "ext4"}});
    vendor.0.claim("a", source.clone());
    let pod = pod_with("u1", &["a"], json!({}));
    let path = vendor.0.mount(&pod).await.unwrap()["a"].path.clone();
    let size = || nix::sys::statvfs::statvfs(&path).unwrap().blocks();
    let before = size();
    disk.grow(&file, 64 << 20);
    vendor.0.enlarge("a", source.clone(), ["16Mi", "64Mi"]);
    vendor.asked();
    let can_resize = vendor.0.can_resize();
    vendor.0.mount(&pod).await.unwrap();
    match can_resize {
        true => assert!(size() > 3 * before, "{} after {before}", size()),
        false => {
            let resized = read(vendor.0.root.join("resized"));
            assert_eq!(resized.trim(), disk.device.to_str().unwrap());
        }
    }
    assert_eq!(vendor.0.claim_size("a"), "64Mi");
    assert_eq!(vendor.commands(), ["expandfs"]);

    // Another version of the driver does it by itself.
    vendor.answer("expandfs", OK);
    vendor.install(SCRIPT);
    vendor.0.enlarge("a", source, ["64Mi", "96Mi"]);
    vendor.0.mount(&pod).await.unwrap();
    let asked = vendor.asked();
    assert_eq!((asked.len(), asked[0].as_str()), (2, "init"), "{asked:?}");
    let global = "/node/plugins/kubernetes.io/flexvolume/example.com/share/mounts/pv-a";
    let end = format!("}} {} {global} {} {}", disk.device.display(), 96 << 20, 64 << 20);
    assert!(asked[1].starts_with("expandfs {") && asked[1].ends_with(&end), "{}", asked[1]);
    assert_eq!(vendor.0.claim_size("a"), "96Mi");
    vendor.0.remove("u1").await;
    vendor.0.assert_clean();
}

/// What a driver prints without end costs neither memory nor its answer's reader, and a process that it leaves
/// in the background is not waited for.
#[tokio::test]
async fn flex_driver_that_prints_without_end_is_read_to_a_limit_as_root() {
    let vendor = Vendor::start(&[NO_ATTACH, ("mount", OK), ("unmount", OK)]).await;
    vendor.install(&format!("#!/bin/sh\nhead -c {} /dev/zero | tr '\\0' x", 64 << 20));
    let error = vendor.0.mount(&inline("u1", json!({"driver": DRIVER}))).await.unwrap_err();
    assert!(error.contains("init command printed no valid answer"), "{error}");
    // A long answer counts as a whole.
    let padding = " ".repeat(100_000);
    vendor.answer("mount", &format!("{padding}{OK}"));
    vendor.install(&SCRIPT.replace("exit 0", "sleep 5 &\nexit 0"));
    vendor.0.mount(&inline("u1", json!({"driver": DRIVER}))).await.unwrap();
    vendor.0.remove("u1").await;
    vendor.0.assert_clean();
}

/// Another driver's volumes do not wait.
#[tokio::test(flavor = "multi_thread")]
async fn flex_driver_that_hangs_delays_no_other_as_root() {
    let vendor = Vendor::start(&[NO_ATTACH, ("mount", OK), ("unmount", OK)]).await;
    let hangs = vendor.0.root.write("flex/hangs/hangs", "#!/bin/sh\nsleep 600\n");
    fs::set_permissions(&hangs, fs::Permissions::from_mode(0o755)).unwrap();
    let (volumes, pod) = (vendor.0.volumes.clone(), inline("u1", json!({"driver": "hangs"})));
    let hanging = tokio::spawn(async move { volumes.mount(&pod).await.map(drop) });
    wait_until(LIMIT, "it is initialised", async || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|one| fs::read(one.path().join("cmdline")).ok());
        let program = hangs.display().to_string();
        match lines.any(|line| String::from_utf8_lossy(&line).contains(&program)) {
            true => Ok(()),
            false => Err("not yet"),
        }
    })
    .await
    .unwrap();
    vendor.0.mount(&inline("u2", json!({"driver": DRIVER}))).await.unwrap();
    assert!(!hanging.is_finished());
    vendor.0.remove("u2").await;
    hanging.await.unwrap().unwrap_err();
    fs::remove_file(&hangs).unwrap();
    vendor.0.remove("u1").await;
    vendor.0.assert_clean();
}

#[tokio::test]
async fn flex_drivers_come_and_go_and_change_as_root() {
    let vendor = Vendor::start(&[NO_ATTACH, ("mount", OK), ("unmount", OK)]).await;
    let program = vendor.0.root.join("flex/example.com~share/share");
    let away = vendor.0.root.join("away");
    fs::rename(&program, &away).unwrap();
    let pod = inline("u1", json!({"driver": DRIVER}));
    let error = vendor.0.mount(&pod).await.unwrap_err();
    let missing = format!("FlexVolume driver {DRIVER}: there is no program {}", program.display());
    assert!(error.ends_with(&missing), "{error}");
    fs::rename(&away, &program).unwrap();
    vendor.0.mount(&pod).await.unwrap();
    assert_eq!(vendor.commands(), ["init", "mount"]);
    // A mount that only its driver can undo stays until it is back.
    fs::rename(&program, &away).unwrap();
    let error = vendor.0.volumes.remove_pod("u1").await.unwrap_err().to_string();
    assert!(error.ends_with(&missing), "{error}");
    vendor.install(SCRIPT);
    vendor.0.remove("u1").await;
    assert_eq!(vendor.commands(), ["init", "unmount"], "another program is initialised");
    vendor.0.assert_clean();
}

#[tokio::test]
async fn flex_drivers_that_fail_are_named_as_root() {
    let mut vendor = Vendor::start(&[NO_ATTACH]).await;
    let pod = inline("u1", json!({"driver": DRIVER}));
    let failed = format!(
        "MountVolume.SetUp failed for volume \"data\" : FlexVolume driver {DRIVER}: mount command "
    );
    for (answer, expected) in [
        (r#"{"status": "Failure", "message": "no"}"#, "failed, status: Failure, reason: no"),
        ("nonsense", "printed no valid answer: expected ident at line 1 column 2"),
        (r#"{"status": "Not supported"}"#, "is not supported"),
    ] {
        vendor.answer("mount", answer);
        assert_eq!(vendor.0.mount(&pod).await.unwrap_err(), format!("{failed}{expected}"));
    }
    vendor.0.limit(Duration::from_secs(1));
    vendor.install("#!/bin/sh\nyes | head -c 100000\nsleep 60");
    let error = vendor.0.mount(&pod).await.unwrap_err();
    assert!(error.contains("did not end within 1s and was killed") && error.len() < 5000);
    vendor.install(SCRIPT);
    vendor.0.remove("u1").await;
    for driver in ["../../x", "", "a/.."] {
        let error = vendor.0.mount(&inline("u1", json!({"driver": driver}))).await.unwrap_err();
        assert!(error.contains("invalid FlexVolume driver"), "{error}");
    }
    vendor.0.assert_clean();
}

/// Attached volumes have the names that pods give them.
#[tokio::test]
async fn flex_volume_of_another_pod_with_the_same_name_is_refused_as_root() {
    let vendor = Vendor::start(&[("init", OK), ("mountdevice", OK), ("unmountdevice", OK)]).await;
    let volume =
        |uid: &str, id: &str| inline(uid, json!({"driver": DRIVER, "options": {"id": id}}));
    vendor.0.mount(&volume("u1", "1")).await.unwrap();
    vendor.0.mount(&volume("u2", "1")).await.unwrap();
    let error = vendor.0.mount(&volume("u3", "2")).await.unwrap_err();
    assert!(error.ends_with("another pod uses another volume with the name \"data\""), "{error}");
    for uid in ["u3", "u1", "u2"] {
        vendor.0.remove(uid).await;
    }
    vendor.0.assert_clean();
}
