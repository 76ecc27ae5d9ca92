//! What a claim requests, with what its classes add.

use std::collections::HashMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceRequest, DeviceSelector, DeviceSubRequest, DeviceTaint,
    DeviceToleration, ExactDeviceRequest,
};

use super::AllocationError;
use crate::model::{Atom, Device, DeviceClass, ResourceClaim};

/// The name of a request, and of the alternative of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestName<'a> {
    pub(super) request: &'a str,
    pub(super) alternative: Option<&'a str>,
}

impl RequestName<'_> {
    /// Whether a name means it: that of the request, or `request/alternative`.
    pub(super) fn is_named(&self, name: &str) -> bool {
        name == self.request
            || self.alternative.is_some_and(|alternative| {
                name.split_once('/') == Some((self.request, alternative))
            })
    }

    /// Its name in results.
    pub(super) fn full(&self) -> String {
        match self.alternative {
            None => self.request.to_owned(),
            Some(alternative) => format!("{}/{alternative}", self.request),
        }
    }

    /// Its own name in messages.
    pub(super) fn short(&self) -> &str {
        self.alternative.unwrap_or(self.request)
    }
}

/// A request, or one of the alternatives of a request.
pub(super) struct Request<'a> {
    pub(super) name: RequestName<'a>,
    pub(super) class: &'a DeviceClass,
    pub(super) selectors: &'a [DeviceSelector],
    pub(super) tolerations: Option<&'a Vec<DeviceToleration>>,
    pub(super) capacity: Option<&'a CapacityRequirements>,
    pub(super) has_admin_access: bool,
    /// How many devices; `None`: all.
    pub(super) count: Option<usize>,
}

/// The alternatives of each request of a claim, best first.
pub(super) fn requests<'a>(
    claim: &'a ResourceClaim,
    classes: &'a HashMap<Atom, DeviceClass>,
) -> Result<Vec<Vec<Request<'a>>>, AllocationError> {
    let all = claim.devices.requests.iter().flatten();
    all.map(|request| alternatives(claim, request, classes)).collect()
}

fn alternatives<'a>(
    claim: &ResourceClaim,
    api: &'a DeviceRequest,
    classes: &'a HashMap<Atom, DeviceClass>,
) -> Result<Vec<Request<'a>>, AllocationError> {
    let own = |source: Source<'a>, name: Option<&'a str>| {
        let name = RequestName { request: &api.name, alternative: name };
        source.request(claim, name, classes)
    };
    if let Some(exactly) = &api.exactly {
        return Ok(vec![own(Source::from(exactly), None)?]);
    }
    let list = api.first_available.as_deref().unwrap_or_default();
    if list.is_empty() {
        return Err(AllocationError::Claim(format!(
            "claim {}, request {}: unknown request type",
            claim.key, api.name
        )));
    }
    list.iter().map(|sub| own(Source::from(sub), Some(sub.name.as_str()))).collect()
}

/// The fields that requests and alternatives have in common.
struct Source<'a> {
    class: &'a str,
    selectors: Option<&'a Vec<DeviceSelector>>,
    tolerations: Option<&'a Vec<DeviceToleration>>,
    capacity: Option<&'a CapacityRequirements>,
    admin_access: Option<bool>,
    mode: Option<&'a str>,
    count: Option<i64>,
}

impl<'a> From<&'a ExactDeviceRequest> for Source<'a> {
    fn from(api: &'a ExactDeviceRequest) -> Self {
        Self {
            class: &api.device_class_name,
            selectors: api.selectors.as_ref(),
            tolerations: api.tolerations.as_ref(),
            capacity: api.capacity.as_ref(),
            admin_access: api.admin_access,
            mode: api.allocation_mode.as_deref(),
            count: api.count,
        }
    }
}

impl<'a> From<&'a DeviceSubRequest> for Source<'a> {
    fn from(api: &'a DeviceSubRequest) -> Self {
        Self {
            class: &api.device_class_name,
            selectors: api.selectors.as_ref(),
            tolerations: api.tolerations.as_ref(),
            capacity: api.capacity.as_ref(),
            admin_access: None,
            mode: api.allocation_mode.as_deref(),
            count: api.count,
        }
    }
}

impl<'a> Source<'a> {
    fn request(
        self,
        claim: &ResourceClaim,
        name: RequestName<'a>,
        classes: &'a HashMap<Atom, DeviceClass>,
    ) -> Result<Request<'a>, AllocationError> {
        let failed = |reason: String| {
            let (key, name) = (&claim.key, name.short());
            AllocationError::Claim(format!("claim {key}, request {name}{reason}"))
        };
        let selectors = self.selectors.map(Vec::as_slice).unwrap_or_default();
        if let Some(index) = selectors.iter().position(|selector| selector.cel.is_none()) {
            return Err(failed(format!(
                ", selector #{index}: CEL expression empty (unsupported selector type?)"
            )));
        }
        if self.class.is_empty() {
            let reason = ": missing device class name (unsupported request type?)";
            return Err(failed(reason.to_owned()));
        }
        let class = classes.get(&Atom::new(self.class)).ok_or_else(|| {
            let class = self.class;
            failed(format!(": could not retrieve device class {class}: deviceclass.resource.k8s.io \"{class}\" not found"))
        })?;
        let count = match self.mode {
            None | Some("ExactCount") => {
                let count = self.count.unwrap_or(1);
                Some(
                    usize::try_from(count)
                        .map_err(|_| failed(format!(": exact count {count} is too large")))?,
                )
            }
            Some("All") => None,
            Some(mode) => return Err(failed(format!(": unsupported count mode {mode}"))),
        };
        Ok(Request {
            name,
            class,
            selectors,
            tolerations: self.tolerations,
            capacity: self.capacity,
            has_admin_access: self.admin_access == Some(true),
            count,
        })
    }
}

impl Request<'_> {
    /// Whether a taint of the device keeps it from being allocated.
    pub(super) fn is_repelled_by(&self, device: &Device) -> bool {
        let taints = device.api.taints.iter().flatten();
        taints
            .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
            .any(|taint| !self.tolerations.into_iter().flatten().any(|own| tolerates(own, taint)))
    }
}

fn tolerates(own: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let is_other = |own: &Option<String>, taint: &str| {
        own.as_deref().is_some_and(|own| !own.is_empty() && own != taint)
    };
    if is_other(&own.effect, &taint.effect) || is_other(&own.key, &taint.key) {
        return false;
    }
    match own.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            own.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        "Exists" => true,
        _ => false,
    }
}
