//! Capacities of devices that several claims share: what a request takes of them.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, CapacityRequirements, DeviceCapacity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::model::{Device, amount};

/// Billionths of a whole.
const WHOLE: i128 = 1_000_000_000;

/// What a request takes of each capacity of a device, in billionths; `None`: the device does not have what
/// is requested, or its policy does not allow it.
pub(super) fn consumption(
    device: &Device,
    request: Option<&CapacityRequirements>,
) -> Option<BTreeMap<String, i128>> {
    let requests = request.and_then(|request| request.requests.as_ref());
    let has =
        |name: &String| device.api.capacity.as_ref().is_some_and(|own| own.contains_key(name));
    if requests.is_some_and(|requests| !requests.keys().all(has)) {
        return None;
    }
    let mut all = BTreeMap::new();
    for (name, capacity) in device.api.capacity.iter().flatten() {
        let wanted = requests.and_then(|requests| requests.get(name));
        let taken = rounded(wanted, capacity);
        let policy = capacity.request_policy.as_ref();
        if policy.is_some_and(|policy| !allows(policy, taken)) || taken > amount(&capacity.value) {
            return None;
        }
        all.insert(name.clone(), taken);
    }
    Some(all)
}

/// An amount as quantity.
pub(super) fn quantity(billionths: i128) -> Quantity {
    let whole = billionths.checked_div(WHOLE).unwrap_or(0);
    if whole.checked_mul(WHOLE) == Some(billionths) {
        return Quantity(whole.to_string());
    }
    Quantity(format!("{billionths}n"))
}

/// What is taken for a request: the least that the policy allows and that is enough.
fn rounded(wanted: Option<&Quantity>, capacity: &DeviceCapacity) -> i128 {
    let policy = capacity.request_policy.as_ref();
    let Some(wanted) = wanted.map(amount) else {
        let default = policy.and_then(|policy| policy.default.as_ref());
        return amount(default.unwrap_or(&capacity.value));
    };
    let Some(policy) = policy else { return wanted };
    if let Some(range) = &policy.valid_range {
        return rounded_in(wanted, range);
    }
    let mut values = policy.valid_values.iter().flatten().map(amount);
    values.find(|value| wanted <= *value).unwrap_or(wanted)
}

fn rounded_in(wanted: i128, range: &CapacityRequestPolicyRange) -> i128 {
    let min = amount(&range.min);
    if wanted < min {
        return min;
    }
    let Some(step) = range.step.as_ref().map(amount).filter(|step| *step > 0) else {
        return wanted;
    };
    let over = wanted.saturating_sub(min).checked_rem(step).unwrap_or(0);
    if over == 0 { wanted } else { wanted.saturating_sub(over).saturating_add(step) }
}

fn allows(policy: &CapacityRequestPolicy, taken: i128) -> bool {
    if policy.default.as_ref().is_some_and(|default| amount(default) == taken) {
        return true;
    }
    if let Some(range) = &policy.valid_range {
        let step = range.step.as_ref().map(amount).filter(|step| *step > 0);
        let over = taken.saturating_sub(amount(&range.min));
        return range.max.as_ref().is_none_or(|max| taken <= amount(max))
            && step.is_none_or(|step| over.checked_rem(step) == Some(0));
    }
    match &policy.valid_values {
        Some(values) if !values.is_empty() => values.iter().any(|value| amount(value) == taken),
        _ => true,
    }
}
