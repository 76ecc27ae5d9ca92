//! The rules of a definition, apart from those of its schemas.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use longshore_structural::Schema;
use serde::Serialize;
use serde_json::Value;

use super::{APPROVAL, approval, has_condition, is_protected, schemas};
use crate::kinds::validate as rules;
use crate::schema::value::{items, text};
use crate::schema::{Causes, Path, names};

const MAX_SELECTABLE: usize = 8;

pub(super) fn check(definition: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &definition["spec"];
    let wanted = format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"]));
    let given = text(&definition["metadata"]["name"]);
    if old.is_none() && given != wanted && !given.is_empty() {
        let path = Path::root("metadata");
        causes.invalid(&path.child("name"), given, "must be spec.names.plural+\".\"+spec.group");
    }
    let path = Path::root("spec");
    check_spec(&path, spec, old, causes);
    let established = old.filter(|old| has_condition(old, "Established", "True"));
    if let Some(old) = established {
        rules::immutable(&path.child("scope"), &spec["scope"], &old["spec"]["scope"], causes);
        let names = path.child("names");
        let (new, old) = (&spec["names"]["kind"], &old["spec"]["names"]["kind"]);
        rules::immutable(&names.child("kind"), new, old, causes);
    }
    if let Some(old) = old {
        rules::immutable(&path.child("group"), &spec["group"], &old["spec"]["group"], causes);
        let names = path.child("names");
        let (new, old) = (&spec["names"]["plural"], &old["spec"]["names"]["plural"]);
        rules::immutable(&names.child("plural"), new, old, causes);
    }
    names_of_status(definition, causes);
    stored_versions(definition, causes);
    check_approval(definition, old, causes);
    let kept = old.is_some_and(|old| old["spec"]["preserveUnknownFields"] == true);
    if spec["preserveUnknownFields"] == true && !kept {
        causes.invalid(
            &path.child("preserveUnknownFields"),
            &true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
             spec.versions[*].schema instead",
        );
    }
}

fn check_approval(definition: &Value, old: Option<&Value>, causes: &mut Causes) {
    if !is_protected(text(&definition["spec"]["group"])) {
        return;
    }
    let (_, state, why) = approval(definition);
    if old.is_some_and(|old| approval(old).1 == state) {
        return;
    }
    let metadata = Path::root("metadata");
    let annotations = metadata.child("annotations");
    let path = annotations.key(APPROVAL);
    match state {
        "MissingAnnotation" => causes.required(&path, &why),
        "InvalidAnnotation" => {
            causes.invalid(&path, &definition["metadata"]["annotations"][APPROVAL], why);
        }
        _ => {}
    }
}

fn check_spec(path: &Path<'_>, spec: &Value, old: Option<&Value>, causes: &mut Causes) {
    let group = text(&spec["group"]);
    let group_path = path.child("group");
    let complaints = names::dns_subdomain(group);
    match group {
        "" => causes.required(&group_path, ""),
        _ if !complaints.is_empty() => causes.invalid(&group_path, group, complaints.join(",")),
        _ if !group.contains('.') => {
            causes.invalid(&group_path, group, "should be a domain with at least one dot");
        }
        _ => {}
    }
    rules::one_of(&path.child("scope"), &spec["scope"], &["Cluster", "Namespaced"], causes);
    let versions = items(&spec["versions"]);
    let versions_path = path.child("versions");
    let spec_path = *path;
    for (i, version) in versions.iter().enumerate() {
        let path = versions_path.index(i);
        let name = text(&version["name"]);
        let complaints = names::dns_1035_label(name);
        if !complaints.is_empty() {
            causes.invalid(&path.child("name"), name, complaints.join(","));
            if versions.len() == 1 && !name.is_empty() {
                causes.invalid(&spec_path.child("version"), name, complaints.join(","));
            }
        }
        // what a single version has is that of the definition in upstream's form
        let of_version = if versions.len() == 1 { &spec_path } else { &path };
        check_version(&path, of_version, version, causes);
        check_selectable(of_version, version, versions.len() == 1, causes);
    }
    schemas::check(spec, old, causes);
    let unique: BTreeSet<&str> = versions.iter().map(|version| text(&version["name"])).collect();
    if unique.len() != versions.len() {
        let why = "must contain unique version names";
        causes.invalid(&versions_path, &ShownVersion::all(&spec["versions"]), why);
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        causes.invalid(&versions_path, &ShownVersion::all(&spec["versions"]), why);
    }
    let names_path = path.child("names");
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(&spec["names"][field]).is_empty() {
            causes.required(&names_path.child(field), "");
        }
    }
    check_names(&names_path, &spec["names"], causes);
    check_conversion(&path.child("conversion"), spec, old, causes);
}

/// A version as Go shows it: what all versions have alike is that of the definition.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ShownVersion<'a> {
    name: &'a str,
    served: bool,
    storage: bool,
    deprecated: bool,
    deprecation_warning: &'a Value,
    schema: &'a Value,
    subresources: &'a Value,
    additional_printer_columns: &'a Value,
    selectable_fields: &'a Value,
}

impl<'a> ShownVersion<'a> {
    fn all(versions: &'a Value) -> Option<Vec<ShownVersion<'a>>> {
        let versions = versions.as_array()?;
        let own = |version: &'a Value, field: &str| match versions
            .iter()
            .all(|other| other[field] == version[field])
        {
            true => &Value::Null,
            false => &version[field],
        };
        let shown = |version: &'a Value| ShownVersion {
            name: text(&version["name"]),
            served: version["served"] == true,
            storage: version["storage"] == true,
            deprecated: version["deprecated"] == true,
            deprecation_warning: &version["deprecationWarning"],
            schema: own(version, "schema"),
            subresources: own(version, "subresources"),
            additional_printer_columns: own(version, "additionalPrinterColumns"),
            selectable_fields: own(version, "selectableFields"),
        };
        Some(versions.iter().map(shown).collect())
    }
}

/// `parts` is where subresources, columns and selectable fields are.
fn check_version(path: &Path<'_>, parts: &Path<'_>, version: &Value, causes: &mut Causes) {
    if let Value::String(warning) = &version["deprecationWarning"] {
        let path = path.child("deprecationWarning");
        if version["deprecated"] != true {
            causes.invalid(&path, warning, "can only be set for deprecated versions");
        } else if warning.is_empty() {
            causes.invalid(&path, warning, "must not be an empty string");
        } else if warning.len() > 256 {
            causes.invalid(&path, warning, "must be <= 256 characters long");
        } else if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
            let why = format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {index}"
            );
            causes.invalid(&path, warning, why);
        }
    }
    if version["schema"]["openAPIV3Schema"].is_null() {
        let schema = path.child("schema");
        causes.required(&schema.child("openAPIV3Schema"), "");
    }
    let subresources = parts.child("subresources");
    let scale = &version["subresources"]["scale"];
    for (field, prefix, is_needed) in [
        ("specReplicasPath", ".spec.", true),
        ("statusReplicasPath", ".status.", true),
        ("labelSelectorPath", "", false),
    ] {
        if scale.is_null() {
            break;
        }
        let name = format!("scale.{field}");
        let path = subresources.child(&name);
        let given = text(&scale[field]);
        let is_selector = prefix.is_empty();
        match given {
            "" if is_needed => causes.required(&path, ""),
            "" => {}
            _ if !given.starts_with('.') => {
                causes.invalid(&path, given, "must be a simple json path starting with .");
            }
            _ if !is_selector && !given.starts_with(prefix) => {
                let place = prefix.trim_end_matches('.');
                causes.invalid(&path, given, format!("should be a json path under {place}"));
            }
            _ if is_selector && !given.starts_with(".spec.") && !given.starts_with(".status.") => {
                let why = "should be a json path under either .spec or .status";
                causes.invalid(&path, given, why);
            }
            _ => {}
        }
    }
    for (i, column) in items(&version["additionalPrinterColumns"]).iter().enumerate() {
        let columns = parts.child("additionalPrinterColumns");
        check_column(&columns.index(i), column, causes);
    }
}

fn check_column(path: &Path<'_>, column: &Value, causes: &mut Causes) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 9] =
        ["byte", "date", "date-time", "double", "float", "int32", "int64", "password", "string"];
    if text(&column["name"]).is_empty() {
        causes.required(&path.child("name"), "");
    }
    let kind = text(&column["type"]);
    let why = format!("must be one of {}", TYPES.join(","));
    match kind {
        "" => causes.required(&path.child("type"), &why),
        kind if !TYPES.contains(&kind) => causes.invalid(&path.child("type"), kind, why),
        _ => {}
    }
    let format = text(&column["format"]);
    if !format.is_empty() && !FORMATS.contains(&format) {
        let why = format!("must be one of {}", FORMATS.join(","));
        causes.invalid(&path.child("format"), format, why);
    }
    match text(&column["jsonPath"]) {
        "" => causes.required(&path.child("JSONPath"), ""),
        given if !given.starts_with('.') => {
            let why = "must be a simple json path starting with .";
            causes.invalid(&path.child("JSONPath"), given, why);
        }
        _ => {}
    }
}

fn check_selectable(path: &Path<'_>, version: &Value, is_single: bool, causes: &mut Causes) {
    let fields = items(&version["selectableFields"]);
    let list_path = path.child("selectableFields");
    if fields.is_empty() {
        return;
    }
    if is_single && version["schema"].is_null() {
        let why = "may only be set when validations.schema is included";
        return causes.invalid(&list_path, "", why);
    }
    if !is_single && version["schema"]["openAPIV3Schema"].is_null() {
        let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
        return causes.invalid(&list_path, "", why);
    }
    let Ok(schema) = Schema::read(&version["schema"]["openAPIV3Schema"]) else { return };
    let mut seen = BTreeSet::new();
    for (i, field) in fields.iter().enumerate() {
        let given = text(&field["jsonPath"]);
        let place = list_path.index(i);
        let path = place.child("jsonPath");
        if given.is_empty() {
            causes.required(&path, "");
            continue;
        }
        let found = match selected(&schema, given) {
            Ok(found) => found,
            Err(why) => {
                causes.invalid(&path, given, format!("is an invalid path: {why}"));
                continue;
            }
        };
        if given == ".metadata" || given.starts_with(".metadata.") {
            causes.invalid(&path, given, "must not point to fields in metadata");
        }
        if !matches!(found.kind.as_str(), "string" | "boolean" | "integer") {
            let why = "must point to a field of type string, boolean or integer. Enum string \
                       fields and strings with formats are allowed.";
            causes.invalid(&path, given, why);
        }
        if !seen.insert(given) {
            causes.duplicate(&path, given, "");
        }
    }
    if seen.len() > MAX_SELECTABLE {
        causes.too_many(&list_path, seen.len(), MAX_SELECTABLE);
    }
}

/// The schema of the field that a path of names names.
fn selected<'a>(schema: &'a Schema, path: &str) -> Result<&'a Schema, String> {
    const DELIMITERS: [char; 3] = ['.', '[', ']'];
    // the next token: a delimiter, or what is before the next one
    let split = |rest: &str| match rest.find(DELIMITERS) {
        Some(0) => 1,
        Some(end) => end,
        None => rest.len(),
    };
    let (mut schema, mut rest) = (schema, path);
    while !rest.is_empty() {
        let (token, below) = rest.split_at(split(rest));
        match token {
            "[" => return Err("array notation is not allowed".to_owned()),
            "." if below.is_empty() => return Err("unexpected end of JSON path".to_owned()),
            "." => {
                let (name, below) = below.split_at(split(below));
                schema = schema.field(name).ok_or("does not refer to a valid field")?;
                rest = below;
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok(schema)
}

fn check_names(path: &Path<'_>, given: &Value, causes: &mut Causes) {
    for (field, is_kind) in
        [("plural", false), ("singular", false), ("kind", true), ("listKind", true)]
    {
        let name = text(&given[field]);
        let complaints = match is_kind {
            true => names::dns_1035_label(&name.to_lowercase()),
            false => names::dns_1035_label(name),
        };
        if name.is_empty() || complaints.is_empty() {
            continue;
        }
        let complaints = complaints.join(",");
        let why = match is_kind {
            true => format!("may have mixed case, but should otherwise match: {complaints}"),
            false => complaints,
        };
        causes.invalid(&path.child(field), name, why);
    }
    for field in ["shortNames", "categories"] {
        let path = path.child(field);
        for (i, name) in items(&given[field]).iter().enumerate() {
            let complaints = names::dns_1035_label(text(name));
            if !complaints.is_empty() {
                causes.invalid(&path.index(i), name, complaints.join(","));
            }
        }
    }
    let (kind, list) = (text(&given["kind"]), text(&given["listKind"]));
    if !kind.is_empty() && kind == list {
        causes.invalid(&path.child("listKind"), list, "kind and listKind may not be the same");
    }
}

fn check_conversion(path: &Path<'_>, spec: &Value, old: Option<&Value>, causes: &mut Causes) {
    let conversion = &spec["conversion"];
    if conversion.is_null() {
        return;
    }
    let is_none = conversion["strategy"] == "None";
    if !is_none && spec["preserveUnknownFields"] == true {
        let why = "must be None if spec.preserveUnknownFields is true";
        causes.invalid(&path.child("strategy"), &conversion["strategy"], why);
    }
    rules::one_of(&path.child("strategy"), &conversion["strategy"], &["None", "Webhook"], causes);
    let webhook = &conversion["webhook"];
    let config = &webhook["clientConfig"];
    let config_path = path.child("webhookClientConfig");
    let versions = &webhook["conversionReviewVersions"];
    let versions_path = path.child("conversionReviewVersions");
    if conversion["strategy"] != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if !config.is_null() {
            causes.forbidden(&config_path, why);
        }
        if !items(versions).is_empty() {
            causes.forbidden(&versions_path, why);
        }
        return;
    }
    if config.is_null() {
        causes.required(&config_path, "required when strategy is set to Webhook");
    } else {
        rules::webhook::client(&config_path, config, causes);
        if let Some(why) = ca_bundle_error(spec).filter(|_| needs_ca_bundle(old)) {
            causes.invalid(&config_path.child("caBundle"), &config["caBundle"], why);
        }
    }
    let old_versions = old.map(|old| {
        let conversion = &old["spec"]["conversion"];
        items(&conversion["webhook"]["conversionReviewVersions"])
    });
    let is_known = |version: &Value| *version == "v1" || *version == "v1beta1";
    let needs_known = old_versions.is_none_or(|old| old.is_empty() || old.iter().any(is_known));
    check_review_versions(&versions_path, versions, needs_known, causes);
}

fn check_review_versions(
    path: &Path<'_>,
    versions: &Value,
    needs_known: bool,
    causes: &mut Causes,
) {
    let list = items(versions);
    if list.is_empty() {
        return causes.required(path, "");
    }
    let mut seen = BTreeSet::new();
    for (i, version) in list.iter().map(text).enumerate() {
        if !seen.insert(version) {
            causes.invalid(&path.index(i), version, "duplicate version");
            continue;
        }
        causes.each(&path.index(i), version, names::dns_1035_label(version));
    }
    if needs_known && !["v1", "v1beta1"].iter().any(|known| seen.contains(known)) {
        causes.invalid(path, versions, "must include at least one of v1, v1beta1");
    }
}

/// What is wrong with the certificates in the `clientConfig` of a definition's webhook.
pub(super) fn ca_bundle_error(spec: &Value) -> Option<String> {
    let bundle = text(&spec["conversion"]["webhook"]["clientConfig"]["caBundle"]);
    rules::webhook::ca_bundle_error(&STANDARD.decode(bundle).unwrap_or_default())
}

/// A definition that is not in effect yet may have any certificates, and one that had wrong ones may keep
/// them.
fn needs_ca_bundle(old: Option<&Value>) -> bool {
    old.is_some_and(|old| {
        has_condition(old, "Established", "True") && ca_bundle_error(&old["spec"]).is_none()
    })
}

pub(super) fn names_of_status(definition: &Value, causes: &mut Causes) {
    let status = Path::root("status");
    check_names(&status.child("acceptedNames"), &definition["status"]["acceptedNames"], causes);
}

fn stored_versions(definition: &Value, causes: &mut Causes) {
    let status = Path::root("status");
    let path = status.child("storedVersions");
    let stored = items(&definition["status"]["storedVersions"]);
    let versions = items(&definition["spec"]["versions"]);
    if stored.is_empty() {
        causes.invalid(&path, &Value::Null, "must have at least one stored version");
        return;
    }
    // each stored version is that of one version of the spec
    let mut missing: Vec<(usize, &str)> = stored.iter().map(text).enumerate().collect();
    for version in versions {
        let name = text(&version["name"]);
        let before = missing.len();
        missing.retain(|(_, stored)| *stored != name);
        if version["storage"] == true && missing.len() == before {
            causes.invalid(&path, stored, format!("must have the storage version {name}"));
        }
    }
    for (i, shown) in missing {
        let why = format!(
            "missing from spec.versions; {shown} was previously a storage version, and must \
             remain in spec.versions until a storage migration ensures no data remains persisted \
             in {shown} and removes {shown} from status.storedVersions"
        );
        causes.invalid(&path.index(i), shown, why);
    }
}
