//! Quantities of resources, and the resources of a container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

type List = BTreeMap<String, Quantity>;

/// A quantity in thousandths of its unit; `None` if it is invalid.
///
/// The format is Kubernetes' own: a decimal number with a binary (`Ki`…), decimal (`k`, `m`…) or
/// exponent (`e3`) suffix. Fractions of a thousandth are rounded up, as upstream does.
pub fn milli(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.trim();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: i128 = match format!("{whole}{fraction}").as_str() {
        "" => 0,
        digits => digits.parse().ok()?,
    };
    let (base, exponent): (i128, i32) = match suffix {
        "" => (10, 0),
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (2, 10),
        "Mi" => (2, 20),
        "Gi" => (2, 30),
        "Ti" => (2, 40),
        "Pi" => (2, 50),
        "Ei" => (2, 60),
        other => (10, other.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let (mut numerator, mut denominator) = (digits.checked_mul(1000)?, 1i128);
    let scale = base.checked_pow(exponent.unsigned_abs())?;
    if exponent >= 0 {
        numerator = numerator.checked_mul(scale)?;
    } else {
        denominator = scale;
    }
    denominator =
        denominator.checked_mul(10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    let rounded = numerator.checked_add(denominator - 1)? / denominator;
    // Capped as upstream does it; sums of such amounts cannot overflow.
    let rounded = rounded.min(i128::from(i64::MAX) * 1000);
    Some(if negative { rounded.saturating_neg() } else { rounded })
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
