//! Where a volume can be used, in the words of its driver. A volume of old is bound to zones by its
//! node affinity or, before there was one, by its labels; either with the labels of nodes that are
//! in use now, or with those from before Kubernetes 1.17.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::values::{strings, text};

/// The topology labels of nodes and volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Labels {
    pub(crate) zone: &'static str,
    pub(crate) region: &'static str,
}

pub(crate) const CURRENT: Labels =
    Labels { zone: "topology.kubernetes.io/zone", region: "topology.kubernetes.io/region" };
pub(crate) const BETA: Labels = Labels {
    zone: "failure-domain.beta.kubernetes.io/zone",
    region: "failure-domain.beta.kubernetes.io/region",
};

/// The topology of a driver's volumes.
pub(crate) enum Topology {
    /// As the volume itself does.
    None,
    /// By a label for the zone.
    Zone(&'static str),
    /// By one for the zone, and one for the region.
    ZoneAndRegion { zone: &'static str, region: &'static str },
}

impl Topology {
    /// Binds a PersistentVolume to nodes by the driver's labels in place of its own.
    pub(crate) fn apply(&self, volume: &mut Value) {
        let own = labels(volume);
        match *self {
            Self::None => {}
            Self::Zone(zone) => {
                if !rename(volume, own.zone, zone) {
                    let label = label(volume, own.zone).to_owned();
                    require(volume, zone, zones(&label));
                }
                if own == BETA {
                    // New nodes have the label of now alone.
                    rename(volume, BETA.region, CURRENT.region);
                }
            }
            Self::ZoneAndRegion { zone, region } => {
                for (own, of_driver) in [(own.zone, zone), (own.region, region)] {
                    if !rename(volume, own, of_driver) {
                        let label = label(volume, own).to_owned();
                        require(volume, of_driver, [label.as_str()].into_iter());
                    }
                }
            }
        }
    }
}

/// The zones in the value of a label.
pub(crate) fn zones(label: &str) -> impl Iterator<Item = &str> {
    label.split("__")
}

/// The labels that a volume uses; its affinity comes first.
fn labels(volume: &Value) -> Labels {
    let required = |labels: &Labels| expressions(volume).any(|one| one["key"] == labels.zone);
    let has = |labels: &Labels| volume["metadata"]["labels"][labels.zone].is_string();
    let known = [CURRENT, BETA];
    let own = known.into_iter().find(required).or_else(|| known.into_iter().find(has));
    own.unwrap_or(CURRENT)
}

fn label<'a>(volume: &'a Value, key: &str) -> &'a str {
    text(&volume["metadata"]["labels"][key])
}

/// Has the expressions with values for one label say the same of another. Whether there are any.
fn rename(volume: &mut Value, from: &str, to: &str) -> bool {
    let names = |one: &Value| one["key"] == from && !strings(&one["values"]).is_empty();
    if !expressions(volume).any(names) {
        return false;
    }
    let terms = volume.pointer_mut(TERMS).and_then(Value::as_array_mut).into_iter().flatten();
    for term in terms {
        let expressions = term.get_mut("matchExpressions").and_then(Value::as_array_mut);
        for expression in expressions.into_iter().flatten().filter(|one| one["key"] == from) {
            expression["key"] = to.into();
        }
    }
    true
}

/// Has the volume used only where the label has one of these values.
fn require<'a>(volume: &mut Value, key: &str, values: impl Iterator<Item = &'a str>) {
    let values: BTreeSet<&str> = values.map(str::trim).filter(|value| !value.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    let expression = json!({"key": key, "operator": "In", "values": values});
    let path = ["spec", "nodeAffinity", "required", "nodeSelectorTerms"];
    let terms = path.into_iter().fold(volume, |object, name| field(object, name));
    if terms.as_array().is_none_or(Vec::is_empty) {
        *terms = json!([{}]);
    }
    for term in terms.as_array_mut().into_iter().flatten() {
        let expressions = field(term, "matchExpressions");
        match expressions.as_array_mut() {
            Some(expressions) => expressions.push(expression.clone()),
            None => *expressions = json!([expression]),
        }
    }
}

/// A field of an object, both made if they are absent.
fn field<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
    if !object.is_object() {
        *object = json!({});
    }
    &mut object[name]
}

const TERMS: &str = "/spec/nodeAffinity/required/nodeSelectorTerms";

fn expressions(volume: &Value) -> impl Iterator<Item = &Value> {
    let terms = volume.pointer(TERMS).and_then(Value::as_array).into_iter().flatten();
    terms.flat_map(|term| term["matchExpressions"].as_array().into_iter().flatten())
}
