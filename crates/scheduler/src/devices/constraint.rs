//! Constraints on the devices of a claim.

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceConstraint};

use super::request::RequestName;
use crate::model::Device;

/// What devices of requests must have in common, or must not.
pub(super) struct Constraint<'a> {
    /// Names of requests or of their alternatives; empty: all.
    requests: &'a [String],
    attribute: &'a str,
    /// Whether the attribute is to be the same, rather than different.
    is_same: bool,
}

impl<'a> Constraint<'a> {
    /// `None`: of no kind that is known.
    pub(super) fn new(api: &'a DeviceConstraint) -> Option<Self> {
        let requests = api.requests.as_deref().unwrap_or_default();
        let (attribute, is_same) = match (&api.match_attribute, &api.distinct_attribute) {
            (Some(attribute), _) => (attribute, true),
            (None, Some(attribute)) => (attribute, false),
            (None, None) => return None,
        };
        Some(Self { requests, attribute, is_same })
    }

    pub(super) fn concerns(&self, request: RequestName<'_>) -> bool {
        self.requests.is_empty() || self.requests.iter().any(|name| request.is_named(name))
    }

    /// Whether a device may be added to those that were chosen for requests that it concerns.
    pub(super) fn accepts<'d>(
        &self,
        device: &Device,
        mut chosen: impl Iterator<Item = &'d Device>,
    ) -> bool {
        let Some(own) = self.lookup(device) else { return false };
        // All that were chosen have the attribute: they were accepted.
        chosen.all(|other| {
            self.lookup(other).is_some_and(|other| same(own, other) == Some(self.is_same))
        })
    }

    /// The attribute of a device: by its full name, or by its ID if it is in the driver's own domain.
    fn lookup<'d>(&self, device: &'d Device) -> Option<&'d DeviceAttribute> {
        let attributes = device.api.attributes.as_ref()?;
        attributes.get(self.attribute).or_else(|| {
            let (domain, id) = self.attribute.split_once('/')?;
            attributes.get(id).filter(|_| domain == &*device.id.driver)
        })
    }
}

/// Whether two attributes are equal; `None`: they are of no kind that can be compared.
fn same(left: &DeviceAttribute, right: &DeviceAttribute) -> Option<bool> {
    if left.string.is_some() {
        Some(left.string == right.string)
    } else if left.int.is_some() {
        Some(left.int == right.int)
    } else if left.bool.is_some() {
        Some(left.bool == right.bool)
    } else if left.version.is_some() {
        Some(left.version == right.version)
    } else {
        None
    }
}
