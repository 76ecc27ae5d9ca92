//! CEL expressions of admission policies and match conditions: the variables that they see, and how they are
//! compiled. Called when the objects are validated, and when they take effect.

use std::sync::{Arc, LazyLock};

use longshore_cel::decl::{Decl, DeclKind};
use longshore_cel::{Declarations, Error, Program, Type, Value as Cel, compile};
use serde_json::Value;

use crate::schema::value::{items, text};

/// Indexes of the variables.
pub(crate) const OBJECT: usize = 0;
pub(crate) const OLD_OBJECT: usize = 1;
pub(crate) const NAMESPACE: usize = 2;
pub(crate) const REQUEST: usize = 3;
pub(crate) const PARAMS: usize = 4;
pub(crate) const AUTHORIZER: usize = 5;
pub(crate) const RESOURCE_AUTHORIZER: usize = 6;
/// Those from here on are composed: `variables.NAME`.
pub(crate) const COMPOSED: usize = 8;

/// What an expression is to evaluate to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A boolean.
    Bool,
    /// Whatever it is.
    Any,
    /// A string.
    Text,
    /// A string or null.
    TextOrNull,
    /// `Object{}`
    Object,
    /// A list of `JSONPatch{}`.
    Patches,
}

impl Wanted {
    fn is_met(self, of: &Type) -> bool {
        match (self, of) {
            (Wanted::Any, _)
            | (Wanted::Bool, Type::Bool)
            | (Wanted::Text, Type::String)
            | (Wanted::TextOrNull, Type::String | Type::Null) => true,
            (Wanted::Object, of) => of.name() == "Object",
            (Wanted::Patches, Type::List(of)) => of.name() == "JSONPatch",
            _ => false,
        }
    }

    fn message(self, of: &Type) -> String {
        let wanted = match self {
            Wanted::Bool => "bool",
            Wanted::Any => "any",
            Wanted::Text => "string",
            Wanted::TextOrNull => {
                return format!("must evaluate to one of [string null_type] but got {of}");
            }
            Wanted::Object => "Object",
            Wanted::Patches => "list(JSONPatch)",
        };
        format!("must evaluate to {wanted} but got {of}")
    }
}

/// An expression and what it compiles to; an error is upstream's text.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) source: String,
    pub(crate) program: Result<Program, String>,
}

/// Whether all match conditions hold. One that does not hold counts more than those that fail; with several
/// failures the error has all of them. `failed` words the failure of one.
pub(crate) fn all_hold<'v>(
    conditions: &[Expression],
    mut evaluate: impl FnMut(&Program) -> Result<Cel<'v>, Error>,
    failed: impl Fn(&Expression, &Error) -> String,
) -> Result<bool, String> {
    let mut failures = Vec::new();
    for condition in conditions {
        match &condition.program {
            Ok(program) => match evaluate(program) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(error) => failures.push(failed(condition, &error)),
            },
            Err(error) => failures.push(format!("compilation error: {error}")),
        }
    }
    match failures.as_slice() {
        [] => Ok(true),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

/// What expressions of one object see.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    params: bool,
    patches: bool,
    /// There are `variables`, if only without fields.
    composed: bool,
    /// What objects and parameters are, where that is known.
    object: Option<Arc<Decl>>,
    params_decl: Option<Arc<Decl>>,
    variables: Vec<(String, Type)>,
    /// The programs of the variables that compile; others fail as what uses them does.
    pub(crate) programs: Vec<Result<Program, String>>,
}

impl Environment {
    /// Without composed variables.
    pub(crate) fn bare(params: bool) -> Environment {
        Environment { params, ..Environment::default() }
    }

    /// That of a policy's spec, with its variables. Each sees those before it.
    pub(crate) fn of_policy(spec: &Value, patches: bool) -> Environment {
        let params = !spec["paramKind"].is_null();
        let composed = patches || !items(&spec["variables"]).is_empty();
        Environment { params, patches, composed, ..Environment::default() }.with_variables(spec)
    }

    /// The same where it is known what the objects are, and perhaps the parameters.
    pub(crate) fn of_types(
        spec: &Value,
        object: Arc<Decl>,
        params_decl: Option<Arc<Decl>>,
    ) -> Environment {
        let params = !spec["paramKind"].is_null();
        let object = Some(object);
        Environment { params, composed: true, object, params_decl, ..Environment::default() }
            .with_variables(spec)
    }

    fn with_variables(self, spec: &Value) -> Environment {
        let mut environment = self;
        for variable in items(&spec["variables"]) {
            let source = text(&variable["expression"]);
            let program = environment.compile(source, Wanted::Any, true);
            let of = program.as_ref().map_or(Type::Dyn, |program| program.output().clone());
            // what has no expression is no variable
            if !source.trim().is_empty() {
                environment.variables.push((text(&variable["name"]).to_owned(), of));
            }
            environment.programs.push(program);
        }
        environment
    }

    /// Compiles an expression. The error is upstream's text.
    pub(crate) fn compile(
        &self,
        source: &str,
        wanted: Wanted,
        authorizer: bool,
    ) -> Result<Program, String> {
        let program = compile(source, &self.declarations(authorizer))
            .map_err(|issues| format!("compilation failed: {issues}"))?;
        match wanted.is_met(program.output()) {
            true => Ok(program),
            false => Err(wanted.message(program.output())),
        }
    }

    fn declarations(&self, authorizer: bool) -> Declarations {
        // a variable that is not there has a name that cannot be written
        let named = |is_there, name: &'static str| if is_there { name } else { "@" };
        let mut declarations = Declarations::default();
        let mut declare = |name: &str, decl: &Option<Arc<Decl>>| match decl {
            Some(decl) => declarations.declared(name, decl),
            None => declarations.dynamic(name),
        };
        declare("object", &self.object);
        declare("oldObject", &self.object);
        declarations.declared("namespaceObject", &NAMESPACE_DECL);
        declarations.declared("request", &REQUEST_DECL);
        match &self.params_decl {
            Some(decl) if self.params => declarations.declared("params", decl),
            _ => declarations.dynamic(named(self.params, "params")),
        }
        let of = |name| Type::Named(name);
        declarations.variable_of_type(
            named(authorizer, "authorizer"),
            of("kubernetes.authorization.Authorizer"),
        );
        declarations.variable_of_type(
            named(authorizer, "authorizer.requestResource"),
            of("kubernetes.authorization.ResourceCheck"),
        );
        if self.composed {
            declarations.composition("variables");
        }
        for (name, of) in &self.variables {
            declarations.variable_of_type(&format!("variables.{name}"), of.clone());
        }
        if self.patches { declarations.with_patches() } else { declarations }
    }
}

fn texts(names: &[&str]) -> Vec<(String, Arc<Decl>)> {
    names.iter().map(|name| ((*name).to_owned(), Decl::string())).collect()
}

fn object(name: &str, strings: &[&str], others: &[(&str, Arc<Decl>)]) -> Arc<Decl> {
    let others = others.iter().map(|(name, decl)| ((*name).to_owned(), decl.clone()));
    Decl::object(name, texts(strings).into_iter().chain(others))
}

/// The namespace of the request.
pub(crate) static NAMESPACE_DECL: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let strings = || Decl::list(Decl::string());
    let time = || Decl::simple(DeclKind::Timestamp);
    let labels = || Decl::map(Decl::string());
    let metadata = object(
        "kubernetes.NamespaceMetadata",
        &["name", "generateName", "namespace", "UID", "uid", "resourceVersion"],
        &[
            ("labels", labels()),
            ("annotations", labels()),
            ("creationTimestamp", time()),
            ("deletionTimestamp", time()),
            ("deletionGracePeriodSeconds", Decl::simple(DeclKind::Int)),
            ("generation", Decl::simple(DeclKind::Int)),
            ("finalizers", strings()),
        ],
    );
    let condition = object(
        "kubernetes.NamespaceCondition",
        &["status", "type", "message", "reason"],
        &[("lastTransitionTime", time())],
    );
    let spec = object("kubernetes.NamespaceSpec", &[], &[("finalizers", strings())]);
    let conditions = Decl::list(condition);
    let status = object("kubernetes.NamespaceStatus", &["phase"], &[("conditions", conditions)]);
    object(
        "kubernetes.Namespace",
        &[],
        &[("metadata", metadata), ("spec", spec), ("status", status)],
    )
});

/// A user.
pub(crate) static USER_DECL: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let strings = || Decl::list(Decl::string());
    object(
        "kubernetes.UserInfo",
        &["username", "uid"],
        &[("groups", strings()), ("extra", Decl::map(strings()))],
    )
});

/// The request.
pub(crate) static REQUEST_DECL: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let kind = object("kubernetes.GroupVersionKind", &["group", "version", "kind"], &[]);
    let resource =
        object("kubernetes.GroupVersionResource", &["group", "version", "resource"], &[]);
    object(
        "kubernetes.AdmissionRequest",
        &["subResource", "requestSubResource", "name", "namespace", "operation"],
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("userInfo", USER_DECL.clone()),
            ("dryRun", Decl::simple(DeclKind::Bool)),
            ("options", Decl::simple(DeclKind::Dyn)),
        ],
    )
});

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policy_expressions_are_compiled_with_their_variables() {
        let spec = json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "variables": [
                {"name": "replicas", "expression": "object.spec.replicas"},
                {"name": "odd", "expression": "variables.replicas % 2 == 1"},
            ],
        });
        let environment = Environment::of_policy(&spec, false);
        assert!(environment.programs.iter().all(Result::is_ok));
        let error = |source, wanted, authorizer| {
            environment.compile(source, wanted, authorizer).err().unwrap_or_default()
        };
        for (source, wanted, authorizer, expected) in [
            ("variables.odd && has(variables.replicas)", Wanted::Bool, true, ""),
            ("params.data.x == '1' && request.userInfo.username != ''", Wanted::Bool, true, ""),
            ("namespaceObject.metadata.labels['a'] == 'b'", Wanted::Bool, false, ""),
            ("authorizer.requestResource.check('x').allowed()", Wanted::Bool, true, ""),
            ("'got ' + object.spec.replicas", Wanted::Text, false, ""),
            ("null", Wanted::TextOrNull, false, ""),
            ("authorizer != null", Wanted::Bool, false, "undeclared reference to 'authorizer'"),
            ("variables.nope", Wanted::Any, true, "undefined field 'nope'"),
            ("request.nope", Wanted::Any, true, "undefined field 'nope'"),
            ("1", Wanted::Bool, true, "must evaluate to bool but got int"),
            ("object.a", Wanted::Bool, true, "must evaluate to bool but got dyn"),
            ("Object{}", Wanted::Any, true, "undeclared reference to 'Object'"),
        ] {
            let found = error(source, wanted, authorizer);
            assert!(
                found.contains(expected) && found.is_empty() == expected.is_empty(),
                "{source}: {found}"
            );
        }
        let mutating = Environment::of_policy(&json!({}), true);
        let object =
            "Object{spec: Object.spec{replicas: 1}, metadata: Object.metadata{labels: {'a': 'b'}}}";
        assert!(mutating.compile(object, Wanted::Object, true).is_ok());
        let patches =
            "[JSONPatch{op: 'add', path: '/x/' + jsonpatch.escapeKey('a/b'), value: {'k': 1}}]";
        assert!(mutating.compile(patches, Wanted::Patches, true).is_ok());
        let without = Environment::bare(false);
        let error = without.compile("params.a", Wanted::Any, true).unwrap_err();
        assert!(error.contains("undeclared reference to 'params'"), "{error}");
    }
}
