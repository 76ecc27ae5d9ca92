//! Disks of AWS. Their ids come bare, or as `aws://zone/vol-…` with or without the zone.

use crate::Error;
use crate::kind::{Described, Given, Kind};
use crate::topology::Topology;

pub(crate) const KIND: Kind = Kind {
    field: "awsElasticBlockStore",
    plugin: "kubernetes.io/aws-ebs",
    driver: "ebs.csi.aws.com",
    id: "volumeID",
    topology: Topology::Zone("topology.ebs.csi.aws.com/zone"),
    adapt,
};

fn adapt(given: &Given<'_>, described: &mut Described) -> Result<(), Error> {
    described.handle = bare(given.text(KIND.id))?.to_owned();
    if given.is_inline() {
        described.name = format!("{}-{}", KIND.driver, described.handle);
    }
    described.attribute("partition", &given.partition().to_string());
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
