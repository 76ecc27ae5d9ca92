//! What is wrong with the expressions of a validating policy, given the types of the objects that it is about:
//! warnings for its status. They do not keep the policy from being evaluated.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use longshore_cel::decl::{Decl, DeclKind};
use serde_json::Value;

use crate::api_types::{Field, Gvk, Leaf, Resource, Shape, types};
use crate::definitions::Snapshot;
use crate::expressions::{Environment, Wanted};
use crate::schema::value::{items, text};

/// How many kinds a policy is checked against.
const MAX_KINDS: usize = 10;
/// The type of objects' metadata.
const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// A warning: the path of the expression, and the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) field: String,
    pub(crate) text: String,
}

/// The warnings about a policy.
pub(crate) fn warnings(policy: &Value, kinds: &Snapshot) -> Vec<Warning> {
    let spec = &policy["spec"];
    let mut declared = Declared::default();
    let param_kind = &spec["paramKind"];
    let params = kinds
        .of_kind(text(&param_kind["apiVersion"]), text(&param_kind["kind"]))
        .and_then(|resource| declared.object(resource));
    let environments: Vec<(String, Environment)> = resources(spec, kinds)
        .into_iter()
        .filter_map(|resource| {
            let object = declared.object(resource)?;
            let environment = Environment::of_types(spec, object, params.clone());
            Some((kind_text(resource.gvk()), environment))
        })
        .collect();
    let mut found = Vec::new();
    for (i, validation) in items(&spec["validations"]).iter().enumerate() {
        for name in ["expression", "messageExpression"] {
            let source = text(&validation[name]);
            if source.is_empty() {
                continue;
            }
            let complaints: Vec<String> = environments
                .iter()
                .filter_map(|(kind, environment)| {
                    let why = environment.compile(source, Wanted::Any, true).err()?;
                    Some(format!("{kind}: {why}\n"))
                })
                .collect();
            if !complaints.is_empty() {
                let field = format!("spec.validations[{i}].{name}");
                found.push(Warning { field, text: complaints.join("\n") });
            }
        }
    }
    found
}

/// Group, version and kind as upstream writes them.
fn kind_text(Gvk { group, version, kind }: Gvk) -> String {
    format!("{group}/{version}, Kind={kind}")
}

/// What the rules of a policy name, without wildcards and subresources, by group, version and kind.
fn resources(spec: &Value, kinds: &Snapshot) -> Vec<&'static Resource> {
    let mut found = BTreeMap::new();
    for rule in items(&spec["matchConstraints"]["resourceRules"]) {
        let list = |field: &str| {
            let mut list: Vec<&str> = items(&rule[field]).iter().map(text).collect();
            list.sort_unstable();
            list
        };
        let (groups, versions) = (list("apiGroups"), list("apiVersions"));
        if groups.iter().chain(&versions).any(|name| name.contains('*')) {
            continue;
        }
        let plurals = list("resources");
        for group in groups {
            for version in &versions {
                for plural in plurals.iter().filter(|name| !name.contains(['*', '/'])) {
                    if let Some(resource) = kinds.lookup(group, version, plural) {
                        found.insert((resource.group, resource.version, resource.kind), resource);
                        if found.len() == MAX_KINDS {
                            return found.into_values().collect();
                        }
                    }
                }
            }
        }
    }
    found.into_values().collect()
}

/// Declarations of types, each made once.
#[derive(Default)]
struct Declared {
    known: HashMap<usize, Arc<Decl>>,
    /// Types that are being declared: what contains itself is not known deeper down.
    open: Vec<usize>,
}

impl Declared {
    /// What objects of a resource are.
    fn object(&mut self, resource: &Resource) -> Option<Arc<Decl>> {
        let Some(definition) = resource.definition() else {
            return types().index_of(resource.gvk()).map(|index| self.of(index));
        };
        let version = definition.version(resource.version)?;
        let schema = Decl::of_schema(&version.json, resource.kind, true)?;
        let DeclKind::Object(object) = &schema.kind else { return Some(schema) };
        let own = object.fields.values().filter(|field| field.name != "metadata");
        let own = own.map(|field| (field.name.clone(), field.decl.clone()));
        let metadata = types().all().iter().position(|of| of.name == METADATA);
        let metadata = metadata.map(|index| ("metadata".to_owned(), self.of(index)));
        Some(Decl::object(resource.kind, own.chain(metadata)))
    }

    fn of(&mut self, index: usize) -> Arc<Decl> {
        if let Some(known) = self.known.get(&index) {
            return known.clone();
        }
        if self.open.contains(&index) {
            return Decl::simple(DeclKind::Dyn);
        }
        self.open.push(index);
        let of = types().get(index);
        let fields: Vec<(String, Arc<Decl>)> =
            of.fields.iter().map(|field| (field.name.to_owned(), self.field(field))).collect();
        self.open.pop();
        let decl = Decl::object(of.name, fields);
        self.known.insert(index, decl.clone());
        decl
    }

    fn field(&mut self, field: &Field) -> Arc<Decl> {
        let leaf = match field.leaf {
            Leaf::Struct(index) => self.of(index),
            Leaf::String => Decl::string(),
            Leaf::Bytes => Decl::simple(DeclKind::Bytes),
            Leaf::Bool => Decl::simple(DeclKind::Bool),
            Leaf::Int32 | Leaf::Int64 => Decl::simple(DeclKind::Int),
            Leaf::Double => Decl::simple(DeclKind::Double),
            Leaf::Time | Leaf::MicroTime => Decl::simple(DeclKind::Timestamp),
            Leaf::Any | Leaf::Either(_) | Leaf::Quantity | Leaf::IntOrString => {
                Decl::simple(DeclKind::Dyn)
            }
        };
        match field.shape {
            Shape::One => leaf,
            Shape::List => Decl::list(leaf),
            Shape::Map => Decl::map(leaf),
            Shape::MapOfLists => Decl::map(Decl::list(leaf)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(resources: &[&str], validations: Value) -> Value {
        json!({"spec": {
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "variables": [{"name": "replicas", "expression": "object.spec.replicas"}],
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": resources}]},
            "validations": validations,
        }})
    }

    #[test]
    fn policies_are_checked_against_the_types_that_they_are_about() {
        let kinds = Snapshot::default();
        for (expression, expected) in [
            ("object.spec.replicas > 1 && params.data['a'] == 'b'", ""),
            ("object.metadata.labels['a'] == 'b' && oldObject != null", ""),
            ("object.spec.template.spec.containers.all(c, c.resources.limits['cpu'] != '1')", ""),
            ("variables.replicas == 1 && namespaceObject.metadata.name != ''", ""),
            (
                "object.spec.replicas > '1'",
                "found no matching overload for '_>_' applied to '(int, string)'",
            ),
            (
                "variables.replicas == 'x'",
                "found no matching overload for '_==_' applied to '(int, string)'",
            ),
            ("object.spec.nope", "undefined field 'nope'"),
            ("params.nope", "undefined field 'nope'"),
            ("object.", "Syntax error"),
        ] {
            let policy = policy(&["deployments"], json!([{"expression": expression}]));
            let found = warnings(&policy, &kinds);
            match (expected, found.as_slice()) {
                ("", found) => assert_eq!(found, [], "{expression}"),
                (expected, [one]) => {
                    assert_eq!(one.field, "spec.validations[0].expression");
                    let start = "apps/v1, Kind=Deployment: compilation failed: ERROR: <input>:1:";
                    assert!(one.text.starts_with(start), "{expression}: {}", one.text);
                    assert!(one.text.contains(expected), "{expression}: {}", one.text);
                }
                (_, found) => assert_eq!(found.len(), 1, "{expression}"),
            }
        }
    }

    #[test]
    fn policies_are_checked_against_each_kind() {
        let kinds = Snapshot::default();
        let validations = json!([
            {"expression": "true", "messageExpression": "object.spec.strategy.type"},
            {"expression": "object.spec.updateStrategy.type == ''"},
        ]);
        let policy = policy(&["deployments", "daemonsets", "pods/status", "x"], validations);
        let found = warnings(&policy, &kinds);
        let fields: Vec<&str> = found.iter().map(|warning| warning.field.as_str()).collect();
        assert_eq!(
            fields,
            ["spec.validations[0].messageExpression", "spec.validations[1].expression"]
        );
        assert!(found.iter().all(|warning| warning.text.matches("Kind=").count() == 1));
        let mut any = policy;
        any["spec"]["matchConstraints"]["resourceRules"][0]["apiGroups"] = json!(["*"]);
        assert_eq!(warnings(&any, &kinds), []);
        // Types that contain themselves have an end.
        let resource = kinds.lookup("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        assert!(resource.and_then(|of| Declared::default().object(of)).is_some());
    }
}
