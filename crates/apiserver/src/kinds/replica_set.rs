//! ReplicaSet.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::printers::{AGE, NAME, Printer, age, integer, name, wide};
use super::workload::{self, count};
use super::{Kind, Strategy, warnings};
use crate::api_types::{Resource, SCALE, grouped, status_of};
use crate::schema::{Causes, Path};

static PRINTER: Printer = Printer::new(
    &[
        NAME,
        integer("Desired"),
        integer("Current"),
        integer("Ready"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    cells,
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["rs"],
        categories: &["all"],
        subresources: &[SCALE, status_of("apps", "ReplicaSet")],
        counts_generation: true,
        ..grouped("apps", "replicasets", "replicaset", "ReplicaSet")
    },
    strategy: Strategy {
        default: workload::default_replicas,
        prepare_create: |set| drop(set.insert("status".into(), json!({"replicas": 0}))),
        validate,
        validate_status,
        printer: &PRINTER,
        warnings: warnings::template,
        ..Strategy::PLAIN
    },
};

fn validate(set: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &set["spec"];
    workload::non_negative(spec, &["replicas", "minReadySeconds"], causes);
    workload::selector_and_template(spec, &spec["template"], ("ReplicaSet", "deployment"), causes);
    workload::same_selector(set, old, causes);
}

fn validate_status(set: &Value, _: &Value, causes: &mut Causes) {
    const PARTS: &[&str] = &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    let status = &set["status"];
    workload::counts(
        status,
        &[
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ],
        (PARTS, "replicas"),
        causes,
    );
    let path = Path::root("status");
    workload::not_above(
        &path,
        status,
        "availableReplicas",
        "readyReplicas",
        "readyReplicas",
        causes,
    );
}

fn cells(set: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&set["spec"], &set["status"]);
    let [names, images] = workload::containers(&spec["template"]);
    vec![
        name(set),
        count(&spec["replicas"]).into(),
        count(&status["replicas"]).into(),
        count(&status["readyReplicas"]).into(),
        age(set, now),
        names,
        images,
        workload::selector_cell(&spec["selector"]),
    ]
}
