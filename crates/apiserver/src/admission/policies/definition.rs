//! Policies and bindings as they are evaluated: compiled when they are written.

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_cel::Program;
use serde_json::Value;

use super::matching::Matcher;
use crate::admission::webhooks::hook::texts;
use crate::cache::Index;
use crate::expressions::{Environment, Expression, NAMESPACE, Wanted};
use crate::object;
use crate::schema::value::{items, text};
use crate::selector::LabelSelector;

/// A policy.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) ignores_failures: bool,
    pub(super) matcher: Matcher,
    /// `apiVersion` and `kind` of parameters.
    pub(super) param_kind: Option<(String, String)>,
    pub(super) conditions: Conditions,
    pub(super) environment: Environment,
    pub(super) validations: Vec<Validation>,
    /// Values of audit annotations, which may fail.
    pub(super) annotations: Vec<Annotation>,
    pub(super) mutations: Vec<Mutation>,
    pub(super) is_reinvoked: bool,
    /// Whether an expression uses the request's namespace, which has to be read then.
    pub(super) uses_namespace: bool,
    /// Why it cannot be evaluated.
    pub(super) error: Option<String>,
}

/// Match conditions.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    pub(super) list: Vec<Expression>,
    pub(super) environment: Environment,
}

#[derive(Debug)]
pub(super) struct Validation {
    pub(super) expression: Expression,
    pub(super) message: String,
    pub(super) message_expression: Option<Result<Program, String>>,
    pub(super) reason: String,
}

/// What is recorded in the audit.
#[derive(Debug)]
pub(super) struct Annotation {
    pub(super) key: String,
    pub(super) value: Expression,
}

#[derive(Debug)]
pub(super) enum Mutation {
    Apply(Expression),
    Json(Expression),
}

impl Conditions {
    pub(crate) fn of(conditions: &Value, params: bool) -> Conditions {
        let environment = Environment::bare(params);
        let compile = |condition: &Value| {
            let source = text(&condition["expression"]).trim().to_owned();
            let program = environment.compile(&source, Wanted::Bool, true);
            Expression { source, program }
        };
        let list = items(conditions).iter().map(compile).collect();
        Conditions { list, environment }
    }

    /// Whether an expression uses the request's namespace.
    pub(super) fn uses_namespace(&self) -> bool {
        let programs = self.list.iter().map(|condition| &condition.program);
        programs.chain(&self.environment.programs).any(uses_namespace)
    }
}

fn uses_namespace(program: &Result<Program, String>) -> bool {
    program.as_ref().is_ok_and(|program| program.uses(NAMESPACE))
}

impl Definition {
    fn of(policy: &Value) -> Definition {
        let spec = &policy["spec"];
        let is_mutating = spec.get("mutations").is_some();
        let environment = Environment::of_policy(spec, is_mutating);
        let compile = |source: &str, wanted| Expression {
            source: source.trim().to_owned(),
            program: environment.compile(source, wanted, true),
        };
        let validations: Vec<Validation> = items(&spec["validations"])
            .iter()
            .map(|validation| Validation {
                expression: compile(text(&validation["expression"]), Wanted::Bool),
                message: text(&validation["message"]).trim().to_owned(),
                message_expression: Some(text(&validation["messageExpression"]))
                    .filter(|source| !source.is_empty())
                    .map(|source| environment.compile(source, Wanted::Text, false)),
                reason: text(&validation["reason"]).to_owned(),
            })
            .collect();
        let annotations: Vec<Annotation> = items(&spec["auditAnnotations"])
            .iter()
            .map(|annotation| Annotation {
                key: text(&annotation["key"]).to_owned(),
                value: compile(text(&annotation["valueExpression"]), Wanted::TextOrNull),
            })
            .collect();
        let mutations: Vec<Mutation> = items(&spec["mutations"])
            .iter()
            .map(|mutation| match text(&mutation["patchType"]) {
                "JSONPatch" => {
                    let source = text(&mutation["jsonPatch"]["expression"]);
                    Mutation::Json(compile(source, Wanted::Patches))
                }
                _ => {
                    let source = text(&mutation["applyConfiguration"]["expression"]);
                    Mutation::Apply(compile(source, Wanted::Object))
                }
            })
            .collect();
        let param_kind = &spec["paramKind"];
        let param_kind = (!param_kind.is_null()).then(|| {
            (text(&param_kind["apiVersion"]).to_owned(), text(&param_kind["kind"]).to_owned())
        });
        let conditions = Conditions::of(&spec["matchConditions"], param_kind.is_some());
        let errors = conditions.list.iter().chain(annotations.iter().map(|one| &one.value));
        let errors = errors.chain(validations.iter().map(|validation| &validation.expression));
        let errors = errors.chain(mutations.iter().map(Mutation::expression));
        let errors = errors.filter_map(|expression| expression.program.as_ref().err());
        let messages = validations
            .iter()
            .filter_map(|validation| validation.message_expression.as_ref()?.as_ref().err());
        let errors: Vec<String> =
            errors.chain(messages).map(|error| format!("compilation error: {error}")).collect();
        let expressions = annotations
            .iter()
            .map(|annotation| &annotation.value)
            .chain(validations.iter().map(|validation| &validation.expression))
            .chain(mutations.iter().map(Mutation::expression));
        let uses_namespace = expressions
            .map(|expression| &expression.program)
            .chain(validations.iter().filter_map(|one| one.message_expression.as_ref()))
            .chain(&environment.programs)
            .any(uses_namespace)
            || conditions.uses_namespace();
        Definition {
            name: object::name(policy).to_owned(),
            ignores_failures: spec["failurePolicy"] == "Ignore",
            matcher: Matcher::of(&spec["matchConstraints"]),
            param_kind,
            conditions,
            environment,
            validations,
            annotations,
            mutations,
            is_reinvoked: spec["reinvocationPolicy"] == "IfNeeded",
            uses_namespace,
            error: (!errors.is_empty()).then(|| errors.join("\n")),
        }
    }
}

impl Mutation {
    pub(super) fn expression(&self) -> &Expression {
        match self {
            Mutation::Apply(expression) | Mutation::Json(expression) => expression,
        }
    }
}

/// What makes a policy effective.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: String,
    policy: String,
    /// `None` for all that the policy matches.
    pub(super) matcher: Option<Matcher>,
    pub(super) params: Option<ParamRef>,
    /// `validationActions`
    pub(super) actions: Vec<String>,
}

/// Which parameters a policy is evaluated with.
#[derive(Debug)]
pub(super) struct ParamRef {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) selector: Option<Result<LabelSelector, String>>,
    pub(super) denies_when_absent: bool,
}

impl Binding {
    fn of(binding: &Value) -> Binding {
        let spec = &binding["spec"];
        let params = &spec["paramRef"];
        Binding {
            name: object::name(binding).to_owned(),
            policy: text(&spec["policyName"]).to_owned(),
            matcher: spec.get("matchResources").filter(|m| !m.is_null()).map(Matcher::of),
            params: (!params.is_null()).then(|| ParamRef {
                name: text(&params["name"]).to_owned(),
                namespace: text(&params["namespace"]).to_owned(),
                selector: params
                    .get("selector")
                    .filter(|selector| !selector.is_null())
                    .map(LabelSelector::of),
                denies_when_absent: params["parameterNotFoundAction"] == "Deny",
            }),
            actions: texts(&spec["validationActions"]),
        }
    }

    /// Whether this is done about what does not pass: `Deny`, `Warn` or `Audit`.
    pub(super) fn has(&self, action: &str) -> bool {
        self.actions.iter().any(|own| own == action)
    }
}

/// The policies of one kind, by name.
#[derive(Default)]
pub(super) struct Definitions(pub(super) BTreeMap<String, Arc<Definition>>);

impl Index for Definitions {
    fn put(&mut self, policy: &Value) {
        let definition = Definition::of(policy);
        self.0.insert(definition.name.clone(), Arc::new(definition));
    }

    fn remove(&mut self, _: &str, name: &str) {
        self.0.remove(name);
    }
}

/// The bindings of one kind, by policy and name.
#[derive(Default)]
pub(super) struct Bindings(BTreeMap<String, BTreeMap<String, Arc<Binding>>>);

impl Bindings {
    /// Those of a policy.
    pub(super) fn of(&self, policy: &str) -> Vec<Arc<Binding>> {
        self.0.get(policy).map(|own| own.values().cloned().collect()).unwrap_or_default()
    }

    pub(super) fn has(&self, policy: &str) -> bool {
        self.0.contains_key(policy)
    }
}

impl Index for Bindings {
    fn put(&mut self, binding: &Value) {
        let binding = Binding::of(binding);
        // it may have been of another policy
        self.remove("", &binding.name);
        let own = self.0.entry(binding.policy.clone()).or_default();
        own.insert(binding.name.clone(), Arc::new(binding));
    }

    fn remove(&mut self, _: &str, name: &str) {
        self.0.retain(|_, own| {
            own.remove(name);
            !own.is_empty()
        });
    }
}
