//! FlowSchema and PriorityLevelConfiguration as objects; what they mean for requests is in
//! [`crate::flow_control`].

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::{Kind, Strategy, validate as rules};
use crate::api_types::{Resource, grouped, status_of};
use crate::schema::names;
use crate::schema::value::{default, default_absent, is_zero, items, map_mut, same, text};
use crate::schema::{Causes, Path};

/// The schema and the level of requests that are never limited.
pub(crate) const EXEMPT: &str = "exempt";
/// The schema and the level of requests that match nothing else.
pub(crate) const CATCH_ALL: &str = "catch-all";
/// The bits of a hash that a hand of queues may need.
pub(crate) const MAX_HASH_BITS: u32 = 60;
const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

static SCHEMAS: Printer = Printer::new(
    &[
        NAME,
        string("PriorityLevel"),
        string("MatchingPrecedence"),
        string("DistinguisherMethod"),
        AGE,
        string("MissingPL"),
    ],
    |schema, now| {
        let spec = &schema["spec"];
        let method = spec["distinguisherMethod"]["type"].as_str().unwrap_or("<none>");
        let mut conditions = items(&schema["status"]["conditions"]).iter();
        let dangling = conditions.find(|condition| condition["type"] == "Dangling");
        vec![
            name(schema),
            text(&spec["priorityLevelConfiguration"]["name"]).into(),
            spec["matchingPrecedence"].as_i64().unwrap_or(0).into(),
            method.into(),
            age(schema, now),
            dangling.map_or("?", |condition| text(&condition["status"])).into(),
        ]
    },
);

static LEVELS: Printer = Printer::new(
    &[
        NAME,
        string("Type"),
        string("NominalConcurrencyShares"),
        string("Queues"),
        string("HandSize"),
        string("QueueLengthLimit"),
        AGE,
    ],
    |level, now| {
        let limited = &level["spec"]["limited"];
        let queuing = &limited["limitResponse"]["queuing"];
        let or_none = |value: &Value| match value.is_null() {
            true => "<none>".into(),
            false => value.clone(),
        };
        vec![
            name(level),
            text(&level["spec"]["type"]).into(),
            or_none(&limited["nominalConcurrencyShares"]),
            or_none(&queuing["queues"]),
            or_none(&queuing["handSize"]),
            or_none(&queuing["queueLengthLimit"]),
            age(level, now),
        ]
    },
);

pub(super) static SCHEMA: Kind = Kind {
    resource: Resource {
        namespaced: false,
        subresources: &[status_of("flowcontrol.apiserver.k8s.io", "FlowSchema")],
        counts_generation: true,
        ..grouped("flowcontrol.apiserver.k8s.io", "flowschemas", "flowschema", "FlowSchema")
    },
    strategy: Strategy {
        default: |schema| {
            let Some(spec) = map_mut(schema, "spec") else { return };
            default(spec, "matchingPrecedence", 1000);
        },
        prepare_create: |schema| drop(schema.insert("status".into(), json!({}))),
        validate: schema,
        validate_status: |schema, _, causes| schema_status(schema, causes),
        printer: &SCHEMAS,
        reset_by_status: &["metadata", "spec"],
        ..Strategy::PLAIN
    },
};

pub(super) static PRIORITY_LEVEL: Kind = Kind {
    resource: Resource {
        namespaced: false,
        subresources: &[status_of("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration")],
        counts_generation: true,
        ..grouped(
            "flowcontrol.apiserver.k8s.io",
            "prioritylevelconfigurations",
            "prioritylevelconfiguration",
            "PriorityLevelConfiguration",
        )
    },
    strategy: Strategy {
        default: level_defaults,
        prepare_create: |level| drop(level.insert("status".into(), json!({}))),
        validate: level,
        printer: &LEVELS,
        reset_by_status: &["metadata", "spec"],
        ..Strategy::PLAIN
    },
};

fn level_defaults(level: &mut Map<String, Value>) {
    let Some(spec) = map_mut(level, "spec") else { return };
    if let Some(exempt) = map_mut(spec, "exempt") {
        default_absent(exempt, "nominalConcurrencyShares", 0);
        default_absent(exempt, "lendablePercent", 0);
    }
    let Some(limited) = map_mut(spec, "limited") else { return };
    default_absent(limited, "nominalConcurrencyShares", 30);
    default_absent(limited, "lendablePercent", 0);
    let Some(response) = map_mut(limited, "limitResponse") else { return };
    if let Some(queuing) = map_mut(response, "queuing") {
        for (field, number) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
            default(queuing, field, number);
        }
    }
}

fn schema(schema: &Value, _: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&schema["spec"], Path::root("spec"));
    let own = text(&schema["metadata"]["name"]);
    let precedence = spec["matchingPrecedence"].as_i64().unwrap_or(0);
    let precedence_path = path.child("matchingPrecedence");
    if precedence <= 0 {
        causes.invalid(&precedence_path, &precedence, "must be a positive value");
    }
    if precedence > 10_000 {
        causes.invalid(&precedence_path, &precedence, "must not be greater than 10000");
    }
    if precedence == 1 && own != EXEMPT {
        let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
        causes.invalid(&precedence_path, &precedence, detail);
    }
    let method = &spec["distinguisherMethod"];
    if !method.is_null() && !matches!(text(&method["type"]), "ByNamespace" | "ByUser") {
        let path = path.child("distinguisherMethod");
        // upstream repeats the method as Go names its fields
        let given = json!({"Type": text(&method["type"])});
        causes.not_supported(&path.child("type"), &given, &["ByNamespace", "ByUser"]);
    }
    let level_path = path.child("priorityLevelConfiguration");
    match text(&spec["priorityLevelConfiguration"]["name"]) {
        "" => causes.required(&level_path.child("name"), "must reference a priority level"),
        level => causes.each(&level_path.child("name"), level, names::dns_subdomain(level)),
    }
    let list = path.child("rules");
    for (i, rule) in items(&spec["rules"]).iter().enumerate() {
        policy_rule(&list.index(i), rule, causes);
    }
    if matches!(own, EXEMPT | CATCH_ALL) && !fixed(own).is_some_and(|fixed| same(spec, &fixed)) {
        causes.invalid(&path, spec, format!("spec of '{own}' must equal the fixed value"));
    }
    schema_status(schema, causes);
}

fn policy_rule(path: &Path<'_>, rule: &Value, causes: &mut Causes) {
    let list = path.child("subjects");
    if is_zero(&rule["subjects"]) {
        causes.required(&list, "subjects must contain at least one value");
    }
    for (i, given) in items(&rule["subjects"]).iter().enumerate() {
        subject(&list.index(i), given, causes);
    }
    if is_zero(&rule["resourceRules"]) && is_zero(&rule["nonResourceRules"]) {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        causes.required(path, detail);
    }
    let list = path.child("resourceRules");
    for (i, rule) in items(&rule["resourceRules"]).iter().enumerate() {
        let path = list.index(i);
        verbs(&path, &rule["verbs"], causes);
        for (field, one, many) in
            [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")]
        {
            let given = &rule[field];
            if is_zero(given) {
                let detail = format!("resource rules must supply at least one {one}");
                causes.required(&path.child(field), &detail);
            } else if is_star_with_others(given) {
                let detail = format!("if '*' is present, must not specify other {many}");
                causes.invalid(&path.child(field), given, detail);
            }
        }
        let (namespaces, path) = (&rule["namespaces"], path.child("namespaces"));
        if is_zero(namespaces) && rule["clusterScope"] != true {
            let detail =
                "resource rules that are not cluster scoped must supply at least one namespace";
            causes.required(&path, detail);
        } else if is_star_with_others(namespaces) {
            let detail = "if '*' is present, must not specify other namespaces";
            causes.invalid(&path, namespaces, detail);
        } else if items(namespaces).iter().all(|one| one != "*") {
            for (i, namespace) in items(namespaces).iter().map(text).enumerate() {
                for message in names::dns_label(namespace) {
                    let detail = format!(
                        "each member of this list must be '*' or a DNS-1123 label; {message}"
                    );
                    causes.invalid(&path.index(i), namespace, detail);
                }
            }
        }
    }
    let list = path.child("nonResourceRules");
    for (i, rule) in items(&rule["nonResourceRules"]).iter().enumerate() {
        let path = list.index(i);
        verbs(&path, &rule["verbs"], causes);
        let (urls, path) = (&rule["nonResourceURLs"], path.child("nonResourceURLs"));
        if is_zero(urls) {
            causes.required(&path, "nonResourceURLs must contain at least one value");
        } else if is_star_with_others(urls) {
            let detail = "if '*' is present, must not specify other non-resource URLs";
            causes.invalid(&path, urls, detail);
        }
        for (i, url) in items(urls).iter().map(text).enumerate() {
            non_resource_url(&path.index(i), url, causes);
        }
    }
}

/// A path, `*`, or a prefix that ends with `/*`.
fn non_resource_url(path: &Path<'_>, url: &str, causes: &mut Causes) {
    let prefix = url.strip_suffix("/*").unwrap_or(url);
    match url {
        "" => causes.invalid(path, url, "must not be empty"),
        "/" | "*" => {}
        _ if !url.starts_with('/') => causes.invalid(path, url, "must start with slash"),
        _ if url.contains(' ') => causes.invalid(path, url, "must not contain white-space"),
        _ if url.contains("//") => causes.invalid(path, url, "must not contain double slash"),
        _ if prefix.contains('*') => {
            causes.invalid(path, url, "wildcard can only do suffix matching");
        }
        _ => {}
    }
}

fn is_star_with_others(list: &Value) -> bool {
    let list = items(list);
    list.len() > 1 && list.iter().any(|one| one == "*")
}

fn verbs(path: &Path<'_>, verbs: &Value, causes: &mut Causes) {
    let path = path.child("verbs");
    let is_known = |verb: &Value| verb == "*" || VERBS.contains(&text(verb));
    if is_zero(verbs) {
        causes.required(&path, "verbs must contain at least one value");
    } else if is_star_with_others(verbs) {
        causes.invalid(&path, verbs, "if '*' is present, must not specify other verbs");
    } else if !items(verbs).iter().all(is_known) {
        causes.not_supported(&path, verbs, &VERBS);
    }
}

fn subject(path: &Path<'_>, subject: &Value, causes: &mut Causes) {
    let parts = [("User", "user"), ("Group", "group"), ("ServiceAccount", "serviceAccount")];
    let kind = text(&subject["kind"]);
    let Some((_, own)) = parts.iter().find(|(known, _)| *known == kind) else {
        return causes.not_supported(
            &path.child("kind"),
            kind,
            &["Group", "ServiceAccount", "User"],
        );
    };
    let (given, own_path) = (&subject[*own], path.child(own));
    if given.is_null() {
        causes.required(&own_path, &format!("{own} is required when subject kind is '{kind}'"));
    } else if text(&given["name"]).is_empty() {
        causes.required(&own_path.child("name"), "");
    }
    if kind == "ServiceAccount" && !given.is_null() {
        match text(&given["name"]) {
            "" | "*" => {}
            account => causes.each(&own_path.child("name"), account, names::dns_subdomain(account)),
        }
        match text(&given["namespace"]) {
            "" => causes.required(
                &own_path.child("namespace"),
                "must specify namespace for service account",
            ),
            namespace => {
                causes.each(&own_path.child("namespace"), namespace, names::dns_label(namespace))
            }
        }
    }
    for (other_kind, field) in parts {
        if other_kind != kind && !subject[field].is_null() {
            let detail = format!("{field} is forbidden when subject kind is not '{other_kind}'");
            causes.forbidden(&path.child(field), detail);
        }
    }
}

fn schema_status(schema: &Value, causes: &mut Causes) {
    let path = Path::root("status");
    let list = path.child("conditions");
    let mut seen = BTreeSet::new();
    for (i, condition) in items(&schema["status"]["conditions"]).iter().enumerate() {
        let path = list.index(i);
        let kind = text(&condition["type"]);
        if kind.is_empty() {
            causes.required(&path.child("type"), "");
        }
        if !seen.insert(kind) {
            causes.duplicate(&path.child("type"), kind, "");
        }
    }
}

fn level(level: &Value, _: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&level["spec"], Path::root("spec"));
    let own = text(&level["metadata"]["name"]);
    let kind = text(&spec["type"]);
    if matches!(own, EXEMPT | CATCH_ALL) {
        let fixed = match own {
            EXEMPT => kind == "Exempt",
            _ => {
                let limited = &spec["limited"];
                kind == "Limited"
                    && limited["nominalConcurrencyShares"] == 5
                    && limited["limitResponse"] == json!({"type": "Reject"})
            }
        };
        if !fixed {
            let except = if own == EXEMPT { " except the 'spec.exempt' field" } else { "" };
            let detail = format!("spec of '{own}'{except} must equal the fixed value");
            causes.invalid(&path, spec, detail);
        }
    }
    if (own == EXEMPT) != (kind == "Exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        causes.invalid(&path.child("type"), kind, detail);
    }
    let (limited, limited_path) = (&spec["limited"], path.child("limited"));
    match kind {
        "Exempt" => {
            if !limited.is_null() {
                causes.forbidden(&limited_path, "must be nil if the type is not Limited");
            }
            if !spec["exempt"].is_null() {
                shares(&path.child("exempt"), &spec["exempt"], causes);
                lendable(&path.child("exempt"), &spec["exempt"], causes);
            }
        }
        "Limited" => {
            if !spec["exempt"].is_null() {
                causes.forbidden(&path.child("exempt"), "must be nil if the type is Limited");
            }
            match limited.is_null() {
                true => causes.required(&limited_path, "must not be empty when type is Limited"),
                false => limits(&limited_path, limited, causes),
            }
        }
        other => causes.not_supported(&path.child("type"), other, &["Exempt", "Limited"]),
    }
}

fn shares(path: &Path<'_>, level: &Value, causes: &mut Causes) {
    let given = level["nominalConcurrencyShares"].as_i64().unwrap_or(0);
    if given < 0 {
        let path = path.child("nominalConcurrencyShares");
        causes.invalid(&path, &given, "must be a non-negative integer");
    }
}

fn lendable(path: &Path<'_>, level: &Value, causes: &mut Causes) {
    let percent = level["lendablePercent"].as_i64().unwrap_or(0);
    if !(0..=100).contains(&percent) {
        let detail = "must be between 0 and 100, inclusive";
        causes.invalid(&path.child("lendablePercent"), &percent, detail);
    }
}

fn limits(path: &Path<'_>, limited: &Value, causes: &mut Causes) {
    shares(path, limited, causes);
    limit_response(path, limited, causes);
    lendable(path, limited, causes);
    if let Some(percent) = limited["borrowingLimitPercent"].as_i64().filter(|percent| *percent < 0)
    {
        let detail = "if specified, must be a non-negative integer";
        causes.invalid(&path.child("borrowingLimitPercent"), &percent, detail);
    }
}

fn limit_response(path: &Path<'_>, limited: &Value, causes: &mut Causes) {
    let (response, path) = (&limited["limitResponse"], path.child("limitResponse"));
    let (queuing, queuing_path) = (&response["queuing"], path.child("queuing"));
    match text(&response["type"]) {
        "Reject" => {
            if !queuing.is_null() {
                let detail = "must be nil if limited.limitResponse.type is not Limited";
                causes.forbidden(&queuing_path, detail);
            }
        }
        "Queue" if queuing.is_null() => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            causes.required(&queuing_path, detail);
        }
        "Queue" => queues(&queuing_path, queuing, causes),
        _ => rules::supported(&path.child("type"), &response["type"], &["Queue", "Reject"], causes),
    }
}

fn queues(path: &Path<'_>, queuing: &Value, causes: &mut Causes) {
    const MAX_QUEUES: i64 = 10_000_000;
    let number = |field: &str| queuing[field].as_i64().unwrap_or(0);
    let (queues, hand) = (number("queues"), number("handSize"));
    for field in ["queueLengthLimit", "queues", "handSize"] {
        if number(field) <= 0 {
            causes.invalid(&path.child(field), &number(field), "must be positive");
        }
    }
    if queues > MAX_QUEUES {
        let detail = format!("must not be greater than {MAX_QUEUES}");
        causes.invalid(&path.child("queues"), &queues, detail);
    }
    let bits = |queues, hand| Some(entropy_bits(queues, hand)).filter(|bits| *bits > MAX_HASH_BITS);
    match (u32::try_from(queues), u32::try_from(hand)) {
        _ if hand > queues => {
            let detail = format!("should not be greater than queues ({queues})");
            causes.invalid(&path.child("handSize"), &hand, detail);
        }
        (Ok(deck), Ok(size)) if deck > 0 && bits(deck, size).is_some() => {
            let detail = format!(
                "required entropy bits of deckSize {queues} and handSize {hand} should not be \
                 greater than {MAX_HASH_BITS}"
            );
            causes.invalid(&path.child("handSize"), &hand, detail);
        }
        _ => {}
    }
}

/// The bits of a hash that hands of this size from this many queues need.
pub(crate) fn entropy_bits(queues: u32, hand: u32) -> u32 {
    (f64::from(queues).log2() * f64::from(hand)).ceil() as u32
}

/// The condition of a schema that says whether its level exists; `None` when it has it already.
pub(crate) fn dangling(schema: &Value, has_level: bool, now: &str) -> Option<Value> {
    let level = text(&schema["spec"]["priorityLevelConfiguration"]["name"]);
    let (status, reason, what) = match has_level {
        true => ("False", "Found", "it exists"),
        false => ("True", "NotFound", "there is no such object"),
    };
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {level:?} \
         {} {what}",
        if has_level { "and" } else { "but" }
    );
    let mut conditions = items(&schema["status"]["conditions"]).iter();
    let own = conditions.find(|condition| condition["type"] == "Dangling");
    let is_same =
        own.is_some_and(|own| own["status"] == status && own["message"] == message.as_str());
    (!is_same).then(|| {
        json!({
            "type": "Dangling",
            "status": status,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        })
    })
}

/// The status of a schema with a condition in place of the one of its type.
pub(crate) fn set_condition(schema: &mut Value, condition: Value) {
    let mut conditions: Vec<Value> = items(&schema["status"]["conditions"]).to_vec();
    match conditions.iter_mut().find(|own| own["type"] == condition["type"]) {
        Some(own) => *own = condition,
        None => conditions.push(condition),
    }
    schema["status"]["conditions"] = conditions.into();
}

/// The spec of a mandatory schema.
fn fixed(name: &str) -> Option<Value> {
    let objects = bootstrap().into_iter();
    let mut own = objects.filter(|object| object["kind"] == "FlowSchema");
    own.find(|object| object["metadata"]["name"] == name).map(|mut object| object["spec"].take())
}

/// The levels and schemas of a new cluster: `data/flowcontrol.json`.
pub(crate) fn bootstrap() -> Vec<Value> {
    const DATA: &str = include_str!("../../data/flowcontrol.json");
    serde_json::from_str(DATA).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn causes(check: fn(&Value, Option<&Value>, &mut Causes), object: &Value) -> Vec<String> {
        let mut causes = Causes::default();
        check(object, None, &mut causes);
        causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    #[test]
    fn flow_control_objects_of_a_new_cluster_are_valid() {
        let objects = bootstrap();
        assert_eq!(objects.len(), 19);
        let mut levels = BTreeSet::new();
        for object in &objects {
            let check = match text(&object["kind"]) {
                "FlowSchema" => schema,
                _ => {
                    levels.insert(text(&object["metadata"]["name"]));
                    level
                }
            };
            assert_eq!(causes(check, object), [""; 0], "{object}");
        }
        for object in objects.iter().filter(|object| object["kind"] == "FlowSchema") {
            let level = text(&object["spec"]["priorityLevelConfiguration"]["name"]);
            assert!(levels.contains(level), "{level}");
        }
    }

    #[test]
    fn flow_control_rules_are_upstreams() {
        let good = json!({
            "metadata": {"name": "own"},
            "spec": {
                "matchingPrecedence": 5,
                "priorityLevelConfiguration": {"name": "low"},
                "rules": [{
                    "subjects": [{"kind": "User", "user": {"name": "ann"}}],
                    "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}],
                }],
            },
        });
        assert_eq!(causes(schema, &good), [""; 0]);
        for (at, value, expected) in [
            ("/spec/matchingPrecedence", json!(1), "only the schema named 'exempt'"),
            ("/spec/matchingPrecedence", json!(10_001), "must not be greater than 10000"),
            ("/spec/priorityLevelConfiguration/name", json!(""), "must reference a priority level"),
            ("/spec/rules/0/subjects", json!([]), "subjects must contain at least one value"),
            ("/spec/rules/0/subjects/0/kind", json!("Group"), "group is required"),
            ("/spec/rules/0/nonResourceRules/0/verbs", json!(["*", "get"]), "other verbs"),
            ("/spec/rules/0/nonResourceRules/0/verbs", json!(["fly"]), "Unsupported value"),
            ("/spec/rules/0/nonResourceRules", json!([]), "has to be non-empty"),
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(at).unwrap() = value;
            let found = causes(schema, &bad).join("\n");
            assert!(found.contains(expected), "{at}: {found}");
        }
        let limited = json!({"limitResponse": {"type": "Queue", "queuing": {}}});
        let spec = json!({"type": "Limited", "limited": limited});
        let mut object = json!({"metadata": {"name": "low"}, "spec": spec});
        level_defaults(object.as_object_mut().unwrap());
        assert_eq!(object["spec"]["limited"]["limitResponse"]["queuing"]["queues"], 64);
        assert_eq!(causes(level, &object), [""; 0]);
        object["spec"]["limited"]["limitResponse"]["queuing"]["handSize"] = 65.into();
        assert!(causes(level, &object)[0].contains("greater than queues"));
        object["spec"]["limited"]["limitResponse"]["queuing"]["handSize"] = 11.into();
        assert!(causes(level, &object)[0].contains("deckSize 64 and handSize 11 should not be"));
        let mut exempt = bootstrap()
            .into_iter()
            .find(|object| object["kind"] == "FlowSchema" && object["metadata"]["name"] == EXEMPT);
        let exempt = exempt.as_mut().unwrap();
        exempt["spec"]["rules"][0]["subjects"][0]["group"]["name"] = "own".into();
        assert!(causes(schema, exempt)[0].contains("spec of 'exempt' must equal the fixed value"));
        object["spec"] = json!({"type": "Exempt"});
        assert!(causes(level, &object)[0].contains("if and only if"));
    }

    #[test]
    fn flow_schemas_say_whether_their_level_is_there() {
        let mut schema = json!({"spec": {"priorityLevelConfiguration": {"name": "low"}}});
        let found = dangling(&schema, false, "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(found["status"], "True");
        set_condition(&mut schema, found);
        assert_eq!(dangling(&schema, false, ""), None);
        let found = dangling(&schema, true, "").unwrap();
        assert!(text(&found["message"]).ends_with("\"low\" and it exists"));
        set_condition(&mut schema, found);
        assert_eq!(items(&schema["status"]["conditions"]).len(), 1);
    }
}
