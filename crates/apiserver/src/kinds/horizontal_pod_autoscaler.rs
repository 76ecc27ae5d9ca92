//! HorizontalPodAutoscaler, in both of its versions.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::validate::container::resource_name;
use super::validate::supported;
use super::workload::{child, count};
use super::{Kind, Strategy, autoscaling_v1};
use crate::api_types::{Gvk, READ_WRITE, Resource, Subresource, grouped, status_of};
use crate::schema::names;
use crate::schema::quantity::Quantity;
use crate::schema::value::{default_absent, is_zero, items, map_mut, text};
use crate::schema::{Causes, Path};

const DEFAULT_UTILIZATION: i64 = 80;

static PRINTER: Printer = Printer::new(
    &[
        NAME,
        string("Reference"),
        string("Targets"),
        string("MinPods"),
        string("MaxPods"),
        string("Replicas"),
        AGE,
    ],
    cells,
);

static PRINTER_V1: Printer =
    Printer { cells: |scaler, now| cells(&stored(scaler), now), ..PRINTER };

const fn resource(version: &'static str, subresources: &'static [Subresource]) -> Resource {
    Resource {
        version,
        short_names: &["hpa"],
        categories: &["all"],
        subresources,
        ..grouped(
            "autoscaling",
            "horizontalpodautoscalers",
            "horizontalpodautoscaler",
            "HorizontalPodAutoscaler",
        )
    }
}

pub(super) static V1: Kind = Kind {
    resource: resource("v1", &[status_of("autoscaling", "HorizontalPodAutoscaler")]),
    strategy: Strategy {
        // What the other form has as defaults, this one shows.
        default: |scaler| {
            let canonical = autoscaling_v1::from_storage(stored(&Value::Object(scaler.clone())));
            if let Value::Object(canonical) = canonical {
                *scaler = canonical;
            }
        },
        prepare_create: |scaler| {
            scaler.insert("status".into(), json!({"currentReplicas": 0, "desiredReplicas": 0}));
        },
        validate: |scaler, old, causes| validate(&stored(scaler), old, causes),
        printer: &PRINTER_V1,
        to_storage: |scaler| stored(&scaler),
        from_storage: Some(autoscaling_v1::from_storage),
        ..Strategy::PLAIN
    },
};

/// An object of v1 in the form of v2, with the defaults of that.
fn stored(scaler: &Value) -> Value {
    let mut stored = autoscaling_v1::to_storage(scaler.clone());
    if let Some(map) = stored.as_object_mut() {
        defaults(map);
    }
    stored
}

pub(super) static V2: Kind = Kind {
    resource: resource(
        "v2",
        &[Subresource {
            name: "status",
            gvk: Gvk { group: "autoscaling", version: "v2", kind: "HorizontalPodAutoscaler" },
            verbs: READ_WRITE,
        }],
    ),
    strategy: Strategy {
        default: defaults,
        prepare_create: |scaler| {
            scaler.insert("status".into(), json!({"desiredReplicas": 0}));
        },
        validate,
        printer: &PRINTER,
        ..Strategy::PLAIN
    },
};

fn defaults(scaler: &mut Map<String, Value>) {
    let Some(spec) = map_mut(scaler, "spec") else { return };
    default_absent(spec, "minReplicas", 1);
    if spec.get("metrics").is_none_or(is_zero) {
        let target = json!({"type": "Utilization", "averageUtilization": DEFAULT_UTILIZATION});
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        spec.insert("metrics".into(), json!([metric]));
    }
    let Some(behavior) = map_mut(spec, "behavior") else { return };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    if let Some(up) = child(behavior, "scaleUp") {
        default_absent(up, "stabilizationWindowSeconds", 0);
        default_absent(up, "selectPolicy", "Max");
        default_absent(up, "policies", json!([pods, percent]));
    }
    if let Some(down) = child(behavior, "scaleDown") {
        default_absent(down, "selectPolicy", "Max");
        default_absent(down, "policies", json!([percent]));
    }
}

fn validate(scaler: &Value, old: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&scaler["spec"], Path::root("spec"));
    let (min, max) = (spec["minReplicas"].as_i64().unwrap_or(1), count(&spec["maxReplicas"]));
    if min < 1 {
        let detail = "must be greater than or equal to 1";
        causes.invalid(&path.child("minReplicas"), &min, detail);
    }
    if max == 0 {
        causes.required(&path.child("maxReplicas"), "must be set and greater than 0");
    } else if max < 0 {
        let detail = "must be greater than or equal to 1";
        causes.invalid(&path.child("maxReplicas"), &max, detail);
    }
    if max < min {
        let detail = "must be greater than or equal to `minReplicas`";
        causes.invalid(&path.child("maxReplicas"), &max, detail);
    }
    let target = path.child("scaleTargetRef");
    for field in ["kind", "name"] {
        match text(&spec["scaleTargetRef"][field]) {
            "" => causes.required(&target.child(field), ""),
            given => causes.each(&target.child(field), given, names::path_segment(given)),
        }
    }
    // those that are stored without a group stay valid
    let reference = &spec["scaleTargetRef"];
    let is_same = old.is_some_and(|old| {
        let was = &old["spec"]["scaleTargetRef"];
        ["apiVersion", "kind"].iter().all(|field| was[*field] == reference[*field])
    });
    let version = text(&reference["apiVersion"]);
    if !is_same && reference["kind"] != "ReplicationController" && !version.contains('/') {
        let detail = "apiVersion must specify API group";
        causes.invalid(&target.child("apiVersion"), version, detail);
    }
    let list = path.child("metrics");
    for (i, metric) in items(&spec["metrics"]).iter().enumerate() {
        metric_source(&list.index(i), metric, causes);
    }
    let works_without_pods =
        |metric: &Value| matches!(text(&metric["type"]), "Object" | "External");
    if min == 0 && !items(&spec["metrics"]).iter().any(works_without_pods) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        causes.forbidden(&list, why);
    }
    for rules in ["scaleUp", "scaleDown"] {
        let behavior = path.child("behavior");
        scaling_rules(&behavior.child(rules), &spec["behavior"][rules], causes);
    }
}

/// A metric has the one source that its type names.
fn metric_source(path: &Path<'_>, metric: &Value, causes: &mut Causes) {
    const SOURCES: [(&str, &str); 5] = [
        ("ContainerResource", "containerResource"),
        ("External", "external"),
        ("Object", "object"),
        ("Pods", "pods"),
        ("Resource", "resource"),
    ];
    let kind = text(&metric["type"]);
    let kinds = SOURCES.map(|(kind, _)| kind);
    let type_path = path.child("type");
    if kind.is_empty() {
        causes.required(&type_path, "must specify a metric source type");
    }
    if !kinds.contains(&kind) {
        causes.not_supported(&type_path, kind, &kinds);
    }
    let field = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    for (_, source) in SOURCES {
        let is_given = !metric[source].is_null();
        let path = path.child(source);
        if Some(source) == field && !is_given {
            causes.required(&path, "must populate information for the given metric source");
        } else if Some(source) == field {
            metric_rules(&path, source, &metric[source], causes);
        } else if is_given && field.is_some() {
            causes.forbidden(&path, "must populate the given metric source only");
        }
    }
}

fn metric_rules(path: &Path<'_>, kind: &str, source: &Value, causes: &mut Causes) {
    let (target, target_path) = (&source["target"], path.child("target"));
    let is_resource = matches!(kind, "resource" | "containerResource");
    if is_resource {
        match text(&source["name"]) {
            "" => causes.required(&path.child("name"), "must specify a resource name"),
            name if kind == "containerResource" => {
                resource_name(&path.child("name"), name, causes);
            }
            _ => {}
        }
    } else {
        let metric = path.child("metric");
        match text(&source["metric"]["name"]) {
            "" => causes.required(&metric.child("name"), "must specify a metric name"),
            name => causes.each(&metric.child("name"), name, names::path_segment(name)),
        }
    }
    if kind == "containerResource" {
        match text(&source["container"]) {
            "" => causes.required(&path.child("container"), "must specify a container"),
            name => causes.each(&path.child("container"), name, names::dns_label(name)),
        }
    }
    if kind == "object" {
        let described = path.child("describedObject");
        for field in ["kind", "name"] {
            match text(&source["describedObject"][field]) {
                "" => causes.required(&described.child(field), ""),
                given => causes.each(&described.child(field), given, names::path_segment(given)),
            }
        }
    }
    metric_target(&target_path, target, causes);
    let has = |field: &str| !target[field].is_null();
    let average = target_path.child("averageValue");
    match kind {
        "pods" if !has("averageValue") => {
            causes.required(&average, "must specify a positive target averageValue");
        }
        "object" if !has("value") && !has("averageValue") => {
            causes.required(&average, "must set either a target value or averageValue");
        }
        "external" if !has("value") && !has("averageValue") => {
            let why = "must set either a target value for metric or a per-pod target";
            causes.required(&average, why);
        }
        "external" if has("value") && has("averageValue") => {
            let why = "may not set both a target value for metric and a per-pod target";
            causes.forbidden(&target_path.child("value"), why);
        }
        _ if is_resource && !has("averageUtilization") && !has("averageValue") => {
            let why = "must set either a target raw value or a target utilization";
            causes.required(&target_path.child("averageUtilization"), why);
        }
        _ if is_resource && has("averageUtilization") && has("averageValue") => {
            let why = "may not set both a target raw value and a target utilization";
            causes.forbidden(&average, why);
        }
        _ => {}
    }
}

fn metric_target(path: &Path<'_>, target: &Value, causes: &mut Causes) {
    let kind = text(&target["type"]);
    let type_path = path.child("type");
    if kind.is_empty() {
        causes.required(&type_path, "must specify a metric target type");
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind) {
        causes.invalid(&type_path, kind, "must be either Utilization, Value, or AverageValue");
    }
    for field in ["value", "averageValue"] {
        let amount = Quantity::parse(text(&target[field])).map(Quantity::amount);
        if amount.is_some_and(|amount| amount <= 0) {
            causes.invalid(&path.child(field), &target[field], "must be positive");
        }
    }
    if let Some(percent) = target["averageUtilization"].as_i64().filter(|percent| *percent < 1) {
        causes.invalid(&path.child("averageUtilization"), &percent, "must be greater than 0");
    }
}

/// How fast it scales in one direction.
fn scaling_rules(path: &Path<'_>, rules: &Value, causes: &mut Causes) {
    const MAX_WINDOW: i64 = 3600;
    const MAX_PERIOD: i64 = 1800;
    if rules.is_null() {
        return;
    }
    let window = rules["stabilizationWindowSeconds"].as_i64().unwrap_or(0);
    let window_path = path.child("stabilizationWindowSeconds");
    if window < 0 {
        causes.invalid(&window_path, &window, "must be greater than or equal to zero");
    }
    if window > MAX_WINDOW {
        let why = format!("must be less than or equal to {MAX_WINDOW}");
        causes.invalid(&window_path, &window, why);
    }
    if !rules["selectPolicy"].is_null() {
        let policies = ["Disabled", "Max", "Min"];
        supported(&path.child("selectPolicy"), &rules["selectPolicy"], &policies, causes);
    }
    let list = path.child("policies");
    if items(&rules["policies"]).is_empty() {
        causes.required(&list, "must specify at least one Policy");
    }
    for (i, policy) in items(&rules["policies"]).iter().enumerate() {
        let path = list.index(i);
        let kinds = ["Percent", "Pods"];
        supported(&path.child("type"), &policy["type"], &kinds, causes);
        for field in ["value", "periodSeconds"] {
            let number = count(&policy[field]);
            if number <= 0 {
                causes.invalid(&path.child(field), &number, "must be greater than zero");
            }
        }
        let period = count(&policy["periodSeconds"]);
        if period > MAX_PERIOD {
            let why = format!("must be less than or equal to {MAX_PERIOD}");
            causes.invalid(&path.child("periodSeconds"), &period, why);
        }
    }
}

fn cells(scaler: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&scaler["spec"], &scaler["status"]);
    let target = &spec["scaleTargetRef"];
    let min = match spec["minReplicas"].as_i64() {
        Some(min) => min.to_string(),
        None => "<unset>".to_owned(),
    };
    vec![
        name(scaler),
        format!("{}/{}", text(&target["kind"]), text(&target["name"])).into(),
        metrics(spec, status).into(),
        min.into(),
        count(&spec["maxReplicas"]).into(),
        count(&status["currentReplicas"]).into(),
        age(scaler, now),
    ]
}

/// Current and wanted values, such as `cpu: 12%/80%`.
fn metrics(spec: &Value, status: &Value) -> String {
    let shown: Vec<String> = items(&spec["metrics"])
        .iter()
        .enumerate()
        .map(|(i, metric)| {
            let now = &items(&status["currentMetrics"]).get(i).unwrap_or(&Value::Null);
            metric_cell(metric, now)
        })
        .collect();
    let extra = shown.len().saturating_sub(2);
    match shown.get(..2) {
        Some(first) if extra > 0 => format!("{} + {extra} more...", first.join(", ")),
        _ if shown.is_empty() => "<none>".to_owned(),
        _ => shown.join(", "),
    }
}

fn metric_cell(metric: &Value, now: &Value) -> String {
    let kind = text(&metric["type"]);
    let field = match kind {
        "ContainerResource" => "containerResource",
        "External" => "external",
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        _ => return "<unknown type>".to_owned(),
    };
    let (target, current) = (&metric[field]["target"], &now[field]["current"]);
    let label = match kind {
        "ContainerResource" | "Resource" => format!("{}: ", text(&metric[field]["name"])),
        _ => String::new(),
    };
    let value = |from: &Value, suffix: &str| match from {
        Value::Null => "<unknown>".to_owned(),
        Value::String(text) => format!("{text}{suffix}"),
        other => format!("{other}{suffix}"),
    };
    match (&target["averageUtilization"], &target["averageValue"]) {
        (Value::Null, Value::Null) => {
            format!("{label}{}/{}", value(&current["value"], ""), value(&target["value"], ""))
        }
        (Value::Null, average) if field == "resource" || field == "pods" => {
            format!("{label}{}/{}", value(&current["averageValue"], ""), value(average, ""))
        }
        (Value::Null, average) => {
            let average = value(average, " (avg)");
            format!("{label}{}/{average}", value(&current["averageValue"], ""))
        }
        (utilization, _) => {
            let current = value(&current["averageUtilization"], "%");
            format!("{label}{current}/{}", value(utilization, "%"))
        }
    }
}
