//! The `scale` of a workload: its number of replicas, read and written without the rest.

use serde_json::{Value, json};

use super::review::{Pause, Reviews};
use super::update::{UNCONDITIONAL, check_name, check_uid, stale};
use super::{Api, Change};
use crate::admission::attributes::{Attributes, Operation};
use crate::api_types::{Gvk, Resource};
use crate::kinds::{self, custom};
use crate::managed::{self, Applier, Conversions};
use crate::object;
use crate::patch;
use crate::registry::{Write, Written};
use crate::schema::{self, Decoded, FieldValidation};
use crate::selector::LabelSelector;
use crate::status::{Cause, StatusError};
use crate::user::User;

/// The Scale of a workload, or of a custom object.
pub(crate) fn of(resource: &Resource, controller: &Value) -> Value {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let (wanted, found, selector) = custom::scale(resource, controller).unwrap_or_else(|| {
        (
            number(&controller["spec"]["replicas"]),
            number(&controller["status"]["replicas"]),
            selector_text(&controller["spec"]["selector"]),
        )
    });
    let metadata = &controller["metadata"];
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": wanted},
        "status": {
            "replicas": found,
            "selector": selector,
        },
    })
}

/// A selector as text: a map of labels, or a LabelSelector.
fn selector_text(selector: &Value) -> String {
    let is_selector =
        selector["matchLabels"].is_object() || selector["matchExpressions"].is_array();
    match is_selector {
        true => LabelSelector::of(selector),
        false => LabelSelector::of(&json!({"matchLabels": selector})),
    }
    .map(|selector| selector.to_string())
    .unwrap_or_default()
}

/// Sets the number of replicas where the kind has it.
fn set_replicas(resource: &Resource, object: &mut Value, replicas: i64) {
    match resource.custom {
        Some(_) => drop(custom::set_replicas(resource, object, replicas)),
        None => drop(object::child_mut(object, "spec").insert("replicas".into(), replicas.into())),
    }
}

/// An apply names its kind, and lists nothing that a Scale has not.
fn check_applied(gvk: Gvk, scale: &Value) -> Result<(), StatusError> {
    let text = |field: &str| scale[field].as_str().unwrap_or_default();
    if text("apiVersion") != gvk.api_version() || text("kind") != gvk.kind {
        return Err(StatusError::bad_request(format!(
            "invalid object type: {}, Kind={}",
            text("apiVersion"),
            text("kind")
        )));
    }
    let decoded = Decoded { value: scale.clone(), duplicates: Vec::new() };
    schema::conform(gvk, decoded, FieldValidation::Strict).map(drop)
}

impl Api {
    /// Sets the size of a controller through its Scale; returns the new Scale, and warnings for the client.
    #[allow(clippy::too_many_arguments)]
    pub(crate) async fn set_scale(
        &self,
        user: &User,
        resource: &Resource,
        gvk: Gvk,
        (namespace, name): (&str, &str),
        change: &Change<'_>,
        manager: &str,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>), StatusError> {
        let key = (namespace, name);
        let attributes = Attributes::new(Operation::Update, user, resource, key, dry_run)
            .of_subresource("scale", gvk);
        self.chain.catch_up(&self.registry).await;
        let (mut reviews, mut warnings) = (Reviews::default(), Vec::new());
        let conversions = Conversions::default();
        loop {
            let written = self.scale_once(&attributes, change, manager, &mut reviews, &conversions);
            let written = written.await;
            if self.resolve(resource, &conversions).await? {
                continue;
            }
            let Some((pause, mut scale, old)) = reviews.take()? else {
                return written.map(|written| (of(resource, &written.object), warnings));
            };
            warnings = self
                .chain
                .admit(&self.registry, &attributes, &mut scale, Some(&of(resource, &old)))
                .await?;
            reviews.done(pause, scale, &old);
        }
    }

    /// One attempt, which pauses for webhooks and policies.
    async fn scale_once(
        &self,
        attributes: &Attributes<'_>,
        change: &Change<'_>,
        manager: &str,
        reviews: &mut Reviews,
        conversions: &Conversions,
    ) -> Result<Written, StatusError> {
        let Attributes { resource, kind: gvk, namespace, name, dry_run, .. } = *attributes;
        self.registry
            .write(resource, (namespace, name), None, dry_run, |current| {
                let mut applied = None;
                let mut scale = match change {
                    Change::Apply { object: scale, force } => {
                        check_applied(gvk, scale)?;
                        let applier = Applier { manager, force: *force };
                        let new =
                            managed::apply_scale(resource, current, scale, applier, conversions);
                        if let Some(pause) = conversions.pause() {
                            return Err(pause);
                        }
                        let new = new?;
                        let mut result = of(resource, &new);
                        result["metadata"]["resourceVersion"] =
                            scale["metadata"]["resourceVersion"].clone();
                        applied = Some(new);
                        result
                    }
                    Change::Replace(scale) => scale.clone(),
                    Change::Patch { kind, body, validation } => {
                        let conform = |patched| schema::conform(gvk, patched, *validation);
                        let scale = of(resource, current);
                        let validation = *validation;
                        patch::conformed(*kind, gvk, &scale, body, validation, conform)?.0
                    }
                };
                if matches!(change, Change::Replace(_)) {
                    check_uid(resource, object::uid(&scale), current)?;
                }
                if matches!(change, Change::Patch { .. }) {
                    check_name(&scale, name)?;
                }
                let version = object::resource_version(&scale);
                if !["", UNCONDITIONAL, object::resource_version(current)].contains(&version) {
                    return Err(stale(resource, name, version));
                }
                match reviews.validated(current) {
                    Some(reviewed) => scale = reviewed,
                    None if self.chain.mutates(attributes) || self.chain.validates(attributes) => {
                        return Err(reviews.pause(Pause::Validate, scale, current));
                    }
                    None => {}
                }
                let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
                // A custom kind has its own words for it.
                if replicas < 0 && resource.custom.is_none() {
                    let cause = Cause {
                        reason: "FieldValueInvalid",
                        message: format!(
                            "Invalid value: {replicas}: must be greater than or equal to 0"
                        ),
                        field: "spec.replicas".into(),
                    };
                    return Err(StatusError::invalid_kind(gvk.group, gvk.kind, name, vec![cause]));
                }
                let mut new = match applied {
                    Some(mut new) => {
                        set_replicas(resource, &mut new, replicas);
                        new
                    }
                    None => {
                        let mut new = current.clone();
                        set_replicas(resource, &mut new, replicas);
                        let part = "scale";
                        managed::record_update(
                            resource,
                            part,
                            manager,
                            current,
                            &mut new,
                            conversions,
                        );
                        if let Some(pause) = conversions.pause() {
                            return Err(pause);
                        }
                        new
                    }
                };
                kinds::prepare_update(resource, &mut new, current);
                if resource.custom.is_some() {
                    kinds::validate_change(resource, "", &new, current)?;
                }
                managed::keep_times(&mut new, current);
                Ok(Write::Put(new))
            })
            .await
    }
}
