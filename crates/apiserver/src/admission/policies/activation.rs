//! The values of variables for one request.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use longshore_cel::{
    Attributes as Asked, Authorizer as CelAuthorizer, Budget, Decision, Error, Opaque, Program,
    Value as Cel, Variables,
};
use serde_json::{Value, json};

use crate::admission::attributes::Attributes;
use crate::admission::webhooks::hook::Invocation;
use crate::api_types::Gvk;
use crate::authz::{Access, Authorizer, ResourceTarget, Target};
use crate::expressions::{
    AUTHORIZER, COMPOSED, Environment, NAMESPACE, NAMESPACE_DECL, OBJECT, OLD_OBJECT, PARAMS,
    REQUEST, REQUEST_DECL, RESOURCE_AUTHORIZER,
};
use crate::user::User;

/// What a request is to policies.
pub(crate) struct Facts<'v> {
    pub(crate) attributes: &'v Attributes<'v>,
    pub(crate) invocation: Invocation<'v>,
    pub(crate) object: Option<&'v Value>,
    pub(crate) old: Option<&'v Value>,
    pub(crate) namespace: Option<&'v Value>,
    pub(crate) params: Option<&'v Value>,
    pub(crate) authorizer: &'v Arc<Authorizer>,
    /// Made when an expression uses it.
    pub(crate) request: &'v OnceCell<Value>,
}

/// The variables. Composed ones are evaluated once, when they are used.
pub(crate) struct Activation<'v> {
    facts: &'v Facts<'v>,
    environment: &'v Environment,
    composed: RefCell<Vec<Option<Result<Cel<'v>, Error>>>>,
    /// What the composed ones may still cost.
    budget: Cell<Budget>,
}

impl<'v> Activation<'v> {
    pub(crate) fn new(facts: &'v Facts<'v>, environment: &'v Environment, budget: u64) -> Self {
        let composed = RefCell::new(vec![None; environment.programs.len()]);
        Activation { facts, environment, composed, budget: Cell::new(Budget(budget)) }
    }

    /// Evaluates an expression. What it costs, with the variables that it uses, comes off the budget.
    pub(crate) fn evaluate(&self, program: &Program) -> Result<Cel<'v>, Error> {
        let before = self.budget.get();
        // variables take from the budget meanwhile
        let mut own = before;
        let result = program.evaluate(self, &mut own);
        let spent = before.0.saturating_sub(own.0);
        let mut left = self.budget.get();
        let within = left.spend(spent);
        self.budget.set(left);
        within.and(result)
    }

    fn composed(&self, index: usize) -> Result<Cel<'v>, Error> {
        if let Some(Some(known)) = self.composed.borrow().get(index) {
            return known.clone();
        }
        let value = match self.environment.programs.get(index) {
            Some(Ok(program)) => self.evaluate(program),
            Some(Err(error)) => Err(Error::new(error.clone())),
            None => Err(Error::new("no such attribute(s)")),
        };
        if let Some(slot) = self.composed.borrow_mut().get_mut(index) {
            *slot = Some(value.clone());
        }
        value
    }
}

impl<'v> Variables<'v> for Activation<'v> {
    fn get(&self, index: usize) -> Result<Cel<'v>, Error> {
        let facts = self.facts;
        let or_null = |value: Option<&'v Value>| value.map_or(Cel::Null, Cel::of);
        Ok(match index {
            OBJECT => or_null(facts.object),
            OLD_OBJECT => or_null(facts.old),
            NAMESPACE => match facts.namespace {
                Some(namespace) => Cel::declared(namespace, &NAMESPACE_DECL)?,
                None => Cel::Null,
            },
            REQUEST => {
                let request = facts.request.get_or_init(|| request(facts));
                Cel::declared(request, &REQUEST_DECL)?
            }
            PARAMS => or_null(facts.params),
            AUTHORIZER => Cel::Opaque(Arc::new(Opaque::Authorizer(caller(facts), None))),
            RESOURCE_AUTHORIZER => {
                let attributes = facts.attributes;
                let asked = Asked {
                    group: attributes.resource.group.to_owned(),
                    resource: attributes.resource.plural.to_owned(),
                    subresource: attributes.subresource.to_owned(),
                    namespace: attributes.namespace.to_owned(),
                    name: attributes.name.to_owned(),
                    ..Asked::default()
                };
                Cel::Opaque(Arc::new(Opaque::Check(caller(facts), Box::new(asked))))
            }
            index => return self.composed(index.saturating_sub(COMPOSED)),
        })
    }
}

fn request(facts: &Facts<'_>) -> Value {
    let Facts { attributes, invocation, .. } = facts;
    let kind = |of: Gvk| json!({"group": of.group, "version": of.version, "kind": of.kind});
    let resource = |of: &crate::api_types::Resource| json!({"group": of.group, "version": of.version, "resource": of.plural});
    let user = attributes.user;
    json!({
        "kind": kind(invocation.kind),
        "resource": resource(invocation.resource),
        "subResource": attributes.subresource,
        "requestKind": kind(attributes.kind),
        "requestResource": resource(attributes.resource),
        "requestSubResource": attributes.subresource,
        "name": attributes.name,
        "namespace": attributes.namespace,
        "operation": attributes.operation.name(),
        "userInfo": {
            "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        },
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    })
}

/// This server's authorizer, in the name of the caller.
struct Caller {
    authorizer: Arc<Authorizer>,
    user: User,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("user", &self.user).finish_non_exhaustive()
    }
}

fn caller(facts: &Facts<'_>) -> Arc<dyn CelAuthorizer> {
    Arc::new(Caller { authorizer: facts.authorizer.clone(), user: facts.attributes.user.clone() })
}

impl CelAuthorizer for Caller {
    fn authorize(&self, asked: &Asked) -> Decision {
        let account = asked.service_account.as_ref().map(|(namespace, name)| {
            let name = format!("system:serviceaccount:{namespace}:{name}");
            User { name, ..User::default() }.impersonated()
        });
        let target = match &asked.path {
            Some(path) => Target::Path(path),
            None => Target::Resource(ResourceTarget {
                group: &asked.group,
                version: "",
                resource: &asked.resource,
                subresource: &asked.subresource,
                namespace: &asked.namespace,
                name: &asked.name,
                fields: &[],
            }),
        };
        let user = account.as_ref().unwrap_or(&self.user);
        let decision = self.authorizer.decide(&Access { user, verb: &asked.verb, target });
        let allowed = decision.is_allowed();
        let (reason, error) = decision.into_texts();
        Decision { allowed, reason, error }
    }
}
