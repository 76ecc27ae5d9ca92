//! Review resources: SelfSubjectReview, SubjectAccessReview and its kin, TokenReview.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::negotiate::Form;
use super::respond::{self, Result};
use super::tokens::user_info;
use super::{Call, Router};
use crate::audit;
use crate::authz::{Access, Decision, ResourceTarget, Rule, Rules, Target};
use crate::kinds::Review;
use crate::schema::FieldValidation;
use crate::status::StatusError;
use crate::user::User;

impl Router {
    pub(super) async fn review(&self, mut call: Call<'_>, kind: Review) -> Result {
        if call.view()?.form != Form::Object {
            return Err(StatusError::not_acceptable(&["application/json"]));
        }
        let body = self.body(&mut call).await?;
        let (review, _) = body.read(call.resource.gvk(), FieldValidation::Ignore)?;
        audit::request_object(&review);
        let dry_run = call.line.query.dry_run()?;
        let (mut review, warnings) = self.admit_created(&call, review, dry_run).await?;
        review["status"] = match kind {
            Review::Access => {
                let user = subject(&review["spec"])?;
                self.access_status(&user, &review["spec"]).await?
            }
            Review::LocalAccess => {
                let asked = &review["spec"]["resourceAttributes"]["namespace"];
                if *asked != call.path.namespace.as_str() {
                    return Err(StatusError::bad_request(format!(
                        "spec.resourceAttributes.namespace must match namespace: {:?}",
                        call.path.namespace
                    )));
                }
                let user = subject(&review["spec"])?;
                self.access_status(&user, &review["spec"]).await?
            }
            Review::SelfRules => match text(&review["spec"], "namespace") {
                "" => return Err(StatusError::bad_request("no namespace on request")),
                namespace => rules_status(self.api.authorizer.rules(call.user, namespace)),
            },
            Review::SelfAccess => self.access_status(call.user, &review["spec"]).await?,
            Review::SelfSubject => json!({"userInfo": user_info(call.user)}),
            Review::Token => self.token_status(&review["spec"]).await?,
        };
        let mut answer = respond::json(StatusCode::CREATED, &review);
        respond::warn(&mut answer, &warnings);
        Ok(answer)
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
        if resource.is_object() == path.is_object() {
            return Err(StatusError::bad_request(
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ));
        }
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

fn subject(spec: &Value) -> Result<User> {
    let groups = texts(&spec["groups"]);
    let name = text(spec, "user").to_owned();
    if name.is_empty() && groups.is_empty() {
        return Err(StatusError::bad_request("at least one of user or group must be specified"));
    }
    let extra = spec["extra"].as_object().into_iter().flatten();
    Ok(User {
        name,
        uid: text(spec, "uid").to_owned(),
        groups,
        extra: extra.map(|(key, values)| (key.to_lowercase(), texts(values))).collect(),
    })
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
