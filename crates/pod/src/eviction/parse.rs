//! Thresholds from the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Amount, Signal, Threshold};
use crate::qos::milli;
use crate::resources;

/// The eviction fields of the configuration, by the name of the signal.
#[derive(Clone, Copy, Debug)]
pub struct ThresholdConfig<'a> {
    /// `evictionHard`
    pub hard: &'a BTreeMap<String, String>,
    /// `evictionSoft`
    pub soft: &'a BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`, parsed.
    pub soft_grace: &'a BTreeMap<String, Duration>,
    /// `evictionMinimumReclaim`
    pub minimum_reclaim: &'a BTreeMap<String, String>,
}

/// All thresholds that can be met, or every error with its field and value. `allocatable`: the
/// memory of all pods is limited, so the memory threshold applies to it too.
pub fn thresholds(
    texts: ThresholdConfig<'_>,
    allocatable: bool,
) -> Result<Vec<Threshold>, Vec<String>> {
    let mut errors = Vec::new();
    let hard = amounts("evictionHard", texts.hard, value, &mut errors);
    let soft = amounts("evictionSoft", texts.soft, value, &mut errors);
    let reclaim =
        amounts("evictionMinimumReclaim", texts.minimum_reclaim, min_reclaim, &mut errors);
    for name in texts.soft_grace.keys().filter(|name| Signal::from_name(name).is_none()) {
        errors.push(unknown("evictionSoftGracePeriod", name));
    }
    let grace = |signal: Signal| texts.soft_grace.get(signal.as_str());
    for signal in soft.keys().filter(|signal| grace(**signal).is_none()) {
        errors.push(format!(
            "evictionSoftGracePeriod: must give a period for the soft threshold of {}",
            signal.as_str()
        ));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let threshold = |(signal, value): (&Signal, &Amount), grace| Threshold {
        signal: *signal,
        value: *value,
        grace,
        min_reclaim: reclaim.get(signal).copied(),
    };
    let mut all: Vec<_> = hard.iter().map(|entry| threshold(entry, Duration::ZERO)).collect();
    all.extend(
        soft.iter().map(|entry| threshold(entry, grace(*entry.0).copied().unwrap_or_default())),
    );
    if allocatable {
        let node = all.iter().find(|known| known.signal == Signal::Memory && known.is_hard());
        let pods = node.map(|node| Threshold { signal: Signal::AllocatableMemory, ..*node });
        all.extend(pods);
    }
    Ok(all)
}

/// Signals whose soft threshold has no effect, because the hard one is met first. Upstream accepts
/// them, so they are not an error.
pub fn ineffective_soft_thresholds(thresholds: &[Threshold]) -> impl Iterator<Item = Signal> {
    let is_less = |soft: Amount, hard: Amount| match (soft, hard) {
        (Amount::Milli { milli: soft, .. }, Amount::Milli { milli: hard, .. }) => soft < hard,
        (Amount::Part(soft), Amount::Part(hard)) => soft < hard,
        _ => false, // the capacity decides
    };
    let soft = thresholds.iter().filter(|threshold| !threshold.is_hard());
    let is_pointless = move |soft: &&Threshold| {
        let mut same = thresholds.iter().filter(|other| other.signal == soft.signal);
        same.any(|other| other.is_hard() && is_less(soft.value, other.value))
    };
    soft.filter(is_pointless).map(|soft| soft.signal)
}

fn unknown(field: &str, name: &str) -> String {
    format!("{field}: {name:?} is no eviction signal")
}

fn amounts(
    field: &str,
    texts: &BTreeMap<String, String>,
    read: fn(&str) -> Result<Option<Amount>, &'static str>,
    errors: &mut Vec<String>,
) -> BTreeMap<Signal, Amount> {
    let mut amounts = BTreeMap::new();
    for (name, text) in texts {
        let Some(signal) = Signal::from_name(name) else {
            errors.push(unknown(field, name));
            continue;
        };
        match read(text) {
            Ok(amount) => amounts.extend(amount.map(|amount| (signal, amount))),
            Err(why) => errors.push(format!("{field}[{name}]: {text:?} {why}")),
        }
    }
    amounts
}

/// A threshold's value; none if it is never met.
fn value(text: &str) -> Result<Option<Amount>, &'static str> {
    match text {
        "0%" | "100%" => return Ok(None),
        _ => {}
    }
    match amount(text).ok_or("is neither a percentage nor a quantity")? {
        Amount::Part(part) if part < 0.0 => Err("must not be less than 0%"),
        Amount::Part(part) if part > 1.0 => Err("must not be more than 100%"),
        Amount::Milli { milli, .. } if milli <= 0 => Err("must be positive"),
        amount => Ok(Some(amount)),
    }
}

fn min_reclaim(text: &str) -> Result<Option<Amount>, &'static str> {
    match amount(text).ok_or("is neither a percentage nor a quantity")? {
        Amount::Part(part) if part <= 0.0 => Err("must be positive"),
        Amount::Milli { milli, .. } if milli < 0 => Err("must not be negative"),
        amount => Ok(Some(amount)),
    }
}

fn amount(text: &str) -> Option<Amount> {
    if let Some(percent) = text.strip_suffix('%') {
        let part = percent.parse::<f32>().ok()? / 100.0;
        return part.is_finite().then_some(Amount::Part(part));
    }
    let quantity = Quantity(text.to_owned());
    let binary = resources::is_binary(&quantity);
    milli(&quantity).map(|milli| Amount::Milli { milli, binary })
}
