//! Validates a token against the objects that it names: the service account, and what it is bound to.

use jiff::Timestamp;
use longshore_tls::CREDENTIAL_ID;
use serde_json::Value;

use crate::kinds::core;
use crate::object;
use crate::operations::Api;
use crate::schema::value::text;
use crate::status::StatusError;
use crate::tokens::{Claims, LEEWAY, Reference};
use crate::user::{self, Extra, User};

const EXTRA: &str = "authentication.kubernetes.io/";
const INVALIDATED: &str = "service account token has been invalidated";

impl Api {
    /// The user of a token whose signature and times are valid at `now` (Unix seconds), or why the
    /// token is not valid any more.
    pub(crate) async fn validate(
        &self,
        claims: &Claims,
        now: i64,
    ) -> Result<Result<User, String>, StatusError> {
        let bound = &claims.kubernetes;
        let account =
            (self.find_referenced("serviceaccounts", &bound.namespace, &bound.serviceaccount))
                .await?;
        if let Err(fault) = check_reference(account.as_ref(), &bound.serviceaccount, now) {
            let (namespace, name) = (&bound.namespace, &bound.serviceaccount.name);
            return Ok(Err(match fault {
                Fault::Absent => format!("serviceaccounts {name:?} not found"),
                Fault::Deleted => format!("service account {namespace}/{name} has been deleted"),
                Fault::Other(uid) => format!(
                    "service account UID ({uid}) does not match claim ({})",
                    bound.serviceaccount.uid
                ),
            }));
        }
        // A pod outlives its node at times; its token goes with the pod.
        let node = bound.node.as_ref().filter(|_| bound.pod.is_none());
        for (kind, plural, reference) in [
            ("secret", "secrets", bound.secret.as_ref()),
            ("pod", "pods", bound.pod.as_ref()),
            ("node", "nodes", node),
        ] {
            let Some(reference) = reference else { continue };
            let object = self.find_referenced(plural, &bound.namespace, reference).await?;
            match check_reference(object.as_ref(), reference, now) {
                Ok(()) => {}
                Err(Fault::Other(uid)) => {
                    return Ok(Err(format!(
                        "{kind} UID ({uid}) does not match service account {kind} ref claim ({})",
                        reference.uid
                    )));
                }
                Err(_) => return Ok(Err(INVALIDATED.into())),
            }
        }
        Ok(Ok(user(claims)))
    }

    async fn find_referenced(
        &self,
        plural: &str,
        namespace: &str,
        reference: &Reference,
    ) -> Result<Option<Value>, StatusError> {
        let resource = core(plural)?;
        let namespace = if resource.namespaced { namespace } else { "" };
        match self.registry.find(resource, namespace, &reference.name).await {
            // The name is not valid for any object.
            Err(error) if error.code == 400 => Ok(None),
            found => found,
        }
    }
}

pub(super) enum Fault<'a> {
    Absent,
    Deleted,
    /// Another object of the same name, with this UID.
    Other(&'a str),
}

/// Whether the object is the referenced one, and is not being deleted for longer than the leeway.
pub(super) fn check_reference<'a>(
    object: Option<&'a Value>,
    meant: &Reference,
    now: i64,
) -> Result<(), Fault<'a>> {
    let object = object.ok_or(Fault::Absent)?;
    if object::uid(object) != meant.uid {
        return Err(Fault::Other(object::uid(object)));
    }
    let deleted = text(&object["metadata"]["deletionTimestamp"]).parse::<Timestamp>();
    match deleted {
        Ok(deleted) if deleted.as_second() < now.saturating_sub(LEEWAY) => Err(Fault::Deleted),
        _ => Ok(()),
    }
}

/// The user of a token.
fn user(claims: &Claims) -> User {
    let bound = &claims.kubernetes;
    let mut extra = Extra::new();
    if !claims.jti.is_empty() {
        extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={}", claims.jti)]);
    }
    let mut set = |key: &str, value: &str| {
        if !value.is_empty() {
            extra.insert(format!("{EXTRA}{key}"), vec![value.to_owned()]);
        }
    };
    for (kind, reference) in [("pod", &bound.pod), ("node", &bound.node)] {
        if let Some(reference) = reference {
            set(&format!("{kind}-name"), &reference.name);
            set(&format!("{kind}-uid"), &reference.uid);
        }
    }
    let (namespace, account) = (&bound.namespace, &bound.serviceaccount);
    let name = format!("system:serviceaccount:{namespace}:{}", account.name);
    let user = User::authenticated(name, user::service_account_groups(namespace));
    User { uid: account.uid.clone(), extra, ..user }
}
