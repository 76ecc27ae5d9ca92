//! DaemonSet.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, integer, labels, name, string, wide};
use super::workload::{self, amount, child, count};
use super::{Kind, Strategy, warnings};
use crate::api_types::{Resource, grouped, status_of};
use crate::schema::value::{default, default_absent, map_mut, same, text};
use crate::schema::{Causes, Path};

/// Counts changes of the template, from before there were ControllerRevisions.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

static PRINTER: Printer = Printer::new(
    &[
        NAME,
        integer("Desired"),
        integer("Current"),
        integer("Ready"),
        integer("Up-to-date"),
        integer("Available"),
        string("Node Selector"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    cells,
);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["ds"],
        categories: &["all"],
        subresources: &[status_of("apps", "DaemonSet")],
        counts_generation: true,
        ..grouped("apps", "daemonsets", "daemonset", "DaemonSet")
    },
    strategy: Strategy {
        default: defaults,
        prepare_create,
        prepare_update,
        validate,
        validate_status,
        printer: &PRINTER,
        warnings: warnings::template,
        ..Strategy::PLAIN
    },
};

fn defaults(set: &mut Map<String, Value>) {
    let Some(spec) = map_mut(set, "spec") else { return };
    workload::default_template(spec);
    default_absent(spec, "revisionHistoryLimit", workload::REVISIONS);
    let Some(strategy) = child(spec, "updateStrategy") else { return };
    default(strategy, "type", "RollingUpdate");
    if strategy.get("type").is_some_and(|kind| kind == "RollingUpdate")
        && let Some(rolling) = child(strategy, "rollingUpdate")
    {
        default_absent(rolling, "maxUnavailable", 1);
        default_absent(rolling, "maxSurge", 0);
    }
}

fn prepare_create(set: &mut Map<String, Value>) {
    set.insert(
        "status".into(),
        json!({
            "currentNumberScheduled": 0,
            "desiredNumberScheduled": 0,
            "numberMisscheduled": 0,
            "numberReady": 0,
        }),
    );
    set_template_generation(set, 1);
}

fn set_template_generation(set: &mut Map<String, Value>, generation: i64) {
    let metadata = child(set, "metadata");
    if let Some(annotations) = metadata.and_then(|metadata| child(metadata, "annotations")) {
        annotations.insert(TEMPLATE_GENERATION.into(), generation.to_string().into());
    }
}

fn prepare_update(set: &mut Map<String, Value>, old: &Value) {
    let had = text(&old["metadata"]["annotations"][TEMPLATE_GENERATION]).parse().unwrap_or(0_i64);
    let template = set.get("spec").map_or(&Value::Null, |spec| &spec["template"]);
    let changed = i64::from(!same(template, &old["spec"]["template"]));
    set_template_generation(set, had.saturating_add(changed));
}

fn validate(set: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &set["spec"];
    workload::selector_and_template(spec, &spec["template"], ("DaemonSet", "daemonset"), causes);
    workload::non_negative(spec, &["minReadySeconds", "revisionHistoryLimit"], causes);
    update_strategy(&spec["updateStrategy"], causes);
    workload::same_selector(set, old, causes);
}

fn update_strategy(strategy: &Value, causes: &mut Causes) {
    let spec = Path::root("spec");
    let path = spec.child("updateStrategy");
    match text(&strategy["type"]) {
        "OnDelete" => {}
        "RollingUpdate" => {
            let rolling = &strategy["rollingUpdate"];
            let path = path.child("rollingUpdate");
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            let (unavailable_path, surge_path) =
                (path.child("maxUnavailable"), path.child("maxSurge"));
            workload::number_or_percent(&unavailable_path, unavailable, true, causes);
            workload::number_or_percent(&surge_path, surge, true, causes);
            match (amount(unavailable) != 0, amount(surge) != 0) {
                (true, true) => {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    causes.invalid(&surge_path, surge, detail);
                }
                (false, false) => {
                    causes.required(&unavailable_path, "cannot be 0 when maxSurge is 0");
                }
                _ => {}
            }
        }
        _ => {
            let shown = workload::ShownStrategy::of(strategy);
            causes.not_supported(&path, &shown, &["RollingUpdate", "OnDelete"]);
        }
    }
}

fn validate_status(set: &Value, old: &Value, causes: &mut Causes) {
    const COUNTS: &[&str] = &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    workload::counts(&set["status"], COUNTS, (&[], ""), causes);
    workload::collisions(set, old, causes);
}

fn cells(set: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&set["spec"], &set["status"]);
    let [names, images] = workload::containers(&spec["template"]);
    vec![
        name(set),
        count(&status["desiredNumberScheduled"]).into(),
        count(&status["currentNumberScheduled"]).into(),
        count(&status["numberReady"]).into(),
        count(&status["updatedNumberScheduled"]).into(),
        count(&status["numberAvailable"]).into(),
        labels(&spec["template"]["spec"]["nodeSelector"]),
        age(set, now),
        names,
        images,
        workload::selector_cell(&spec["selector"]),
    ]
}
