//! Deployment.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, integer, name, string, wide};
use super::workload::{self, amount, child, count, ratio};
use super::{Kind, Strategy, warnings};
use crate::api_types::{Resource, SCALE, grouped, status_of};
use crate::schema::value::{default, default_absent, map_mut, text};
use crate::schema::{Causes, Path};

const PROGRESS_DEADLINE: i64 = 600;

static PRINTER: Printer = Printer::new(
    &[
        NAME,
        string("Ready"),
        integer("Up-to-date"),
        integer("Available"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    cells,
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["deploy"],
        categories: &["all"],
        subresources: &[SCALE, status_of("apps", "Deployment")],
        counts_generation: true,
        ..grouped("apps", "deployments", "deployment", "Deployment")
    },
    strategy: Strategy {
        default: defaults,
        prepare_create: |deployment| drop(deployment.insert("status".into(), json!({}))),
        validate,
        validate_status,
        printer: &PRINTER,
        annotations_count: true,
        reset_by_status: &["spec", "metadata.labels"],
        warnings: warnings::template,
        ..Strategy::PLAIN
    },
};

fn defaults(deployment: &mut Map<String, Value>) {
    workload::default_replicas(deployment);
    let Some(spec) = map_mut(deployment, "spec") else { return };
    default_absent(spec, "revisionHistoryLimit", workload::REVISIONS);
    default_absent(spec, "progressDeadlineSeconds", PROGRESS_DEADLINE);
    let Some(strategy) = child(spec, "strategy") else { return };
    default(strategy, "type", "RollingUpdate");
    if strategy.get("type").is_some_and(|kind| kind == "RollingUpdate")
        && let Some(rolling) = child(strategy, "rollingUpdate")
    {
        default_absent(rolling, "maxUnavailable", "25%");
        default_absent(rolling, "maxSurge", "25%");
    }
}

fn validate(deployment: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &deployment["spec"];
    workload::non_negative(spec, &["replicas"], causes);
    workload::selector_and_template(spec, &spec["template"], ("ReplicaSet", "deployment"), causes);
    strategy(&spec["strategy"], causes);
    workload::non_negative(
        spec,
        &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"],
        causes,
    );
    if let Some(deadline) = spec["progressDeadlineSeconds"].as_i64()
        && deadline <= count(&spec["minReadySeconds"])
    {
        let path = Path::root("spec");
        let path = path.child("progressDeadlineSeconds");
        causes.invalid(&path, &deadline, "must be greater than minReadySeconds");
    }
    workload::same_selector(deployment, old, causes);
}

fn strategy(strategy: &Value, causes: &mut Causes) {
    let spec = Path::root("spec");
    let path = spec.child("strategy");
    let rolling_path = path.child("rollingUpdate");
    let rolling = &strategy["rollingUpdate"];
    match text(&strategy["type"]) {
        "Recreate" if !rolling.is_null() => causes
            .forbidden(&rolling_path, "may not be specified when strategy `type` is 'Recreate'"),
        "Recreate" => {}
        "RollingUpdate" => {
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            let unavailable_path = rolling_path.child("maxUnavailable");
            workload::number_or_percent(&unavailable_path, unavailable, true, causes);
            workload::number_or_percent(&rolling_path.child("maxSurge"), surge, false, causes);
            if amount(unavailable) == 0 && amount(surge) == 0 {
                let detail = "may not be 0 when `maxSurge` is 0";
                causes.invalid(&unavailable_path, unavailable, detail);
            }
        }
        _ => {
            let shown = workload::ShownStrategy::of(strategy);
            causes.not_supported(&path, &shown, &["Recreate", "RollingUpdate"]);
        }
    }
}

fn validate_status(deployment: &Value, old: &Value, causes: &mut Causes) {
    let status = &deployment["status"];
    workload::counts(
        status,
        &[
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ],
        (&["updatedReplicas", "readyReplicas", "availableReplicas"], "replicas"),
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
    workload::collisions(deployment, old, causes);
}

fn cells(deployment: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    let [names, images] = workload::containers(&spec["template"]);
    vec![
        name(deployment),
        ratio(count(&status["readyReplicas"]), count(&spec["replicas"])),
        count(&status["updatedReplicas"]).into(),
        count(&status["availableReplicas"]).into(),
        age(deployment, now),
        names,
        images,
        workload::selector_cell(&spec["selector"]),
    ]
}
