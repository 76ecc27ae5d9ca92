//! OpenAPI v2, which kubectl before 1.27 reads before it writes anything, and later ones when a kind
//! cannot be patched, as those of reviews.
//!
//! It says which kinds can be patched, and that this can be tried (`dryRun`). Without definitions,
//! clients leave validation to the server, whatever their age. `fieldValidation` is left out: kubectl
//! would go on to ask whether the kinds it does not find are custom ones.
//!
//! Current limitations: no definitions but those of custom kinds, so a kubectl of that age explains little.

use serde_json::{Map, Value, json};

use super::custom::{self, Dialect};
use super::{VERSION, path};
use crate::api_types::Resource;
use crate::discovery::{Custom, all};

/// The media type. Old clients send it with an `@`, which is not valid in a media type.
pub const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Whether the message is wanted rather than JSON.
#[must_use]
pub fn is_wanted(accept: Option<&str>) -> bool {
    accept.is_some_and(|accept| accept.replace('@', ".").contains(PROTOBUF))
}

const GVK: &str = "x-kubernetes-group-version-kind";
const TITLE: &str = "Kubernetes";

/// The document.
#[must_use]
pub fn document(custom: Custom<'_>) -> Value {
    let paths = patched(custom).map(|(path, resource)| {
        let dry_run = json!({"in": "query", "name": "dryRun", "type": "string"});
        let patch = json!({"parameters": [dry_run], "responses": {}, GVK: gvk(resource)});
        (path, json!({"patch": patch}))
    });
    json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": *VERSION},
        "paths": paths.collect::<Map<_, _>>(),
        "definitions": definitions(custom),
    })
}

/// The custom kinds, which alone have definitions.
fn definitions(custom: Custom<'_>) -> Map<String, Value> {
    let mut definitions = Map::new();
    for resource in custom {
        let Some(definition) = resource.definition() else { continue };
        let Some(version) = definition.version(resource.version) else { continue };
        let keeps = definition.preserves_unknown;
        let object = custom::object(resource, version, keeps, Dialect::V2);
        definitions.insert(custom::name(resource), object);
        definitions.insert(custom::list_name(resource), custom::list(resource, Dialect::V2));
    }
    if !definitions.is_empty() {
        for meta in custom::METAS {
            definitions.insert(meta.to_owned(), json!({"type": "object"}));
        }
    }
    definitions
}

/// The same as a message `openapi.v2.Document`.
#[must_use]
pub fn protobuf(custom: Custom<'_>) -> Vec<u8> {
    let info = [field(1, TITLE), field(2, VERSION.as_str())].concat();
    let paths = patched(custom).flat_map(|(path, resource)| {
        // a parameter's three ways to be something, down to one of the query
        let dry_run = [field(2, "query"), field(4, "dryRun"), field(6, "string")].concat();
        let dry_run = field(1, field(2, field(3, dry_run)));
        // the value as YAML, which JSON is
        let kind = [field(1, GVK), field(2, field(2, gvk(resource).to_string()))].concat();
        let patch = [field(8, dry_run), field(13, kind)].concat();
        field(2, [field(1, path), field(2, field(8, patch))].concat())
    });
    [field(1, "2.0"), field(2, info), field(8, paths.collect::<Vec<u8>>())].concat()
}

/// What can be patched, with the path of one object.
fn patched(custom: Custom<'_>) -> impl Iterator<Item = (String, &'static Resource)> {
    all(custom).filter(|resource| resource.allows("patch")).map(|resource| {
        let scope = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        (format!("/{}/{scope}{}/{{name}}", path(resource), resource.plural), resource)
    })
}

fn gvk(resource: &Resource) -> Value {
    let gvk = resource.gvk();
    json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind})
}

/// A field of a protobuf message that has a length: a text, or a message.
fn field(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    // number and kind fit into a byte for fields up to 15
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(content);
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_lengths() {
        assert_eq!(field(1, "2.0"), b"\x0a\x032.0");
        let long = field(15, "x".repeat(300));
        assert_eq!(long[..3], [0x7a, 0xac, 0x02]);
        assert_eq!(long.len(), 303);
    }

    #[test]
    fn openapi_v2_lists_exactly_patchable_kinds() {
        let document = document(&[]);
        let paths = document["paths"].as_object().unwrap();
        let patch = &paths["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
        assert_eq!(patch[GVK], json!({"group": "", "version": "v1", "kind": "Pod"}));
        assert!(paths.contains_key("/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"));
        let text = document.to_string();
        assert!(!text.contains("Review") && !text.contains("fieldValidation"), "{text}");
        let message = String::from_utf8_lossy(&protobuf(&[])).into_owned();
        assert!(is_wanted(Some("application/com.github.proto-openapi.spec.v2@v1.0+protobuf")));
        assert!(is_wanted(Some(&format!("{PROTOBUF}, */*"))) && !is_wanted(Some("*/*")));
        assert_eq!(message.matches("dryRun").count(), paths.len());
    }
}
