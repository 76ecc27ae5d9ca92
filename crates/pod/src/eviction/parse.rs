//! Thresholds from the texts of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Amount, Signal, Threshold};
use crate::qos::milli;
use crate::resources;

/// The configuration's texts by the name of the signal.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// `evictionHard`
    pub hard: &'a BTreeMap<String, String>,
    /// `evictionSoft`
    pub soft: &'a BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`, of which the durations are read already.
    pub soft_grace: &'a BTreeMap<String, Duration>,
    /// `evictionMinimumReclaim`
    pub minimum_reclaim: &'a BTreeMap<String, String>,
}

/// All thresholds that may ever be met, or every fault with its field and value. `allocatable`:
/// the memory of all pods together is limited, so that it has the node's threshold too.
pub fn thresholds(texts: Texts<'_>, allocatable: bool) -> Result<Vec<Threshold>, Vec<String>> {
    let mut faults = Vec::new();
    let hard = amounts("evictionHard", texts.hard, value, &mut faults);
    let soft = amounts("evictionSoft", texts.soft, value, &mut faults);
    let reclaim =
        amounts("evictionMinimumReclaim", texts.minimum_reclaim, min_reclaim, &mut faults);
    for name in texts.soft_grace.keys().filter(|name| Signal::from_name(name).is_none()) {
        faults.push(unknown("evictionSoftGracePeriod", name));
    }
    let grace = |signal: Signal| texts.soft_grace.get(signal.as_str());
    for signal in soft.keys().filter(|signal| grace(**signal).is_none()) {
        faults.push(format!(
            "evictionSoftGracePeriod: must give a period for the soft threshold of {}",
            signal.as_str()
        ));
    }
    if !faults.is_empty() {
        return Err(faults);
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

/// Signals whose soft threshold means nothing: the hard one is met before it. Upstream takes them
/// without a word, so they are no fault.
pub fn pointless(thresholds: &[Threshold]) -> impl Iterator<Item = Signal> {
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
    faults: &mut Vec<String>,
) -> BTreeMap<Signal, Amount> {
    let mut amounts = BTreeMap::new();
    for (name, text) in texts {
        let Some(signal) = Signal::from_name(name) else {
            faults.push(unknown(field, name));
            continue;
        };
        match read(text) {
            Ok(amount) => amounts.extend(amount.map(|amount| (signal, amount))),
            Err(why) => faults.push(format!("{field}[{name}]: {text:?} {why}")),
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
