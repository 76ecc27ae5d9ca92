//! ComponentStatus, which is never stored: each read asks the components. It is deprecated, and says
//! as much as upstream's.

use serde_json::{Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::{Kind, Strategy};
use crate::api_types::{Resource, core};
use crate::schema::value::{items, text};

static PRINTER: Printer = Printer::new(
    &[NAME, string("Status"), string("Message"), string("Error"), AGE],
    |component, now| {
        let mut conditions = items(&component["conditions"]).iter();
        let healthy = conditions.find(|condition| condition["type"] == "Healthy");
        let [status, message, error] = match healthy {
            Some(condition) => [
                if condition["status"] == "True" { "Healthy" } else { "Unhealthy" },
                text(&condition["message"]),
                text(&condition["error"]),
            ],
            None => ["Unknown", "", ""],
        };
        vec![name(component), status.into(), message.into(), error.into(), age(component, now)]
    },
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["cs"],
        namespaced: false,
        verbs: &["get", "list"],
        ..core("componentstatuses", "componentstatus", "ComponentStatus", "")
    },
    strategy: Strategy { printer: &PRINTER, ..Strategy::PLAIN },
};

/// The status of a component: what it says of itself, or why it says nothing.
pub(crate) fn of(name: &str, answer: &Result<String, String>) -> Value {
    let condition = match answer {
        Ok(message) => json!({"type": "Healthy", "status": "True", "message": message}),
        Err(error) => json!({"type": "Healthy", "status": "False", "message": error}),
    };
    json!({
        "kind": "ComponentStatus",
        "apiVersion": "v1",
        "metadata": {"name": name, "creationTimestamp": null},
        "conditions": [condition],
    })
}
