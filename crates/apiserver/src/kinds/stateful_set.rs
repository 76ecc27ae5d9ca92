//! StatefulSet.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string, wide};
use super::workload::{self, ShownStrategy, child, count, ratio};
use super::{Kind, Strategy, validate as rules, warnings};
use crate::api_types::{Resource, SCALE, grouped, status_of};
use crate::schema::names;
use crate::schema::value::{default, default_absent, is_zero, items, items_mut, map_mut, text};
use crate::schema::{Causes, Path};

/// What an update may change.
const MUTABLE: &[&str] = &[
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
];

static PRINTER: Printer =
    Printer::new(&[NAME, string("Ready"), AGE, wide("Containers"), wide("Images")], cells);

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["sts"],
        categories: &["all"],
        subresources: &[SCALE, status_of("apps", "StatefulSet")],
        counts_generation: true,
        ..grouped("apps", "statefulsets", "statefulset", "StatefulSet")
    },
    strategy: Strategy {
        default: defaults,
        prepare_create: |set| {
            set.insert("status".into(), json!({"replicas": 0, "availableReplicas": 0}));
        },
        validate,
        validate_status,
        name: names::dns_label,
        printer: &PRINTER,
        warnings: warnings::template,
        ..Strategy::PLAIN
    },
};

fn defaults(set: &mut Map<String, Value>) {
    workload::default_replicas(set);
    let Some(spec) = map_mut(set, "spec") else { return };
    default(spec, "podManagementPolicy", "OrderedReady");
    default_absent(spec, "revisionHistoryLimit", workload::REVISIONS);
    if let Some(strategy) = child(spec, "updateStrategy") {
        if strategy.get("type").is_none_or(is_zero) {
            strategy.insert("type".into(), "RollingUpdate".into());
            child(strategy, "rollingUpdate");
        }
        let is_rolling = strategy.get("type").is_some_and(|kind| kind == "RollingUpdate");
        if let Some(rolling) = map_mut(strategy, "rollingUpdate").filter(|_| is_rolling) {
            default_absent(rolling, "partition", 0);
        }
    }
    if let Some(policy) = child(spec, "persistentVolumeClaimRetentionPolicy") {
        default(policy, "whenDeleted", "Retain");
        default(policy, "whenScaled", "Retain");
    }
    for claim in items_mut(spec.get_mut("volumeClaimTemplates")) {
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
        claim.insert("apiVersion".into(), "v1".into());
        super::defaults::storage::claim(claim);
    }
}

fn validate(set: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &set["spec"];
    let path = Path::root("spec");
    let policy = &spec["podManagementPolicy"];
    if !matches!(text(policy), "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        causes.invalid(&path.child("podManagementPolicy"), policy, detail);
    }
    update_strategy(&path.child("updateStrategy"), &spec["updateStrategy"], causes);
    let retention = path.child("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        let given = text(&spec["persistentVolumeClaimRetentionPolicy"][field]);
        if !matches!(given, "Retain" | "Delete") {
            causes.not_supported(&retention.child(field), given, &["Retain", "Delete"]);
        }
    }
    if old.is_none() {
        let list = path.child("volumeClaimTemplates");
        for (i, claim) in items(&spec["volumeClaimTemplates"]).iter().enumerate() {
            rules::claim::spec(&list.index(i).child("spec"), &claim["spec"], causes);
        }
        let service = text(&spec["serviceName"]);
        if !service.is_empty() {
            causes.each(&path.child("serviceName"), service, names::dns_label(service));
        }
    }
    workload::non_negative(spec, &["replicas", "minReadySeconds"], causes);
    let start = path.child("ordinals.start");
    rules::non_negative(&start, &spec["ordinals"]["start"], causes);
    let template = with_claims(spec);
    workload::selector_and_template(spec, &template, ("StatefulSet", "statefulset"), causes);
    if let Some(old) = old
        && !workload::same_but_for(spec, &old["spec"], MUTABLE)
    {
        causes.forbidden(
            &path,
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
             'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
             'minReadySeconds' are forbidden",
        );
    }
}

/// The template with the volumes that its pods get from the claim templates.
fn with_claims(spec: &Value) -> Value {
    let mut template = spec["template"].clone();
    let claims = items(&spec["volumeClaimTemplates"]);
    let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) else {
        return template;
    };
    // Both are the controller's to set.
    pod.remove("hostname");
    pod.remove("subdomain");
    if claims.is_empty() {
        return template;
    }
    let name = |claim: &Value| claim["metadata"]["name"].clone();
    let mut seen = BTreeSet::new();
    let mut volumes: Vec<Value> = claims
        .iter()
        .filter(|claim| seen.insert(text(&claim["metadata"]["name"])))
        .map(|claim| {
            json!({"name": name(claim), "persistentVolumeClaim": {"claimName": name(claim)}})
        })
        .collect();
    let own = pod.get("volumes").map_or(&[][..], items);
    let others = own.iter().filter(|own| claims.iter().all(|claim| name(claim) != own["name"]));
    volumes.extend(others.cloned());
    pod.insert("volumes".into(), volumes.into());
    template
}

/// Rolling updates as Go shows them.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ShownRolling<'a> {
    partition: i64,
    max_unavailable: &'a Value,
}

fn update_strategy(path: &Path<'_>, strategy: &Value, causes: &mut Causes) {
    let rolling = &strategy["rollingUpdate"];
    let rolling_path = path.child("rollingUpdate");
    match text(&strategy["type"]) {
        "OnDelete" if !rolling.is_null() => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            causes.invalid(&rolling_path, rolling, detail);
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            rules::non_negative(&rolling_path.child("partition"), &rolling["partition"], causes);
            let unavailable = &rolling["maxUnavailable"];
            if !unavailable.is_null() {
                let path = rolling_path.child("maxUnavailable");
                workload::number_or_percent(&path, unavailable, true, causes);
                if workload::amount(unavailable) == 0 {
                    causes.invalid(&path, unavailable, "cannot be 0");
                }
            }
        }
        "" => causes.required(path, ""),
        other => {
            let shown = ShownStrategy {
                r#type: other,
                rolling_update: (!rolling.is_null()).then(|| ShownRolling {
                    partition: count(&rolling["partition"]),
                    max_unavailable: &rolling["maxUnavailable"],
                }),
            };
            causes.invalid(path, &shown, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

fn validate_status(set: &Value, old: &Value, causes: &mut Causes) {
    const PARTS: &[&str] =
        &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    let status = &set["status"];
    workload::counts(
        status,
        &[
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ],
        (PARTS, "replicas"),
        causes,
    );
    let path = Path::root("status");
    let limit = "readyReplicas";
    workload::not_above(&path, status, "availableReplicas", limit, "status.readyReplicas", causes);
    workload::collisions(set, old, causes);
}

fn cells(set: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&set["spec"], &set["status"]);
    let [names, images] = workload::containers(&spec["template"]);
    vec![
        name(set),
        ratio(count(&status["readyReplicas"]), count(&spec["replicas"])),
        age(set, now),
        names,
        images,
    ]
}
