//! OpenAPI v3: what `kubectl apply` and `kubectl create` need to leave validation to the server,
//! what `kubectl apply` needs to merge lists, and the fields for `kubectl explain`. Documents are
//! generated from the API types on request and not cached.
//!
//! Current limitations: no descriptions, and of each operation only what clients read.

pub mod browser;
mod custom;
mod schemas;
pub mod v2;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::api_types::{Gvk, Resource, types};
use crate::discovery::{Custom, MINOR, served};
use crate::kinds::resources;

/// What the documents say of themselves.
static VERSION: LazyLock<String> = LazyLock::new(|| format!("v1.{MINOR}.0"));

/// `/openapi/v3`: the documents there are.
#[must_use]
pub fn index(custom: Custom<'_>) -> Value {
    // what is in a document of built-in kinds depends on this crate alone
    static BUILT_IN: LazyLock<String> =
        LazyLock::new(|| hash(format!("{} {}", env!("CARGO_PKG_VERSION"), crate::api_types::DATA)));
    let mut paths = Map::new();
    let mut put = |path: String, hash: &str| {
        let url = format!("/openapi/v3/{path}?hash={hash}");
        paths.insert(path, json!({"serverRelativeURL": url}));
    };
    for resource in resources() {
        put(path(resource), &BUILT_IN);
    }
    let custom_paths: BTreeSet<String> = custom.iter().map(|resource| path(resource)).collect();
    for path in custom_paths {
        let document = document(custom, &path).unwrap_or_default();
        put(path, &hash(document.to_string()));
    }
    json!({"paths": paths})
}

fn hash(text: String) -> String {
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02X}")).collect()
}

fn path(resource: &Resource) -> String {
    match resource.group {
        "" => format!("api/{}", resource.version),
        group => format!("apis/{group}/{}", resource.version),
    }
}

/// `/openapi/v3/PATH`, PATH being `api/v1` or `apis/GROUP/VERSION`; `None` when there is none.
#[must_use]
pub fn document(custom: Custom<'_>, path: &str) -> Option<Value> {
    let (group, version) = match path.strip_prefix("apis/") {
        Some(rest) => rest.split_once('/').filter(|(group, _)| !group.is_empty())?,
        None => ("", path.strip_prefix("api/")?),
    };
    let mut schemas = schemas::Schemas::default();
    let mut paths = Map::new();
    for resource in served(custom, group, version) {
        add_paths(resource, &mut paths, &mut schemas);
    }
    if paths.is_empty() {
        return None;
    }
    schemas.add(Gvk::DELETE_OPTIONS);
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": *VERSION},
        "paths": paths,
        "components": {"schemas": schemas.finish()},
    }))
}

fn add_paths(
    resource: &'static Resource,
    paths: &mut Map<String, Value>,
    schemas: &mut schemas::Schemas,
) {
    let root = format!("/{}", path(resource));
    let collection = match resource.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", resource.plural),
        false => format!("{root}/{}", resource.plural),
    };
    let gvk = resource.gvk();
    let (body, list) = match schemas.add_custom(resource) {
        Some(references) => references,
        None => {
            let body = schemas.add(gvk);
            let list = list_name(gvk).map_or_else(|| body.clone(), |name| schemas.add_named(name));
            (body, list)
        }
    };
    let ops =
        |verbs: &[(&str, &str)], allowed: &[&str], gvk: Gvk, answer: &str| -> Map<String, Value> {
            let served = verbs.iter().filter(|(_, verb)| allowed.contains(verb));
            served
                .map(|(method, verb)| {
                    let patches = match resource.custom {
                        Some(_) => crate::patch::ACCEPTED_CUSTOM,
                        None => crate::patch::ACCEPTED,
                    };
                    ((*method).to_owned(), operation(method, verb, gvk, answer, patches))
                })
                .collect()
        };
    let mut on_collection =
        ops(&[("get", "list"), ("delete", "deletecollection")], resource.verbs, gvk, &list);
    on_collection.extend(ops(&[("post", "create")], resource.verbs, gvk, &body));
    if resource.namespaced && resource.allows("list") {
        let all = ops(&[("get", "list")], resource.verbs, gvk, &list);
        paths.insert(format!("{root}/{}", resource.plural), with_parameters(all, &[]));
    }
    let scope: &[&str] = if resource.namespaced { &["namespace"] } else { &[] };
    let item_scope: &[&str] = if resource.namespaced { &["name", "namespace"] } else { &["name"] };
    paths.insert(collection.clone(), with_parameters(on_collection, scope));
    let verbs = [("get", "get"), ("put", "update"), ("patch", "patch"), ("delete", "delete")];
    let on_item = ops(&verbs, resource.verbs, gvk, &body);
    if !on_item.is_empty() {
        paths.insert(format!("{collection}/{{name}}"), with_parameters(on_item, item_scope));
    }
    for subresource in resource.subresources {
        let verbs = [("get", "get"), ("put", "update"), ("patch", "patch"), ("post", "create")];
        let on_sub = match types().of(subresource.gvk) {
            None if subresource.gvk == gvk => ops(&verbs, subresource.verbs, gvk, &body),
            Some(_) => {
                let body = schemas.add(subresource.gvk);
                ops(&verbs, subresource.verbs, subresource.gvk, &body)
            }
            // what is no object is a connection
            None => {
                let served = verbs.iter().filter(|(_, verb)| subresource.verbs.contains(verb));
                served.map(|(method, _)| ((*method).to_owned(), connect(subresource.gvk))).collect()
            }
        };
        paths.insert(
            format!("{collection}/{{name}}/{}", subresource.name),
            with_parameters(on_sub, item_scope),
        );
    }
}

fn list_name(gvk: Gvk) -> Option<&'static str> {
    let list = format!("{}List", types().of(gvk)?.name);
    types().named(&list).map(|t| t.name)
}

fn with_parameters(mut operations: Map<String, Value>, names: &[&str]) -> Value {
    if !names.is_empty() {
        let parameters = names
            .iter()
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}}))
            .collect();
        operations.insert("parameters".into(), parameters);
    }
    Value::Object(operations)
}

fn operation(method: &str, verb: &str, gvk: Gvk, answer: &str, patches: &[&str]) -> Value {
    let answer = json!({"$ref": answer});
    let mut operation = json!({
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": answer}}}},
        "x-kubernetes-action": match verb { "create" => "post", "update" => "put", other => other },
        "x-kubernetes-group-version-kind": {"group": gvk.group, "version": gvk.version, "kind": gvk.kind},
    });
    let content = match method {
        "post" | "put" => json!({"application/json": {"schema": answer}}),
        "patch" => {
            let schema = json!({"schema": {"type": "object"}});
            patches
                .iter()
                .map(|kind| ((*kind).to_owned(), schema.clone()))
                .collect::<Map<_, _>>()
                .into()
        }
        _ => return operation,
    };
    operation["requestBody"] = json!({"content": content, "required": true});
    // kubectl leaves validation to the server when PATCH takes fieldValidation
    operation["parameters"] = ["dryRun", "fieldManager", "fieldValidation"]
        .iter()
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
        .collect();
    operation
}

fn connect(gvk: Gvk) -> Value {
    json!({
        "responses": {"200": {"description": "OK", "content": {"*/*": {"schema": {"type": "string"}}}}},
        "x-kubernetes-action": "connect",
        "x-kubernetes-group-version-kind": {"group": gvk.group, "version": gvk.version, "kind": gvk.kind},
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
