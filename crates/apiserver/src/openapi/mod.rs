//! OpenAPI, in version 3 here and version 2 in [`v2`]: kinds with all their fields and operations, for
//! clients that are generated, for `kubectl explain`, and for kubectl to leave validation to the server and
//! to merge lists. Documents are generated from the API types: those of version 3 on request, that of
//! version 2 once for each set of custom kinds.
//!
//! Current limitations: no deprecated paths of watches, and no descriptions of lists of built-in kinds.

pub mod browser;
mod custom;
mod descriptions;
mod message;
mod operations;
mod schemas;
mod server;
pub mod v2;
mod v2_message;
mod v3_message;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::api_types::Resource;
use crate::discovery::{Custom, MINOR, served};
use crate::kinds::resources;
use custom::Dialect;
use operations::{Content, Operation, Path};
use schemas::Schemas;

const TITLE: &str = "Kubernetes";
/// What the documents say of themselves.
static VERSION: LazyLock<String> = LazyLock::new(|| format!("v1.{MINOR}.0"));

/// The media type of a document as a message. Old clients send it with an `@`, which is not valid in a
/// media type.
pub const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// `/openapi/v3`: the documents there are. `has_logs`: whether `/logs/` is served.
#[must_use]
pub fn index(custom: Custom<'_>, has_logs: bool) -> Value {
    // what is in a document of built-in kinds depends on this crate alone
    static BUILT_IN: LazyLock<String> = LazyLock::new(|| {
        let parts = [env!("CARGO_PKG_VERSION"), crate::api_types::DATA, descriptions::text()];
        hash(parts.join(" "))
    });
    let mut paths = Map::new();
    let mut put = |path: String, hash: &str| {
        let url = format!("/openapi/v3/{path}?hash={hash}");
        paths.insert(path, json!({"serverRelativeURL": url}));
    };
    for path in server::documents(custom, has_logs).into_keys() {
        put(path, &BUILT_IN);
    }
    for resource in resources() {
        put(path(resource), &BUILT_IN);
    }
    let custom_paths: BTreeSet<String> = custom.iter().map(|resource| path(resource)).collect();
    for path in custom_paths {
        let document = document(custom, has_logs, &path).unwrap_or_default();
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

/// `/openapi/v3/PATH`, PATH being one of the index; `None` when there is none.
#[must_use]
pub fn document(custom: Custom<'_>, has_logs: bool, path: &str) -> Option<Value> {
    let mut schemas = Schemas::new(Dialect::V3);
    let all = match server::documents(custom, has_logs).remove(path) {
        Some(all) => all,
        None => of_version(custom, path, &mut schemas)?,
    };
    let mut paths = Map::new();
    for path in all {
        schemas.add_contents(&path);
        paths.insert(path.path.clone(), path.item(Dialect::V3, written));
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": TITLE, "version": *VERSION},
        "paths": paths,
        "components": {"schemas": schemas.finish(), "securitySchemes": security()},
    }))
}

/// A document as a message `openapi.v3.Document`.
#[must_use]
pub fn message(document: &Value) -> Vec<u8> {
    v3_message::document(document)
}

/// The paths of `api/v1` or `apis/GROUP/VERSION`; `None` when nothing of it is served.
fn of_version(custom: Custom<'_>, path: &str, schemas: &mut Schemas) -> Option<Vec<Path>> {
    let (group, version) = match path.strip_prefix("apis/") {
        Some(rest) => rest.split_once('/').filter(|(group, _)| !group.is_empty())?,
        None => ("", path.strip_prefix("api/")?),
    };
    let mut all: Vec<Path> = served(custom, group, version)
        .flat_map(|resource| of_resource(resource, schemas))
        .collect();
    all.extend(served(custom, group, version).find_map(server::resources_of));
    (!all.is_empty()).then_some(all)
}

/// The paths of a resource. Its schemas are added.
fn of_resource(resource: &Resource, schemas: &mut Schemas) -> Vec<Path> {
    let names = schemas.add_resource(resource);
    operations::paths(resource, &names)
}

/// How clients say who they are.
fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "in": "header", "name": "authorization",
        "description": "Bearer Token authentication",
    }})
}

/// A value for each media type.
fn media<'m>(types: impl IntoIterator<Item = &'m &'m str>, content: &Content) -> Value {
    let schema = json!({"schema": content.schema(Dialect::V3)});
    types.into_iter().map(|one| ((*one).to_owned(), schema.clone())).collect::<Map<_, _>>().into()
}

fn written(operation: &Operation) -> Value {
    let answer = json!({
        "description": "OK",
        "content": media(&operation.produces, &operation.answer),
    });
    let mut value = operation.common(&answer);
    if let Some(body) = &operation.body {
        value["requestBody"] = json!({"content": media(body.media, &body.content)});
        if body.is_required {
            value["requestBody"]["required"] = true.into();
        }
    }
    if !operation.parameters.is_empty() {
        value["parameters"] = operation.of_query(Dialect::V3).collect();
    }
    value
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
