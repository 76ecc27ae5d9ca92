//! The PodSecurity admission plugin: the Pod Security Standards, at the level that the labels of a
//! namespace set. Upstream's rules and messages are in `pod-security-admission/policy`.
//!
//! Current limitations: a namespace whose level rises gets no warning about its existing pods.

mod config;
mod policy;
mod standards;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;

use serde_json::Value;

use self::config::Exemptions;
use self::policy::{Level, Policy, parse_level, parse_version};
use self::standards::violations;
use crate::api_types::Resource;
use crate::audit;
use crate::kinds::core;
use crate::object;
use crate::registry::Registry;
use crate::schema::value::text;
use crate::status::{Cause, StatusError};
use crate::user::User;

const PREFIX: &str = "pod-security.kubernetes.io/";
/// What holds where a namespace says nothing, and for whom nothing holds (a PodSecurityConfiguration).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodSecurity {
    enforce: Policy,
    audit: Policy,
    warn: Policy,
    exempt: Exemptions,
}

/// What holds for the pods of an update.
#[derive(Debug)]
pub(crate) struct Policies {
    enforce: Policy,
    audit: Policy,
    warn: Policy,
    exempt_classes: Vec<String>,
}

impl PodSecurity {
    /// Why nothing holds for what the user does in the namespace, if so.
    fn exemption(&self, user: &User, namespace: &str) -> Option<&'static str> {
        if self.exempt.namespaces.iter().any(|exempt| exempt == namespace) {
            return Some("namespace");
        }
        self.exempt.usernames.contains(&user.name).then_some("user")
    }

    /// What a namespace enforces and warns about. A label that cannot be read enforces the strictest.
    fn policies(&self, namespace: &Value) -> Policies {
        let labels = &namespace["metadata"]["labels"];
        let label = |name: &str| labels[format!("{PREFIX}{name}")].as_str();
        let version = |name: &str, default: Policy| match label(name) {
            Some(value) => parse_version(value).unwrap_or(None),
            None => default.version,
        };
        let level = |name: &str| label(name).map(parse_level);
        let enforce = Policy {
            level: level("enforce")
                .map_or(self.enforce.level, |level| level.unwrap_or(Level::Restricted)),
            version: version("enforce-version", self.enforce),
        };
        let audit = Policy {
            level: level("audit").map_or(self.audit.level, |level| level.unwrap_or_default()),
            version: version("audit-version", self.audit),
        };
        let mut warn = Policy {
            level: level("warn").map_or(self.warn.level, |level| level.unwrap_or_default()),
            version: version("warn-version", self.warn),
        };
        let is_valid = level("enforce").is_some_and(|level| level.is_ok());
        if level("warn").is_none() && is_valid && enforce.level > warn.level {
            warn.level = enforce.level;
            if label("warn-version").is_none() {
                warn.version = enforce.version;
            }
        }
        Policies { enforce, audit, warn, exempt_classes: self.exempt.runtime_classes.clone() }
    }

    /// Admits a new object. Returns a warning for the client.
    pub(crate) async fn admit_create(
        &self,
        registry: &Registry,
        user: &User,
        resource: &Resource,
        object: &Value,
    ) -> Result<Option<String>, StatusError> {
        if resource.kind == "Namespace" {
            return check_namespace(resource, object, None).map(|()| None);
        }
        let template = template(object).filter(|_| resource.namespaced);
        if resource.kind != "Pod" && template.is_none() {
            return Ok(None);
        }
        if let Some(why) = self.exemption(user, object::namespace(object)) {
            annotate_exemption(why);
            return Ok(None);
        }
        match template {
            Some(template) => self.warn_template(registry, object, template).await,
            None => {
                let namespace = namespace_of(registry, object::namespace(object)).await?;
                self.policies(&namespace).check(resource, object)
            }
        }
    }

    /// What holds for an update of a subresource, if anything does.
    pub(crate) async fn policies_for_update(
        &self,
        registry: &Registry,
        user: &User,
        subresource: &str,
        namespace: &str,
    ) -> Result<Option<Policies>, StatusError> {
        if subresource != "ephemeralcontainers" {
            return Ok(None);
        }
        if let Some(why) = self.exemption(user, namespace) {
            annotate_exemption(why);
            return Ok(None);
        }
        namespace_of(registry, namespace).await.map(|namespace| Some(self.policies(&namespace)))
    }

    /// A warning about a template whose pods would violate the level that the namespace warns about.
    async fn warn_template(
        &self,
        registry: &Registry,
        owner: &Value,
        template: &Value,
    ) -> Result<Option<String>, StatusError> {
        let namespace = registry.find(core("namespaces")?, "", object::namespace(owner)).await?;
        let Some(namespace) = namespace else { return Ok(None) };
        let policies = self.policies(&namespace);
        Ok(policies.warning(&template["metadata"], &template["spec"]))
    }
}

/// The template of the pods of an object, if it has any.
fn template(owner: &Value) -> Option<&Value> {
    let template = match () {
        () if owner["template"].is_object() => &owner["template"],
        () if owner["spec"]["jobTemplate"].is_object() => {
            &owner["spec"]["jobTemplate"]["spec"]["template"]
        }
        () => &owner["spec"]["template"],
    };
    template["spec"]["containers"].is_array().then_some(template)
}

fn annotate_exemption(why: &str) {
    audit::annotate(format!("{PREFIX}exempt"), why);
}

/// Admits an update. Takes what [`PodSecurity::policies_for_update`] found, and the stored object. Returns a
/// warning for the client.
pub(crate) fn admit_update(
    resource: &Resource,
    subresource: &str,
    policies: Option<&Policies>,
    object: &Value,
    old: &Value,
) -> Result<Option<String>, StatusError> {
    match (policies, resource.kind, subresource) {
        (Some(policies), ..) => policies.check(resource, object),
        (None, "Namespace", "") => check_namespace(resource, object, Some(old)).map(|()| None),
        _ => Ok(None),
    }
}

async fn namespace_of(registry: &Registry, namespace: &str) -> Result<Value, StatusError> {
    registry.get(core("namespaces")?, "", namespace).await
}

/// Refuses a namespace whose labels cannot be read; those that were so before may stay.
fn check_namespace(
    resource: &Resource,
    namespace: &Value,
    old: Option<&Value>,
) -> Result<(), StatusError> {
    let causes = label_faults(namespace);
    if causes.is_empty() || old.is_some_and(|old| label_faults(old) == causes) {
        return Ok(());
    }
    Err(StatusError::invalid(resource, object::name(namespace), causes))
}

fn label_faults(namespace: &Value) -> Vec<Cause> {
    let labels = &namespace["metadata"]["labels"];
    let mut causes = Vec::new();
    for mode in ["enforce", "audit", "warn"] {
        let (level, version) = (format!("{PREFIX}{mode}"), format!("{PREFIX}{mode}-version"));
        let faults = [
            (labels[&level].as_str().and_then(|value| parse_level(value).err()), level),
            (labels[&version].as_str().and_then(|value| parse_version(value).err()), version),
        ];
        for (fault, label) in faults {
            let Some(fault) = fault else { continue };
            causes.push(Cause {
                reason: "FieldValueInvalid",
                message: format!("Invalid value: {}: {fault}", labels[&label]),
                field: format!("metadata.labels[{label}]"),
            });
        }
    }
    causes
}

impl Policies {
    /// Refuses a pod that its namespace does not take; returns a warning about one that it would rather not.
    fn check(&self, resource: &Resource, pod: &Value) -> Result<Option<String>, StatusError> {
        if self.is_exempt(&pod["spec"]) {
            annotate_exemption("runtimeClass");
            return Ok(None);
        }
        let enforce = self.enforce;
        audit::annotate(format!("{PREFIX}enforce-policy"), enforce.to_text());
        let warning = self.warning(&pod["metadata"], &pod["spec"]);
        if let Some(faults) = violations(enforce, &pod["metadata"], &pod["spec"]) {
            let why = format!("violates PodSecurity {:?}: {faults}", enforce.to_text());
            return Err(StatusError::forbidden(resource, object::name(pod), &why));
        }
        Ok(warning)
    }

    fn is_exempt(&self, spec: &Value) -> bool {
        let class = text(&spec["runtimeClassName"]);
        self.exempt_classes.iter().any(|exempt| exempt == class)
    }

    /// A warning about what it would rather not take. What violates the audited level is recorded.
    fn warning(&self, metadata: &Value, spec: &Value) -> Option<String> {
        if self.is_exempt(spec) {
            annotate_exemption("runtimeClass");
            return None;
        }
        let would_violate = |policy: Policy| {
            let faults = violations(policy, metadata, spec)?;
            Some(format!("would violate PodSecurity {:?}: {faults}", policy.to_text()))
        };
        if let Some(violations) = would_violate(self.audit) {
            audit::annotate(format!("{PREFIX}audit-violations"), violations);
        }
        would_violate(self.warn)
    }
}
