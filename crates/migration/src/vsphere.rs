//! Disks of vSphere, known by their path in a datastore.

use crate::Error;
use crate::kind::{CsiVolume, InTreeVolume, Kind};
use crate::topology::Topology;

pub(crate) const KIND: Kind = Kind {
    field: "vsphereVolume",
    plugin: "kubernetes.io/vsphere-volume",
    driver: "csi.vsphere.vmware.com",
    id: "volumePath",
    topology: Topology::ZoneAndRegion {
        zone: "topology.csi.vmware.com/zone",
        region: "topology.csi.vmware.com/region",
    },
    translate,
};

fn translate(in_tree: &InTreeVolume<'_>, csi_volume: &mut CsiVolume) -> Result<(), Error> {
    let policy = in_tree.text("storagePolicyName");
    if !policy.is_empty() {
        csi_volume.attribute("storagepolicyname", policy);
    }
    Ok(())
}
