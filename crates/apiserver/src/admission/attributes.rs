//! What is admitted: the attributes of a request that webhooks and policies look at.

use serde_json::{Value, json};

use crate::api_types::{Gvk, Resource};
use crate::user::User;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// It makes an object.
    Create,
    /// It changes one.
    Update,
    /// It deletes one.
    Delete,
    /// It opens a connection.
    Connect,
}

impl Operation {
    /// As rules name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }

    fn options_kind(self) -> Option<&'static str> {
        match self {
            Operation::Create => Some("CreateOptions"),
            Operation::Update => Some("UpdateOptions"),
            Operation::Delete => Some("DeleteOptions"),
            Operation::Connect => None,
        }
    }
}

/// A request, without the objects that it is about.
#[derive(Clone, Debug)]
pub(crate) struct Attributes<'a> {
    pub(crate) operation: Operation,
    pub(crate) resource: &'a Resource,
    /// Empty for the object itself.
    pub(crate) subresource: &'a str,
    /// Of the object: for a subresource that of its own body.
    pub(crate) kind: Gvk,
    /// For a Namespace its own name.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) user: &'a User,
    pub(crate) dry_run: bool,
    /// The options of the operation, or null.
    pub(crate) options: Value,
}

impl<'a> Attributes<'a> {
    /// Of an operation on an object, or on a subresource whose body is the object.
    pub(crate) fn new(
        operation: Operation,
        user: &'a User,
        resource: &'a Resource,
        (namespace, name): (&'a str, &'a str),
        dry_run: bool,
    ) -> Attributes<'a> {
        let is_namespace = resource.group.is_empty() && resource.plural == "namespaces";
        let mut options = match operation.options_kind() {
            Some(kind) => json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"}),
            None => Value::Null,
        };
        if dry_run && options.is_object() {
            options["dryRun"] = json!(["All"]);
        }
        Attributes {
            operation,
            resource,
            subresource: "",
            kind: resource.gvk(),
            namespace: if is_namespace { name } else { namespace },
            name,
            user,
            dry_run,
            options,
        }
    }

    /// The same of a subresource, whose body is of this kind.
    pub(crate) fn of_subresource(self, subresource: &'a str, kind: Gvk) -> Attributes<'a> {
        Attributes { subresource, kind, ..self }
    }

    /// Whether it is a configuration of admission itself, which neither webhooks nor policies look at: a
    /// cluster whose admission refuses everything can still be repaired.
    pub(crate) fn is_exempt(&self) -> bool {
        self.kind.group == "admissionregistration.k8s.io"
            && (self.kind.kind.ends_with("WebhookConfiguration")
                || self.kind.kind.contains("AdmissionPolicy"))
    }
}
