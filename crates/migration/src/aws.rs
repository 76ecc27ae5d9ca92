//! Disks of AWS. Their ids come bare, or as `aws://zone/vol-…` with or without the zone.

use crate::Error;
use crate::kind::{CsiVolume, InTreeVolume, Kind};
use crate::topology::Topology;

pub(crate) const KIND: Kind = Kind {
    field: "awsElasticBlockStore",
    plugin: "kubernetes.io/aws-ebs",
    driver: "ebs.csi.aws.com",
    id: "volumeID",
    topology: Topology::Zone("topology.ebs.csi.aws.com/zone"),
    translate,
};

fn translate(in_tree: &InTreeVolume<'_>, csi_volume: &mut CsiVolume) -> Result<(), Error> {
    csi_volume.handle = bare(in_tree.text(KIND.id))?.to_owned();
    if in_tree.is_inline() {
        csi_volume.name = format!("{}-{}", KIND.driver, csi_volume.handle);
    }
    csi_volume.attribute("partition", &in_tree.partition().to_string());
    Ok(())
}

/// The id that AWS knows. One that comes bare is taken as it is.
fn bare(id: &str) -> Result<&str, Error> {
    let Some(url) = id.strip_prefix("aws://") else { return Ok(id) };
    let location = url.split(['?', '#']).next().unwrap_or_default();
    let path = location.split_once('/').map_or("", |(_, path)| path).trim_matches('/');
    let is_volume = path.starts_with("vol-") && !path.contains('/');
    if is_volume { Ok(path) } else { Err(Error::AwsVolume(id.to_owned())) }
}
