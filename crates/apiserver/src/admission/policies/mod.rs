//! Admission policies: ValidatingAdmissionPolicy and MutatingAdmissionPolicy with their bindings.
//!
//! A policy is compiled when it is read, and evaluated for each binding and each of its parameters. The
//! configurations of admission themselves are exempt (`Attributes::is_exempt`).

mod activation;
mod definition;
mod matching;
mod mutating;
mod type_checking;
mod validating;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::activation::Facts;
pub(crate) use self::definition::Conditions;
use self::definition::{Binding, Bindings, Definition, Definitions, ParamRef};
pub(crate) use self::mutating::Reinvocation;
pub(crate) use self::type_checking::warnings as type_warnings;
use self::validating::{Denial, Findings};
use super::attributes::Attributes;
use super::webhooks::hook::Invocation;
use super::webhooks::{convert, converted, is_converted};
use crate::api_types::Resource;
use crate::audit;
use crate::authz::Authorizer;
use crate::cache::Cache;
use crate::definitions::{Definitions as CustomKinds, Snapshot};
use crate::kinds;
use crate::object;
use crate::offload;
use crate::registry::Registry;
use crate::schema::value::size;
use crate::status::{Cause, StatusError};

const GROUP: &str = "admissionregistration.k8s.io";

/// The policies of the cluster.
pub(crate) struct Policies {
    validating: Kind,
    mutating: Kind,
    authorizer: Arc<Authorizer>,
    /// The custom kinds that parameters may be of.
    kinds: Arc<CustomKinds>,
}

/// Policies of one kind.
struct Kind {
    definitions: Cache<Definitions>,
    bindings: Cache<Bindings>,
}

impl Kind {
    fn new(definitions: &str, bindings: &str) -> Result<Kind, StatusError> {
        Ok(Kind {
            definitions: Cache::new(GROUP, definitions)?,
            bindings: Cache::new(GROUP, bindings)?,
        })
    }

    async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        self.definitions.load(registry).await?;
        self.bindings.load(registry).await
    }

    async fn run(&self, registry: &Registry, stop: &CancellationToken) {
        tokio::join!(self.definitions.run(registry, stop), self.bindings.run(registry, stop));
    }

    async fn catch_up(&self, registry: &Registry) {
        self.definitions.catch_up(registry).await;
        self.bindings.catch_up(registry).await;
    }

    /// Whether a policy with a binding may be about the request.
    fn concerns(&self, attributes: &Attributes<'_>) -> bool {
        let definitions = self.definitions.read();
        let bindings = self.bindings.read();
        definitions.0.values().any(|policy| {
            bindings.has(&policy.name) && policy.matcher.invocation(attributes).is_some()
        })
    }

    /// The policies whose rules match the request, with their bindings.
    fn candidates(&self, attributes: &Attributes<'_>) -> Vec<(Arc<Definition>, Vec<Arc<Binding>>)> {
        let definitions = self.definitions.read();
        let bindings = self.bindings.read();
        let policies = definitions.0.values().filter(|policy| {
            bindings.has(&policy.name) && policy.matcher.invocation(attributes).is_some()
        });
        policies.map(|policy| (policy.clone(), bindings.of(&policy.name))).collect()
    }
}

/// A policy with a binding that is about the request, and the parameters; or why that is not known.
struct Bound<'a> {
    policy: Arc<Definition>,
    binding: Option<Arc<Binding>>,
    invocation: Invocation<'a>,
    params: Result<Vec<Option<Value>>, String>,
}

impl Policies {
    pub(crate) fn new(
        authorizer: Arc<Authorizer>,
        kinds: Arc<CustomKinds>,
    ) -> Result<Policies, StatusError> {
        Ok(Policies {
            validating: Kind::new(
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
            )?,
            mutating: Kind::new("mutatingadmissionpolicies", "mutatingadmissionpolicybindings")?,
            authorizer,
            kinds,
        })
    }

    pub(crate) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        self.validating.load(registry).await?;
        self.mutating.load(registry).await
    }

    pub(crate) async fn run(&self, registry: &Registry, stop: &CancellationToken) {
        tokio::join!(self.validating.run(registry, stop), self.mutating.run(registry, stop));
    }

    pub(crate) async fn catch_up(&self, registry: &Registry) {
        self.validating.catch_up(registry).await;
        self.mutating.catch_up(registry).await;
    }

    pub(crate) fn mutates(&self, attributes: &Attributes<'_>) -> bool {
        self.mutating.concerns(attributes)
    }

    pub(crate) fn validates(&self, attributes: &Attributes<'_>) -> bool {
        self.validating.concerns(attributes)
    }

    /// Whether match conditions of a webhook hold. An error when that cannot be found out.
    pub(in crate::admission) async fn conditions_hold(
        &self,
        registry: &Registry,
        conditions: &Conditions,
        attributes: &Attributes<'_>,
        invocation: Invocation<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Result<bool, String>, StatusError> {
        let namespace = match conditions.uses_namespace() {
            true => namespace_of(registry, attributes).await?,
            false => None,
        };
        let objects = (object, old);
        let (object, old) = shown(registry, attributes, invocation, objects).await?;
        let facts = Facts {
            attributes,
            invocation,
            object: object.as_ref().or(objects.0),
            old: old.as_ref().or(objects.1),
            namespace: namespace.as_ref(),
            params: None,
            authorizer: &self.authorizer,
            request: &OnceCell::new(),
        };
        Ok(validating::conditions_hold(conditions, &facts))
    }

    /// Has validating policies look at the complete object.
    pub(crate) async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<(), StatusError> {
        let candidates = self.validating.candidates(attributes);
        if candidates.is_empty() {
            return Ok(());
        }
        let namespace = namespace_for(&candidates, registry, attributes).await?;
        let mut denied = None;
        let mut annotations = Annotations::default();
        let kinds = self.kinds.snapshot();
        for bound in bound(candidates, &kinds, registry, attributes, object, old).await? {
            let found = match &bound.params {
                Err(_) if bound.policy.ignores_failures => continue,
                Err(why) => Findings {
                    denials: vec![Denial::unconfigured(why.clone())],
                    ..Findings::default()
                },
                Ok(params) => {
                    let copies =
                        shown(registry, attributes, bound.invocation, (object, old)).await?;
                    let objects = (copies.0.as_ref().or(object), copies.1.as_ref().or(old));
                    let length = object.or(old).map_or(0, size);
                    offload::run(length, || {
                        self.findings(attributes, &bound, params, objects, namespace.as_ref())
                    })
                }
            };
            let binding = bound.binding.as_deref();
            for (key, value) in found.annotations {
                annotations.add(format!("{}/{key}", bound.policy.name), value);
            }
            for denial in found.denials {
                if denial.is_certain || binding.is_some_and(|binding| binding.has("Deny")) {
                    denied.get_or_insert_with(|| refusal(attributes, &bound, &denial));
                }
                let Some(binding) = binding.filter(|_| !denial.is_certain) else { continue };
                if binding.has("Audit") {
                    annotate_failure(&bound.policy.name, binding, &denial);
                }
                if binding.has("Warn") {
                    warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        bound.policy.name, binding.name, denial.message
                    ));
                }
            }
        }
        annotations.record();
        denied.map_or(Ok(()), Err)
    }

    fn findings(
        &self,
        attributes: &Attributes<'_>,
        bound: &Bound<'_>,
        params: &[Option<Value>],
        (object, old): (Option<&Value>, Option<&Value>),
        namespace: Option<&Value>,
    ) -> Findings {
        let invocation = bound.invocation;
        let request = OnceCell::new();
        let mut all = Findings::default();
        for params in params {
            let facts = Facts {
                attributes,
                invocation,
                object,
                old,
                namespace,
                params: params.as_ref(),
                authorizer: &self.authorizer,
                request: &request,
            };
            let found = validating::findings(&bound.policy, &facts);
            all.denials.extend(found.denials);
            all.annotations.extend(found.annotations);
        }
        all
    }

    /// Has mutating policies change the object. Returns whether it has changed.
    pub(crate) async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: &mut Value,
        old: Option<&Value>,
        reinvocation: &mut Reinvocation,
        is_second: bool,
    ) -> Result<bool, StatusError> {
        let candidates = self.mutating.candidates(attributes);
        if candidates.is_empty() {
            return Ok(false);
        }
        if is_second {
            reinvocation.again(object);
        }
        let namespace = namespace_for(&candidates, registry, attributes).await?;
        let current = Some(&*object).filter(|object| !object.is_null()).cloned();
        let kinds = self.kinds.snapshot();
        let bound = bound(candidates, &kinds, registry, attributes, current.as_ref(), old).await?;
        let mut errors: Vec<StatusError> = Vec::new();
        let mut changed = false;
        for bound in bound {
            let params = match &bound.params {
                Ok(params) => params,
                Err(_) if bound.policy.ignores_failures => continue,
                Err(why) => {
                    errors.push(policy_error(attributes, &bound, why));
                    continue;
                }
            };
            let invocation = bound.invocation;
            let current = Some(&*object).filter(|object| !object.is_null());
            let (mut copy, old_copy) =
                shown(registry, attributes, invocation, (current, old)).await?;
            let old = old_copy.as_ref().or(old);
            let (one, result) = offload::run(size(object), || {
                let object = copy.as_mut().unwrap_or(object);
                let mut each = Changes { object, reinvocation, is_second, changed: false };
                let result = params.iter().try_for_each(|params| {
                    let about = (old, params.as_ref(), namespace.as_ref());
                    self.evaluate(attributes, &bound, about, &mut each)
                });
                (each.changed, result)
            });
            changed |= one;
            if let Some(copy) = copy.filter(|_| one) {
                let (from, to) = (invocation.resource, attributes.resource);
                *object = convert(registry, from, to, copy).await?;
            }
            match result {
                Ok(()) => {}
                Err(_) if bound.policy.ignores_failures => {}
                Err(why) => errors.push(policy_error(attributes, &bound, &why)),
            }
        }
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        reinvocation.left(object);
        Ok(changed)
    }

    /// Evaluates one policy with one parameter.
    fn evaluate(
        &self,
        attributes: &Attributes<'_>,
        bound: &Bound<'_>,
        (old, params, namespace): (Option<&Value>, Option<&Value>, Option<&Value>),
        changes: &mut Changes<'_>,
    ) -> Result<(), String> {
        let (policy, invocation) = (&bound.policy, bound.invocation);
        if changes.object.is_null() {
            return Ok(());
        }
        let binding = bound.binding.as_ref().map_or("", |binding| &binding.name);
        let param = params.map_or_else(String::new, |params| {
            format!("{}/{}", object::namespace(params), object::name(params))
        });
        let key = format!("{}/{binding}/{param}", policy.name);
        let mut current = changes.object.clone();
        let request = OnceCell::new();
        let mut is_first = true;
        let before = current.clone();
        for mutation in &policy.mutations {
            let facts = Facts {
                attributes,
                invocation,
                object: Some(&current),
                old,
                namespace,
                params,
                authorizer: &self.authorizer,
                request: &request,
            };
            if is_first {
                if !mutating::applies(policy, &facts)? {
                    return Ok(());
                }
                if changes.is_second && !changes.reinvocation.is_due(&key) {
                    return Ok(());
                }
                is_first = false;
            }
            match mutating::mutated(policy, mutation, &facts, &current) {
                Ok(Some(next)) => current = next,
                Ok(None) => {}
                Err(_) if policy.ignores_failures => {}
                Err(error) => return Err(error),
            }
        }
        if current != before {
            *changes.object = current;
            changes.changed = true;
            changes.reinvocation.object_changed();
        }
        if policy.is_reinvoked {
            changes.reinvocation.called(key);
        }
        Ok(())
    }
}

/// What policies have for the audit, by key. Bindings with different parameters may have different values.
#[derive(Default)]
struct Annotations(BTreeMap<String, Vec<String>>);

impl Annotations {
    fn add(&mut self, key: String, value: String) {
        let values = self.0.entry(key).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }

    fn record(self) {
        for (key, values) in self.0 {
            audit::annotate(key, values.join(", "));
        }
    }
}

/// Records what does not pass, for a binding that wants it in the audit.
fn annotate_failure(policy: &str, binding: &Binding, denial: &Denial) {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Failure<'a> {
        message: &'a str,
        policy: &'a str,
        binding: &'a str,
        expression_index: usize,
        validation_actions: &'a [String],
    }
    let failure = Failure {
        message: &denial.message,
        policy,
        binding: &binding.name,
        expression_index: denial.index,
        validation_actions: &binding.actions,
    };
    if let Ok(value) = serde_json::to_string(&[failure]) {
        audit::annotate("validation.policy.admission.k8s.io/validation_failure", value);
    }
}

/// The new and the old object as a policy sees them, if that is in another version than the request's.
async fn shown(
    registry: &Registry,
    attributes: &Attributes<'_>,
    invocation: Invocation<'_>,
    (object, old): (Option<&Value>, Option<&Value>),
) -> Result<(Option<Value>, Option<Value>), StatusError> {
    if !is_converted(attributes, invocation) {
        return Ok((None, None));
    }
    let shown = async |object: Option<&Value>| match object {
        Some(object) => converted(registry, attributes, invocation, object).await.map(Some),
        None => Ok(None),
    };
    Ok((shown(object).await?, shown(old).await?))
}

/// The object as a policy sees it while it changes.
struct Changes<'a> {
    object: &'a mut Value,
    reinvocation: &'a mut Reinvocation,
    is_second: bool,
    changed: bool,
}

/// The namespace that the object is in, if a policy uses it.
async fn namespace_for(
    candidates: &[(Arc<Definition>, Vec<Arc<Binding>>)],
    registry: &Registry,
    attributes: &Attributes<'_>,
) -> Result<Option<Value>, StatusError> {
    match candidates.iter().any(|(policy, _)| policy.uses_namespace) {
        true => namespace_of(registry, attributes).await,
        false => Ok(None),
    }
}

/// The namespace that the object is in.
async fn namespace_of(
    registry: &Registry,
    attributes: &Attributes<'_>,
) -> Result<Option<Value>, StatusError> {
    let is_namespace = attributes.resource.plural == "namespaces";
    match attributes.namespace {
        "" => Ok(None),
        _ if is_namespace => Ok(None),
        name => registry.find(kinds::core("namespaces")?, "", name).await,
    }
}

/// Those candidates that select the request, with their parameters.
async fn bound<'a>(
    candidates: Vec<(Arc<Definition>, Vec<Arc<Binding>>)>,
    kinds: &Snapshot,
    registry: &Registry,
    attributes: &Attributes<'a>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Vec<Bound<'a>>, StatusError> {
    let mut found = Vec::new();
    for (policy, bindings) in candidates {
        let Some(invocation) = policy.matcher.invocation(attributes) else { continue };
        if !policy.matcher.selects(registry, attributes, object, old).await? {
            continue;
        }
        let param_kind = match &policy.param_kind {
            None => None,
            Some((version, kind)) => match kinds.of_kind(version, kind) {
                Some(resource) => Some(resource),
                None => {
                    let why = format!(
                        "failed to configure policy: failed to find resource referenced by paramKind: '{}'",
                        kind_text(version, kind)
                    );
                    found.push(Bound { policy, binding: None, invocation, params: Err(why) });
                    continue;
                }
            },
        };
        for binding in bindings {
            if let Some(matcher) = &binding.matcher
                && (matcher.invocation(attributes).is_none()
                    || !matcher.selects(registry, attributes, object, old).await?)
            {
                continue;
            }
            let params = params(registry, param_kind, binding.params.as_ref(), attributes).await?;
            let params = params.map_err(|why| format!("failed to configure binding: {why}"));
            let policy = policy.clone();
            found.push(Bound { policy, binding: Some(binding), invocation, params });
        }
    }
    Ok(found)
}

/// `group/version, Kind=kind`
fn kind_text(version: &str, kind: &str) -> String {
    let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
    format!("{version}, Kind={kind}")
}

/// The parameters of a binding: one that is absent if the policy takes none.
async fn params(
    registry: &Registry,
    kind: Option<&'static Resource>,
    reference: Option<&ParamRef>,
    attributes: &Attributes<'_>,
) -> Result<Result<Vec<Option<Value>>, String>, StatusError> {
    let (Some(resource), Some(reference)) = (kind, reference) else {
        return Ok(Ok(vec![None]));
    };
    let namespace = match (resource.namespaced, &*reference.namespace, attributes.namespace) {
        (false, "", _) => "",
        (false, ..) => {
            let why = "paramRef.namespace must not be provided for a cluster-scoped `paramKind`";
            return Ok(Err(why.to_owned()));
        }
        (true, "", "") => {
            let why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Ok(Err(why.to_owned()));
        }
        (true, "", own) => own,
        (true, given, _) => given,
    };
    let found: Vec<Option<Value>> = match (&*reference.name, &reference.selector) {
        ("", Some(Ok(selector))) => {
            let all = registry.list_all(resource, namespace).await?;
            all.into_iter().filter(|params| selector.matches(params)).map(Some).collect()
        }
        ("", Some(Err(why))) => return Ok(Err(why.clone())),
        ("", None) => return Ok(Err("one of name or selector must be provided".to_owned())),
        (name, _) => {
            registry.find(resource, namespace, name).await?.map(Some).into_iter().collect()
        }
    };
    if found.is_empty() && reference.denies_when_absent {
        let why = "no params found for policy binding with `Deny` parameterNotFoundAction";
        return Ok(Err(why.to_owned()));
    }
    Ok(Ok(found))
}

/// The answer to a request that a validating policy refuses.
fn refusal(attributes: &Attributes<'_>, bound: &Bound<'_>, denial: &Denial) -> StatusError {
    let policy = &bound.policy.name;
    let message = match &bound.binding {
        Some(binding) => format!(
            "ValidatingAdmissionPolicy '{policy}' with binding '{}' denied request: {}",
            binding.name, denial.message
        ),
        None => format!("ValidatingAdmissionPolicy '{policy}' denied request: {}", denial.message),
    };
    let mut error = StatusError::forbidden(attributes.resource, attributes.name, &message);
    (error.code, error.reason) = match &*denial.reason {
        "Forbidden" => (403, "Forbidden"),
        "Unauthorized" => (401, "Unauthorized"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    caused(error, message)
}

/// The same of a mutating one.
fn policy_error(attributes: &Attributes<'_>, bound: &Bound<'_>, why: &str) -> StatusError {
    let policy = &bound.policy.name;
    let message = match &bound.binding {
        Some(binding) => {
            format!("policy '{policy}' with binding '{}' denied request: {why}", binding.name)
        }
        None => format!("policy '{policy}' denied request: {why}"),
    };
    let mut error = StatusError::forbidden(attributes.resource, attributes.name, &message);
    error.message.clone_from(&message);
    error.reason = "Invalid";
    caused(error, message)
}

fn caused(mut error: StatusError, message: String) -> StatusError {
    let cause = Cause { reason: "", message, field: String::new() };
    error.details.get_or_insert_default().causes.push(cause);
    error
}
