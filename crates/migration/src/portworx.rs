//! Volumes of Portworx. The driver's secret is in annotations.

use crate::Error;
use crate::kind::{CsiVolume, Found, InTreeVolume, Kind, secret};
use crate::topology::Topology;

pub(crate) const KIND: Kind = Kind {
    field: "portworxVolume",
    plugin: "kubernetes.io/portworx-volume",
    driver: "pxd.portworx.com",
    id: "volumeID",
    topology: Topology::None,
    translate,
};

const SECRET_NAME: &str = "openstorage.io/auth-secret-name";
const SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";
const SECRETS: [&str; 5] = [
    "controllerPublishSecretRef",
    "nodeStageSecretRef",
    "nodePublishSecretRef",
    "controllerExpandSecretRef",
    "nodeExpandSecretRef",
];

fn translate(in_tree: &InTreeVolume<'_>, csi_volume: &mut CsiVolume) -> Result<(), Error> {
    // Only access modes say who may write.
    csi_volume.read_only = false;
    match in_tree.found {
        Found::Inline { .. } if in_tree.read_only() => csi_volume.read_by_many(),
        Found::Inline { .. } => {}
        Found::Persistent(volume) => {
            let annotation = |key: &str| volume["metadata"]["annotations"][key].as_str();
            let named = annotation(SECRET_NAME).zip(annotation(SECRET_NAMESPACE));
            let reference = named.map(|(name, namespace)| secret(name, namespace));
            let all = SECRETS.iter().copied().zip(reference.into_iter().cycle());
            csi_volume.secrets.extend(all);
        }
    }
    Ok(())
}
