//! Quantities of resources, and the resources of a container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

type List = BTreeMap<String, Quantity>;

/// A quantity in thousandths of its unit, rounded away from zero and capped as upstream does it, so
/// that sums cannot overflow; `None` if it is invalid.
pub fn milli(quantity: &Quantity) -> Option<i128> {
    longshore_quantity::Quantity::parse(&quantity.0).map(longshore_quantity::Quantity::milli)
}

/// A resource of a list in thousandths, 0 if it is not listed.
pub fn milli_of(list: Option<&List>, resource: &str) -> i128 {
    list.and_then(|list| list.get(resource)).and_then(milli).unwrap_or(0)
}

/// A resource of a list in whole units (rounded up), 0 if it is not listed.
pub fn units_of(list: Option<&List>, resource: &str) -> i64 {
    i64::try_from((milli_of(list, resource) + 999).div_euclid(1000)).unwrap_or(i64::MAX)
}

/// The limits of a container.
pub fn limits(container: &Container) -> Option<&List> {
    container.resources.as_ref()?.limits.as_ref()
}

/// The requests of a container.
pub fn requests(container: &Container) -> Option<&List> {
    container.resources.as_ref()?.requests.as_ref()
}
