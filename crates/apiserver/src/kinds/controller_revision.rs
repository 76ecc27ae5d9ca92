//! ControllerRevision.

use serde_json::Value;

use super::printers::{AGE, NAME, Printer, age, integer, name, string};
use super::workload::count;
use super::{Kind, Strategy, validate as rules};
use crate::api_types::grouped;
use crate::schema::value::{items, text};
use crate::schema::{Causes, Path};

static PRINTER: Printer =
    Printer::new(&[NAME, string("Controller"), integer("Revision"), AGE], |revision, now| {
        let owners = items(&revision["metadata"]["ownerReferences"]);
        let controller = owners.iter().find(|owner| owner["controller"] == true).map_or_else(
            || "<none>".to_owned(),
            |owner| {
                let kind = text(&owner["kind"]).to_lowercase();
                let group =
                    text(&owner["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
                let kind = if group.is_empty() { kind } else { format!("{kind}.{group}") };
                format!("{kind}/{}", text(&owner["name"]))
            },
        );
        vec![
            name(revision),
            controller.into(),
            count(&revision["revision"]).into(),
            age(revision, now),
        ]
    });

pub(super) static KIND: Kind = Kind {
    resource: grouped("apps", "controllerrevisions", "controllerrevision", "ControllerRevision"),
    strategy: Strategy { validate, printer: &PRINTER, ..Strategy::PLAIN },
};

fn validate(revision: &Value, old: Option<&Value>, causes: &mut Causes) {
    rules::non_negative(&Path::root("revision"), &revision["revision"], causes);
    match old {
        None if revision["data"].is_null() => {
            causes.required(&Path::root("data"), "data is mandatory");
        }
        None if !revision["data"].is_object() => {
            causes.required(&Path::root("data"), "data must be a valid JSON object");
        }
        None => {}
        Some(old) => rules::immutable(&Path::root("data"), &revision["data"], &old["data"], causes),
    }
}
