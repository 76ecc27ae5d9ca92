//! A Fibre Channel disk: its identifiers and its names on the node.

use std::ffi::OsStr;
use std::path::Path;

use k8s_openapi::api::core::v1::FCVolumeSource;
use serde::{Deserialize, Serialize};

use crate::layout;

/// A disk of a SAN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FibreDisk {
    pub(crate) identifiers: Identifiers,
    pub(crate) file_system: Option<String>,
    pub(crate) read_only: bool,
}

/// What a disk is found by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Identifiers {
    /// Names of the target's ports, and the number of the disk there.
    Targets { names: Vec<String>, lun: i32 },
    /// Identifiers of the disk itself. In names of files they have `_` in place of a space.
    Disks(Vec<String>),
}

/// Identifiers as udev has them in names of files.
fn in_file_name(ids: &str) -> String {
    ids.replace(' ', "_")
}

impl FibreDisk {
    /// The disk of a volume.
    pub(crate) fn of(source: &FCVolumeSource) -> Self {
        let names = source.target_wwns.clone().unwrap_or_default();
        let identifiers = match source.lun {
            Some(lun) if !names.is_empty() => Identifiers::Targets { names, lun },
            _ => Identifiers::Disks(source.wwids.clone().unwrap_or_default()),
        };
        Self {
            identifiers,
            file_system: source.fs_type.clone(),
            read_only: source.read_only.unwrap_or(false),
        }
    }

    fn ids(&self) -> &[String] {
        match &self.identifiers {
            Identifiers::Targets { names, .. } => names,
            Identifiers::Disks(ids) => ids,
        }
    }

    /// Why the disk cannot be looked for, if so: identifiers become parts of paths.
    pub(crate) fn invalid(&self) -> Option<String> {
        if self.ids().is_empty() {
            return Some("no fc disk information found".to_owned());
        }
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b" ._:+-".contains(&byte);
        let bad = |id: &&String| {
            id.is_empty() || id.len() > 128 || id.starts_with('.') || !id.bytes().all(valid)
        };
        self.ids().iter().find(bad).map(|id| format!("{id:?} is not an identifier of an fc disk"))
    }

    /// The disk's unique name, as Go prints lists.
    pub(crate) fn unique_name(&self) -> String {
        let ids = self.ids().join(" ");
        match self.identifiers {
            Identifiers::Targets { lun, .. } => format!("{}/[{ids}]:{lun}", layout::FC_PLUGIN),
            Identifiers::Disks(_) => format!("{}/[{ids}]", layout::FC_PLUGIN),
        }
    }

    /// The name of the directory where it is mounted or mapped.
    pub(crate) fn dir_name(&self) -> String {
        let ids = self.ids().join("-");
        match self.identifiers {
            Identifiers::Targets { lun, .. } => format!("{ids}-lun-{lun}"),
            Identifiers::Disks(_) => in_file_name(&ids),
        }
    }

    /// Parses the path where a disk is mounted or mapped.
    pub(crate) fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name().and_then(OsStr::to_str)?;
        let ids = |ids: &str| ids.split('-').map(str::to_owned).collect();
        let identifiers = match name.rsplit_once("-lun-") {
            Some((names, lun)) if !lun.contains('-') => {
                Identifiers::Targets { names: ids(names), lun: lun.parse().ok()? }
            }
            _ => Identifiers::Disks(ids(name)),
        };
        let disk = Self { identifiers, file_system: None, read_only: false };
        (disk.invalid().is_none() && disk.dir_name() == name).then_some(disk)
    }

    /// Whether a link in `/dev/disk/by-path` or `by-id` leads to the disk.
    pub(crate) fn is_link(&self, name: &str) -> bool {
        match &self.identifiers {
            Identifiers::Targets { names, lun } => {
                let start =
                    |target: &String| name.strip_suffix(&format!("fc-0x{target}-lun-{lun}"));
                let is_host = |start: &str| {
                    start.is_empty() || start.starts_with("pci-") && start.ends_with('-')
                };
                names.iter().filter_map(start).any(is_host)
            }
            Identifiers::Disks(ids) => name
                .strip_prefix("scsi-")
                .is_some_and(|name| ids.iter().any(|id| in_file_name(id) == name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(names: &[&str], lun: Option<i32>, ids: &[&str]) -> FibreDisk {
        let texts = |all: &[&str]| Some(all.iter().map(|one| (*one).to_owned()).collect());
        FibreDisk::of(&FCVolumeSource {
            target_wwns: texts(names),
            lun,
            wwids: texts(ids),
            ..FCVolumeSource::default()
        })
    }

    #[test]
    fn fc_disk_names_are_those_of_upstream() {
        let by_target = disk(&["50060e801049cfd1", "50060e801049cfd2"], Some(3), &[]);
        assert_eq!(
            by_target.unique_name(),
            "kubernetes.io/fc/[50060e801049cfd1 50060e801049cfd2]:3"
        );
        assert_eq!(by_target.dir_name(), "50060e801049cfd1-50060e801049cfd2-lun-3");
        let by_id = disk(&["ignored"], None, &["3600508b4", "VENDOR X  1"]);
        // The attach controller has the identifier as it is.
        assert_eq!(by_id.unique_name(), "kubernetes.io/fc/[3600508b4 VENDOR X  1]");
        assert_eq!(by_id.dir_name(), "3600508b4-VENDOR_X__1");
        assert!(by_id.is_link("scsi-VENDOR_X__1"));
        let without_spaces = disk(&[], None, &["3600508b4", "VENDOR_X__1"]);
        for disk in [by_target, without_spaces] {
            let path = Path::new("/plugins/kubernetes.io/fc").join(disk.dir_name());
            assert_eq!(FibreDisk::parse(&path), Some(disk));
        }
        for path in ["/", "/..", "/-lun-1", "/a b", "/x-lun-y"] {
            let parsed = FibreDisk::parse(Path::new(path));
            let is_id = |disk: &FibreDisk| matches!(disk.identifiers, Identifiers::Disks(_));
            assert!(parsed.is_none_or(|disk| path == "/x-lun-y" && is_id(&disk)), "{path}");
        }
    }

    #[test]
    fn fc_links_of_a_disk() {
        let by_target = disk(&["5006"], Some(1), &[]);
        for (name, expected) in [
            ("fc-0x5006-lun-1", true),
            ("pci-0000:41:00.0-fc-0x5006-lun-1", true),
            ("pci-0000:41:00.0-fc-0x5006-lun-10", false),
            ("pci-0000:41:00.0-fc-0x5006-lun-1-part1", false),
            ("xfc-0x5006-lun-1", false),
            ("fc-0x15006-lun-1", false),
            ("", false),
        ] {
            assert_eq!(by_target.is_link(name), expected, "{name}");
        }
        let by_id = disk(&[], None, &["36005"]);
        assert!(by_id.is_link("scsi-36005") && !by_id.is_link("scsi-36005-part1"));
    }

    #[test]
    fn fc_identifiers_that_are_paths_are_refused() {
        for id in ["", "..", "../../x", "a/b", "a\0", &"x".repeat(129), ".x"] {
            assert!(disk(&[], None, &["ok", id]).invalid().is_some(), "{id:?}");
            assert!(disk(&[id], Some(0), &[]).invalid().is_some(), "{id:?}");
        }
        assert!(disk(&["x"], None, &[]).invalid().is_some(), "a target without a number");
        assert_eq!(disk(&["500.6:e"], Some(0), &[]).invalid(), None);
    }
}
