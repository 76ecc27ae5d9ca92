//! PodDisruptionBudget. What an eviction does with it is in `operations`.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::printers::{AGE, NAME, Printer, age, integer, name, string};
use super::workload::{self, count};
use super::{Kind, Strategy, validate as rules};
use crate::api_types::{Resource, grouped, status_of};
use crate::schema::{Causes, Path, names};

static PRINTER: Printer = Printer::new(
    &[
        NAME,
        string("Min Available"),
        string("Max Unavailable"),
        integer("Allowed Disruptions"),
        AGE,
    ],
    cells,
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["pdb"],
        subresources: &[status_of("policy", "PodDisruptionBudget")],
        counts_generation: true,
        ..grouped("policy", "poddisruptionbudgets", "poddisruptionbudget", "PodDisruptionBudget")
    },
    strategy: Strategy {
        prepare_create: |budget| {
            let counts = ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"];
            let counts = counts.map(|field| (field.to_owned(), json!(0)));
            budget.insert("status".into(), Value::Object(counts.into_iter().collect()));
        },
        validate,
        validate_status: |budget, _, causes| {
            let counts =
                &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
            workload::counts(&budget["status"], counts, (&[], ""), causes);
        },
        name: names::path_segment,
        printer: &PRINTER,
        ..Strategy::PLAIN
    },
};

/// A spec as Go shows it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ShownSpec<'a> {
    min_available: &'a Value,
    selector: &'a Value,
    max_unavailable: &'a Value,
    unhealthy_pod_eviction_policy: &'a Value,
}

fn validate(budget: &Value, _: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&budget["spec"], Path::root("spec"));
    let fields = ["minAvailable", "maxUnavailable"];
    if fields.iter().all(|field| !spec[*field].is_null()) {
        let shown = ShownSpec {
            min_available: &spec["minAvailable"],
            selector: &spec["selector"],
            max_unavailable: &spec["maxUnavailable"],
            unhealthy_pod_eviction_policy: &spec["unhealthyPodEvictionPolicy"],
        };
        causes.invalid(&path, &shown, "minAvailable and maxUnavailable cannot be both set");
    }
    for field in fields {
        workload::number_or_percent(&path.child(field), &spec[field], true, causes);
    }
    rules::selector(&path.child("selector"), &spec["selector"], causes);
    let policy = &spec["unhealthyPodEvictionPolicy"];
    if !policy.is_null() {
        let supported = ["AlwaysAllow", "IfHealthyBudget"];
        rules::supported(&path.child("unhealthyPodEvictionPolicy"), policy, &supported, causes);
    }
}

fn cells(budget: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &budget["spec"];
    let limit = |value: &Value| match value {
        Value::Null => "N/A".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    vec![
        name(budget),
        limit(&spec["minAvailable"]).into(),
        limit(&spec["maxUnavailable"]).into(),
        count(&budget["status"]["disruptionsAllowed"]).into(),
        age(budget, now),
    ]
}
