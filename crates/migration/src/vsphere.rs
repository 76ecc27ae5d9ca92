//! Disks of vSphere, known by their path in a datastore.

use crate::Error;
use crate::kind::{Described, Given, Kind};
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
    adapt,
};

fn adapt(given: &Given<'_>, described: &mut Described) -> Result<(), Error> {
    let policy = given.text("storagePolicyName");
    if !policy.is_empty() {
        described.attribute("storagepolicyname", policy);
    }
    Ok(())
}
