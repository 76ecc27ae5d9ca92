//! PriorityClass.

use serde_json::{Map, Value};

use super::printers::{AGE, Column, NAME, Printer, age, integer, name, wide};
use super::{Kind, Strategy, validate as rules};
use crate::api_types::{Resource, grouped};
use crate::object;
use crate::schema::value::{default_absent, text};
use crate::schema::{Causes, Path};

const MAX_OF_USERS: i64 = 1_000_000_000;
/// The classes that every cluster has.
pub(crate) const SYSTEM: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

static PRINTER: Printer = Printer::new(
    &[
        NAME,
        integer("Value"),
        Column("Global-Default", "boolean", "", 0),
        AGE,
        wide("PreemptionPolicy"),
    ],
    |class, now| {
        vec![
            name(class),
            class["value"].as_i64().unwrap_or(0).into(),
            class["globalDefault"].as_bool().unwrap_or(false).into(),
            age(class, now),
            text(&class["preemptionPolicy"]).into(),
        ]
    },
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["pc"],
        namespaced: false,
        counts_generation: true,
        ..grouped("scheduling.k8s.io", "priorityclasses", "priorityclass", "PriorityClass")
    },
    strategy: Strategy { default: defaults, validate, printer: &PRINTER, ..Strategy::PLAIN },
};

fn defaults(class: &mut Map<String, Value>) {
    default_absent(class, "preemptionPolicy", "PreemptLowerPriority");
}

fn validate(class: &Value, old: Option<&Value>, causes: &mut Causes) {
    let (class_name, value) = (object::name(class), class["value"].as_i64().unwrap_or(0));
    if class_name.starts_with("system-") {
        let metadata = Path::root("metadata");
        let why = match SYSTEM.iter().find(|(name, ..)| *name == class_name) {
            Some((_, known, _)) if *known != value => {
                Some(format!("value of {class_name} PriorityClass must be {known}"))
            }
            Some(_) if class["globalDefault"] == true => {
                Some(format!("globalDefault of {class_name} PriorityClass must be false"))
            }
            Some(_) => None,
            None => Some(format!("{class_name} is not a known system priority class")),
        };
        if let Some(why) = why {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            );
            causes.forbidden(&metadata.child("name"), detail);
        }
    } else if value > MAX_OF_USERS {
        let detail = format!("maximum allowed value of a user defined priority is {MAX_OF_USERS}");
        causes.forbidden(&Path::root("value"), detail);
    }
    let policy = Path::root("preemptionPolicy");
    let supported = ["PreemptLowerPriority", "Never"];
    rules::one_of(&policy, &class["preemptionPolicy"], &supported, causes);
    if let Some(old) = old {
        if old["value"] != class["value"] {
            causes.forbidden(&Path::root("value"), "may not be changed in an update.");
        }
        rules::immutable(&policy, &class["preemptionPolicy"], &old["preemptionPolicy"], causes);
    }
}
