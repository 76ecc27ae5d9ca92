//! The kinds of objects that are served: one file per kind or tight family, each with a row of data
//! ([`Resource`]) and a [`Strategy`] (defaults, preparation, rules, columns, deletion). Generic code
//! finds the strategy by the resource and names no kind; a new kind is its file and a line in
//! [`KINDS`].
//!
//! `defaults`, `validate` and `printers` hold what several kinds share, first of all the pod spec.

mod admission_registration;
mod api_service;
mod autoscaling_v1;
mod binding;
mod certificates;
pub(crate) mod component_status;
mod conditions;
mod config_map;
mod controller_revision;
mod cron_job;
pub(crate) mod custom;
pub(crate) mod custom_resource_definition;
mod daemon_set;
mod defaults;
mod deployment;
mod endpoints;
mod event;
mod events;
pub(crate) mod flow_control;
mod horizontal_pod_autoscaler;
mod ingress;
mod job;
mod lease;
mod limit_range;
mod namespace;
mod network_policy;
mod node;
mod persistent_volume;
mod persistent_volume_claim;
pub(crate) mod pod;
mod pod_disruption_budget;
mod pod_template;
mod prepare;
mod printers;
pub(crate) mod priority_class;
mod qos;
mod rbac;
mod replica_set;
mod replication_controller;
mod resource_claim;
mod resource_quota;
mod reviews;
mod runtime_class;
mod secret;
mod service;
mod service_account;
mod service_cidr;
mod stateful_set;
mod storage;
mod validate;
mod warnings;
mod workload;

use serde_json::{Map, Value};

pub(crate) use self::api_service::local_condition;
pub use self::defaults::apply_defaults;
pub(crate) use self::prepare::{default_change, drop_disabled, prepare_change};
pub use self::prepare::{
    prepare_create, prepare_namespace_finalize, prepare_status_update, prepare_update,
};
pub(crate) use self::printers::Printer;
pub(crate) use self::qos::class as pod_qos;
pub(crate) use self::storage::{class_of, is_default};
pub(crate) use self::validate::network::service_addresses;
pub(crate) use self::validate::{check_texts, validate_change};
pub use self::validate::{
    validate_binding, validate_create, validate_status_update, validate_update,
};
use crate::api_types::{Gvk, Resource};
use crate::schema::{self, Causes, Decoded, FieldValidation, names};
use crate::status::StatusError;

/// A kind: what is served, and how its objects behave.
pub(crate) struct Kind {
    pub(crate) resource: Resource,
    pub(crate) strategy: Strategy,
}

/// How the objects of a kind behave. A kind names what differs from [`Strategy::PLAIN`].
pub(crate) struct Strategy {
    /// Fills in defaults. The object conforms to its type.
    pub(crate) default: fn(&mut Map<String, Value>),
    /// What a new object starts with, such as its status.
    pub(crate) prepare_create: fn(&mut Map<String, Value>),
    /// What a new object gets once it has its name and UID.
    pub(crate) identified: fn(&mut Map<String, Value>),
    /// What follows from fields of a new object that admission may have set.
    pub(crate) derive: fn(&mut Value),
    /// What an update may not touch, beside metadata and status. Takes the stored object.
    pub(crate) prepare_update: fn(&mut Map<String, Value>, &Value),
    /// What an update of the status may not touch, beside the rest. Takes the stored object.
    pub(crate) prepare_status: fn(&mut Value, &Value),
    /// Rules of a new object, or of an update of the stored one.
    pub(crate) validate: fn(&Value, Option<&Value>, &mut Causes),
    /// Rules of an update of the status. Takes the stored object.
    pub(crate) validate_status: fn(&Value, &Value, &mut Causes),
    /// An object that is created without a name gets a UID for one.
    pub(crate) names_itself: bool,
    /// What is wrong with a name.
    pub(crate) name: fn(&str) -> Vec<String>,
    /// What a client is warned of. Takes the object, and the stored one in an update.
    pub(crate) warnings: fn(&Value, Option<&Value>) -> Vec<String>,
    /// Columns and cells.
    pub(crate) printer: &'static Printer,
    /// The stored form of an object.
    pub(crate) to_storage: fn(Value) -> Value,
    /// An object from its stored form, where that is another.
    pub(crate) from_storage: Option<fn(Value) -> Value>,
    /// What a POST makes.
    pub(crate) created: Created,
    /// What a DELETE does.
    pub(crate) deletion: Deletion,
    /// A DELETE is answered with the object, rather than with a bare success.
    pub(crate) returned_when_deleted: bool,
    /// A PUT of an absent object creates it.
    pub(crate) created_on_update: bool,
    /// An update must name the version that it is based on.
    pub(crate) versioned_updates: bool,
    /// A change of annotations counts as a new generation.
    pub(crate) annotations_count: bool,
    /// The store drops the object after the TTL of events.
    pub(crate) expires: bool,
    /// A deletion that requests no policy leaves the dependents.
    pub(crate) orphans_by_default: bool,
    /// Fields that an update leaves as they are stored, where the kind has a status.
    pub(crate) reset: &'static [&'static str],
    /// Fields that an update of the status leaves as they are stored.
    pub(crate) reset_by_status: &'static [&'static str],
}

/// What a POST makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Created {
    /// An object that is stored.
    Object,
    /// The assignment of a pod to a node.
    Binding,
    /// An answer.
    Review(Review),
}

/// A question about users and their rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// Who the caller is.
    SelfSubject,
    /// Whose token that is.
    Token,
    /// Whether a user may do something.
    Access,
    /// The same in one namespace.
    LocalAccess,
    /// The same for the caller.
    SelfAccess,
    /// What the caller may do in a namespace.
    SelfRules,
}

/// What a DELETE does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// The object goes once it has no finalizers.
    Finalizers,
    /// It is given its grace period first.
    Graceful,
    /// It goes when its contents are gone.
    Namespace,
    /// It goes when the objects that it defines are gone.
    Definition,
}

impl Strategy {
    pub(crate) const PLAIN: Strategy = Strategy {
        default: |_| {},
        prepare_create: |_| {},
        identified: |_| {},
        derive: |_| {},
        prepare_update: |_, _| {},
        prepare_status: |_, _| {},
        validate: |_, _, _| {},
        validate_status: |_, _, _| {},
        names_itself: false,
        name: names::dns_subdomain,
        warnings: |_, _| Vec::new(),
        printer: &printers::NAME_AND_CREATION,
        to_storage: |object| object,
        from_storage: None,
        created: Created::Object,
        deletion: Deletion::Finalizers,
        returned_when_deleted: false,
        created_on_update: false,
        versioned_updates: false,
        annotations_count: false,
        expires: false,
        orphans_by_default: false,
        reset: &["status"],
        reset_by_status: &["spec"],
    };
}

/// Every kind, by group and then by name.
static KINDS: &[&Kind] = &[
    &binding::KIND,
    &component_status::KIND,
    &config_map::KIND,
    &endpoints::ENDPOINTS,
    &event::CORE,
    &limit_range::KIND,
    &namespace::KIND,
    &node::KIND,
    &persistent_volume_claim::KIND,
    &persistent_volume::KIND,
    &pod::KIND,
    &pod_template::KIND,
    &replication_controller::KIND,
    &resource_quota::KIND,
    &secret::KIND,
    &service_account::KIND,
    &service::KIND,
    &admission_registration::MUTATING_POLICY,
    &admission_registration::MUTATING_POLICY_BINDING,
    &admission_registration::MUTATING_WEBHOOKS,
    &admission_registration::VALIDATING_POLICY,
    &admission_registration::VALIDATING_POLICY_BINDING,
    &admission_registration::VALIDATING_WEBHOOKS,
    &custom_resource_definition::KIND,
    &api_service::KIND,
    &controller_revision::KIND,
    &daemon_set::KIND,
    &deployment::KIND,
    &replica_set::KIND,
    &stateful_set::KIND,
    &reviews::SELF_SUBJECT,
    &reviews::TOKEN,
    &reviews::LOCAL_ACCESS,
    &reviews::SELF_ACCESS,
    &reviews::SELF_RULES,
    &reviews::ACCESS,
    &horizontal_pod_autoscaler::V2,
    &horizontal_pod_autoscaler::V1,
    &cron_job::KIND,
    &job::KIND,
    &certificates::REQUEST,
    &certificates::POD_REQUEST,
    &certificates::TRUST_BUNDLE,
    &lease::KIND,
    &lease::CANDIDATE,
    &endpoints::SLICE,
    &event::EVENTS,
    &flow_control::SCHEMA,
    &flow_control::PRIORITY_LEVEL,
    &ingress::CLASS,
    &ingress::KIND,
    &service_cidr::IP_ADDRESS,
    &network_policy::KIND,
    &service_cidr::KIND,
    &runtime_class::KIND,
    &pod_disruption_budget::KIND,
    &rbac::CLUSTER_ROLE_BINDING,
    &rbac::CLUSTER_ROLE,
    &rbac::ROLE_BINDING,
    &rbac::ROLE,
    &resource_claim::DEVICE_CLASS,
    &resource_claim::KIND,
    &resource_claim::TEMPLATE,
    &resource_claim::SLICE,
    &priority_class::KIND,
    &storage::DRIVER,
    &storage::NODE,
    &storage::CAPACITY,
    &storage::CLASS,
    &storage::ATTACHMENT,
    &storage::ATTRIBUTES_CLASS,
];

/// Every resource of this server's own, by group and then by name, whether it is served or not.
pub(crate) fn built_in() -> impl Iterator<Item = &'static Resource> + Clone {
    KINDS.iter().map(|kind| &kind.resource)
}

/// Every resource that is always served, by group and then by name.
pub fn resources() -> impl Iterator<Item = &'static Resource> + Clone {
    built_in().filter(|resource| resource.gate.is_none())
}

/// Those that are off by default, by group and then by name.
pub(crate) fn optional() -> impl Iterator<Item = &'static Resource> + Clone {
    built_in().filter(|resource| resource.gate.is_some())
}

/// The resource that is always served under this group, version and plural.
#[must_use]
pub fn lookup(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    resources().find(|r| r.plural == plural && r.group == group && r.version == version)
}

/// The resource whose objects say this of themselves.
pub(crate) fn of_kind(api_version: &str, kind: &str) -> Option<&'static Resource> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    built_in().find(|r| r.kind == kind && r.version == version && r.group == group)
}

/// A resource of the core group that this crate itself works with.
pub(crate) fn core(plural: &str) -> Result<&'static Resource, StatusError> {
    known("", plural)
}

/// A resource of version v1 that this crate itself works with.
pub(crate) fn known(group: &str, plural: &str) -> Result<&'static Resource, StatusError> {
    lookup(group, "v1", plural)
        .ok_or_else(|| StatusError::internal(format!("no resource {plural}")))
}

/// How objects of a resource behave.
pub(crate) fn strategy(resource: &Resource) -> &'static Strategy {
    if resource.custom.is_some() {
        return &custom::STRATEGY;
    }
    KINDS
        .iter()
        .find(|kind| std::ptr::eq(&kind.resource, resource))
        .map_or(&Strategy::PLAIN, |kind| &kind.strategy)
}

/// Reads a body as an object of this kind: the resource's own, or that of a subresource. Returns the
/// object and warnings for the client.
pub(crate) fn read_body(
    resource: &Resource,
    gvk: Gvk,
    body: &[u8],
    content_type: Option<&str>,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), StatusError> {
    match resource.definition().filter(|_| gvk == resource.gvk()) {
        Some(definition) => {
            let decoded = custom::decode(resource, body, content_type)?;
            custom::conform(resource, &definition, decoded, validation)
        }
        None => schema::read(gvk, body, content_type, validation),
    }
}

/// Checks an object against its type: [`schema::conform`], or the schema of its definition.
pub(crate) fn conform_object(
    resource: &Resource,
    decoded: Decoded,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), StatusError> {
    match resource.definition() {
        Some(definition) => custom::conform(resource, &definition, decoded, validation),
        None => schema::conform(resource.gvk(), decoded, validation),
    }
}

/// [`conform_object`] for an object that may be of another kind: that of a subresource, or of another
/// version.
pub(crate) fn conform_kind(
    resource: &Resource,
    kind: Gvk,
    decoded: Decoded,
) -> Result<Value, StatusError> {
    let validation = FieldValidation::Ignore;
    let conformed = match kind == resource.gvk() {
        true => conform_object(resource, decoded, validation),
        false => schema::conform(kind, decoded, validation),
    };
    conformed.map(|(object, _)| object)
}

/// The object as it is stored.
pub(crate) fn to_storage(resource: &Resource, object: Value) -> Value {
    match resource.definition() {
        Some(definition) => custom::to_storage(resource, &definition, object),
        None => (strategy(resource).to_storage)(object),
    }
}

/// A stored object as this resource shows it.
pub(crate) fn from_storage(resource: &Resource, stored: Value) -> Value {
    match resource.definition() {
        Some(definition) => custom::from_storage(resource, &definition, stored),
        None => match strategy(resource).from_storage {
            Some(from_storage) => from_storage(stored),
            None => stored,
        },
    }
}

/// Whether that changes nothing of what is stored as JSON.
pub(crate) fn is_shown_as_stored(resource: &Resource) -> bool {
    resource.custom.is_none() && strategy(resource).from_storage.is_none()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
