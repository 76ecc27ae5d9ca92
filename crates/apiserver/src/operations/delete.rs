//! Deleting an object: at once, after its grace period, or when its finalizers are done. The policy for
//! its dependents becomes a finalizer, which the garbage collector acts on and removes.

use jiff::Timestamp;
use serde_json::Value;

use super::review::{Pause, Reviews};
use super::{Api, calling_node};
use crate::admission::attributes::{Attributes, Operation};
use crate::admission::chain::Rounds;
use crate::admission::services::Reservation;
use crate::admission::{namespaces, node_restriction};
use crate::api_types::Resource;
use crate::kinds::custom_resource_definition::begin_deletion;
use crate::kinds::{Deletion, strategy};
use crate::object;
use crate::registry::{Write, Written};
use crate::status::{Cause, StatusError, unsupported};
use crate::user::User;

const OPTIONS: &str = "DeleteOptions";
const PROPAGATION: &[&str] = &["Foreground", "Background", "Orphan", "nil"];

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_period_seconds: Option<i64>,
    /// Only an object with this UID.
    pub(crate) uid: Option<String>,
    /// Only this version of the object.
    pub(crate) resource_version: Option<String>,
    /// What becomes of the dependents; `None` is the kind's default.
    pub(crate) propagation: Option<Propagation>,
    pub(crate) dry_run: bool,
}

/// What becomes of the objects that an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// They go first.
    Foreground,
    /// They go afterwards.
    Background,
    /// They stay.
    Orphan,
}

/// The finalizer of an object whose dependents go first.
const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are to be released.
const ORPHAN: &str = "orphan";

impl DeleteOptions {
    /// Reads an object that conforms to `DeleteOptions`; 422 for choices that do not exist.
    pub(crate) fn from_value(options: &Value) -> Result<DeleteOptions, StatusError> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let propagation = &options["propagationPolicy"];
        let mut causes = Vec::new();
        causes.extend(check_choice("propagationPolicy", propagation, propagation, PROPAGATION));
        if options["propagationPolicy"].is_string() && options["orphanDependents"].is_boolean() {
            causes.push(Cause {
                reason: "FieldValueInvalid",
                message: format!(
                    "Invalid value: {propagation}: orphanDependents and deletionPropagation cannot be both set"
                ),
                field: "propagationPolicy".to_owned(),
            });
        }
        let stages = &options["dryRun"];
        let mut faults = stages.as_array().into_iter().flatten();
        causes.extend(faults.find_map(|stage| check_choice("dryRun", stage, stages, &["All"])));
        if !causes.is_empty() {
            return Err(StatusError::invalid_options(OPTIONS, causes));
        }
        Ok(DeleteOptions {
            grace_period_seconds: options["gracePeriodSeconds"].as_i64(),
            uid: text(&options["preconditions"]["uid"]),
            resource_version: text(&options["preconditions"]["resourceVersion"]),
            propagation: match (options["propagationPolicy"].as_str(), &options["orphanDependents"])
            {
                (Some("Foreground"), _) => Some(Propagation::Foreground),
                (Some("Background"), _) | (None, Value::Bool(false)) => {
                    Some(Propagation::Background)
                }
                (Some("Orphan"), _) | (None, Value::Bool(true)) => Some(Propagation::Orphan),
                _ => None,
            },
            dry_run: options["dryRun"].as_array().is_some_and(|stages| !stages.is_empty()),
        })
    }

    /// The same for this version of the object only.
    pub(super) fn of_version(&self, object: &Value) -> DeleteOptions {
        let version = object::resource_version(object).to_owned();
        DeleteOptions { resource_version: Some(version), ..self.clone() }
    }

    /// Adds what is set to the options that webhooks see.
    fn add_to(&self, options: &mut Value) {
        let propagation = self.propagation.map(|propagation| format!("{propagation:?}"));
        let precondition = |field: &str, value: &Option<String>| {
            value.as_ref().map(|value| (field.to_owned(), Value::from(value.as_str())))
        };
        let preconditions: serde_json::Map<String, Value> = [
            precondition("uid", &self.uid),
            precondition("resourceVersion", &self.resource_version),
        ]
        .into_iter()
        .flatten()
        .collect();
        for (field, value) in [
            ("gracePeriodSeconds", self.grace_period_seconds.map(Value::from)),
            ("propagationPolicy", propagation.map(Value::from)),
            ("preconditions", Some(preconditions).filter(|p| !p.is_empty()).map(Value::from)),
        ] {
            if let Some(value) = value {
                options[field] = value;
            }
        }
    }

    pub(super) fn check(&self, resource: &Resource, current: &Value) -> Result<(), StatusError> {
        let of = (resource.group, resource.kind);
        let conflict = |why: String| Err(StatusError::conflict_of(of, object::name(current), &why));
        if let Some(uid) = &self.uid
            && uid != object::uid(current)
        {
            return conflict(format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). \
                 The object might have been deleted and then recreated",
                object::uid(current)
            ));
        }
        if let Some(version) = &self.resource_version
            && version != object::resource_version(current)
        {
            return conflict(format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record \
                 ({}). The object might have been modified",
                object::resource_version(current)
            ));
        }
        Ok(())
    }
}

/// An absent choice is a good one.
fn check_choice(field: &str, choice: &Value, value: &Value, supported: &[&str]) -> Option<Cause> {
    let chosen = choice.as_str()?;
    // "nil" is upstream's word for an absent one
    let is_good = chosen != "nil" && supported.contains(&chosen);
    (!is_good).then(|| unsupported(field, &value.to_string(), supported))
}

impl Api {
    /// Deletes an object, or begins to. Returns warnings for the client too.
    pub(crate) async fn delete(
        &self,
        user: &User,
        resource: &Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(Written, Vec<String>), StatusError> {
        let key = (namespace, name);
        let mut attributes =
            Attributes::new(Operation::Delete, user, resource, key, options.dry_run);
        options.add_to(&mut attributes.options);
        self.chain.catch_up(&self.registry).await;
        let (mut reviews, mut warnings) = (Reviews::default(), Vec::new());
        loop {
            let deleted =
                self.delete_once(user, resource, key, options, Some((&attributes, &mut reviews)));
            let deleted = deleted.await;
            let Some((pause, _, old)) = reviews.take()? else {
                return deleted.map(|deleted| (deleted, warnings));
            };
            warnings.clear();
            let registry = &self.registry;
            let mut nothing = Value::Null;
            self.chain
                .mutate(
                    registry,
                    &attributes,
                    &mut nothing,
                    Some(&old),
                    &mut Rounds::default(),
                    &mut warnings,
                )
                .await?;
            self.chain.validate(registry, &attributes, None, Some(&old), &mut warnings).await?;
            reviews.done(pause, nothing, &old);
        }
    }

    /// Deletes an object without webhooks and policies, or, with `review`, pauses for them.
    pub(super) async fn delete_once(
        &self,
        user: &User,
        resource: &Resource,
        (namespace, name): (&str, &str),
        options: &DeleteOptions,
        mut review: Option<(&Attributes<'_>, &mut Reviews)>,
    ) -> Result<Written, StatusError> {
        namespaces::admit_delete(resource, name)?;
        let mut reservation: Option<Reservation<'_>> = None;
        let is_node = calling_node(user).is_some();
        let written = self
            .registry
            .write(resource, (namespace, name), None, options.dry_run, |current| {
                options.check(resource, current)?;
                if let Some(node) = calling_node(user) {
                    node_restriction::admit_delete(node, resource, current)?;
                }
                if let Some((attributes, reviews)) = &mut review
                    && (self.chain.mutates(attributes) || self.chain.validates(attributes))
                    && reviews.validated(current).is_none()
                {
                    return Err(reviews.pause(Pause::Validate, Value::Null, current));
                }
                // An earlier one took nothing.
                reservation = self.services.admit_delete(resource, current, options.dry_run);
                let strategy = strategy(resource);
                let current = &with_propagation(current, options, strategy.orphans_by_default);
                Ok(match strategy.deletion {
                    Deletion::Graceful => {
                        delete_pod(current, options.grace_period_seconds, Timestamp::now())
                    }
                    Deletion::Namespace => delete_namespace(current),
                    Deletion::Definition => delete_definition(current),
                    Deletion::Finalizers => delete_when_finalized(current),
                })
            })
            .await;
        if let Some(reservation) = reservation {
            self.end(reservation, &written).await;
        }
        match written {
            // One that cannot be read has no UID to be checked, and is of no node.
            Err(error) if error.code == 500 && options.uid.is_none() && !is_node => {
                let name = (namespace, name);
                let deleted = self.registry.delete_unreadable(resource, name, options.dry_run);
                deleted.await?.ok_or(error)
            }
            written => written,
        }
    }
}

/// The object with the finalizer that its policy for dependents means. Without a policy in the request,
/// an earlier one stays.
fn with_propagation(current: &Value, options: &DeleteOptions, orphans: bool) -> Value {
    let own = || current["metadata"]["finalizers"].as_array().into_iter().flatten();
    let has = |finalizer: &str| own().any(|own| own == finalizer);
    let wanted = match options.propagation {
        Some(Propagation::Foreground) => Some(FOREGROUND),
        Some(Propagation::Orphan) => Some(ORPHAN),
        Some(Propagation::Background) => None,
        None if has(ORPHAN) => Some(ORPHAN),
        None if has(FOREGROUND) => Some(FOREGROUND),
        None => orphans.then_some(ORPHAN),
    };
    let mut finalizers: Vec<Value> = own()
        .filter(|own| {
            *own != FOREGROUND && *own != ORPHAN || wanted.is_some_and(|wanted| *own == wanted)
        })
        .cloned()
        .collect();
    if let Some(wanted) = wanted.filter(|wanted| !has(wanted)) {
        finalizers.push(wanted.into());
    }
    let mut new = current.clone();
    match finalizers.is_empty() {
        true => drop(object::metadata_mut(&mut new).remove("finalizers")),
        false => {
            drop(object::metadata_mut(&mut new).insert("finalizers".into(), finalizers.into()))
        }
    }
    new
}

/// Finalizers first; without any the object goes at once.
fn delete_when_finalized(current: &Value) -> Write {
    match (object::has_finalizers(current), object::is_deleting(current)) {
        (false, _) => Write::Delete,
        // Its finalizers may be others than the stored ones.
        (true, true) => Write::Put(current.clone()),
        (true, false) => {
            let mut new = current.clone();
            mark(&mut new, object::now(), 0);
            Write::Put(new)
        }
    }
}

/// A definition stays until its objects are gone.
fn delete_definition(current: &Value) -> Write {
    match object::is_deleting(current) {
        true => delete_when_finalized(current),
        false => Write::Put(begin_deletion(current, &object::now().to_string())),
    }
}

/// A namespace stays until it is empty, which its finalizers ensure.
fn delete_namespace(current: &Value) -> Write {
    let mut new = current.clone();
    if object::is_deleting(current) {
        let waits = current["spec"]["finalizers"]
            .as_array()
            .is_some_and(|finalizers| !finalizers.is_empty());
        return if waits { Write::Keep } else { delete_when_finalized(current) };
    }
    object::metadata_mut(&mut new)
        .insert("deletionTimestamp".into(), object::now().to_string().into());
    object::child_mut(&mut new, "status").insert("phase".into(), "Terminating".into());
    Write::Put(new)
}

/// A pod on a node is given its grace period; the node then deletes it for good, with a grace period of 0.
fn delete_pod(current: &Value, requested: Option<i64>, now: Timestamp) -> Write {
    let requested = requested.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let mut new = current.clone();
    let grace = if object::is_deleting(current) {
        let Some((deadline, grace)) = shortened(current, requested, now) else {
            return match pending_grace(current) {
                0 => delete_when_finalized(current),
                _ => Write::Put(current.clone()),
            };
        };
        mark(&mut new, deadline, grace);
        grace
    } else {
        let is_over = matches!(current["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let is_scheduled =
            current["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        let grace = match requested.or(current["spec"]["terminationGracePeriodSeconds"].as_i64()) {
            Some(seconds) if is_scheduled && !is_over => {
                if seconds < 0 {
                    1
                } else {
                    seconds
                }
            }
            _ => 0,
        };
        mark(&mut new, after(object::now(), grace), grace);
        if let Some(generation) =
            current["metadata"]["generation"].as_i64().filter(|generation| *generation > 0)
        {
            object::metadata_mut(&mut new)
                .insert("generation".into(), generation.saturating_add(1).into());
        }
        grace
    };
    match grace {
        0 if !object::has_finalizers(&new) => Write::PutThenDelete(new),
        _ => Write::Put(new),
    }
}

fn pending_grace(current: &Value) -> i64 {
    current["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0)
}

/// A deletion that has begun can only be made shorter: the new deadline and grace period, if it is.
fn shortened(current: &Value, requested: Option<i64>, now: Timestamp) -> Option<(Timestamp, i64)> {
    let pending = pending_grace(current);
    let grace = requested.filter(|grace| pending != 0 && *grace < pending)?;
    let deadline: Timestamp = current["metadata"]["deletionTimestamp"].as_str()?.parse().ok()?;
    let deadline = after(deadline, grace.saturating_sub(pending));
    match deadline < now {
        false => Some((deadline, grace)),
        // The time is up already: as short as can be, but still the node's to finish unless it is to go at once.
        true => Some((after(now, 0), grace.min(1))),
    }
}

fn after(time: Timestamp, seconds: i64) -> Timestamp {
    let second = time.as_second().saturating_add(seconds);
    let last = Timestamp::MAX.as_second();
    Timestamp::from_second(second.min(last)).unwrap_or(time)
}

fn mark(object: &mut Value, deadline: Timestamp, grace: i64) {
    let metadata = object::metadata_mut(object);
    metadata.insert("deletionTimestamp".into(), deadline.to_string().into());
    metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(node: &str, phase: &str) -> Value {
        json!({
            "kind": "Pod",
            "metadata": {"name": "web", "generation": 1},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30},
            "status": {"phase": phase},
        })
    }

    fn grace_of(write: Write) -> (&'static str, i64) {
        match write {
            Write::Put(object) => ("put", pending_grace(&object)),
            Write::PutThenDelete(object) => ("delete", pending_grace(&object)),
            Write::Delete => ("delete", -1),
            Write::Keep => ("keep", -1),
        }
    }

    #[test]
    fn delete_first_request() {
        let now = Timestamp::now();
        for (node, phase, requested, expected) in [
            ("", "Pending", None, ("delete", 0)),
            ("n1", "Running", None, ("put", 30)),
            ("n1", "Running", Some(5), ("put", 5)),
            ("n1", "Running", Some(-3), ("put", 1)),
            ("n1", "Running", Some(0), ("delete", 0)),
            ("n1", "Succeeded", None, ("delete", 0)),
        ] {
            assert_eq!(
                grace_of(delete_pod(&pod(node, phase), requested, now)),
                expected,
                "{node} {phase}"
            );
        }
    }

    #[test]
    fn delete_again_only_shortens_the_grace_period() {
        let now = Timestamp::now();
        let Write::Put(deleting) = delete_pod(&pod("n1", "Running"), None, now) else { panic!() };
        assert_eq!(deleting["metadata"]["generation"], 2);
        for (requested, expected) in [
            (None, ("put", 30)),
            (Some(60), ("put", 30)),
            (Some(10), ("put", 10)),
            (Some(0), ("delete", 0)),
        ] {
            assert_eq!(grace_of(delete_pod(&deleting, requested, now)), expected, "{requested:?}");
        }
        let late = after(now, 3600);
        assert_eq!(grace_of(delete_pod(&deleting, Some(10), late)), ("put", 1));
    }

    #[test]
    fn delete_waits_for_finalizers() {
        let mut held = pod("", "Pending");
        held["metadata"]["finalizers"] = json!(["example.com/hold"]);
        assert_eq!(grace_of(delete_pod(&held, None, Timestamp::now())), ("put", 0));
        let Write::Put(marked) = delete_when_finalized(&held) else { panic!() };
        assert!(object::is_deleting(&marked));
        let Write::Put(again) = delete_when_finalized(&marked) else { panic!() };
        assert_eq!(again, marked, "nothing is left to write");
        assert_eq!(grace_of(delete_when_finalized(&pod("", ""))), ("delete", -1));
    }

    #[test]
    fn delete_policies_become_finalizers() {
        let object = |finalizers: &[&str]| json!({"metadata": {"finalizers": finalizers}});
        let [none, mine, orphan, foreground] =
            [&[][..], &["mine"], &["orphan", "mine"], &["foregroundDeletion"]];
        for (had, policy, orphans, expected) in [
            (none, None, false, none),
            (none, None, true, &["orphan"][..]),
            (none, Some(Propagation::Background), true, none),
            (none, Some(Propagation::Foreground), false, foreground),
            (mine, Some(Propagation::Foreground), true, &["mine", "foregroundDeletion"]),
            (mine, Some(Propagation::Orphan), false, &["mine", "orphan"]),
            (orphan, None, false, orphan),
            (orphan, Some(Propagation::Background), false, mine),
            (orphan, Some(Propagation::Foreground), false, &["mine", "foregroundDeletion"]),
            (foreground, None, true, foreground),
            (foreground, Some(Propagation::Orphan), false, &["orphan"]),
        ] {
            let options = DeleteOptions { propagation: policy, ..DeleteOptions::default() };
            let new = with_propagation(&object(had), &options, orphans);
            let found: Vec<&str> = new["metadata"]["finalizers"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            assert_eq!(found, expected, "{had:?} {policy:?} {orphans}");
        }
    }
}
