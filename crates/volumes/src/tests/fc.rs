//! Fibre Channel disks: a real disk behind links as udev makes them, and a sysfs of files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use super::read;
use super::world::{Disk, World, pod_with};

const WWN: &str = "50060e801049cfd1";

/// What the tools do: they note what they are asked. `busy` in their directory has `multipath` fail.
const NOTES: &str = r#"
here="${0%/bin/*}"
echo "${0##*/} $*" >>"$here/asked"
[ "${0##*/}" != multipath ] || [ ! -e "$here/busy" ] || { echo "map in use" >&2; exit 1; }
"#;

struct San {
    world: World,
    disk: Disk,
}

impl San {
    async fn start() -> Self {
        let world = World::start().await;
        let disk = Disk::new(&world.root.join("disk"));
        world.root.write("asked", "");
        for tool in ["multipath", "blockdev"] {
            world.tool(tool, NOTES);
        }
        world.root.write("sys/class/scsi_host/host3/scan", "");
        let san = Self { world, disk };
        san.world.root.write(&format!("sys/block/{}/device/delete", san.name()), "");
        san
    }

    fn name(&self) -> &str {
        self.disk.device.file_name().unwrap().to_str().unwrap()
    }

    fn link(&self, path: &str) {
        symlink(&self.disk.device, self.world.root.join(path)).unwrap();
    }

    fn claim(&self, source: Value) {
        self.world.claim("a", source);
    }

    fn by_target(&self) {
        self.link(&format!("by-path/pci-0000:41:00.0-fc-0x{WWN}-lun-0"));
        self.claim(json!({"fc": {"targetWWNs": [WWN], "lun": 0}}));
    }

    fn deleted(&self) -> bool {
        let path = format!("sys/block/{}/device/delete", self.name());
        read(self.world.root.join(&path)) == "1"
    }
}

#[tokio::test]
async fn fc_disk_is_mounted_once_and_removed_after_the_last_pod_as_root() {
    let mut san = San::start().await;
    san.by_target();
    let [one, two] = ["u1", "u2"].map(|uid| pod_with(uid, &["a"], json!({"fsGroup": 5})));
    let mounted = san.world.mount(&one).await.unwrap()["a"].clone();
    assert_eq!(mounted.path, san.world.node("pods/u1/volumes/kubernetes.io~fc/pv-a"));
    fs::write(mounted.path.join("file"), "x").unwrap();
    assert_eq!(read(san.world.root.join("sys/class/scsi_host/host3/scan")), "- - -");
    let global = format!("plugins/kubernetes.io/fc/{WWN}-lun-0");
    assert!(san.world.mounted().contains(&global), "{:?}", san.world.mounted());
    let device = format!("kubernetes.io/fc/[{WWN}]:0");
    san.world.restart();
    assert!(san.world.users()[&device].contains("u1"));
    let in_use = san.world.volumes.devices().in_use().borrow().attached();
    assert_eq!(in_use, [device]);
    let second = san.world.mount(&two).await.unwrap()["a"].clone();
    assert_eq!(read(second.path.join("file")), "x");
    san.world.remove("u1").await;
    assert!(!san.deleted());
    san.world.remove("u2").await;
    assert!(san.deleted());
    let asked = read(san.world.root.join("asked"));
    assert_eq!(asked, format!("blockdev --flushbufs {}\n", san.disk.device.display()));
    san.world.assert_clean();
}

#[tokio::test]
async fn fc_disk_of_several_paths_is_used_through_multipath_as_root() {
    let san = San::start().await;
    san.link("by-id/scsi-36005_x");
    san.link("dev/dm-0");
    san.world.root.write(&format!("sys/block/dm-0/slaves/{}", san.name()), "");
    san.claim(json!({"fc": {"wwids": ["other", "36005 x"]}}));
    san.world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap();
    assert_eq!(read(san.world.root.join("sys/class/scsi_host/host3/scan")), "", "it is there");
    assert!(san.world.mounted().contains("plugins/kubernetes.io/fc/other-36005_x"));
    // What is in use still is tried again, while the pod ends. Another pod may come and go meanwhile.
    san.world.root.write("busy", "");
    for uid in ["u1", "u2"] {
        san.world.mount(&pod_with(uid, &["a"], json!({}))).await.unwrap();
        san.world.remove(uid).await;
        assert!(!san.deleted());
        assert_eq!(san.world.users().len(), 1, "in use by the node");
    }
    fs::remove_file(san.world.root.join("busy")).unwrap();
    san.world.until_unused().await;
    assert!(san.deleted());
    let mapper = san.world.root.join("dev/dm-0");
    let asked = read(san.world.root.join("asked"));
    assert!(asked.contains(&format!("multipath -f {}", mapper.display())), "{asked}");
    san.world.assert_clean();
}

#[tokio::test]
async fn fc_block_volume_is_mapped_and_unmapped_as_root() {
    let mut san = San::start().await;
    san.link(&format!("by-path/fc-0x{WWN}-lun-7"));
    san.claim(json!({"volumeMode": "Block", "fc": {"targetWWNs": [WWN], "lun": 7}}));
    let mounted = san.world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap();
    let link = san.world.node("pods/u1/volumeDevices/kubernetes.io~fc/pv-a");
    assert_eq!(mounted["a"].device.as_ref(), Some(&link));
    let bound = format!("plugins/kubernetes.io/fc/volumeDevices/{WWN}-lun-7/u1");
    assert!(san.world.mounted().contains(&bound), "{:?}", san.world.mounted());
    // Another kubelet keeps no note.
    fs::remove_dir_all(san.world.node("pods/u1/plugins")).unwrap();
    san.world.restart();
    assert_eq!(san.world.users().len(), 1);
    san.world.remove("u1").await;
    assert!(san.deleted());
    san.world.assert_clean();
}

/// The disk is mounted as long as a pod has its file system, and in the kernel as long as a pod has it.
#[tokio::test]
async fn fc_disk_with_a_file_system_and_as_a_device_as_root() {
    let san = San::start().await;
    san.link(&format!("by-path/fc-0x{WWN}-lun-7"));
    let source = json!({"targetWWNs": [WWN], "lun": 7});
    san.world.claim("a", json!({"fc": source}));
    san.world.claim("b", json!({"volumeMode": "Block", "fc": source}));
    let global = format!("plugins/kubernetes.io/fc/{WWN}-lun-7");
    san.world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap();
    san.world.mount(&pod_with("u2", &["b"], json!({}))).await.unwrap();
    assert!(san.world.mounted().contains(&global));
    san.world.remove("u1").await;
    assert!(!san.world.mounted().contains(&global), "{:?}", san.world.mounted());
    assert!(!san.deleted());
    san.world.remove("u2").await;
    assert!(san.deleted());
    san.world.assert_clean();

    // One pod has it as both.
    san.world.root.write(&format!("sys/block/{}/device/delete", san.name()), "");
    san.world.root.write("asked", "");
    san.world.mount(&pod_with("u3", &["a", "b"], json!({}))).await.unwrap();
    san.world.remove("u3").await;
    assert!(san.deleted());
    let asked = read(san.world.root.join("asked"));
    assert_eq!(asked.matches("blockdev").count(), 1, "removed once, in the end: {asked}");
    san.world.assert_clean();
}

#[tokio::test]
async fn fc_disk_that_is_not_there_is_reported_as_root() {
    let san = San::start().await;
    san.claim(json!({"fc": {"targetWWNs": [WWN], "lun": 0}}));
    let pod = pod_with("u1", &["a"], json!({}));
    let failed = "MountVolume.WaitForAttach failed for volume \"pv-a\" : fc: ";
    assert_eq!(san.world.mount(&pod).await.unwrap_err(), format!("{failed}no fc disk found"));
    for (source, expected) in [
        (json!({"lun": 0}), "no fc disk information found".to_owned()),
        (
            json!({"wwids": ["../../x"]}),
            "\"../../x\" is not an identifier of an fc disk".to_owned(),
        ),
    ] {
        san.claim(json!({"fc": source}));
        assert_eq!(san.world.mount(&pod).await.unwrap_err(), format!("{failed}{expected}"));
    }
    san.world.remove("u1").await;
    san.world.assert_clean();
}

/// A pod names a disk that the node itself uses: it is not removed from the kernel.
#[tokio::test]
async fn fc_disk_that_is_used_otherwise_stays_as_root() {
    let san = San::start().await;
    san.by_target();
    san.world.mount(&pod_with("u1", &["a"], json!({}))).await.unwrap();
    let other = san.world.root.join("other");
    fs::create_dir(&other).unwrap();
    let mounted = std::process::Command::new("mount").arg(&san.disk.device).arg(&other).status();
    assert!(mounted.unwrap().success());
    san.world.remove("u1").await;
    assert!(!san.deleted());
    assert!(Path::new(&san.disk.device).exists());
    san.world.assert_clean();
    nix::mount::umount(&other).unwrap();
}
