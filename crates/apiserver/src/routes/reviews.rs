//! Review resources: SelfSubjectReview, SubjectAccessReview and its kin, TokenReview.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::negotiate::Form;
use super::respond::{self, Result};
use super::tokens::user_info;
use super::writes::WriteOptions;
use super::{Call, Router};
use crate::audit;
use crate::authz::{Access, Decision, ResourceTarget, Rule, Rules, Target};
use crate::kinds::Review;
use crate::object;
use crate::operations::settle_namespace;
use crate::schema::{Causes, Path};
use crate::status::StatusError;
use crate::user::User;

impl Router {
    pub(super) async fn review(&self, mut call: Call<'_>, kind: Review) -> Result {
        if call.view()?.form != Form::Object {
            return Err(StatusError::not_acceptable(&["application/json"]));
        }
        let body = self.body(&mut call).await?;
        let WriteOptions { dry_run, validation, .. } = WriteOptions::read(&call)?;
        let (mut review, mut unknown) = body.read(call.resource.gvk(), validation)?;
        audit::request_object(&review);
        if call.resource.namespaced {
            settle_namespace(call.resource, &mut review, call.namespace())?;
        }
        let (mut review, warnings) = self.admit_created(&call, review, dry_run).await?;
        unknown.extend(warnings);
        if let Err(error) = check(call.resource.group, kind, &review) {
            return respond::refused(error, &unknown);
        }
        review["status"] = match self.review_status(&call, kind, &review).await {
            Ok(status) => status,
            Err(error) => return respond::refused(error, &unknown),
        };
        let mut answer = respond::json(StatusCode::CREATED, &review);
        respond::warn(&mut answer, &unknown);
        Ok(answer)
    }

    async fn review_status(&self, call: &Call<'_>, kind: Review, review: &Value) -> Result<Value> {
        let spec = &review["spec"];
        match kind {
            Review::Access => self.access_status(&subject(spec), spec).await,
            Review::LocalAccess => {
                if call.path.namespace.as_str() != object::namespace(review) {
                    return Err(StatusError::bad_request(format!(
                        "spec.resourceAttributes.namespace must match namespace: {}",
                        call.path.namespace
                    )));
                }
                self.access_status(&subject(spec), spec).await
            }
            Review::SelfRules => match text(spec, "namespace") {
                "" => Err(StatusError::bad_request("no namespace on request")),
                namespace => Ok(rules_status(self.api.authorizer.rules(call.user, namespace))),
            },
            Review::SelfAccess => self.access_status(call.user, spec).await,
            Review::SelfSubject => Ok(json!({"userInfo": user_info(call.user)})),
            Review::Token => self.token_status(spec).await,
        }
    }

    async fn access_status(&self, user: &User, spec: &Value) -> Result<Value> {
        let decision = self.verdict(user, spec).await?;
        let mut status = json!({"allowed": decision.is_allowed()});
        if matches!(decision, Decision::Veto(_) | Decision::Failed { is_veto: true, .. }) {
            status["denied"] = true.into();
        }
        let (reason, error) = decision.into_texts();
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        if let Some(error) = error {
            status["evaluationError"] = error.into();
        }
        Ok(status)
    }

    async fn verdict(&self, user: &User, spec: &Value) -> Result<Decision> {
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        if path.is_object() {
            let access =
                Access { user, verb: text(path, "verb"), target: Target::Path(text(path, "path")) };
            return Ok(self.api.authorizer.authorize(&self.api.registry, &access).await);
        }
        let fields = required_fields(resource);
        let target = Target::Resource(ResourceTarget {
            group: text(resource, "group"),
            version: text(resource, "version"),
            resource: text(resource, "resource"),
            subresource: text(resource, "subresource"),
            namespace: text(resource, "namespace"),
            name: text(resource, "name"),
            fields: &fields,
        });
        let access = Access { user, verb: text(resource, "verb"), target };
        Ok(self.api.authorizer.authorize(&self.api.registry, &access).await)
    }
}

/// What `kubectl auth can-i --list` shows.
fn rules_status(Rules { rules, faults }: Rules) -> Value {
    let (resources, paths): (Vec<&Rule>, Vec<&Rule>) =
        rules.iter().partition(|rule| rule.is_of_resources());
    let values = |rules: Vec<&Rule>| rules.into_iter().map(Rule::to_value).collect::<Value>();
    let mut status = json!({
        "resourceRules": values(resources),
        "nonResourceRules": values(paths),
        "incomplete": !faults.is_empty(),
    });
    if !faults.is_empty() {
        status["evaluationError"] = faults.join(", ").into();
    }
    status
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// What a question about an access must say.
fn check(group: &str, kind: Review, review: &Value) -> Result<()> {
    if !matches!(kind, Review::Access | Review::LocalAccess | Review::SelfAccess) {
        return Ok(());
    }
    let (spec, path) = (&review["spec"], Path::root("spec"));
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let (resource_path, other_path) =
        (path.child("resourceAttributes"), path.child("nonResourceAttributes"));
    let mut causes = Causes::default();
    let shown = json!({"Path": text(other, "path"), "Verb": text(other, "verb")});
    match (resource.is_object(), other.is_object()) {
        (true, true) => {
            let why = "cannot be specified in combination with resourceAttributes";
            causes.invalid(&other_path, &shown, why);
        }
        (false, false) => {
            let why =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            causes.invalid(&resource_path, &Value::Null, why);
        }
        _ => {}
    }
    let is_nobody = text(spec, "user").is_empty() && texts(&spec["groups"]).is_empty();
    if is_nobody && kind != Review::SelfAccess {
        let why = "at least one of user or group must be specified";
        causes.invalid(&path.child("user"), "", why);
    }
    if kind == Review::LocalAccess {
        if resource.is_object() && text(resource, "namespace") != object::namespace(review) {
            let given = text(resource, "namespace");
            let why = "must match metadata.namespace";
            causes.invalid(&resource_path.child("namespace"), given, why);
        }
        if other.is_object() {
            causes.invalid(&other_path, &shown, "disallowed on this kind of request");
        }
    }
    let mut metadata = review["metadata"].as_object().into_iter().flatten();
    let is_given = |(name, value): (&String, &Value)| {
        !matches!(name.as_str(), "namespace" | "managedFields") && !value.is_null()
    };
    if metadata.any(is_given) {
        causes.invalid(&Path::root("metadata"), &review["metadata"], "must be empty");
    }
    match causes.0.is_empty() {
        true => Ok(()),
        // upstream does not name the kind
        false => Err(StatusError::invalid_kind(group, "", "", causes.0)),
    }
}

fn subject(spec: &Value) -> User {
    let groups = texts(&spec["groups"]);
    let name = text(spec, "user").to_owned();
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name,
        uid: text(spec, "uid").to_owned(),
        groups,
        extra: extra.map(|(key, values)| (key.to_lowercase(), texts(values))).collect(),
    }
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// The equality terms of a review's field selector.
fn required_fields(resource: &Value) -> Vec<(String, String)> {
    let requirements = resource["fieldSelector"]["requirements"].as_array().into_iter().flatten();
    requirements
        .filter(|requirement| requirement["operator"] == "In")
        .filter_map(|requirement| match requirement["values"].as_array().map(Vec::as_slice) {
            Some([value]) => {
                Some((text(requirement, "key").to_owned(), value.as_str()?.to_owned()))
            }
            _ => None,
        })
        .collect()
}
