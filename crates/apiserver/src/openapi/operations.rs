//! PURE: what can be done on each path, apart from how a version of OpenAPI writes it. Names are those
//! that upstream gives, since clients are generated from them.

use crate::api_types::{Gvk, Resource, Subresource, types};
use crate::{kinds, patch};

use serde_json::{Map, Value, json};

use super::custom::Dialect;
use super::path;
use super::schemas::ResourceSchemas;

/// How the names of the types that all groups share begin.
pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
/// A patch, which has a form of its own for each media type.
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const ANY: &[&str] = &["*/*"];
const OBJECTS: &[&str] = &["application/json", "application/yaml", PROTOBUF, CBOR];
/// Methods that a proxy passes on.
const METHODS: &[&str] = &["get", "put", "post", "delete", "options", "head", "patch"];
const NAMED_PATH: &[&str] = &["name", "path"];
const NAMESPACED_PATH: &[&str] = &["name", "namespace", "path"];
const CUSTOM_OBJECTS: &[&str] = &["application/json", "application/yaml", CBOR];
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub(super) const CBOR: &str = "application/cbor";
const EVENTS: &[&str] = &[
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/cbor-seq",
];
const CUSTOM_EVENTS: &[&str] = &["application/json;stream=watch", "application/cbor-seq"];

/// A parameter of the query or the path: its name and its type.
pub(super) type Parameter = (&'static str, &'static str);

const PRETTY: Parameter = ("pretty", "string");
const WRITES: &[Parameter] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const PATCHES: &[Parameter] = &[
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
    ("force", "boolean"),
];
const DELETES: &[Parameter] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const LISTS: &[Parameter] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const COLLECTION_DELETES: &[Parameter] = &[
    ("continue", "string"),
    ("dryRun", "string"),
    ("fieldSelector", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
];
const ATTACHES: &[Parameter] = &[
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
];
const EXECS: &[Parameter] = &[
    ("command", "string"),
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
];
const LOGS: &[Parameter] = &[
    ("container", "string"),
    ("follow", "boolean"),
    ("insecureSkipTLSVerifyBackend", "boolean"),
    ("limitBytes", "integer"),
    ("previous", "boolean"),
    ("sinceSeconds", "integer"),
    ("stream", "string"),
    ("tailLines", "integer"),
    ("timestamps", "boolean"),
];

/// What a body or an answer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// The schema of that name.
    Schema(String),
    /// Text.
    Text,
}

impl Content {
    pub(super) fn schema(&self, to: Dialect) -> Value {
        match self {
            Content::Schema(name) => json!({"$ref": format!("{}{name}", to.prefix())}),
            Content::Text => json!({"type": "string"}),
        }
    }
}

/// The body of a request.
#[derive(Debug, Clone)]
pub(super) struct Body {
    pub(super) content: Content,
    pub(super) is_required: bool,
    pub(super) media: &'static [&'static str],
}

/// An operation.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    /// The method, in lower case.
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) tag: String,
    /// Empty: it has none.
    pub(super) description: &'static str,
    /// `x-kubernetes-action`, and the kind that it is done with; discovery has neither.
    pub(super) action: Option<(&'static str, Gvk)>,
    /// Of the query.
    pub(super) parameters: &'static [Parameter],
    pub(super) body: Option<Body>,
    pub(super) codes: &'static [u16],
    pub(super) answer: Content,
    pub(super) produces: Vec<&'static str>,
}

impl Operation {
    /// What it is in every version, with what it answers.
    pub(super) fn common(&self, answer: &Value) -> Value {
        let mut answers: Map<String, Value> =
            self.codes.iter().map(|code| (code.to_string(), answer.clone())).collect();
        answers.insert("401".into(), json!({"description": "Unauthorized"}));
        let mut common = json!({"operationId": self.id, "tags": [self.tag], "responses": answers});
        if !self.description.is_empty() {
            common["description"] = self.description.into();
        }
        if let Some((action, Gvk { group, version, kind })) = self.action {
            common["x-kubernetes-action"] = action.into();
            common["x-kubernetes-group-version-kind"] =
                json!({"group": group, "version": version, "kind": kind});
        }
        common
    }

    /// Its parameters of the query.
    pub(super) fn of_query(&self, to: Dialect) -> impl Iterator<Item = Value> {
        self.parameters.iter().map(move |one| parameter(*one, "query", to))
    }

    /// The names of the schemas that it uses.
    pub(super) fn schemas(&self) -> impl Iterator<Item = &str> {
        let contents = self.body.iter().map(|body| &body.content).chain([&self.answer]);
        contents.filter_map(|content| match content {
            Content::Schema(name) => Some(name.as_str()),
            Content::Text => None,
        })
    }
}

/// A path with what all its operations have in common.
#[derive(Debug, Clone)]
pub(super) struct Path {
    pub(super) path: String,
    /// Of the path.
    pub(super) names: &'static [&'static str],
    /// Of the query.
    pub(super) parameters: Vec<Parameter>,
    pub(super) operations: Vec<Operation>,
}

impl Path {
    /// The path as a document has it, given how that writes operations.
    pub(super) fn item(&self, to: Dialect, written: fn(&Operation) -> Value) -> Value {
        let of_path = self.names.iter().map(|name| parameter((name, "string"), "path", to));
        let of_query = self.parameters.iter().map(|one| parameter(*one, "query", to));
        let mut item =
            Map::from_iter([("parameters".to_owned(), of_path.chain(of_query).collect())]);
        item.extend(self.operations.iter().map(|one| (one.method.to_owned(), written(one))));
        item.into()
    }
}

fn parameter((name, kind): Parameter, place: &str, to: Dialect) -> Value {
    let mut parameter = match to {
        Dialect::V2 => json!({"name": name, "in": place, "type": kind, "uniqueItems": true}),
        Dialect::V3 => {
            json!({"name": name, "in": place, "schema": {"type": kind, "uniqueItems": true}})
        }
    };
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

/// `rbac.authorization` becomes `rbacAuthorization`, and `RbacAuthorization` behind other words.
pub(super) fn identifier(text: &str, is_first: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_start = !is_first;
    for one in text.chars() {
        match one.is_ascii_alphanumeric() {
            true if is_start => out.push(one.to_ascii_uppercase()),
            true => out.push(one),
            false => {}
        }
        is_start = !one.is_ascii_alphanumeric();
    }
    out
}

/// Names of operations and their tag.
pub(super) struct Names<'a> {
    group: &'a str,
    version: &'a str,
}

impl<'a> Names<'a> {
    pub(super) fn of(resource: &'a Resource) -> Self {
        let group = match resource.group {
            "" => "core",
            group => group.strip_suffix(".k8s.io").unwrap_or(group),
        };
        Self { group, version: resource.version }
    }

    pub(super) fn tag(&self) -> String {
        format!("{}_{}", identifier(self.group, true), identifier(self.version, true))
    }

    pub(super) fn id(&self, verb: &str, what: &str) -> String {
        format!("{verb}{}{}{what}", identifier(self.group, false), identifier(self.version, false))
    }
}

/// The verb that an operation is named by.
fn word(verb: &str) -> &str {
    match verb {
        "get" => "read",
        "update" => "replace",
        "deletecollection" => "delete",
        verb => verb,
    }
}

fn action(verb: &'static str) -> &'static str {
    match verb {
        "create" => "post",
        "update" => "put",
        verb => verb,
    }
}

fn codes(verb: &str) -> &'static [u16] {
    match verb {
        "create" => &[200, 201, 202],
        "update" | "patch" => &[200, 201],
        "delete" => &[200, 202],
        _ => &[200],
    }
}

fn method(verb: &str) -> &'static str {
    match verb {
        "create" => "post",
        "update" => "put",
        "patch" => "patch",
        "delete" | "deletecollection" => "delete",
        _ => "get",
    }
}

fn parameters(verb: &str) -> &'static [Parameter] {
    match verb {
        "create" | "update" => WRITES,
        "patch" => PATCHES,
        "delete" => DELETES,
        "deletecollection" => COLLECTION_DELETES,
        "list" => LISTS,
        _ => &[],
    }
}

fn body(resource: &Resource, verb: &str, object: &str) -> Option<Body> {
    let of = |name: &str, is_required, media| {
        Some(Body { content: Content::Schema(name.to_owned()), is_required, media })
    };
    match verb {
        "create" | "update" => of(object, true, ANY),
        "patch" => {
            let is_custom = resource.custom.is_some();
            of(PATCH, true, if is_custom { patch::ACCEPTED_CUSTOM } else { patch::ACCEPTED })
        }
        "delete" | "deletecollection" => of(DELETE_OPTIONS, false, ANY),
        _ => None,
    }
}

/// The paths of a resource.
pub(super) fn paths(resource: &Resource, schemas: &ResourceSchemas) -> Vec<Path> {
    let names = Names::of(resource);
    let root = format!("/{}", path(resource));
    let is_custom = resource.custom.is_some();
    let produces = if is_custom { CUSTOM_OBJECTS } else { OBJECTS };
    let scope = if resource.namespaced { "Namespaced" } else { "" };
    let operation = |verb: &'static str, what: String, gvk: Gvk, object: &str, answer: &str| {
        let mut produced = produces.to_vec();
        if verb == "list" {
            produced.extend(if is_custom { CUSTOM_EVENTS } else { EVENTS });
        }
        Operation {
            method: method(verb),
            id: names.id(word(verb), &what),
            tag: names.tag(),
            description: "",
            action: Some((action(verb), gvk)),
            parameters: parameters(verb),
            body: body(resource, verb, object),
            codes: codes(verb),
            answer: Content::Schema(answer.to_owned()),
            produces: produced,
        }
    };
    let own = |verb: &'static str, what: String, answer: &str| {
        operation(verb, what, resource.gvk(), &schemas.object, answer)
    };
    let name = |kind: &str| format!("{scope}{kind}");
    let mut all = Vec::new();
    let collection = match resource.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", resource.plural),
        false => format!("{root}/{}", resource.plural),
    };
    let mut on_collection = Vec::new();
    for (verb, what, answer) in [
        ("list", name(resource.kind), schemas.list.as_str()),
        ("create", name(resource.kind), schemas.object.as_str()),
        ("deletecollection", format!("Collection{scope}{}", resource.kind), STATUS),
    ] {
        if resource.allows(verb) {
            on_collection.push(own(verb, what, answer));
        }
    }
    if resource.namespaced && resource.allows("list") {
        let list = own("list", format!("{}ForAllNamespaces", resource.kind), &schemas.list);
        all.push(Path {
            path: format!("{root}/{}", resource.plural),
            names: &[],
            parameters: vec![PRETTY],
            operations: vec![list],
        });
    }
    let (outer, inner): (&[&str], &[&str]) = match resource.namespaced {
        true => (&["namespace"], &["name", "namespace"]),
        false => (&[], &["name"]),
    };
    all.push(Path {
        path: collection.clone(),
        names: outer,
        parameters: vec![PRETTY],
        operations: on_collection,
    });
    let item = format!("{collection}/{{name}}");
    let deleted = match kinds::strategy(resource).returned_when_deleted {
        true => schemas.object.as_str(),
        false => STATUS,
    };
    let on_item: Vec<Operation> = [
        ("get", schemas.object.as_str()),
        ("update", &schemas.object),
        ("patch", &schemas.object),
        ("delete", deleted),
    ]
    .into_iter()
    .filter(|(verb, _)| resource.allows(verb))
    .map(|(verb, answer)| own(verb, name(resource.kind), answer))
    .collect();
    if !on_item.is_empty() {
        all.push(Path {
            path: item.clone(),
            names: inner,
            parameters: vec![PRETTY],
            operations: on_item,
        });
    }
    for subresource in resource.subresources {
        let what = format!("{scope}{}{}", resource.kind, identifier(subresource.name, false));
        let path = format!("{item}/{}", subresource.name);
        let object = match (types().of(subresource.gvk), subresource.gvk == resource.gvk()) {
            (_, true) => Some(schemas.object.as_str()),
            (Some(ty), _) => Some(ty.name),
            (None, _) => None,
        };
        let found = match object {
            Some(_) if subresource.name == "log" => Path {
                path,
                names: inner,
                parameters: [LOGS, &[PRETTY]].concat(),
                operations: vec![text(
                    own("get", what, &schemas.object),
                    ["text/plain"].into_iter().chain(produces.iter().copied()).collect(),
                )],
            },
            Some(object) => Path {
                path,
                names: inner,
                parameters: vec![PRETTY],
                operations: ["get", "update", "patch", "create"]
                    .into_iter()
                    .filter(|verb| subresource.verbs.contains(verb))
                    .map(|verb| operation(verb, what.clone(), subresource.gvk, object, object))
                    .collect(),
            },
            None if subresource.name == "proxy" => {
                let all_methods = |what: &str| {
                    let each =
                        |method: &&'static str| connection(&names, method, what, subresource);
                    METHODS.iter().map(each).collect()
                };
                let parameters = connections(subresource).to_vec();
                all.push(Path {
                    path: format!("{path}/{{path}}"),
                    names: if resource.namespaced { NAMESPACED_PATH } else { NAMED_PATH },
                    parameters: parameters.clone(),
                    operations: all_methods(&format!("{what}WithPath")),
                });
                Path { path, names: inner, parameters, operations: all_methods(&what) }
            }
            None => Path {
                path,
                names: inner,
                parameters: connections(subresource).to_vec(),
                operations: subresource
                    .verbs
                    .iter()
                    .map(|verb| connection(&names, method(verb), &what, subresource))
                    .collect(),
            },
        };
        all.push(found);
    }
    all
}

fn text(operation: Operation, produces: Vec<&'static str>) -> Operation {
    Operation { answer: Content::Text, produces, ..operation }
}

/// What the options of a connection are in the query.
fn connections(subresource: &Subresource) -> &'static [Parameter] {
    match subresource.gvk.kind {
        "PodExecOptions" => EXECS,
        "PodAttachOptions" => ATTACHES,
        "PodPortForwardOptions" => &[("ports", "integer")],
        _ => &[("path", "string")],
    }
}

fn connection(
    names: &Names<'_>,
    method: &'static str,
    what: &str,
    subresource: &Subresource,
) -> Operation {
    Operation {
        method,
        id: names.id("connect", &format!("{}{what}", identifier(method, false))),
        tag: names.tag(),
        description: "",
        action: Some(("connect", subresource.gvk)),
        parameters: &[],
        body: None,
        codes: &[200],
        answer: Content::Text,
        produces: ANY.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_identifiers_are_upstreams() {
        for (text, first, other) in [
            ("core", "core", "Core"),
            ("rbac.authorization", "rbacAuthorization", "RbacAuthorization"),
            ("v1beta1", "v1beta1", "V1beta1"),
            ("stable.example.com", "stableExampleCom", "StableExampleCom"),
            ("portforward", "portforward", "Portforward"),
        ] {
            assert_eq!(
                (identifier(text, true), identifier(text, false)),
                (first.into(), other.into())
            );
        }
    }
}
