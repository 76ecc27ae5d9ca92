//! What a mutating policy makes of an object.

use std::collections::BTreeSet;

use longshore_cel::{RUNTIME_BUDGET, Value as Cel};
use serde_json::Value;

use super::activation::{Activation, Facts};
use super::definition::{Definition, Mutation};
use super::validating::{conditions_hold, failed};
use crate::admission::webhooks::hook::Invocation;
use crate::kinds;
use crate::managed;
use crate::patch::{self, PatchKind};
use crate::schema::Decoded;

/// Which policies are evaluated again, because the object has changed after them.
#[derive(Default)]
pub(crate) struct Reinvocation {
    called: BTreeSet<String>,
    due: BTreeSet<String>,
    /// The object as the last round left it.
    output: Value,
}

impl Reinvocation {
    /// The second round begins with this object.
    pub(super) fn again(&mut self, object: &Value) {
        if *object != self.output {
            self.object_changed();
        }
    }

    pub(super) fn object_changed(&mut self) {
        self.due.append(&mut self.called);
    }

    pub(super) fn is_due(&self, key: &str) -> bool {
        self.due.contains(key)
    }

    pub(super) fn called(&mut self, key: String) {
        self.called.insert(key);
    }

    pub(super) fn left(&mut self, object: &Value) {
        object.clone_into(&mut self.output);
    }
}

/// Whether a policy applies to the object; an error when its conditions cannot be evaluated.
pub(super) fn applies(policy: &Definition, facts: &Facts<'_>) -> Result<bool, String> {
    match conditions_hold(&policy.conditions, facts) {
        Err(_) if policy.ignores_failures => Ok(false),
        result => result,
    }
}

/// The object after one mutation; `None`: it does nothing.
pub(super) fn mutated(
    policy: &Definition,
    mutation: &Mutation,
    facts: &Facts<'_>,
    object: &Value,
) -> Result<Option<Value>, String> {
    let expression = mutation.expression();
    let program =
        expression.program.as_ref().map_err(|error| format!("compilation error: {error}"))?;
    let activation = Activation::new(facts, &policy.environment, RUNTIME_BUDGET);
    let value = activation.evaluate(program).map_err(|error| failed(expression, &error))?;
    let patched = match mutation {
        Mutation::Apply(_) => applied(facts.invocation, object, &value)?,
        Mutation::Json(_) => match json_patched(facts.invocation, object, &value)? {
            Some(patched) => patched,
            None => return Ok(None),
        },
    };
    let Invocation { resource, kind } = facts.invocation;
    let decoded = Decoded { value: patched, duplicates: Vec::new() };
    let conformed = kinds::conform_kind(resource, kind, decoded);
    let mut object = conformed.map_err(|error| error.message)?;
    if kind == resource.gvk() {
        kinds::apply_defaults(resource, &mut object);
    }
    Ok(Some(object))
}

fn applied(invocation: Invocation<'_>, object: &Value, value: &Cel<'_>) -> Result<Value, String> {
    let Some(mut patch @ Value::Object(_)) = value.to_json() else {
        return Err("unsupported return type from ApplyConfiguration expression".to_owned());
    };
    patch["apiVersion"] = object["apiVersion"].clone();
    patch["kind"] = object["kind"].clone();
    managed::merged(invocation.kind, object, &patch)
        .map_err(|error| format!("error applying patch: {error}"))
}

fn json_patched(
    invocation: Invocation<'_>,
    object: &Value,
    value: &Cel<'_>,
) -> Result<Option<Value>, String> {
    let Some(mut operations) = value.to_json() else {
        let message = "JSONPath valueExpression evaluated to a type that could not marshal to JSON";
        return Err(message.to_owned());
    };
    for operation in operations.as_array_mut().into_iter().flatten() {
        // as absent fields of a Go object
        if operation["from"] == ""
            && let Some(operation) = operation.as_object_mut()
        {
            operation.remove("from");
        }
    }
    let body = operations.to_string();
    match patch::apply(PatchKind::Json, invocation.kind, object, body.as_bytes()) {
        Ok((patched, _)) => Ok(Some(patched.value)),
        // a test that fails leaves the object as it is
        Err(error) if error.message.contains("value did not match") => Ok(None),
        Err(error) => Err(format!("JSON Patch: {}", error.message)),
    }
}
