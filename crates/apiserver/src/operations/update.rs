//! Changing an object: PUT and PATCH, of the whole or of a part that is a subresource.

use std::time::Instant;

use serde_json::{Value, json};

use super::review::{Pause, Reviews};
use super::{Api, calling_node, settle_namespace};
use crate::admission::attributes::{Attributes, Operation};
use crate::admission::chain::Rounds;
use crate::admission::quota::UpdateCharge;
use crate::admission::services::Reservation;
use crate::admission::{UpdateContext, certificates, node_restriction, pods};
use crate::api_types::{Gvk, Resource};
use crate::kinds::{self, Deletion};
use crate::managed::{self, Applier, Conversions};
use crate::object;
use crate::offload;
use crate::patch::{self, PatchKind};
use crate::registry::{Write, Written};
use crate::schema::value::size;
use crate::schema::{Decoded, FieldValidation, quoted};
use crate::status::{Cause, MODIFIED, StatusError};
use crate::user::User;

/// How the object is to change.
pub(crate) enum Change<'a> {
    /// Into this one, which conforms to its type.
    Replace(Value),
    /// By a patch, on whatever version is the newest.
    Patch { kind: PatchKind, body: &'a [u8], validation: FieldValidation },
    /// By an apply of an object, on whatever version is the newest.
    Apply { object: Value, force: bool },
}

impl Change<'_> {
    /// About how many bytes it is.
    fn length(&self) -> usize {
        match self {
            Change::Replace(object) | Change::Apply { object, .. } => size(object),
            Change::Patch { body, .. } => body.len(),
        }
    }

    /// The object, as far as it says something about a field. `None`: a patch may set it to anything.
    fn about(&self, field: &str) -> Option<&Value> {
        match self {
            Change::Replace(object) | Change::Apply { object, .. } => Some(object),
            Change::Patch { body, .. } => {
                let names = body.windows(field.len().max(1)).any(|part| part == field.as_bytes());
                if names { None } else { Some(&Value::Null) }
            }
        }
    }
}

/// An update of one object.
pub(crate) struct UpdateRequest<'a> {
    pub(crate) user: &'a User,
    /// The manager of the fields that change.
    pub(crate) manager: &'a str,
    pub(crate) resource: &'static Resource,
    /// Empty, `status`, `approval`, `finalize`, `ephemeralcontainers` or `resize`.
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) change: Change<'a>,
    pub(crate) dry_run: bool,
}

/// How often an update is tried again because others change what it adds to quotas.
const MAX_PAYMENTS: usize = 10;

impl Api {
    /// Carries out an update. Returns the object and warnings for the client.
    pub(crate) async fn update(
        &self,
        request: &UpdateRequest<'_>,
    ) -> Result<(Value, Vec<String>), StatusError> {
        let (resource, subresource) = (request.resource, request.subresource);
        let key = (request.namespace, request.name);
        let (registry, security) = (&self.registry, &self.pod_security);
        let context = UpdateContext::read(
            registry,
            &self.gates,
            security,
            request.user,
            resource,
            subresource,
            key,
        )
        .await?;
        let field_of = |field: &str| request.change.about(field);
        let name = request.name;
        pods::admit_priority_class(&self.registry, resource, subresource, name, field_of).await?;
        let mut warnings = Vec::new();
        let mut reservation: Option<Reservation<'_>> = None;
        let mut refused: Vec<Reservation<'_>> = Vec::new();
        let attributes =
            Attributes::new(Operation::Update, request.user, resource, key, request.dry_run)
                .of_subresource(subresource, resource.gvk());
        self.chain.catch_up(&self.registry).await;
        self.services.catch_up(&self.registry, resource).await;
        let mut reviews = Reviews::default();
        let conversions = Conversions::default();
        self.settle_rights(request.user, resource).await;
        let length = request.change.length();
        let dry_run = request.dry_run;
        let mut charge =
            UpdateCharge::of(&self.registry, resource, subresource, request.namespace).await?;
        let mut payments = 0;
        let mut is_counted = false;
        let written = loop {
            let written = self
                .registry
                .write(resource, key, self.ttl(resource), dry_run, |current| {
                    offload::run(length.saturating_add(size(current)), || {
                        let mut new = match reviews.validated(current) {
                            // With what is reserved for it.
                            Some(validated) => validated,
                            None => {
                                let reserved = reviews.reserved(current);
                                let has_reserved = reserved.is_some();
                                let mut new = match reserved.or_else(|| reviews.mutated(current)) {
                                    Some(known) => known,
                                    None => {
                                        let proposed = self.begin(
                                            request,
                                            current,
                                            &mut warnings,
                                            &conversions,
                                        );
                                        if let Some(pause) = conversions.pause() {
                                            return Err(pause);
                                        }
                                        let new = proposed?;
                                        if self.chain.mutates(&attributes) {
                                            return Err(reviews.pause(Pause::Mutate, new, current));
                                        }
                                        new
                                    }
                                };
                                if !has_reserved {
                                    // What an earlier attempt took is given back: the store has refused it.
                                    refused.extend(reservation.take());
                                    match self.services.admit_update(
                                        resource,
                                        subresource,
                                        &mut new,
                                        current,
                                        dry_run,
                                    ) {
                                        Some(None) => {
                                            return Err(reviews.pause(
                                                Pause::Reserve,
                                                new,
                                                current,
                                            ));
                                        }
                                        Some(Some(nothing)) => reservation = Some(nothing),
                                        None => {}
                                    }
                                }
                                warnings.extend(context.validate(
                                    resource,
                                    subresource,
                                    &new,
                                    current,
                                )?);
                                if !std::mem::replace(&mut is_counted, true) {
                                    let now = Instant::now();
                                    self.event_limits.admit(&attributes, &new, now)?;
                                }
                                kinds::validate_change(resource, subresource, &new, current)?;
                                context.validate_complete(resource, &new, current)?;
                                if subresource.is_empty() {
                                    let said = kinds::strategy(resource).warnings;
                                    warnings.extend(said(&new, Some(current)));
                                }
                                certificates::admit_answer(
                                    &self.authorizer,
                                    request.user,
                                    resource,
                                    subresource,
                                    &new,
                                    current,
                                )?;
                                self.authorizer.admit_grant(
                                    request.user,
                                    resource,
                                    &new,
                                    Some(current),
                                )?;
                                if self.chain.validates(&attributes) {
                                    return Err(reviews.pause(Pause::Validate, new, current));
                                }
                                new
                            }
                        };
                        if let Some(charge) = &mut charge
                            && !charge.is_paid(resource, &new, current)
                        {
                            return Err(StatusError::internal(
                                "what the update adds is not charged",
                            ));
                        }
                        managed::keep_times(&mut new, current);
                        let deletes = finishes_deletion(resource, &new, current);
                        if deletes && reservation.is_none() {
                            reservation = self.services.admit_delete(resource, current, dry_run);
                        }
                        if let Some(reservation) = &mut reservation {
                            reservation.begin();
                        }
                        Ok(if deletes { Write::PutThenDelete(new) } else { Write::Put(new) })
                    })
                })
                .await;
            match self.resolve(resource, &conversions).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => break Err(error),
            }
            for refused in refused.drain(..) {
                refused.cancel(&self.registry).await;
            }
            let reviewed = self.review_update(
                request,
                &attributes,
                &mut reviews,
                &mut reservation,
                &mut warnings,
            );
            match reviewed.await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => break Err(error),
            }
            let Some(charge) = charge.as_mut().filter(|_| written.is_err()) else { break written };
            payments += 1;
            match charge.pay(&self.registry, resource, dry_run).await {
                // What was said of an object that is validated already is not said again.
                Ok(true) if payments <= MAX_PAYMENTS && reviews.is_validated() => {}
                Ok(true) if payments <= MAX_PAYMENTS => warnings.clear(),
                Ok(_) => break written,
                Err(error) => break Err(error),
            }
        };
        if let Some(charge) = charge.filter(|_| written.is_err()) {
            charge.release(&self.registry, dry_run).await;
        }
        if let Some(reservation) = reservation {
            self.end(reservation, &written).await;
        }
        Ok((written?.object, warnings))
    }

    /// Makes the object that an apply names, when there is none. `None`: somebody else just made one.
    pub(crate) async fn create_by_apply(
        &self,
        request: &UpdateRequest<'_>,
    ) -> Result<Option<(Value, Vec<String>)>, StatusError> {
        let UpdateRequest { resource, namespace, name, dry_run, .. } = *request;
        let nothing = json!({});
        let mut warnings = Vec::new();
        let mut new = propose(request, &nothing, &mut warnings, &Conversions::default())?;
        object::metadata_mut(&mut new).remove("resourceVersion");
        if !object::uid(&new).is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was found",
                object::uid(&new)
            );
            return Err(StatusError::conflict(resource, name, &why));
        }
        check_identity(request, &mut new, &nothing)?;
        match self.create_for(request.user, resource, namespace, new, None, dry_run).await {
            Err(error) if error.reason == "AlreadyExists" => Ok(None),
            created => created.map(Some),
        }
    }

    /// The new object, before webhooks and policies see it.
    fn begin(
        &self,
        request: &UpdateRequest<'_>,
        current: &Value,
        warnings: &mut Vec<String>,
        conversions: &Conversions,
    ) -> Result<Value, StatusError> {
        let mut new = propose(request, current, warnings, conversions)?;
        check_identity(request, &mut new, current)?;
        self.admit_update(request, &mut new, current, Some(conversions))?;
        Ok(new)
    }

    /// Has webhooks and policies look at an update that paused for them, or reserves what it needs. `false`:
    /// it did not.
    async fn review_update<'a>(
        &'a self,
        request: &UpdateRequest<'_>,
        attributes: &Attributes<'_>,
        reviews: &mut Reviews,
        reservation: &mut Option<Reservation<'a>>,
        warnings: &mut Vec<String>,
    ) -> Result<bool, StatusError> {
        let Some((pause, mut new, old)) = reviews.take()? else { return Ok(false) };
        match pause {
            Pause::Mutate => {
                let mut rounds = Rounds::default();
                loop {
                    let mutated = self
                        .chain
                        .mutate(
                            &self.registry,
                            attributes,
                            &mut new,
                            Some(&old),
                            &mut rounds,
                            warnings,
                        )
                        .await?;
                    if mutated.changed {
                        check_identity(request, &mut new, &old)?;
                        self.admit_update(request, &mut new, &old, None)?;
                    }
                    if !mutated.again {
                        break;
                    }
                }
            }
            Pause::Reserve => {
                let (resource, dry_run) = (request.resource, request.dry_run);
                if let Some(earlier) = reservation.take() {
                    earlier.cancel(&self.registry).await;
                }
                let reserved =
                    self.services.reserve(&self.registry, resource, &mut new, Some(&old), dry_run);
                *reservation = Some(reserved.await?);
            }
            Pause::Validate => {
                self.chain
                    .validate(&self.registry, attributes, Some(&new), Some(&old), warnings)
                    .await?;
            }
        }
        reviews.done(pause, new, &old);
        Ok(true)
    }

    /// With `conversions` it records what the request changes: what admission changes later is not the
    /// client's.
    fn admit_update(
        &self,
        request: &UpdateRequest<'_>,
        new: &mut Value,
        current: &Value,
        conversions: Option<&Conversions>,
    ) -> Result<(), StatusError> {
        let (user, resource, subresource) = (request.user, request.resource, request.subresource);
        kinds::default_change(resource, subresource, new);
        let is_partial = matches!(subresource, "ephemeralcontainers" | "resize" | "finalize");
        // What else such a request says does not count.
        if let Some(conversions) = conversions.filter(|_| !is_partial) {
            record(request, new, current, conversions);
        }
        let recorded = new["metadata"].get("managedFields").cloned();
        kinds::prepare_change(resource, subresource, new, current);
        if is_partial {
            match (&request.change, recorded) {
                (Change::Apply { .. }, Some(list)) => {
                    object::metadata_mut(new).insert("managedFields".into(), list);
                }
                (_, Some(list)) if conversions.is_none() => {
                    object::metadata_mut(new).insert("managedFields".into(), list);
                }
                // No custom kind has these subresources.
                _ => record(request, new, current, &Conversions::default()),
            }
        }
        pods::admit_update(resource, subresource, new, current);
        certificates::admit_update(&self.authorizer, user, resource, subresource, new, current)?;
        certificates::admit_attest(&self.authorizer, user, resource, new)?;
        match calling_node(user) {
            Some(node) => node_restriction::admit_update(node, resource, subresource, new, current),
            None => Ok(()),
        }
    }

    /// Changes an object of the cluster's own without asking anybody; it is not defaulted or validated.
    pub(crate) async fn amend(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&mut Value) -> Result<(), StatusError> + Send,
    ) -> Result<Written, StatusError> {
        self.registry
            .write(resource, (namespace, name), None, false, |current| {
                let mut new = current.clone();
                change(&mut new)?;
                let subresource = if new["status"] == current["status"] { "" } else { "status" };
                let manager = managed::CONTROLLER;
                let conversions = Conversions::default();
                managed::record_update(
                    resource,
                    subresource,
                    manager,
                    current,
                    &mut new,
                    &conversions,
                );
                Ok(match finishes_deletion(resource, &new, current) {
                    true => Write::PutThenDelete(new),
                    false => Write::Put(new),
                })
            })
            .await
    }
}

/// Records what the request changes; an apply has done so.
fn record(
    request: &UpdateRequest<'_>,
    new: &mut Value,
    current: &Value,
    conversions: &Conversions,
) {
    if !matches!(request.change, Change::Apply { .. }) {
        let UpdateRequest { resource, subresource, manager, .. } = request;
        managed::record_update(resource, subresource, manager, current, new, conversions);
    }
}

fn propose(
    request: &UpdateRequest<'_>,
    current: &Value,
    warnings: &mut Vec<String>,
    conversions: &Conversions,
) -> Result<Value, StatusError> {
    let gvk: Gvk = request.resource.gvk();
    match &request.change {
        Change::Replace(object) => Ok(object.clone()),
        Change::Patch { kind, body, validation } => {
            if *kind == PatchKind::Strategic && request.resource.custom.is_some() {
                return Err(StatusError::unsupported_media_type(patch::ACCEPTED_CUSTOM));
            }
            let conform = |decoded: Decoded| {
                if request.resource.custom.is_some() {
                    kinds::custom::check_version(request.resource, &decoded.value)?;
                }
                kinds::conform_object(request.resource, decoded, *validation)
            };
            let (object, said) = patch::conformed(*kind, gvk, current, body, *validation, conform)?;
            *warnings = said;
            Ok(object)
        }
        Change::Apply { object, force } => {
            let applier = Applier { manager: request.manager, force: *force };
            let UpdateRequest { resource, subresource, .. } = *request;
            applied(resource, subresource, current, object, applier, conversions)
        }
    }
}

/// The stored object with what is applied, as objects are stored.
fn applied(
    resource: &Resource,
    subresource: &str,
    current: &Value,
    patch: &Value,
    applier: Applier<'_>,
    conversions: &Conversions,
) -> Result<Value, StatusError> {
    let value = managed::apply(resource, subresource, current, patch, applier, conversions)?;
    let decoded = Decoded { value, duplicates: Vec::new() };
    kinds::conform_object(resource, decoded, FieldValidation::Ignore).map(|(object, _)| object)
}

/// The resourceVersion of an update that says the same as none: whatever is stored is replaced.
pub(super) const UNCONDITIONAL: &str = "0";

/// The new object must be of the same life as the stored one, and made from its newest version if it names one.
fn check_identity(
    request: &UpdateRequest<'_>,
    new: &mut Value,
    current: &Value,
) -> Result<(), StatusError> {
    let resource = request.resource;
    settle_namespace(resource, new, request.namespace)?;
    check_name(new, request.name)?;
    let is_put = matches!(request.change, Change::Replace(_));
    if is_put {
        check_uid(resource, object::uid(new), current)?;
    }
    match object::resource_version(new) {
        "" if is_put && kinds::strategy(resource).versioned_updates => {
            let cause = Cause {
                reason: "FieldValueInvalid",
                message: "Invalid value: 0: must be specified for an update".to_owned(),
                field: "metadata.resourceVersion".to_owned(),
            };
            // named as upstream does
            let (group, plural) = (resource.group, resource.plural);
            return Err(StatusError::invalid_kind(group, plural, request.name, vec![cause]));
        }
        // Whatever is stored is replaced.
        "" => Ok(()),
        UNCONDITIONAL => {
            object::metadata_mut(new).remove("resourceVersion");
            Ok(())
        }
        version if version == object::resource_version(current) => Ok(()),
        version => Err(stale(resource, request.name, version)),
    }?;
    check_immutable(resource, new, current)
}

/// The name in a body must be that of the URL.
pub(crate) fn check_name(object: &Value, name: &str) -> Result<(), StatusError> {
    match object::name(object) {
        "" => Err(StatusError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        given if given == name => Ok(()),
        given => Err(StatusError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        ))),
    }
}

/// What an update may say of an object's life only as it is stored, and why not otherwise.
fn check_immutable(resource: &Resource, new: &Value, current: &Value) -> Result<(), StatusError> {
    let mut causes = Vec::new();
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (given, stored) = (&new["metadata"][field], &current["metadata"][field]);
        // That of a begun deletion stays whatever is said.
        let stays = field == "deletionTimestamp" && !stored.is_null();
        let is_unknown = current["metadata"].is_null();
        if given.is_null() || *given == "" || given == stored || stays || is_unknown {
            continue;
        }
        causes.push(Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {given}: field is immutable"),
            field: format!("metadata.{field}"),
        });
    }
    match causes.is_empty() {
        true => Ok(()),
        false => Err(StatusError::invalid(resource, object::name(current), causes)),
    }
}

/// Whether a UID is that of the stored object, or none.
pub(super) fn check_uid(
    resource: &Resource,
    given: &str,
    current: &Value,
) -> Result<(), StatusError> {
    let stored = object::uid(current);
    if given.is_empty() || given == stored || stored.is_empty() {
        return Ok(());
    }
    let why = format!("UID in precondition: {given}, UID in object meta: {stored}");
    Err(precondition_failed(resource, current, &why))
}

/// The refusal of a write for another object than the stored one, in the words of upstream's store.
pub(super) fn precondition_failed(resource: &Resource, current: &Value, why: &str) -> StatusError {
    let (namespace, name) = (object::namespace(current), object::name(current));
    let slash = if namespace.is_empty() { "" } else { "/" };
    let plural = resource.plural;
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /{plural}/{namespace}{slash}{name}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: {why}"
    );
    StatusError::conflict(resource, name, &why)
}

/// The refusal of an update that is based on another version than the stored one.
pub(super) fn stale(resource: &Resource, name: &str, version: &str) -> StatusError {
    let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    let why = match version.parse::<u64>() {
        Ok(_) if is_number => return StatusError::conflict(resource, name, MODIFIED),
        _ if is_number => "value out of range",
        _ => "invalid syntax",
    };
    let version = quoted(version);
    StatusError::internal_plain(format!("strconv.ParseUint: parsing {version}: {why}"))
}

/// Whether this update takes away the last thing that a begun deletion was waiting for.
fn finishes_deletion(resource: &Resource, new: &Value, current: &Value) -> bool {
    let has_grace = current["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) != 0;
    let namespace_waits = kinds::strategy(resource).deletion == Deletion::Namespace
        && new["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    object::is_deleting(current) && !object::has_finalizers(new) && !has_grace && !namespace_waits
}
