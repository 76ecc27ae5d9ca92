//! Disks of GCE. The driver knows them by project and zone, which are not given here: the project it
//! finds by itself, and the zone too where the volume has no label of it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::Error;
use crate::kind::{
    CsiVolume, Found, InTreeVolume, Kind, READ_ONLY_MANY, READ_WRITE_MANY, READ_WRITE_ONCE,
};
use crate::topology::{BETA, CURRENT, Topology, zones};
use crate::values::text;

pub(crate) const KIND: Kind = Kind {
    field: "gcePersistentDisk",
    plugin: "kubernetes.io/gce-pd",
    driver: "pd.csi.storage.gke.io",
    id: "pdName",
    topology: Topology::Zone("topology.gke.io/zone"),
    translate,
};

const UNKNOWN: &str = "UNSPECIFIED";

fn translate(in_tree: &InTreeVolume<'_>, csi_volume: &mut CsiVolume) -> Result<(), Error> {
    let zone_or_region = match in_tree.found {
        Found::Persistent(volume) => {
            csi_volume.access_modes = attachable(&csi_volume.access_modes);
            zone_or_region(volume)?
        }
        Found::Inline { .. } => {
            if in_tree.read_only() {
                csi_volume.read_by_many();
            }
            format!("zones/{UNKNOWN}")
        }
    };
    csi_volume.handle =
        format!("projects/{UNKNOWN}/{zone_or_region}/disks/{}", in_tree.text(KIND.id));
    let partition = in_tree.partition();
    let partition = if partition == 0 { String::new() } else { partition.to_string() };
    csi_volume.attribute("partition", &partition);
    Ok(())
}

/// Where a volume is, as its labels say: in a zone, or in several of a region.
fn zone_or_region(volume: &Value) -> Result<String, Error> {
    let label = |key: &str| text(&volume["metadata"]["labels"][key]);
    let named = Some(label(BETA.zone)).filter(|zones| !zones.is_empty());
    match zones(named.unwrap_or_else(|| label(CURRENT.zone))).collect::<Vec<_>>()[..] {
        [""] => Ok(format!("zones/{UNKNOWN}")),
        [zone] => Ok(format!("zones/{zone}")),
        ref zones => Ok(format!("regions/{}", region(zones)?)),
    }
}

/// The region that zones named as `locale-region-zone` are in.
fn region(zones: &[&str]) -> Result<String, Error> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        match zone.split('-').collect::<Vec<_>>()[..] {
            [locale, region, _] => regions.insert(format!("{locale}-{region}")),
            _ => return Err(Error::Zone((*zone).to_owned())),
        };
    }
    let names: Vec<_> = regions.into_iter().collect();
    match &names[..] {
        [region] => Ok(region.clone()),
        _ => Err(Error::Regions(names.join(", "))),
    }
}

/// What the driver can attach a volume for. It was never looked at what a volume was said to be
/// for: one for readers alone is so, and any other for one node that writes.
fn attachable(modes: &[String]) -> Vec<String> {
    let has = |wanted: &str| modes.iter().any(|mode| mode == wanted);
    let writes = has(READ_WRITE_ONCE) || has(READ_WRITE_MANY);
    match modes {
        [] => Vec::new(),
        _ if has(READ_ONLY_MANY) && !writes => vec![READ_ONLY_MANY.to_owned()],
        _ => vec![READ_WRITE_ONCE.to_owned()],
    }
}
