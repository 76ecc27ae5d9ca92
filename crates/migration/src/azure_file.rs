//! Shares of Azure, and the secret with the key of their storage account.

use serde_json::Value;

use crate::Error;
use crate::kind::{CsiVolume, Found, InTreeVolume, Kind, READ_WRITE_MANY, secret};
use crate::topology::Topology;
use crate::values::text;

pub(crate) const KIND: Kind = Kind {
    field: "azureFile",
    plugin: "kubernetes.io/azure-file",
    driver: "file.csi.azure.com",
    id: "shareName",
    topology: Topology::None,
    translate,
};

const SECRET: &str = "secretName";
/// The annotation of a PersistentVolume that names the resource group of the account.
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";

fn translate(in_tree: &InTreeVolume<'_>, csi_volume: &mut CsiVolume) -> Result<(), Error> {
    let (share, key) = (in_tree.text(KIND.id), in_tree.text(SECRET));
    if key.is_empty() {
        return Err(Error::NoVolume { kind: KIND.field, field: SECRET });
    }
    let (group, volume, namespace) = match in_tree.found {
        Found::Persistent(volume) => {
            let group = text(&volume["metadata"]["annotations"][RESOURCE_GROUP]);
            (group, csi_volume.name.as_str(), namespace(in_tree, volume)?)
        }
        Found::Inline { name, namespace: "" } => ("", *name, "default"),
        Found::Inline { name, namespace } => ("", *name, *namespace),
    };
    let handle = format!("{group}#{}#{share}#{volume}#{namespace}", account(key));
    if in_tree.is_inline() {
        csi_volume.name.clone_from(&handle);
        csi_volume.access_modes = vec![READ_WRITE_MANY.to_owned()];
    }
    csi_volume.handle = handle;
    csi_volume.attribute("sharename", share);
    csi_volume.secrets.push(("nodeStageSecretRef", secret(key, namespace)));
    Ok(())
}

/// Where the secret is: as the volume says, or with its claim.
fn namespace<'a>(in_tree: &InTreeVolume<'a>, volume: &'a Value) -> Result<&'a str, Error> {
    let of_claim = || text(&volume["spec"]["claimRef"]["namespace"]);
    let namespace = in_tree.optional("secretNamespace").unwrap_or_else(of_claim);
    if namespace.is_empty() { Err(Error::NoSecretNamespace) } else { Ok(namespace) }
}

/// The storage account that a secret is for. One that is named in another way is named by it.
fn account(secret: &str) -> &str {
    let rest = secret.split_once("azure-storage-account-").map(|(_, rest)| rest);
    let account = rest.and_then(|rest| rest.rsplit_once("-secret")).map(|(account, _)| account);
    account.filter(|account| !account.is_empty()).unwrap_or(secret)
}
