//! Volumes of OpenStack.

use crate::kind::Kind;
use crate::topology::Topology;

pub(crate) const KIND: Kind = Kind {
    field: "cinder",
    plugin: "kubernetes.io/cinder",
    driver: "cinder.csi.openstack.org",
    id: "volumeID",
    topology: Topology::Zone("topology.cinder.csi.openstack.org/zone"),
    translate: |_, _| Ok(()),
};
