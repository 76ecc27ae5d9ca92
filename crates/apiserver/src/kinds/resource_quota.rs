//! ResourceQuota. What it lets pass is in `admission::quota`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::{Kind, Strategy, validate as rules};
use crate::api_types::{Resource, core, status};
use crate::schema::quantity::Quantity;
use crate::schema::value::{entries, items, text};
use crate::schema::{Causes, Path};

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

static PRINTER: Printer = Printer::new(&[NAME, string("Request"), string("Limit"), AGE], cells);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["quota"],
        subresources: &[status("ResourceQuota")],
        ..core("resourcequotas", "resourcequota", "ResourceQuota", "resourcequotas")
    },
    strategy: Strategy {
        prepare_create: |quota| drop(quota.insert("status".into(), json!({}))),
        validate,
        validate_status: |quota, _, causes| {
            let path = Path::root("status");
            for field in ["hard", "used"] {
                amounts(&path.child(field), &quota["status"][field], causes);
            }
        },
        printer: &PRINTER,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};

fn amounts(path: &Path<'_>, list: &Value, causes: &mut Causes) {
    for (resource, amount) in entries(list) {
        let path = path.key(resource);
        causes.each(
            &path,
            resource,
            crate::schema::qualified(resource.trim_start_matches("count/")),
        );
        match Quantity::parse(text(amount)) {
            Some(quantity) if quantity.is_negative() => {
                causes.invalid(&path, amount, "must be greater than or equal to 0");
            }
            Some(quantity)
                if !quantity.is_whole()
                    && (resource.starts_with("count/")
                        || !resource.contains(['.', '/'])
                            && !matches!(
                                resource.as_str(),
                                "cpu" | "memory" | "ephemeral-storage"
                            )) =>
            {
                causes.invalid(&path, amount, "must be an integer");
            }
            _ => {}
        }
    }
}

fn validate(quota: &Value, old: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&quota["spec"], Path::root("spec"));
    amounts(&path.child("hard"), &spec["hard"], causes);
    let list = path.child("scopes");
    for scope in items(&spec["scopes"]) {
        if !SCOPES.contains(&text(scope)) {
            causes.invalid(&list, &spec["scopes"], "unsupported scope");
        }
    }
    let has = |scope: &str| items(&spec["scopes"]).iter().any(|own| own == scope);
    if (has("BestEffort") && has("NotBestEffort")) || (has("Terminating") && has("NotTerminating"))
    {
        causes.invalid(&list, &spec["scopes"], "conflicting scopes");
    }
    let selector = path.child("scopeSelector");
    let expressions = selector.child("matchExpressions");
    for (i, expression) in items(&spec["scopeSelector"]["matchExpressions"]).iter().enumerate() {
        let path = expressions.index(i);
        if !SCOPES.contains(&text(&expression["scopeName"])) {
            causes.invalid(
                &path.child("scopeName"),
                text(&expression["scopeName"]),
                "unsupported scope",
            );
        }
        let values = items(&expression["values"]);
        match text(&expression["operator"]) {
            "In" | "NotIn" if values.is_empty() => causes.required(
                &path.child("values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => causes.invalid(
                &path.child("values"),
                &expression["values"],
                "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => causes.invalid(
                &path.child("operator"),
                text(&expression["operator"]),
                "not a valid selector operator",
            ),
        }
    }
    if let Some(old) = old {
        rules::immutable(&list, &spec["scopes"], &old["spec"]["scopes"], causes);
    }
}

fn cells(quota: &Value, now: Timestamp) -> Vec<Value> {
    let status = &quota["status"];
    let (limits, requests): (Vec<_>, Vec<_>) =
        entries(&status["hard"]).partition(|(resource, _)| resource.starts_with("limits."));
    let column = |list: Vec<(&String, &Value)>| -> Value {
        let used = |resource: &str| match text(&status["used"][resource]) {
            "" => "0".to_owned(),
            used => used.to_owned(),
        };
        let shown: Vec<String> = list
            .into_iter()
            .map(|(resource, hard)| format!("{resource}: {}/{}", used(resource), text(hard)))
            .collect();
        shown.join(", ").into()
    };
    vec![name(quota), column(requests), column(limits), age(quota, now)]
}
