//! Configurations of admission webhooks, admission policies and their bindings.

use std::collections::BTreeSet;

use longshore_cel::is_identifier;
use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, integer, name, string};
use super::{Kind, Strategy, validate as rules};
use crate::api_types::{Resource, Subresource, grouped, status_of};
use crate::expressions::{Environment, Wanted};
use crate::schema::names;
use crate::schema::value::{default_absent, is_zero, items, items_mut, map_mut, text};
use crate::schema::{Causes, Path};

const GROUP: &str = "admissionregistration.k8s.io";
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

const fn resource(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    subresources: &'static [Subresource],
) -> Resource {
    Resource {
        namespaced: false,
        counts_generation: true,
        categories: &["api-extensions"],
        subresources,
        ..grouped(GROUP, plural, singular, kind)
    }
}

static WEBHOOKS: Printer = Printer::new(&[NAME, integer("Webhooks"), AGE], |hooks, now| {
    vec![name(hooks), items(&hooks["webhooks"]).len().into(), age(hooks, now)]
});

static VALIDATING_POLICIES: Printer =
    Printer::new(&[NAME, integer("Validations"), string("ParamKind"), AGE], |policy, now| {
        let spec = &policy["spec"];
        let count = items(&spec["validations"]).len();
        vec![name(policy), count.into(), param_kind(spec), age(policy, now)]
    });

static MUTATING_POLICIES: Printer =
    Printer::new(&[NAME, integer("Mutations"), string("ParamKind"), AGE], |policy, now| {
        let spec = &policy["spec"];
        let count = items(&spec["mutations"]).len();
        vec![name(policy), count.into(), param_kind(spec), age(policy, now)]
    });

static BINDINGS: Printer =
    Printer::new(&[NAME, string("PolicyName"), string("ParamRef"), AGE], |binding, now| {
        let (spec, param) = (&binding["spec"], &binding["spec"]["paramRef"]);
        let param = match (param.is_null(), text(&param["namespace"]), text(&param["name"])) {
            (true, ..) => "<unset>".to_owned(),
            (false, "", name) => name.to_owned(),
            (false, namespace, name) => format!("{namespace}/{name}"),
        };
        vec![name(binding), text(&spec["policyName"]).into(), param.into(), age(binding, now)]
    });

fn param_kind(spec: &Value) -> Value {
    let kind = &spec["paramKind"];
    match kind.is_null() {
        true => "<unset>".into(),
        false => format!("{}/{}", text(&kind["apiVersion"]), text(&kind["kind"])).into(),
    }
}

pub(super) static MUTATING_WEBHOOKS: Kind = Kind {
    resource: resource(
        "mutatingwebhookconfigurations",
        "mutatingwebhookconfiguration",
        "MutatingWebhookConfiguration",
        &[],
    ),
    strategy: Strategy {
        default: |hooks| {
            for hook in items_mut(hooks.get_mut("webhooks")) {
                webhook_defaults(hook);
                default_absent(hook, "reinvocationPolicy", "Never");
            }
        },
        validate: webhooks,
        printer: &WEBHOOKS,
        ..Strategy::PLAIN
    },
};

pub(super) static VALIDATING_WEBHOOKS: Kind = Kind {
    resource: resource(
        "validatingwebhookconfigurations",
        "validatingwebhookconfiguration",
        "ValidatingWebhookConfiguration",
        &[],
    ),
    strategy: Strategy {
        default: |hooks| items_mut(hooks.get_mut("webhooks")).for_each(webhook_defaults),
        validate: webhooks,
        printer: &WEBHOOKS,
        ..Strategy::PLAIN
    },
};

pub(super) static VALIDATING_POLICY: Kind = Kind {
    resource: resource(
        "validatingadmissionpolicies",
        "validatingadmissionpolicy",
        "ValidatingAdmissionPolicy",
        &[status_of(GROUP, "ValidatingAdmissionPolicy")],
    ),
    strategy: Strategy {
        default: policy_defaults,
        prepare_create: |policy| drop(policy.insert("status".into(), json!({}))),
        validate: |policy, _, causes| {
            let (spec, path) = (&policy["spec"], Path::root("spec"));
            let environment = Environment::of_policy(spec, false);
            policy_rules(&path, spec, &environment, causes);
            validations(&path, policy, &environment, causes);
        },
        printer: &VALIDATING_POLICIES,
        ..Strategy::PLAIN
    },
};

pub(super) static VALIDATING_POLICY_BINDING: Kind = Kind {
    resource: resource(
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicybinding",
        "ValidatingAdmissionPolicyBinding",
        &[],
    ),
    strategy: Strategy {
        default: binding_defaults,
        validate: |binding, _, causes| {
            let (spec, path) = (&binding["spec"], Path::root("spec"));
            binding_rules(&path, spec, causes);
            validation_actions(
                &path.child("validationActions"),
                &spec["validationActions"],
                causes,
            );
        },
        printer: &BINDINGS,
        ..Strategy::PLAIN
    },
};

pub(super) static MUTATING_POLICY: Kind = Kind {
    resource: resource(
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicy",
        "MutatingAdmissionPolicy",
        &[],
    ),
    strategy: Strategy {
        default: policy_defaults,
        validate: |policy, _, causes| {
            let (spec, path) = (&policy["spec"], Path::root("spec"));
            let environment = Environment::of_policy(spec, true);
            policy_rules(&path, spec, &environment, causes);
            changing_operations(&path.child("matchConstraints"), &spec["matchConstraints"], causes);
            mutations(&path, spec, &environment, causes);
            reinvocation(&path, spec, causes);
        },
        printer: &MUTATING_POLICIES,
        ..Strategy::PLAIN
    },
};

pub(super) static MUTATING_POLICY_BINDING: Kind = Kind {
    resource: resource(
        "mutatingadmissionpolicybindings",
        "mutatingadmissionpolicybinding",
        "MutatingAdmissionPolicyBinding",
        &[],
    ),
    strategy: Strategy {
        default: binding_defaults,
        validate: |binding, _, causes| {
            let (spec, path) = (&binding["spec"], Path::root("spec"));
            binding_rules(&path, spec, causes);
            changing_operations(&path.child("matchResources"), &spec["matchResources"], causes);
        },
        printer: &BINDINGS,
        ..Strategy::PLAIN
    },
};

fn webhook_defaults(hook: &mut Map<String, Value>) {
    default_absent(hook, "failurePolicy", "Fail");
    selection_defaults(hook);
    default_absent(hook, "timeoutSeconds", 10);
    rule_defaults(hook, "rules");
    let service = map_mut(hook, "clientConfig").and_then(|client| map_mut(client, "service"));
    if let Some(service) = service {
        default_absent(service, "port", 443);
    }
}

fn selection_defaults(selection: &mut Map<String, Value>) {
    default_absent(selection, "matchPolicy", "Equivalent");
    default_absent(selection, "namespaceSelector", json!({}));
    default_absent(selection, "objectSelector", json!({}));
}

fn rule_defaults(holder: &mut Map<String, Value>, list: &str) {
    for rule in items_mut(holder.get_mut(list)) {
        default_absent(rule, "scope", "*");
    }
}

fn policy_defaults(policy: &mut Map<String, Value>) {
    let Some(spec) = map_mut(policy, "spec") else { return };
    default_absent(spec, "failurePolicy", "Fail");
    match_defaults(spec, "matchConstraints");
}

fn binding_defaults(binding: &mut Map<String, Value>) {
    if let Some(spec) = map_mut(binding, "spec") {
        match_defaults(spec, "matchResources");
    }
}

fn match_defaults(spec: &mut Map<String, Value>, field: &str) {
    let Some(resources) = map_mut(spec, field) else { return };
    selection_defaults(resources);
    rule_defaults(resources, "resourceRules");
    rule_defaults(resources, "excludeResourceRules");
}

fn webhooks(hooks: &Value, _: Option<&Value>, causes: &mut Causes) {
    let list = Path::root("webhooks");
    let mut seen = BTreeSet::new();
    for (i, hook) in items(&hooks["webhooks"]).iter().enumerate() {
        let path = list.index(i);
        webhook(&path, hook, causes);
        let own = text(&hook["name"]);
        if !own.is_empty() && !seen.insert(own) {
            causes.duplicate(&path.child("name"), own, "");
        }
    }
}

fn webhook(path: &Path<'_>, hook: &Value, causes: &mut Causes) {
    let name_path = path.child("name");
    match text(&hook["name"]) {
        "" => causes.required(&name_path, ""),
        name => {
            let messages = names::dns_subdomain(name);
            if messages.is_empty() && name.split('.').count() < 3 {
                let detail = "should be a domain with at least three segments separated by dots";
                causes.invalid(&name_path, name, detail);
            }
            causes.each(&name_path, name, messages);
        }
    }
    let list = path.child("rules");
    for (i, given) in items(&hook["rules"]).iter().enumerate() {
        rule(&list.index(i), given, causes);
    }
    choice(path, hook, "failurePolicy", &["Fail", "Ignore"], causes);
    choice(path, hook, "matchPolicy", &["Equivalent", "Exact"], causes);
    choice(path, hook, "reinvocationPolicy", &["IfNeeded", "Never"], causes);
    match text(&hook["sideEffects"]) {
        "" if hook["sideEffects"].is_null() => {
            causes.required(&path.child("sideEffects"), "must specify one of None, NoneOnDryRun")
        }
        _ => choice(path, hook, "sideEffects", &["None", "NoneOnDryRun"], causes),
    }
    let timeout = hook["timeoutSeconds"].as_i64().unwrap_or(10);
    if !(1..=30).contains(&timeout) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        causes.invalid(&path.child("timeoutSeconds"), &timeout, detail);
    }
    for field in ["namespaceSelector", "objectSelector"] {
        rules::selector(&path.child(field), &hook[field], causes);
    }
    rules::webhook::client(&path.child("clientConfig"), &hook["clientConfig"], causes);
    let conditions_path = path.child("matchConditions");
    match_conditions(&conditions_path, &hook["matchConditions"], false, causes);
    review_versions(
        &path.child("admissionReviewVersions"),
        &hook["admissionReviewVersions"],
        causes,
    );
}

/// A field that is absent or one of these.
fn choice(path: &Path<'_>, object: &Value, field: &str, supported: &[&str], causes: &mut Causes) {
    if let Some(given) = object[field].as_str().filter(|given| !supported.contains(given)) {
        causes.not_supported(&path.child(field), given, supported);
    }
}

fn review_versions(path: &Path<'_>, versions: &Value, causes: &mut Causes) {
    let list = items(versions);
    if list.is_empty() {
        let detail = format!("must specify one of {}", REVIEW_VERSIONS.join(", "));
        return causes.required(path, &detail);
    }
    let mut seen = BTreeSet::new();
    for (i, version) in list.iter().map(text).enumerate() {
        if !seen.insert(version) {
            causes.invalid(&path.index(i), version, "duplicate version");
            continue;
        }
        causes.each(&path.index(i), version, names::dns_1035_label(version));
    }
    if !REVIEW_VERSIONS.iter().any(|known| seen.contains(known)) {
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        causes.invalid(path, versions, detail);
    }
}

fn has_star_with_others(list: &Value) -> bool {
    let list = items(list);
    list.len() > 1 && list.iter().any(|one| one == "*")
}

fn rule(path: &Path<'_>, rule: &Value, causes: &mut Causes) {
    const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (field, others) in
        [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")]
    {
        let path = path.child(field);
        if is_zero(&rule[field]) {
            causes.required(&path, "");
        } else if has_star_with_others(&rule[field]) {
            let detail = format!("if '*' is present, must not specify other {others}");
            causes.invalid(&path, &rule[field], detail);
        }
    }
    let operations = path.child("operations");
    for (i, operation) in items(&rule["operations"]).iter().enumerate() {
        if !OPERATIONS.contains(&text(operation)) {
            causes.not_supported(&operations.index(i), operation, &OPERATIONS);
        }
    }
    let versions = path.child("apiVersions");
    for (i, version) in items(&rule["apiVersions"]).iter().enumerate() {
        if text(version).is_empty() {
            causes.required(&versions.index(i), "");
        }
    }
    rule_resources(&path.child("resources"), &rule["resources"], causes);
    choice(path, rule, "scope", &["*", "Cluster", "Namespaced"], causes);
}

fn rule_resources(path: &Path<'_>, resources: &Value, causes: &mut Causes) {
    let list: Vec<&str> = items(resources).iter().map(text).collect();
    if list.is_empty() {
        return causes.required(path, "");
    }
    let (mut all_below, mut below_all) = (BTreeSet::new(), BTreeSet::new());
    for (i, given) in list.iter().enumerate() {
        let path = path.index(i);
        if given.is_empty() {
            causes.required(&path, "");
        }
        let Some((resource, below)) = given.split_once('/') else { continue };
        if all_below.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {given}");
            causes.invalid(&path, *given, detail);
        }
        if below_all.contains(below) {
            let detail = format!("if '*/{below}' is present, must not specify {given}");
            causes.invalid(&path, *given, detail);
        }
        if below == "*" {
            all_below.insert(resource);
        }
        if resource == "*" {
            below_all.insert(below);
        }
    }
    if list.len() > 1 && list.contains(&"*/*") {
        causes.invalid(path, resources, "if '*/*' is present, must not specify other resources");
    }
    if list.contains(&"*") && list.iter().any(|one| *one != "*" && !one.contains('/')) {
        let detail = "if '*' is present, must not specify other resources without subresources";
        causes.invalid(path, resources, detail);
    }
}

fn match_conditions(path: &Path<'_>, conditions: &Value, params: bool, causes: &mut Causes) {
    const MOST: usize = 64;
    let list = items(conditions);
    if list.len() > MOST {
        causes.too_many(path, list.len(), MOST);
    }
    let environment = Environment::bare(params);
    let mut seen = BTreeSet::new();
    for (i, condition) in list.iter().take(MOST).enumerate() {
        let path = path.index(i);
        match text(&condition["expression"]).trim() {
            "" => causes.required(&path.child("expression"), ""),
            source => {
                let compiled = environment.compile(source, Wanted::Bool, true);
                compiles(&path.child("expression"), source, compiled, causes);
            }
        }
        match text(&condition["name"]) {
            "" => causes.required(&path.child("name"), ""),
            name => {
                causes.each(&path.child("name"), name, names::qualified(name));
                if !seen.insert(name) {
                    causes.duplicate(&path.child("name"), name, "");
                }
            }
        }
    }
}

/// What both kinds of policies have.
fn policy_rules(path: &Path<'_>, spec: &Value, environment: &Environment, causes: &mut Causes) {
    choice(path, spec, "failurePolicy", &["Fail", "Ignore"], causes);
    if !spec["paramKind"].is_null() {
        param_kind_rules(&path.child("paramKind"), &spec["paramKind"], causes);
    }
    let (constraints, constraints_path) =
        (&spec["matchConstraints"], path.child("matchConstraints"));
    if constraints.is_null() {
        causes.required(&constraints_path, "");
    } else {
        match_resources(&constraints_path, constraints, causes);
        if is_zero(&constraints["resourceRules"]) {
            causes.required(&constraints_path.child("resourceRules"), "");
        }
    }
    match_conditions(&path.child("matchConditions"), &spec["matchConditions"], true, causes);
    let list = path.child("variables");
    for (i, variable) in items(&spec["variables"]).iter().enumerate() {
        let path = list.index(i);
        match text(&variable["name"]).trim() {
            "" => causes.required(&path.child("name"), "name is not specified"),
            name if !is_identifier(name) => {
                causes.invalid(&path.child("name"), name, "must be a valid CEL identifier");
            }
            _ => {}
        }
        let source = text(&variable["expression"]);
        if source.trim().is_empty() {
            causes.required(&path.child("expression"), "expression is not specified");
        } else if let Some(Err(error)) = environment.programs.get(i) {
            causes.invalid(&path.child("expression"), source, error);
        }
    }
}

/// An expression that does not compile is invalid.
fn compiles<T>(path: &Path<'_>, source: &str, compiled: Result<T, String>, causes: &mut Causes) {
    if let Err(error) = compiled {
        causes.invalid(path, source, error);
    }
}

fn param_kind_rules(path: &Path<'_>, kind: &Value, causes: &mut Causes) {
    let version_path = path.child("apiVersion");
    match text(&kind["apiVersion"]) {
        "" => causes.required(&version_path, ""),
        given => {
            let (group, version) = given.split_once('/').unwrap_or(("", given));
            if version.contains('/') {
                let detail = format!("unexpected GroupVersion string: {given}");
                causes.invalid(&version_path, given, detail);
            } else if version.is_empty() {
                causes.invalid(&version_path, given, "version must be specified");
            } else {
                causes.each(&version_path, version, names::dns_1035_label(version));
            }
            if !group.is_empty() {
                causes.each(&version_path, group, names::dns_subdomain(group));
            }
        }
    }
    let kind_path = path.child("kind");
    match text(&kind["kind"]) {
        "" => causes.required(&kind_path, ""),
        given => {
            for message in names::dns_1035_label(&given.to_lowercase()) {
                let detail = format!("may have mixed case, but should otherwise match: {message}");
                causes.invalid(&kind_path, given, detail);
            }
        }
    }
}

fn match_resources(path: &Path<'_>, resources: &Value, causes: &mut Causes) {
    choice(path, resources, "matchPolicy", &["Equivalent", "Exact"], causes);
    for field in ["namespaceSelector", "objectSelector"] {
        rules::selector(&path.child(field), &resources[field], causes);
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        let list = path.child(field);
        for (i, given) in items(&resources[field]).iter().enumerate() {
            let path = list.index(i);
            let mut seen = BTreeSet::new();
            let names_path = path.child("resourceNames");
            for (i, name) in items(&given["resourceNames"]).iter().map(text).enumerate() {
                causes.each(&names_path.index(i), name, names::path_segment(name));
                if !seen.insert(name) {
                    causes.duplicate(&names_path.index(i), name, "");
                }
            }
            rule(&path, given, causes);
        }
    }
}

/// The operations in which a policy can change an object.
fn changing_operations(path: &Path<'_>, resources: &Value, causes: &mut Causes) {
    const OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
    let list = path.child("resourceRules");
    let path = list.child("operations");
    for operation in
        items(&resources["resourceRules"]).iter().flat_map(|rule| items(&rule["operations"]))
    {
        rules::supported(&path, operation, &OPERATIONS, causes);
    }
}

fn validations(path: &Path<'_>, policy: &Value, environment: &Environment, causes: &mut Causes) {
    let (spec, own) = (&policy["spec"], text(&policy["metadata"]["name"]));
    const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
    const MOST_ANNOTATIONS: usize = 20;
    let (list, annotations) = (items(&spec["validations"]), items(&spec["auditAnnotations"]));
    if list.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        causes.required(&path.child("validations"), detail);
        return causes.required(&path.child("auditAnnotations"), detail);
    }
    let list_path = path.child("validations");
    for (i, validation) in list.iter().enumerate() {
        let path = list_path.index(i);
        let source = text(&validation["expression"]);
        if source.trim().is_empty() {
            causes.required(&path.child("expression"), "expression is not specified");
        } else {
            let compiled = environment.compile(source, Wanted::Bool, true);
            compiles(&path.child("expression"), source, compiled, causes);
        }
        let source = text(&validation["messageExpression"]);
        if !source.trim().is_empty() {
            let compiled = environment.compile(source, Wanted::Text, false);
            compiles(&path.child("messageExpression"), source, compiled, causes);
        }
        for field in ["messageExpression", "message"] {
            let given = text(&validation[field]);
            if !given.is_empty() && given.trim().is_empty() {
                causes.invalid(&path.child(field), given, "must be non-empty if specified");
            }
        }
        let message = text(&validation["message"]);
        if message.trim().contains('\n') {
            causes.invalid(&path.child("message"), message, "must not contain line breaks");
        }
        choice(&path, validation, "reason", &REASONS, causes);
    }
    let list_path = path.child("auditAnnotations");
    if annotations.len() > MOST_ANNOTATIONS {
        let detail = format!("must not have more than {MOST_ANNOTATIONS} auditAnnotations");
        causes.invalid(&list_path, annotations, detail);
    }
    let mut seen = BTreeSet::new();
    for (i, annotation) in annotations.iter().enumerate() {
        let path = list_path.index(i);
        let key = text(&annotation["key"]);
        if own.is_empty() {
            causes.invalid(&path.child("key"), key, "requires metadata.name be non-empty");
        } else {
            let full = format!("{own}/{key}");
            causes.each(&path.child("key"), &full, names::qualified(&full));
        }
        let source = text(&annotation["valueExpression"]);
        if source.trim().is_empty() {
            let detail = "valueExpression is not specified";
            causes.required(&path.child("valueExpression"), detail);
        } else {
            let compiled = environment.compile(source, Wanted::TextOrNull, true);
            compiles(&path.child("valueExpression"), source, compiled, causes);
        }
        if !seen.insert(key) {
            causes.duplicate(&path.child("key"), key, "");
        }
    }
}

fn mutations(path: &Path<'_>, spec: &Value, environment: &Environment, causes: &mut Causes) {
    let list_path = path.child("mutations");
    let list = items(&spec["mutations"]);
    if list.is_empty() {
        causes.required(&list_path, "mutations must contain at least one item");
    }
    for (i, mutation) in list.iter().enumerate() {
        let path = list_path.index(i);
        let own = match text(&mutation["patchType"]) {
            "ApplyConfiguration" => "applyConfiguration",
            "JSONPatch" => "jsonPatch",
            _ => {
                let supported = ["ApplyConfiguration", "JSONPatch"];
                rules::one_of(&path.child("patchType"), &mutation["patchType"], &supported, causes);
                continue;
            }
        };
        let own_path = path.child(own);
        let source = text(&mutation[own]["expression"]);
        if mutation[own].is_null() {
            let detail =
                format!("must be specified when patchType is {}", text(&mutation["patchType"]));
            causes.required(&own_path, &detail);
        } else if source.trim().is_empty() {
            causes.required(&own_path.child("expression"), "");
        } else {
            let wanted = if own == "jsonPatch" { Wanted::Patches } else { Wanted::Object };
            let compiled = environment.compile(source, wanted, true);
            compiles(&own_path.child("expression"), source, compiled, causes);
        }
        for other in ["applyConfiguration", "jsonPatch"] {
            if other != own && !mutation[other].is_null() {
                let detail = format!("must not be set with patchType {}", mutation["patchType"]);
                causes.forbidden(&path.child(other), detail);
            }
        }
    }
}

/// When a policy is called again.
fn reinvocation(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    match text(&spec["reinvocationPolicy"]) {
        "" => causes.required(&path.child("reinvocationPolicy"), ""),
        _ => choice(path, spec, "reinvocationPolicy", &["IfNeeded", "Never"], causes),
    }
}

fn binding_rules(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    match text(&spec["policyName"]) {
        "" => causes.required(&path.child("policyName"), ""),
        name => causes.each(&path.child("policyName"), name, names::dns_subdomain(name)),
    }
    let (param, param_path) = (&spec["paramRef"], path.child("paramRef"));
    if !param.is_null() {
        let own = text(&param["name"]);
        match (own.is_empty(), param["selector"].is_null()) {
            (true, true) => {
                causes.required(&param_path, "one of name or selector must be specified");
            }
            (false, false) => {
                let detail = "name and selector are mutually exclusive";
                causes.forbidden(&param_path.child("name"), detail);
            }
            (false, true) => {
                causes.each(&param_path.child("name"), own, names::path_segment(own));
            }
            (true, false) => {
                rules::selector(&param_path.child("selector"), &param["selector"], causes);
            }
        }
        match text(&param["parameterNotFoundAction"]) {
            "" => causes.required(&param_path.child("parameterNotFoundAction"), ""),
            _ => choice(&param_path, param, "parameterNotFoundAction", &["Deny", "Allow"], causes),
        }
    }
    if !spec["matchResources"].is_null() {
        match_resources(&path.child("matchResources"), &spec["matchResources"], causes);
    }
}

fn validation_actions(path: &Path<'_>, actions: &Value, causes: &mut Causes) {
    const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
    let mut seen = BTreeSet::new();
    for (i, action) in items(actions).iter().map(text).enumerate() {
        if !ACTIONS.contains(&action) {
            causes.not_supported(&path.index(i), action, &ACTIONS);
        }
        if !seen.insert(action) {
            causes.duplicate(&path.index(i), action, "");
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        causes.invalid(path, actions, detail);
    }
    if seen.is_empty() {
        causes.required(path, "at least one validation action is required");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn found(kind: &Kind, mut object: Value) -> String {
        (kind.strategy.default)(object.as_object_mut().unwrap());
        let mut causes = Causes::default();
        (kind.strategy.validate)(&object, None, &mut causes);
        let lines = causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn check(kind: &Kind, good: &Value, bad: &[(&str, Value, &str)]) {
        assert_eq!(found(kind, good.clone()), "");
        for (at, value, expected) in bad {
            let mut object = good.clone();
            *object.pointer_mut(at).unwrap() = value.clone();
            let found = found(kind, object);
            assert!(found.contains(expected), "{at} {value}: {found}");
        }
    }

    #[test]
    fn admission_webhooks_are_validated() {
        let good = json!({
            "webhooks": [{
                "name": "a.example.com",
                "clientConfig": {"service": {"namespace": "default", "name": "hook", "path": "/a/b"}},
                "rules": [{
                    "operations": ["CREATE"],
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods", "pods/status"],
                }],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        });
        let hook = "/webhooks/0/";
        let at = |field: &str| format!("{hook}{field}");
        for kind in [&MUTATING_WEBHOOKS, &VALIDATING_WEBHOOKS] {
            check(
                kind,
                &good,
                &[
                    (&at("name"), json!("short.com"), "at least three segments"),
                    (
                        &at("sideEffects"),
                        json!("Some"),
                        "supported values: \"None\", \"NoneOnDryRun\"",
                    ),
                    (
                        &at("admissionReviewVersions"),
                        json!(["v9"]),
                        "must include at least one of v1, v1beta1",
                    ),
                    (&at("admissionReviewVersions"), json!([]), "must specify one of v1, v1beta1"),
                    (&at("clientConfig"), json!({}), "exactly one of url or service is required"),
                    (
                        &at("clientConfig"),
                        json!({"url": "http://a/"}),
                        "'https' is the only allowed URL scheme",
                    ),
                    (&at("clientConfig"), json!({"url": "https://u:p@a/"}), "user information"),
                    (&at("clientConfig"), json!({"url": "https://a/?b=c"}), "query parameters"),
                    (&at("clientConfig/service/path"), json!("a"), "must start with a '/'"),
                    (
                        &at("clientConfig/service/path"),
                        json!("/a//b"),
                        "segment[1] may not be empty",
                    ),
                    (&at("rules/0/operations"), json!(["*", "CREATE"]), "other operations"),
                    (&at("rules/0/operations"), json!(["FLY"]), "Unsupported value"),
                    (&at("rules/0/resources"), json!(["*", "pods"]), "without subresources"),
                    (
                        &at("rules/0/resources"),
                        json!(["pods/*", "pods/log"]),
                        "if 'pods/*' is present",
                    ),
                    (&at("rules/0/apiVersions"), json!([]), "apiVersions: Required value"),
                ],
            );
        }
        let mut twice = good.clone();
        let first = twice["webhooks"][0].clone();
        twice["webhooks"].as_array_mut().unwrap().push(first);
        assert!(found(&VALIDATING_WEBHOOKS, twice).contains("Duplicate value"));
        let mut defaulted = good;
        (MUTATING_WEBHOOKS.strategy.default)(defaulted.as_object_mut().unwrap());
        let hook = &defaulted["webhooks"][0];
        assert_eq!(hook["failurePolicy"], "Fail");
        assert_eq!(hook["clientConfig"]["service"]["port"], 443);
        assert_eq!(hook["rules"][0]["scope"], "*");
    }

    #[test]
    fn admission_policies_are_validated() {
        let constraints = json!({
            "resourceRules": [{
                "operations": ["CREATE"],
                "apiGroups": ["apps"],
                "apiVersions": ["v1"],
                "resources": ["deployments"],
            }],
        });
        let policy = json!({
            "metadata": {"name": "p"},
            "spec": {
                "matchConstraints": constraints,
                "validations": [{"expression": "object.spec.replicas < 5"}],
                "variables": [{"name": "n", "expression": "1"}],
                "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            },
        });
        check(
            &VALIDATING_POLICY,
            &policy,
            &[
                ("/spec/validations", json!([]), "must contain at least one item"),
                ("/spec/validations/0/expression", json!(" "), "expression is not specified"),
                ("/spec/variables/0/name", json!("1n"), "must be a valid CEL identifier"),
                ("/spec/matchConstraints", json!(null), "matchConstraints: Required value"),
                (
                    "/spec/matchConstraints/resourceRules",
                    json!([]),
                    "resourceRules: Required value",
                ),
                ("/spec/paramKind/apiVersion", json!("a/b/c"), "unexpected GroupVersion string"),
            ],
        );
        let mutating = json!({
            "spec": {
                "matchConstraints": constraints,
                "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/a'}]"}}],
            },
        });
        check(
            &MUTATING_POLICY,
            &mutating,
            &[
                ("/spec/mutations", json!([]), "must contain at least one item"),
                ("/spec/mutations/0/patchType", json!("Other"), "Unsupported value"),
                ("/spec/reinvocationPolicy", json!("Often"), "Unsupported value"),
            ],
        );
        let binding = json!({
            "spec": {
                "policyName": "p",
                "validationActions": ["Deny"],
                "paramRef": {"name": "m", "parameterNotFoundAction": "Deny"},
            },
        });
        check(
            &VALIDATING_POLICY_BINDING,
            &binding,
            &[
                ("/spec/policyName", json!(""), "policyName: Required value"),
                ("/spec/validationActions", json!(["Deny", "Warn"]), "both Deny and Warn"),
                ("/spec/validationActions", json!([]), "at least one validation action"),
                ("/spec/paramRef/name", json!(""), "one of name or selector"),
                ("/spec/paramRef/parameterNotFoundAction", json!("x"), "Unsupported value"),
            ],
        );
        assert_eq!(found(&MUTATING_POLICY_BINDING, json!({"spec": {"policyName": "p"}})), "");
    }
}
