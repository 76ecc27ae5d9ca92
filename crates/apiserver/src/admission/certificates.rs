//! Authorization for requests for certificates, beyond the verb: creation, approval and signing.

use serde_json::{Value, json};

use crate::api_types::Resource;
use crate::authz::{Access, Authorizer, ResourceTarget, Target};
use crate::csr::{Request, Signer};
use crate::object::{self, child_mut};
use crate::schema::value::{same, text};
use crate::status::{Cause, StatusError};
use crate::user::{MASTERS, User};

const KIND: &str = "CertificateSigningRequest";

/// Sets the requesting user in a new request, whatever the client sent.
pub(crate) fn stamp(resource: &Resource, user: &User, request: &mut Value) {
    if resource.kind != KIND {
        return;
    }
    let spec = child_mut(request, "spec");
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    spec.insert("username".into(), user.name.as_str().into());
    if !user.uid.is_empty() {
        spec.insert("uid".into(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        spec.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".into(), json!(user.extra));
    }
}

/// Certificates for `system:masters` are rejected.
pub(crate) fn admit_create(resource: &Resource, request: &Value) -> Result<(), StatusError> {
    let spec = &request["spec"];
    if resource.kind != KIND || Signer::of(text(&spec["signerName"])) != Some(Signer::Client) {
        return Ok(());
    }
    let refused = |why: &str| Err(StatusError::forbidden(resource, object::name(request), why));
    match Request::parse(text(&spec["request"])) {
        Err(error) => refused(&format!("failed to parse CSR: {error}")),
        Ok(request) if request.organizations.iter().any(|group| group == MASTERS) => refused(
            "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
        ),
        Ok(_) => Ok(()),
    }
}

/// Approval requires the verb `approve` on the signer, signing the verb `sign`.
pub(crate) fn admit_update(
    authorizer: &Authorizer,
    user: &User,
    resource: &Resource,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Result<(), StatusError> {
    if resource.kind != KIND {
        return Ok(());
    }
    let has_changed = |field: &str| !same(&new["status"][field], &old["status"][field]);
    let verb = match subresource {
        "approval" => "approve",
        "status" if has_changed("certificate") || has_changed("conditions") => "sign",
        _ => return Ok(()),
    };
    // The old object's: a request cannot be moved to a signer that suits.
    let signer = text(&old["spec"]["signerName"]);
    if may(authorizer, user, verb, signer) {
        return Ok(());
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(StatusError::forbidden(resource, object::name(old), &why))
}

/// An answer to the request of a pod requires the verb `sign` on the signer. It is refused as a broken rule.
pub(crate) fn admit_answer(
    authorizer: &Authorizer,
    user: &User,
    resource: &Resource,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Result<(), StatusError> {
    let signer = text(&old["spec"]["signerName"]);
    if resource.kind != "PodCertificateRequest"
        || subresource != "status"
        || same(&new["status"], &old["status"])
        || may(authorizer, user, "sign", signer)
    {
        return Ok(());
    }
    let name = &user.name;
    let cause = Cause {
        reason: "FieldValueForbidden",
        message: format!(
            "Forbidden: User {name:?} is not permitted to \"sign\" for signer {signer:?}"
        ),
        field: "spec.signerName".to_owned(),
    };
    Err(StatusError::invalid(resource, object::name(old), vec![cause]))
}

/// A trust bundle of a signer requires the verb `attest` on it.
pub(crate) fn admit_attest(
    authorizer: &Authorizer,
    user: &User,
    resource: &Resource,
    bundle: &Value,
) -> Result<(), StatusError> {
    let signer = text(&bundle["spec"]["signerName"]);
    if resource.kind != "ClusterTrustBundle"
        || signer.is_empty()
        || may(authorizer, user, "attest", signer)
    {
        return Ok(());
    }
    let why = format!("user not permitted to attest for signerName {signer:?}");
    Err(StatusError::forbidden(resource, object::name(bundle), &why))
}

/// Whether the user may do this for the signer, or for all of its domain.
fn may(authorizer: &Authorizer, user: &User, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    [signer, &format!("{domain}/*")].into_iter().any(|name| {
        let target = ResourceTarget {
            group: "certificates.k8s.io",
            resource: "signers",
            name,
            ..ResourceTarget::default()
        };
        authorizer.decide(&Access { user, verb, target: Target::Resource(target) }).is_allowed()
    })
}
