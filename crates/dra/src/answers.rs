//! PURE: what drivers answer. They may answer anything.

use std::collections::BTreeMap;

use crate::api::v1;
use crate::claims::Device;
use crate::error::{Error, words};

pub(crate) const PREPARE: &str = "NodePrepareResources";
pub(crate) const UNPREPARE: &str = "NodeUnprepareResources";

/// The devices of the claims that a driver was asked to prepare, by the UID of their claim.
pub(crate) fn prepared(
    driver: &str,
    asked: &[v1::Claim],
    answer: v1::NodePrepareResourcesResponse,
) -> Result<BTreeMap<String, Vec<Device>>, Error> {
    let errors = answer.claims.iter().map(|(uid, own)| (uid.as_str(), own.error.as_str()));
    check(PREPARE, driver, asked, errors)?;
    let mut prepared = BTreeMap::new();
    for (uid, own) in answer.claims {
        let devices: Vec<Device> = own.devices.into_iter().map(device).collect();
        let invalid = devices.iter().flat_map(|own| &own.cdi).find(|id| !is_cdi_device(id));
        if let Some(invalid) = invalid {
            let claim = asked.iter().find(|claim| claim.uid == uid);
            let claim = claim.map(|claim| claim.name.clone()).unwrap_or_default();
            let (device, driver) = (words(invalid), driver.to_owned());
            return Err(Error::CdiDevice { device, claim, driver });
        }
        prepared.insert(uid, devices);
    }
    Ok(prepared)
}

/// Checks that a driver has unprepared all claims that it was asked for.
pub(crate) fn unprepared(
    driver: &str,
    asked: &[v1::Claim],
    answer: &v1::NodeUnprepareResourcesResponse,
) -> Result<(), Error> {
    let errors = answer.claims.iter().map(|(uid, own)| (uid.as_str(), own.error.as_str()));
    check(UNPREPARE, driver, asked, errors)
}

/// Checks that there is an answer for each claim, and for no others, without an error.
fn check<'a>(
    call: &'static str,
    driver: &str,
    asked: &[v1::Claim],
    answers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(), Error> {
    let driver = driver.to_owned();
    let mut count = 0usize;
    for (uid, error) in answers {
        let Some(claim) = asked.iter().find(|claim| claim.uid == uid) else {
            return Err(Error::UnknownClaim { call, uid: words(uid), driver });
        };
        if !error.is_empty() {
            return Err(Error::Claim {
                call,
                claim: claim.name.clone(),
                text: words(error),
                driver,
            });
        }
        count += 1;
    }
    match asked.len().saturating_sub(count) {
        0 => Ok(()),
        count => Err(Error::Skipped { call, count, driver }),
    }
}

fn device(device: v1::Device) -> Device {
    Device {
        pool: device.pool_name,
        name: device.device_name,
        share_id: device.share_id,
        requests: device.request_names,
        cdi: device.cdi_device_ids,
    }
}

/// Whether it is a qualified name of CDI, such as `vendor.com/class=name`.
fn is_cdi_device(id: &str) -> bool {
    /// Longer than any that a runtime has to find; the specification has no limit.
    const LONGEST: usize = 1024;
    let Some((kind, name)) = id.split_once('=') else { return false };
    let Some((vendor, class)) = kind.split_once('/') else { return false };
    let alphabetic = |c: char| c.is_ascii_alphabetic();
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    id.len() <= LONGEST
        && is_word(vendor, alphabetic, "_-.")
        && is_word(class, alphabetic, "_-")
        && is_word(name, alphanumeric, "_-.:")
}

/// Whether a text begins with such a character, ends with a letter or digit, and has only those and `others`
/// between.
fn is_word(text: &str, begins: impl Fn(char) -> bool, others: &str) -> bool {
    text.chars().next().is_some_and(begins)
        && text.chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}
