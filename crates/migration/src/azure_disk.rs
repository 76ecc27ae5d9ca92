//! Disks of Azure: managed ones alone. A volume that does not say what it is, is managed.

use crate::Error;
use crate::kind::{Described, Given, Kind};
use crate::topology::Topology;

pub(crate) const KIND: Kind = Kind {
    field: "azureDisk",
    plugin: "kubernetes.io/azure-disk",
    driver: "disk.csi.azure.com",
    id: "diskURI",
    topology: Topology::None,
    adapt,
};

const MANAGED: &str = "Managed";

fn adapt(given: &Given<'_>, described: &mut Described) -> Result<(), Error> {
    let kind = given.given("kind").unwrap_or(MANAGED);
    if !kind.eq_ignore_ascii_case(MANAGED) {
        return Err(Error::AzureDiskKind(kind.to_owned()));
    }
    described.attribute("kind", MANAGED);
    let caching = given.given("cachingMode").filter(|mode| !given.is_inline() || !mode.is_empty());
    for (name, value) in [("cachingMode", caching), ("fsType", given.given("fsType"))] {
        if let Some(value) = value {
            described.attribute(name, value);
        }
    }
    if given.is_inline() {
        described.name.clone_from(&described.handle);
    }
    Ok(())
}
