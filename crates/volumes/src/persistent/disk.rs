//! An iSCSI disk: its parameters and its names on the node.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ISCSIPersistentVolumeSource, ISCSIVolumeSource, LocalObjectReference, SecretReference,
};
use serde::{Deserialize, Serialize};

use crate::layout;

/// The default port.
const PORT: &str = "3260";
const DEFAULT_INTERFACE: &str = "default";

/// A disk (LUN) of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// The portals with ports; the first one is part of the disk's name.
    pub(crate) portals: Vec<String>,
    pub(crate) iqn: String,
    pub(crate) lun: i32,
    /// The iSCSI interface.
    interface: Option<String>,
    /// A custom initiator name.
    pub(crate) initiator: Option<String>,
    pub(crate) file_system: Option<String>,
    pub(crate) read_only: bool,
    /// Whether discovery and sessions use CHAP.
    pub(crate) chap_discovery: bool,
    pub(crate) chap_session: bool,
    /// Namespace (default: the pod's) and name of the CHAP secret.
    pub(crate) secret: Option<(Option<String>, String)>,
}

impl Disk {
    /// The disk of a PersistentVolume.
    pub(crate) fn of_volume(source: &ISCSIPersistentVolumeSource) -> Self {
        let secret = |reference: &SecretReference| {
            Some((reference.namespace.clone(), reference.name.clone()?))
        };
        Self {
            portals: portals(&source.target_portal, source.portals.as_deref()),
            iqn: source.iqn.clone(),
            lun: source.lun,
            interface: source.iscsi_interface.clone(),
            initiator: source.initiator_name.clone(),
            file_system: source.fs_type.clone(),
            read_only: source.read_only.unwrap_or(false),
            chap_discovery: source.chap_auth_discovery.unwrap_or(false),
            chap_session: source.chap_auth_session.unwrap_or(false),
            secret: source.secret_ref.as_ref().and_then(secret),
        }
    }

    /// The disk of an inline volume.
    pub(crate) fn of_pod(source: &ISCSIVolumeSource) -> Self {
        let secret = |reference: &LocalObjectReference| (None, reference.name.clone());
        Self {
            portals: portals(&source.target_portal, source.portals.as_deref()),
            iqn: source.iqn.clone(),
            lun: source.lun,
            interface: source.iscsi_interface.clone(),
            initiator: source.initiator_name.clone(),
            file_system: source.fs_type.clone(),
            read_only: source.read_only.unwrap_or(false),
            chap_discovery: source.chap_auth_discovery.unwrap_or(false),
            chap_session: source.chap_auth_session.unwrap_or(false),
            secret: source.secret_ref.as_ref().map(secret),
        }
    }

    fn portal(&self) -> &str {
        self.portals.first().map(String::as_str).unwrap_or_default()
    }

    /// The common prefix of the names of a target's disks.
    pub(crate) fn target_name(&self) -> String {
        format!("{}/{}:{}:", layout::ISCSI_PLUGIN, self.portal(), self.iqn)
    }

    /// The disk's unique name.
    pub(crate) fn unique_name(&self) -> String {
        format!("{}{}", self.target_name(), self.lun)
    }

    /// The base interface, whose settings are used or copied.
    pub(crate) fn base_interface(&self) -> &str {
        self.interface.as_deref().filter(|name| !name.is_empty()).unwrap_or(DEFAULT_INTERFACE)
    }

    /// The interface of the disk's sessions: a separate one for a custom initiator name.
    pub(crate) fn session_interface(&self, volume: &str) -> String {
        match &self.initiator {
            Some(_) => format!("{}:{volume}", self.portal()),
            None => self.base_interface().to_owned(),
        }
    }

    /// The path below that of the plugin at which it is mounted or mapped.
    pub(crate) fn path_of(&self, volume: &str) -> PathBuf {
        let interface = format!("iface-{}", self.session_interface(volume));
        let disk = format!("{}-{}-lun-{}", self.portal(), self.iqn, self.lun);
        Path::new(&interface).join(disk)
    }

    /// The name of the disk in `/dev/disk/by-path`.
    pub(crate) fn path_name(&self, portal: &str) -> String {
        let portal = portal.replace(['[', ']'], "");
        format!("ip-{portal}-iscsi-{}-lun-{}", self.iqn, self.lun)
    }

    /// Parses the path where a disk is mounted or mapped.
    pub(crate) fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name().and_then(OsStr::to_str)?;
        let interface = path.parent()?.file_name().and_then(OsStr::to_str)?;
        let interface = interface.strip_prefix("iface-")?;
        let (target, lun) = name.rsplit_once("-lun-")?;
        let starts = ["-iqn.", "-eui.", "-naa."].into_iter();
        let at = starts.filter_map(|start| target.find(start)).min()?;
        let (portal, iqn) = (target.get(..at)?, target.get(at + 1..)?);
        Some(Self {
            portals: vec![portal.to_owned()],
            iqn: iqn.to_owned(),
            lun: lun.parse().ok()?,
            interface: Some(interface.to_owned()),
            initiator: None,
            file_system: None,
            read_only: false,
            chap_discovery: false,
            chap_session: false,
            secret: None,
        })
    }
}

/// Unique portals, with ports.
fn portals(first: &str, others: Option<&[String]>) -> Vec<String> {
    let mut portals = Vec::new();
    for portal in
        std::iter::once(first).chain(others.iter().flat_map(|all| all.iter().map(String::as_str)))
    {
        let portal = match portal.rsplit_once(':') {
            // IPv6 addresses have brackets.
            Some((_, port)) if !port.ends_with(']') => portal.to_owned(),
            _ => format!("{portal}:{PORT}"),
        };
        if !portals.contains(&portal) {
            portals.push(portal);
        }
    }
    portals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(portal: &str, others: &[&str]) -> Disk {
        Disk::of_pod(&ISCSIVolumeSource {
            target_portal: portal.to_owned(),
            portals: Some(others.iter().map(|portal| (*portal).to_owned()).collect()),
            iqn: "iqn.2020-01.org:x".to_owned(),
            lun: 3,
            ..ISCSIVolumeSource::default()
        })
    }

    #[test]
    fn iscsi_portals_have_ports_and_are_unique() {
        let disk = disk("10.0.0.1", &["10.0.0.1:3260", "[fd00::1]", "[fd00::1]:99", "host:1"]);
        let expected = ["10.0.0.1:3260", "[fd00::1]:3260", "[fd00::1]:99", "host:1"];
        assert_eq!(disk.portals, expected);
    }

    #[test]
    fn iscsi_disk_is_parsed_from_its_path() {
        for portal in ["10.0.0.1", "[fd00::1]:99", "some-host"] {
            let disk = disk(portal, &[]);
            let path = Path::new("/n").join(disk.path_of("v"));
            let found = Disk::parse(&path).unwrap();
            assert_eq!(found.unique_name(), disk.unique_name());
            assert_eq!(found.path_of("v"), disk.path_of("v"));
        }
        for path in ["/", "/a", "/iface-x/y", "/iface-x/1.2.3.4:1-iqn.a-lun-x", "/iface-x/-lun-1"] {
            assert_eq!(Disk::parse(Path::new(path)), None, "{path}");
        }
        assert_eq!(
            disk("[fd00::1]", &[]).path_name("[fd00::1]:3260"),
            "ip-fd00::1:3260-iscsi-iqn.2020-01.org:x-lun-3"
        );
    }
}
