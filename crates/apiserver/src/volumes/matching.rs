//! PURE: which volume fits a claim, as upstream chooses: one that is meant for it, or else the
//! smallest that is large enough.

use serde_json::Value;

use super::pod::Node;
use super::world::{Key, World, claim_of};
use crate::kinds::class_of;
use crate::object;
use crate::schema::quantity::Quantity;
use crate::schema::value::{items, same, text};
use crate::selector::LabelSelector;

/// The consumer of the volume.
#[derive(Clone, Copy)]
pub(super) enum Consumer<'a> {
    /// Immediate binding: node affinity does not matter.
    Any,
    /// Pods that are not scheduled: only prebound volumes.
    Nowhere,
    /// Pods on this node, which the node affinity must allow.
    On(&'a str, &'a Node),
}

/// The size that a claim requests.
pub(super) fn requested(claim: &Value) -> i128 {
    amount(&claim["spec"]["resources"]["requests"]["storage"])
}

/// The size of a volume.
pub(super) fn size(volume: &Value) -> i128 {
    amount(&volume["spec"]["capacity"]["storage"])
}

fn amount(value: &Value) -> i128 {
    Quantity::parse(text(value)).map_or(0, Quantity::amount)
}

/// Whether a volume is meant for the claim, or bound to it.
pub(super) fn is_for(volume: &Value, key: &Key, claim: &Value) -> bool {
    let uid = text(&volume["spec"]["claimRef"]["uid"]);
    claim_of(volume).as_ref() == Some(key) && (uid.is_empty() || uid == object::uid(claim))
}

pub(super) fn same_mode(volume: &Value, claim: &Value) -> bool {
    let mode = |object: &'_ Value| match text(&object["spec"]["volumeMode"]) {
        "" => "Filesystem".to_owned(),
        mode => mode.to_owned(),
    };
    mode(volume) == mode(claim)
}

/// Whether the volume has all access modes of the claim.
pub(super) fn has_modes(volume: &Value, claim: &Value) -> bool {
    let modes = items(&volume["spec"]["accessModes"]);
    items(&claim["spec"]["accessModes"]).iter().all(|mode| modes.contains(mode))
}

pub(super) fn same_attributes(volume: &Value, claim: &Value) -> bool {
    const CLASS: &str = "volumeAttributesClassName";
    same(&volume["spec"][CLASS], &claim["spec"][CLASS])
}

/// The best volume for a claim that names none. `Err`: its selector is none.
pub(super) fn best<'a>(
    world: &'a World,
    key: &Key,
    claim: &Value,
    consumer: Consumer<'_>,
) -> Result<Option<&'a str>, String> {
    let selector = match &claim["spec"]["selector"] {
        Value::Null => LabelSelector::default(),
        selector => LabelSelector::of(selector)?,
    };
    let fits = |volume: &&Value| {
        size(volume) >= requested(claim)
            && same_mode(volume, claim)
            && same_attributes(volume, claim)
            && has_modes(volume, claim)
            && !object::is_deleting(volume)
    };
    let is_near = |volume: &&Value| match consumer {
        Consumer::On(name, node) => is_usable_on(volume, name, node),
        Consumer::Any | Consumer::Nowhere => true,
    };
    let meant = world.volumes_of(key).filter_map(|name| world.volumes.get(name));
    if let Some(volume) = meant.filter(|volume| is_for(volume, key, claim)).find(fits) {
        return Ok(Some(object::name(volume)).filter(|_| is_near(&volume)));
    }
    if matches!(consumer, Consumer::Nowhere) {
        return Ok(None);
    }
    let class = class_of(claim).unwrap_or_default();
    let free = world.volumes.values().filter(|volume| {
        volume["spec"]["claimRef"].is_null()
            && volume["status"]["phase"] == "Available"
            && class_of(volume).unwrap_or_default() == class
            && selector.matches(volume)
    });
    // Volumes with more access modes than requested are spared, unless the node matters.
    let rank = |volume: &&Value| match consumer {
        Consumer::On(..) => (0, size(volume)),
        _ => (items(&volume["spec"]["accessModes"]).len(), size(volume)),
    };
    Ok(free.filter(fits).filter(is_near).min_by_key(rank).map(object::name))
}

/// Why a volume that the claim names cannot be its own, in upstream's words.
pub(super) fn mismatch(volume: &Value, claim: &Value) -> Option<String> {
    let why = match () {
        () if object::is_deleting(volume) => {
            return Some(format!("the volume is marked for deletion {:?}", object::name(volume)));
        }
        () if size(volume) < requested(claim) => "requested PV is too small",
        () if class_of(volume).unwrap_or_default() != class_of(claim).unwrap_or_default() => {
            "storageClassName does not match"
        }
        () if !same_attributes(volume, claim) => "volumeAttributesClassName does not match",
        () if !same_mode(volume, claim) => "incompatible volumeMode",
        () if !has_modes(volume, claim) => "incompatible accessMode",
        () => return None,
    };
    Some(why.to_owned())
}

/// Whether the volume's node affinity lets it be used on the node.
pub(super) fn is_usable_on(volume: &Value, name: &str, node: &Node) -> bool {
    let required = &volume["spec"]["nodeAffinity"]["required"];
    if required.is_null() {
        return true;
    }
    items(&required["nodeSelectorTerms"]).iter().any(|term| {
        let (labels, fields) = (items(&term["matchExpressions"]), items(&term["matchFields"]));
        // An empty term selects nothing.
        (!labels.is_empty() || !fields.is_empty())
            && labels.iter().all(|expression| {
                LabelSelector::of_node(expression).is_ok_and(|label| label.matches(&node.labels))
            })
            && fields.iter().all(|field| {
                let is_listed = items(&field["values"]).iter().any(|value| value == name);
                field["key"] == "metadata.name" && is_listed == (field["operator"] == "In")
            })
    })
}
