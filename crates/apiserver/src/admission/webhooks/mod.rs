//! Admission webhooks: MutatingWebhookConfiguration and ValidatingWebhookConfiguration.
//!
//! Mutating webhooks are called one after the other, in order of their configurations' names, each with
//! the object as the one before left it; validating ones all at once. A webhook whose call fails refuses the
//! request or is passed over, as its failure policy says; one that refuses it always does.
//!
//! Current limitations: options carry no field manager.

pub(in crate::admission) mod hook;
mod metrics;
mod review;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::future::join_all;
use longshore_telemetry::{Kind, child};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::hook::{Hook, Hooks, Invocation};
use self::metrics::{Call, ErrorKind, Metrics};
use self::review::Verdict;
use super::attributes::Attributes;
use super::policies::Policies;
use crate::api_types::Resource;
use crate::audit;
use crate::cache::Cache;
use crate::kinds;
use crate::object;
use crate::patch::{self, PatchKind};
use crate::registry::Registry;
use crate::schema;
use crate::status::StatusError;
use crate::webhook_client::WebhookClient;

const GROUP: &str = "admissionregistration.k8s.io";

/// What webhooks are called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// To change objects.
    Mutating,
    /// To look at them.
    Validating,
}

impl Role {
    /// The name of the span of a call.
    fn span(self) -> &'static str {
        match self {
            Role::Mutating => "Call mutating webhook",
            Role::Validating => "Call validating webhook",
        }
    }

    /// As metrics name it.
    fn name(self) -> &'static str {
        match self {
            Role::Mutating => "admit",
            Role::Validating => "validating",
        }
    }
}

/// The webhooks of the cluster.
pub(crate) struct Webhooks {
    mutating: Cache<Hooks>,
    validating: Cache<Hooks>,
    mutating_client: WebhookClient,
    validating_client: WebhookClient,
    metrics: Metrics,
}

/// What is to be called again, because another webhook or a plugin has changed the object since.
#[derive(Default)]
pub(crate) struct Reinvocation {
    /// Those that were called and want to be called again after a change.
    called: BTreeSet<String>,
    /// Those of them that are to be.
    due: BTreeSet<String>,
    /// The object as the last round left it.
    output: Value,
}

impl Reinvocation {
    fn object_changed(&mut self) {
        self.due.append(&mut self.called);
    }
}

/// Why a webhook lets a request fail.
enum Failure {
    /// The call failed, with the status that counts for it: the failure policy decides.
    Calling(u16, String),
    /// The webhook refused the request, or cannot be called for it.
    Refused(StatusError),
    /// Its answer cannot be carried out.
    Internal(StatusError),
}

impl Webhooks {
    /// The clients call mutating and validating webhooks.
    pub(crate) fn new(
        mutating_client: WebhookClient,
        validating_client: WebhookClient,
    ) -> Result<Webhooks, StatusError> {
        Ok(Webhooks {
            mutating: Cache::new(GROUP, "mutatingwebhookconfigurations")?,
            validating: Cache::new(GROUP, "validatingwebhookconfigurations")?,
            mutating_client,
            validating_client,
            metrics: Metrics::default(),
        })
    }

    pub(crate) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        self.mutating.load(registry).await?;
        self.validating.load(registry).await
    }

    pub(crate) async fn run(&self, registry: &Registry, stop: &CancellationToken) {
        tokio::join!(self.mutating.run(registry, stop), self.validating.run(registry, stop));
    }

    pub(crate) async fn catch_up(&self, registry: &Registry) {
        self.mutating.catch_up(registry).await;
        self.validating.catch_up(registry).await;
    }

    /// Whether the rules of any mutating webhook match.
    pub(crate) fn mutates(&self, attributes: &Attributes<'_>) -> bool {
        self.mutating.read().all().any(|hook| hook.invocation(attributes).is_some())
    }

    /// Whether the rules of any validating webhook match.
    pub(crate) fn validates(&self, attributes: &Attributes<'_>) -> bool {
        self.validating.read().all().any(|hook| hook.invocation(attributes).is_some())
    }

    /// Calls the mutating webhooks (null: there is no object). Returns whether the object has changed.
    #[allow(clippy::too_many_arguments)]
    pub(crate) async fn mutate(
        &self,
        registry: &Registry,
        policies: &Policies,
        attributes: &Attributes<'_>,
        object: &mut Value,
        old: Option<&Value>,
        reinvocation: &mut Reinvocation,
        is_second: bool,
        warnings: &mut Vec<String>,
    ) -> Result<bool, StatusError> {
        if is_second && *object != reinvocation.output {
            reinvocation.object_changed();
        }
        let hooks: Vec<Arc<Hook>> = self.mutating.read().all().cloned().collect();
        let mut changed = false;
        for (index, hook) in hooks.into_iter().enumerate() {
            let Some(invocation) = hook.invocation(attributes) else { continue };
            let place = format!("round_{}_index_{index}", u8::from(is_second));
            let current = Some(&*object).filter(|object| !object.is_null());
            if !hook.selects(registry, policies, attributes, invocation, current, old).await?
                || (is_second && !reinvocation.due.contains(&hook.uid))
            {
                continue;
            }
            let began = Instant::now();
            let outcome = async {
                let verdict = self.call(
                    registry,
                    &hook,
                    attributes,
                    invocation,
                    current,
                    old,
                    Role::Mutating,
                );
                let verdict = verdict.await?;
                let patched = match verdict.patch.is_empty() {
                    true => None,
                    false => {
                        patched(registry, &hook, attributes, invocation, current, &verdict.patch)
                            .await?
                    }
                };
                Ok((verdict.warnings, patched, verdict.patch))
            }
            .await;
            match self.observe(&hook, Role::Mutating, attributes, began, outcome)? {
                Some((said, patched, patch)) => {
                    warnings.extend(said);
                    let mutates = patched.as_ref().is_some_and(|patched| patched != object);
                    annotate_mutation(&hook, &place, mutates, &patch);
                    if let Some(patched) = patched.filter(|patched| patched != object) {
                        *object = patched;
                        changed = true;
                        reinvocation.object_changed();
                    }
                }
                None => {
                    tracing::warn!(webhook = hook.name, "the failure of a webhook is ignored");
                    let key = format!("failed-open.mutation.webhook.admission.k8s.io/{place}");
                    audit::annotate(key, hook.name.as_str());
                    annotate_mutation(&hook, &place, false, &[]);
                }
            }
            if hook.is_reinvoked {
                reinvocation.called.insert(hook.uid.clone());
            }
        }
        if !is_second && changed {
            reinvocation.output = object.clone();
        }
        Ok(changed)
    }

    /// Calls the validating webhooks.
    pub(crate) async fn validate(
        &self,
        registry: &Registry,
        policies: &Policies,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<(), StatusError> {
        let hooks: Vec<Arc<Hook>> = self.validating.read().all().cloned().collect();
        let mut relevant = Vec::new();
        for hook in hooks {
            let Some(invocation) = hook.invocation(attributes) else { continue };
            if hook.selects(registry, policies, attributes, invocation, object, old).await? {
                relevant.push((hook, invocation));
            }
        }
        let calls = relevant.iter().map(|(hook, invocation)| async move {
            let began = Instant::now();
            let role = Role::Validating;
            let verdict =
                self.call(registry, hook, attributes, *invocation, object, old, role).await;
            self.observe(hook, role, attributes, began, verdict)
        });
        // All are waited for, and the first refusal in order is the client's.
        for ((index, (hook, _)), verdict) in relevant.iter().enumerate().zip(join_all(calls).await)
        {
            match verdict? {
                Some(verdict) => warnings.extend(verdict.warnings),
                None => {
                    let prefix = "failed-open.validating.webhook.admission.k8s.io";
                    audit::annotate(format!("{prefix}/round_0_index_{index}"), hook.name.as_str());
                }
            }
        }
        Ok(())
    }

    /// Calls one webhook.
    #[allow(clippy::too_many_arguments)]
    async fn call(
        &self,
        registry: &Registry,
        hook: &Hook,
        attributes: &Attributes<'_>,
        invocation: Invocation<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        role: Role,
    ) -> Result<Verdict, Failure> {
        if attributes.dry_run && !hook.supports_dry_run {
            let why = format!("admission webhook {:?} does not support dry run", hook.name);
            return Err(Failure::Refused(StatusError::bad_request(why)));
        }
        let version = review::version(hook).map_err(|why| Failure::Calling(400, why))?;
        let client = hook
            .client
            .as_ref()
            .map_err(|why| Failure::Calling(500, format!("could not get REST client: {why}")))?;
        let internal = |error| Failure::Internal(StatusError::internal(error));
        let uid = object::new_uid().map_err(internal)?;
        let shown = async |object: Option<&Value>| match object {
            Some(object) => {
                let shown = converted(registry, attributes, invocation, object).await;
                shown.map(Some).map_err(Failure::Internal)
            }
            None => Ok(None),
        };
        let (object, old) = (shown(object).await?, shown(old).await?);
        let request =
            review::request(version, &uid, attributes, invocation, object.as_ref(), old.as_ref());
        let body = longshore_json::write(&request)
            .map_err(|error| Failure::Internal(StatusError::internal(error)))?;
        let caller = match role {
            Role::Mutating => &self.mutating_client,
            Role::Validating => &self.validating_client,
        };
        let mut span = child(role.span(), Kind::Internal);
        if span.is_recorded() {
            let Resource { group, version, plural, .. } = attributes.resource;
            span.text("configuration", &hook.configuration);
            span.text("webhook", &hook.name);
            span.text("resource", format!("{group}/{version}, Resource={plural}"));
            span.text("subresource", attributes.subresource);
            span.text("operation", attributes.operation.name());
            span.text("UID", &uid);
        }
        let answer = span
            .enter(caller.call(registry, client, Bytes::from(body), hook.timeout))
            .await
            .map_err(|error| Failure::Calling(error.code(), error.to_string()))?;
        let verdict = review::verdict(version, &uid, role == Role::Mutating, &answer);
        let verdict = verdict.map_err(|why| {
            Failure::Calling(503, format!("received invalid webhook response: {why}"))
        })?;
        for (key, value) in &verdict.annotations {
            audit::annotate(format!("{}/{key}", hook.name), value.as_str());
        }
        match verdict.allowed {
            true => Ok(verdict),
            false => Err(Failure::Refused(review::denied(&hook.name, verdict.result))),
        }
    }

    /// Counts a call, and applies the failure policy. `None`: the failure is ignored.
    fn observe<T>(
        &self,
        hook: &Hook,
        role: Role,
        attributes: &Attributes<'_>,
        began: Instant,
        outcome: Result<T, Failure>,
    ) -> Result<Option<T>, StatusError> {
        let mut call = Call {
            name: &hook.name,
            role,
            operation: attributes.operation,
            took: began.elapsed(),
            code: 200,
            error: None,
            ignored: false,
        };
        let result = match outcome {
            Ok(value) => Ok(Some(value)),
            Err(Failure::Calling(code, why)) => {
                call.code = code;
                call.error = Some(ErrorKind::Calling);
                call.ignored = hook.ignores_failures;
                let why = format!("failed calling webhook {:?}: {why}", hook.name);
                tracing::warn!(webhook = hook.name, ignored = call.ignored, "{why}");
                if call.ignored { Ok(None) } else { Err(StatusError::internal(why)) }
            }
            Err(Failure::Refused(error)) => {
                call.code = error.code;
                call.error = Some(ErrorKind::None);
                Err(error)
            }
            Err(Failure::Internal(error)) => {
                call.code = 0;
                call.error = Some(ErrorKind::Internal);
                Err(error)
            }
        };
        self.metrics.observe(&call);
        result
    }

    pub(crate) fn metrics(&self) -> String {
        self.metrics.render()
    }
}

/// Records whether a webhook has changed the object, and its patch where bodies are recorded.
fn annotate_mutation(hook: &Hook, place: &str, mutated: bool, patch: &[u8]) {
    let Hook { configuration, name, .. } = hook;
    let value = json!({"configuration": configuration, "webhook": name, "mutated": mutated});
    audit::annotate(format!("mutation.webhook.admission.k8s.io/{place}"), value.to_string());
    if patch.is_empty() || !audit::records_bodies() {
        return;
    }
    if let Ok(patch) = longshore_json::read(patch) {
        let value = json!({
            "configuration": configuration, "webhook": name, "patch": patch, "patchType": "JSONPatch",
        });
        audit::annotate(format!("patch.webhook.admission.k8s.io/{place}"), value.to_string());
    }
}

/// The object as a webhook sees it.
pub(in crate::admission) async fn converted(
    registry: &Registry,
    attributes: &Attributes<'_>,
    invocation: Invocation<'_>,
    object: &Value,
) -> Result<Value, StatusError> {
    match is_converted(attributes, invocation) {
        false => Ok(object.clone()),
        true => convert(registry, attributes.resource, invocation.resource, object.clone()).await,
    }
}

/// Whether objects are shown in another version than the request's.
pub(in crate::admission) fn is_converted(
    attributes: &Attributes<'_>,
    invocation: Invocation<'_>,
) -> bool {
    invocation.kind != attributes.kind
}

/// An object in another version; the error is the client's.
pub(in crate::admission) async fn convert(
    registry: &Registry,
    from: &Resource,
    to: &Resource,
    object: Value,
) -> Result<Value, StatusError> {
    let converted = registry.as_other(from, to, object).await;
    converted.map_err(|error| StatusError::internal(error.message))
}

/// The object with a webhook's patch, and with the defaults of what that left out. `None`: the patch does
/// nothing.
async fn patched(
    registry: &Registry,
    hook: &Hook,
    attributes: &Attributes<'_>,
    invocation: Invocation<'_>,
    object: Option<&Value>,
    patch: &[u8],
) -> Result<Option<Value>, Failure> {
    let decoded = schema::json(patch).map_err(|error| {
        let why = format!("received undecodable patch in webhook response: {}", error.message);
        Failure::Calling(503, why)
    })?;
    if decoded.value.as_array().is_none_or(Vec::is_empty) {
        return match decoded.value.is_array() {
            true => Ok(None),
            false => Err(Failure::Calling(
                503,
                "received undecodable patch in webhook response: it is no list".to_owned(),
            )),
        };
    }
    let internal = |error: StatusError| Failure::Internal(StatusError::internal(why(&error)));
    let Some(object) = object else {
        let why = format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
            hook.name
        );
        return Err(Failure::Internal(StatusError::internal(why)));
    };
    let object = converted(registry, attributes, invocation, object).await;
    let object = object.map_err(Failure::Internal)?;
    let patched = patch::apply(PatchKind::Json, invocation.kind, &object, patch);
    let conformed = patched.and_then(|(decoded, _)| {
        kinds::conform_kind(invocation.resource, invocation.kind, decoded)
    });
    let mut object = conformed.map_err(internal)?;
    if invocation.kind == invocation.resource.gvk() {
        kinds::apply_defaults(invocation.resource, &mut object);
    }
    Ok(Some(match is_converted(attributes, invocation) {
        false => object,
        true => convert(registry, invocation.resource, attributes.resource, object)
            .await
            .map_err(Failure::Internal)?,
    }))
}

/// What is wrong with a patch, without the framing of an answer to a client.
fn why(error: &StatusError) -> String {
    let cause = error.details.as_ref().and_then(|details| details.causes.first());
    cause.map_or_else(|| error.message.clone(), |cause| cause.message.clone())
}
