//! Disks of Azure: managed ones alone. A volume that does not say what it is, is managed.

use crate::Error;
use crate::kind::{CsiVolume, InTreeVolume, Kind};
use crate::topology::Topology;

pub(crate) const KIND: Kind = Kind {
    field: "azureDisk",
    plugin: "kubernetes.io/azure-disk",
    driver: "disk.csi.azure.com",
    id: "diskURI",
    topology: Topology::None,
    translate,
};

const MANAGED: &str = "Managed";

fn translate(in_tree: &InTreeVolume<'_>, csi_volume: &mut CsiVolume) -> Result<(), Error> {
    let kind = in_tree.optional("kind").unwrap_or(MANAGED);
    if !kind.eq_ignore_ascii_case(MANAGED) {
        return Err(Error::AzureDiskKind(kind.to_owned()));
    }
    csi_volume.attribute("kind", MANAGED);
    let caching =
        in_tree.optional("cachingMode").filter(|mode| !in_tree.is_inline() || !mode.is_empty());
    for (name, value) in [("cachingMode", caching), ("fsType", in_tree.optional("fsType"))] {
        if let Some(value) = value {
            csi_volume.attribute(name, value);
        }
    }
    if in_tree.is_inline() {
        csi_volume.name.clone_from(&csi_volume.handle);
    }
    Ok(())
}
