//! Disks of iSCSI targets: an `iscsiadm` that answers from a table, and a real disk behind it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::read;
use super::world::{Disk, World, pod_with};
use crate::iscsi::ISCSIADM;

const IQN: &str = "iqn.2020-01.org.example:disk";
const PORTAL: &str = "10.0.0.1:3260";

/// What `iscsiadm` does: it notes what it is asked; a login lets the disk show up by its path, and
/// a logout takes it away. `refuse` in its directory names words which make it fail.
const ADMIN: &str = r#"
here="${0%/bin/iscsiadm}"
echo "$*" >>"$here/asked"
while read -r words; do
    case "$*" in *"$words"*) echo "iscsiadm: refused $words" >&2; exit 8 ;; esac
done <"$here/refuse"
case "$*" in
"-m iface"*show) echo "iface.iscsi_ifacename = default"; echo "iface.transport_name = tcp" ;;
"-m session")
    [ -e "$here/session" ] || { echo "iscsiadm: No active sessions." >&2; exit 21; }
    echo "tcp: [7] 10.0.0.1:3260,1 iqn.2020-01.org.example:disk (non-flash)" ;;
*--login) touch "$here/session" ;;
*--rescan) ln -sf "$(cat "$here/device")" "$here/by-path/ip-10.0.0.1:3260-iscsi-iqn.2020-01.org.example:disk-lun-0" ;;
*--logout) [ -e "$here/session" ] || exit 21; rm "$here/session" "$here/by-path"/ip-* ;;
esac
exit 0
"#;

struct Target {
    world: World,
    _disk: Disk,
}

impl Target {
    async fn start() -> Self {
        let world = World::start().await;
        let disk = Disk::new(&world.root.join("disk"));
        world.root.write("device", disk.device.to_str().unwrap());
        world.root.write("refuse", "");
        world.root.write("asked", "");
        world.tool("iscsiadm", ADMIN);
        Self { world, _disk: disk }
    }

    fn claim(&self, more: Value) {
        let mut source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0});
        source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.world.claim("a", json!({"iscsi": source}));
    }

    /// What was asked since the last time, without what names the node's record.
    fn asked(&self) -> Vec<String> {
        let path = self.world.root.join("asked");
        let asked = read(&path);
        fs::write(path, "").unwrap();
        let record = format!("-p {PORTAL} -T {IQN} ");
        asked.lines().map(|line| line.replace(&record, "")).collect()
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.world.root.join(path)
    }
}

#[tokio::test]
async fn iscsi_login_for_the_first_pod_and_logout_after_the_last_as_root() {
    let mut target = Target::start().await;
    target.claim(json!({}));
    let [one, two] = ["u1", "u2"].map(|uid| pod_with(uid, &["a"], json!({"fsGroup": 5})));
    let mounted = target.world.mount(&one).await.unwrap()["a"].clone();
    let volume = target.world.node("pods/u1/volumes/kubernetes.io~iscsi/pv-a");
    assert_eq!(mounted.path, volume);
    fs::write(volume.join("file"), "x").unwrap();
    assert_eq!(
        target.asked(),
        [
            "-m iface -I default -o show",
            "-m session",
            &format!("-m discoverydb -t sendtargets -p {PORTAL} -I default -o new"),
            &format!("-m discoverydb -t sendtargets -p {PORTAL} -I default --discover"),
            "-m node -I default -o update -n node.session.scan -v manual",
            "-m node -I default --login",
            "-m node -I default -o update -n node.startup -v manual",
            "-m session",
            "-m session -r 7 --rescan",
        ]
    );
    let global = format!("plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-0");
    assert!(target.world.mounted().contains(&global), "{:?}", target.world.mounted());
    let device = format!("kubernetes.io/iscsi/{PORTAL}:{IQN}:0");
    target.world.restart();
    assert!(target.world.users()[&device].contains("u1"));

    let second = target.world.mount(&two).await.unwrap()["a"].clone();
    assert_eq!(read(second.path.join("file")), "x");
    assert!(!target.asked().iter().any(|line| line.contains("--login")));
    target.world.remove("u1").await;
    assert_eq!(target.asked(), [""; 0]);
    target.world.remove("u2").await;
    assert_eq!(target.asked(), ["-m node -I default --logout", "-m node -I default -o delete"]);
    target.world.assert_clean();
}

#[tokio::test]
async fn iscsi_chap_credentials_come_from_the_secret_as_root() {
    let target = Target::start().await;
    let data = json!({
        "discovery.sendtargets.auth.username": "ZGk=",
        "node.session.auth.username": "bWU=", "node.session.auth.password": "cHc=",
    });
    target.world.api.put("secrets", "chap", 1, json!({"data": data}));
    target.claim(json!({
        "chapAuthDiscovery": true, "chapAuthSession": true, "initiatorName": "iqn.me",
        "secretRef": {"name": "chap", "namespace": "ns"},
    }));
    target.world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap();
    let asked = target.asked().join("\n");
    for expected in [
        "-m iface -I 10.0.0.1:3260:pv-a -o new",
        "-m iface -I 10.0.0.1:3260:pv-a -o update -n iface.transport_name -v tcp",
        "-m iface -I 10.0.0.1:3260:pv-a -o update -n iface.initiatorname -v iqn.me",
        "-n discovery.sendtargets.auth.authmethod -v CHAP",
        "-n discovery.sendtargets.auth.username -v di",
        "-n node.session.auth.authmethod -v CHAP",
        "-n node.session.auth.username -v me",
        "-n node.session.auth.password -v pw",
    ] {
        assert!(asked.contains(expected), "{expected} in\n{asked}");
    }
    target.world.remove("u1").await;
    let asked = target.asked().join("\n");
    assert!(asked.contains("-m iface -I 10.0.0.1:3260:pv-a -o delete"), "{asked}");
    target.world.assert_clean();
}

#[tokio::test]
async fn iscsi_failed_steps_are_reported_and_retried_as_root() {
    let target = Target::start().await;
    target.claim(json!({}));
    let pod = pod_with("u1", &["a"], json!({}));
    let failed = "MountVolume.WaitForAttach failed for volume \"pv-a\" : ";
    for words in ["--discover", "--login", "--rescan"] {
        target.world.root.write("refuse", &format!("{words}\n"));
        let error = target.world.mount(&pod).await.unwrap_err();
        let expected =
            format!("{failed}iscsiadm failed: exit status: 8: iscsiadm: refused {words}");
        assert_eq!(error, expected);
    }
    target.world.root.write("refuse", "");
    // The disk does not show up.
    let device = read(target.path("device"));
    target.world.root.write("device", "/nowhere");
    let error = target.world.mount(&pod).await.unwrap_err();
    assert!(error.starts_with(&format!("{failed}Timed out waiting for device at path")), "{error}");
    target.world.root.write("device", &device);
    target.world.mount(&pod).await.unwrap();
    // A logout that fails is tried again, and the pod does not wait for it.
    target.world.root.write("refuse", "--logout\n");
    target.world.remove("u1").await;
    assert_eq!(target.world.users().len(), 1, "in use by the node");
    target.world.root.write("refuse", "");
    target.world.until_unused().await;
    assert!(!target.path("session").exists());
    target.world.assert_clean();
}

#[tokio::test]
async fn iscsi_without_iscsiadm_is_reported_as_root() {
    let target = Target::start().await;
    fs::remove_file(target.path("bin/iscsiadm")).unwrap();
    if target.world.volumes.inner.tools.find(ISCSIADM).is_ok() {
        return; // this machine has it
    }
    for (mode, operation) in [("Filesystem", "Mount"), ("Block", "Map")] {
        let source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0});
        target.world.claim("a", json!({"volumeMode": mode, "iscsi": source}));
        let error = target.world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap_err();
        let expected = format!(
            "{operation}Volume.WaitForAttach failed for volume \"pv-a\" : iscsiadm is not installed \
             on this node: it comes with the package open-iscsi (or iscsi-initiator-utils)"
        );
        assert_eq!(error, expected);
        target.world.remove("u1").await;
        target.world.assert_clean();
    }
}

#[tokio::test]
async fn iscsi_block_volume_is_mapped_and_unmapped_as_root() {
    let mut target = Target::start().await;
    let source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0});
    target.world.claim("a", json!({"volumeMode": "Block", "iscsi": source}));
    let mounted = target.world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap();
    let link = target.world.node("pods/u1/volumeDevices/kubernetes.io~iscsi/pv-a");
    assert_eq!(mounted["a"].device.as_ref(), Some(&link));
    let bound =
        format!("plugins/kubernetes.io/iscsi/volumeDevices/iface-default/{PORTAL}-{IQN}-lun-0/u1");
    assert!(target.world.mounted().contains(&bound), "{:?}", target.world.mounted());
    // A logout that fails is tried again, be it by another daemon.
    target.world.root.write("refuse", "--logout\n");
    target.world.remove("u1").await;
    target.world.restart();
    target.world.volumes.clone().unstage_unused().await;
    assert_eq!(target.world.users().len(), 1, "in use by the node");
    target.world.root.write("refuse", "");
    target.world.until_unused().await;
    assert!(!target.path("session").exists());
    target.world.assert_clean();
}

#[tokio::test]
async fn iscsi_volume_of_another_kubelet_is_taken_down_as_root() {
    let mut target = Target::start().await;
    target.claim(json!({}));
    target.world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap();
    // It keeps no note in the pod's directory.
    fs::remove_dir_all(target.world.node("pods/u1/plugins")).unwrap();
    target.world.restart();
    assert_eq!(target.world.users().len(), 1);
    target.world.remove("u1").await;
    assert!(!target.path("session").exists());
    target.world.assert_clean();
}

#[tokio::test]
async fn iscsi_waits_for_attachment_by_the_controller_as_root() {
    let mut target = Target::start().await;
    target.claim(json!({}));
    let node = |attached: Value| -> Option<Arc<Node>> {
        let managed = "volumes.kubernetes.io/controller-managed-attach-detach";
        let metadata = json!({"name": "n1", "annotations": {managed: "true"}});
        let node = json!({"metadata": metadata, "status": {"volumesAttached": attached}});
        Some(Arc::new(serde_json::from_value(node).unwrap()))
    };
    let (known, node_rx) = watch::channel(node(json!([])));
    target.world.set_node(node_rx);
    let pod = pod_with("u1", &["a"], json!({}));
    let early = timeout(Duration::from_millis(500), target.world.mount(&pod)).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(target.asked(), [""; 0]);
    // A volume whose portal names no port is known without one.
    let names = [format!("{PORTAL}:{IQN}:0"), format!("10.0.0.1:{IQN}:0")]
        .map(|name| format!("kubernetes.io/iscsi/{name}"));
    let in_use = target.world.volumes.devices().in_use().borrow().attached();
    assert_eq!(in_use, names);
    known.send_replace(node(json!([{"name": names[1], "devicePath": ""}])));
    target.world.mount(&pod).await.unwrap();

    // An existing mount needs no attachment.
    known.send_replace(node(json!([])));
    target.world.restart();
    target.world.mount(&pod).await.unwrap();
    target.world.remove("u1").await;
    target.world.assert_clean();
}

/// All portals that work are used. The device of multipath appears after the paths, and is removed before them.
#[tokio::test]
async fn iscsi_disk_with_several_portals_is_used_through_multipath_as_root() {
    let target = Target::start().await;
    let disk = read(target.path("device"));
    let name = disk.rsplit('/').next().unwrap().to_owned();
    // A login at a portal lets the disk show up by that.
    let sessions = r#"
here="${0%/bin/iscsiadm}"
echo "$*" >>"$here/asked"
portal="$(echo "$*" | sed -n 's/.*-p \([^ ]*\) .*/\1/p')"
link="$here/by-path/ip-$portal-iscsi-iqn.2020-01.org.example:disk-lun-0"
case "$*" in
*10.0.0.3*--discover) echo "iscsiadm: no route" >&2; exit 8 ;;
*10.0.0.3*--logout) exit 21 ;;
"-m iface"*show) echo "iface.iscsi_ifacename = default" ;;
"-m session")
    [ -s "$here/sessions" ] || exit 21
    n=0
    while read -r one; do n=$((n + 1)); echo "tcp: [$n] $one,1 iqn.2020-01.org.example:disk (non-flash)"; done <"$here/sessions" ;;
*--login) echo "$portal" >>"$here/sessions"; ln -sf "$(cat "$here/device")" "$link" ;;
*--logout) rm "$link" ;;
esac
exit 0
"#;
    target.world.tool("iscsiadm", sessions);
    let flush = "here=\"${0%/bin/multipath}\"\necho \"multipath $*\" >>\"$here/asked\"";
    target.world.tool("multipath", flush);
    std::os::unix::fs::symlink(&disk, target.path("dev/dm-0")).unwrap();
    target.claim(json!({"portals": ["10.0.0.3", "10.0.0.2"]}));
    target.world.root.write(&format!("sys/block/dm-0/slaves/{name}"), "");
    let pod = pod_with("u1", &["a"], json!({}));
    target.world.mount(&pod).await.unwrap();
    let asked = read(target.path("asked"));
    for portal in ["10.0.0.1:3260", PORTAL, "10.0.0.2:3260"] {
        assert!(asked.contains(&format!("-p {portal} -T {IQN} -I default --login")), "{asked}");
    }
    let table = read("/proc/self/mountinfo");
    let global = target.world.node("plugins/kubernetes.io/iscsi/iface-default");
    let is_global = |line: &&str| line.contains(global.to_str().unwrap());
    let mounted = table.lines().find(is_global).unwrap();
    assert!(mounted.contains("/dev/dm-0 ") || mounted.contains(&disk), "{mounted}");
    // Attached is attached: the portal that failed is left alone.
    fs::write(target.path("asked"), "").unwrap();
    target.world.mount(&pod).await.unwrap();
    assert_eq!(read(target.path("asked")), "");
    target.world.remove("u1").await;
    let asked = read(target.path("asked"));
    let flushed = format!("multipath -f {}", target.path("dev/dm-0").display());
    let first = asked.lines().next();
    assert_eq!(first, Some(flushed.as_str()), "{asked}");
    assert_eq!(asked.matches("--logout").count(), 3, "{asked}");
    target.world.assert_clean();
}
