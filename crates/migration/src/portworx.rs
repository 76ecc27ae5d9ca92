//! Volumes of Portworx. The secret that the driver wants for all it does is in annotations.

use crate::Error;
use crate::kind::{Described, Found, Given, Kind, secret};
use crate::topology::Topology;

pub(crate) const KIND: Kind = Kind {
    field: "portworxVolume",
    plugin: "kubernetes.io/portworx-volume",
    driver: "pxd.portworx.com",
    id: "volumeID",
    topology: Topology::None,
    adapt,
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

fn adapt(given: &Given<'_>, described: &mut Described) -> Result<(), Error> {
    // Who may write is told by access modes alone.
    described.read_only = false;
    match given.found {
        Found::Inline { .. } if given.read_only() => described.read_by_many(),
        Found::Inline { .. } => {}
        Found::Persistent(volume) => {
            let annotation = |key: &str| volume["metadata"]["annotations"][key].as_str();
            let named = annotation(SECRET_NAME).zip(annotation(SECRET_NAMESPACE));
            let reference = named.map(|(name, namespace)| secret(name, namespace));
            let all = SECRETS.iter().copied().zip(reference.into_iter().cycle());
            described.secrets.extend(all);
        }
    }
    Ok(())
}
