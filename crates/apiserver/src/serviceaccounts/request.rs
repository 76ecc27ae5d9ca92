//! `serviceaccounts/NAME/token`: issues a token of an account.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admission::node_restriction;
use crate::admission::service_account::PODS_TOKEN_EXPIRATION;
use crate::api_types::Resource;
use crate::kinds::core;
use crate::object;
use crate::operations::Api;
use crate::schema::value::{items, text};
use crate::status::{Cause, StatusError};
use crate::tokens::{Claims, Kubernetes, Reference};
use crate::user::{self, User};

const MIN_EXPIRATION: i64 = 10 * 60;
const MAX_EXPIRATION: i64 = 1 << 32;
const DEFAULT_EXPIRATION: i64 = 3600;
/// The extended expiration of a pod's token, for clients that never reload it.
const EXTENDED_EXPIRATION: i64 = 365 * 24 * 3600;

/// What refusals are about.
static TOKEN_REQUEST: Resource = Resource {
    group: "authentication.k8s.io",
    version: "v1",
    plural: "TokenRequest",
    singular: "tokenrequest",
    kind: "TokenRequest",
    short_names: &[],
    categories: &[],
    namespaced: true,
    verbs: &["create"],
    subresources: &[],
    storage: "",
    counts_generation: false,
    fields: None,
    custom: None,
    gate: None,
};

/// The objects that a token is bound to.
#[derive(Default)]
struct Bound {
    node: Option<Reference>,
    pod: Option<Reference>,
    secret: Option<Reference>,
}

impl Api {
    /// Answers a TokenRequest for the account `namespace`/`name`, if the caller may have it.
    /// Returns it with its token, and warnings for the client.
    pub(crate) async fn request_token(
        &self,
        user: &User,
        (namespace, name): (&str, &str),
        mut request: Value,
    ) -> Result<(Value, Vec<String>), StatusError> {
        for (field, own) in [("name", name), ("namespace", namespace)] {
            let given = text(&request["metadata"][field]);
            if !given.is_empty() && given != own {
                let why = format!("must match the service account {field} if specified");
                let given = json!(given);
                return Err(invalid(name, &format!("metadata.{field}"), &given, &why));
            }
        }
        let accounts = core("serviceaccounts")?;
        if let Some(node) = user::node_name(user) {
            let caller = (user, node);
            node_restriction::admit_token_request(
                (&self.registry, &self.authorizer),
                caller,
                accounts,
                (namespace, name),
                &request,
            )
            .await?;
        }
        let account = self.registry.get(accounts, namespace, name).await?;
        let given = object::uid(&request);
        if !given.is_empty() && given != object::uid(&account) {
            let why = format!(
                "the UID in the token request ({given}) does not match the UID of the service account ({})",
                object::uid(&account)
            );
            return Err(StatusError::conflict(&TOKEN_REQUEST, name, &why));
        }

        let spec = &request["spec"];
        let mut warnings = Vec::new();
        let mut expiration = spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_EXPIRATION);
        check_expiration(expiration)?;
        if let Some(longest) = self.tokens.max_expiration.filter(|longest| expiration > *longest) {
            warnings.push(format!(
                "requested expiration of {expiration} seconds shortened to {longest} seconds"
            ));
            expiration = longest;
        }
        let mut audiences: Vec<String> =
            items(&spec["audiences"]).iter().map(|audience| text(audience).to_owned()).collect();
        if audiences.is_empty() {
            audiences = self.tokens.audiences().to_vec();
        }
        let bound = self.bound(namespace, name, &spec["boundObjectRef"]).await?;

        // The answer's end must not be later than the token's.
        let now = Timestamp::now().as_second();
        let is_own = audiences.iter().all(|audience| self.tokens.audiences().contains(audience));
        let is_extended = self.tokens.extend_expiration
            && bound.pod.is_some()
            && expiration == PODS_TOKEN_EXPIRATION
            && is_own;
        let claims = Claims {
            aud: audiences.clone(),
            exp: now.saturating_add(if is_extended { EXTENDED_EXPIRATION } else { expiration }),
            iat: now,
            iss: self.tokens.issuer().to_owned(),
            jti: object::new_uid().map_err(StatusError::internal)?,
            kubernetes: Kubernetes {
                namespace: namespace.to_owned(),
                node: bound.node,
                pod: bound.pod,
                secret: bound.secret,
                serviceaccount: reference(&account),
                warnafter: is_extended.then_some(now.saturating_add(expiration)),
            },
            nbf: now,
            sub: format!("system:serviceaccount:{namespace}:{name}"),
        };
        let token = self.tokens.sign(&claims).map_err(StatusError::internal)?;
        let end = Timestamp::from_second(now.saturating_add(expiration))
            .map_err(StatusError::internal)?;

        let metadata = object::metadata_mut(&mut request);
        metadata.insert("name".into(), name.into());
        metadata.insert("namespace".into(), namespace.into());
        metadata.insert("uid".into(), object::uid(&account).into());
        metadata.insert("creationTimestamp".into(), object::now().to_string().into());
        let spec = object::child_mut(&mut request, "spec");
        spec.insert("audiences".into(), json!(audiences));
        spec.insert("expirationSeconds".into(), expiration.into());
        request["status"] = json!({"token": token, "expirationTimestamp": end.to_string()});
        Ok((request, warnings))
    }

    /// Finds what the token of an account is to be bound to.
    async fn bound(
        &self,
        namespace: &str,
        account: &str,
        wanted: &Value,
    ) -> Result<Bound, StatusError> {
        let mut bound = Bound::default();
        if !wanted.is_object() {
            return Ok(bound);
        }
        let (version, kind) = (text(&wanted["apiVersion"]), text(&wanted["kind"]));
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let plural = match (group, kind) {
            ("", "Pod") => "pods",
            ("", "Node") => "nodes",
            ("", "Secret") => "secrets",
            _ => {
                let what = format!("{group}/{version}, Kind={kind}");
                let why = format!("cannot bind token to object of type {what}");
                return Err(StatusError::bad_request(why));
            }
        };
        let (resource, name) = (core(plural)?, text(&wanted["name"]));
        if name.is_empty() {
            return Err(StatusError::bad_request("Name parameter required."));
        }
        let namespace = if resource.namespaced { namespace } else { "" };
        let object = self.registry.get(resource, namespace, name).await?;
        if kind == "Pod" && object["spec"]["serviceAccountName"] != account {
            return Err(StatusError::bad_request(format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
            )));
        }
        let uid = text(&wanted["uid"]);
        if !uid.is_empty() && uid != object::uid(&object) {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. \
                 The object might have been deleted and then recreated"
            );
            return Err(StatusError::conflict_of(("", kind), name, &why));
        }
        let found = Some(reference(&object));
        match kind {
            "Pod" => {
                bound.pod = found;
                bound.node = self.node_of(&object).await?;
            }
            "Node" => bound.node = found,
            _ => bound.secret = found,
        }
        Ok(bound)
    }

    /// The node that a pod is on, by its name alone when it is gone.
    async fn node_of(&self, pod: &Value) -> Result<Option<Reference>, StatusError> {
        let name = text(&pod["spec"]["nodeName"]);
        if name.is_empty() {
            return Ok(None);
        }
        let node = self.registry.find(core("nodes")?, "", name).await?;
        let uid = node.as_ref().map_or("", object::uid).to_owned();
        Ok(Some(Reference { name: name.to_owned(), uid }))
    }
}

fn reference(object: &Value) -> Reference {
    Reference { name: object::name(object).to_owned(), uid: object::uid(object).to_owned() }
}

fn check_expiration(seconds: i64) -> Result<(), StatusError> {
    let why = match seconds {
        ..MIN_EXPIRATION => "may not specify a duration less than 10 minutes",
        MIN_EXPIRATION..=MAX_EXPIRATION => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    Err(invalid("", "spec.expirationSeconds", &json!(seconds), why))
}

fn invalid(name: &str, field: &str, value: &Value, why: &str) -> StatusError {
    let cause = Cause {
        reason: "FieldValueInvalid",
        message: format!("Invalid value: {value}: {why}"),
        field: field.to_owned(),
    };
    StatusError::invalid(&TOKEN_REQUEST, name, vec![cause])
}
