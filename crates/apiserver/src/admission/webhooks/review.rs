//! AdmissionReview: what webhooks are sent, and what they answer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::hook::{Hook, Invocation};
use crate::admission::attributes::Attributes;
use crate::api_types::{Gvk, Resource};
use crate::schema::value::{items, size, text};
use crate::status::StatusError;

const GROUP: &str = "admission.k8s.io";
/// The versions that are sent.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// How many bytes of warnings of one answer are handed on; one that is longer is cut.
const MAX_WARNINGS: usize = 4096;
/// How many characters of a long warning are handed on.
const CUT_WARNING: usize = 256;
/// How many bytes of annotations of one answer are recorded.
const MAX_ANNOTATIONS: usize = 32 << 10;
/// The size of a Status that is handed on as it is, about.
const MAX_STATUS: usize = 64 << 10;
/// How many characters of the message of a larger one are.
const CUT_MESSAGE: usize = 4096;

/// The version of reviews that a webhook is sent: the first that both know.
pub(super) fn version(hook: &Hook) -> Result<&'static str, String> {
    let known = hook.versions.iter().find_map(|own| VERSIONS.iter().find(|known| **known == own));
    known.copied().ok_or_else(|| {
        "could not create admission objects: webhook does not accept known AdmissionReview \
         versions (v1, v1beta1)"
            .to_owned()
    })
}

/// A review of a request. Objects are those that the invocation shows.
pub(super) fn request(
    version: &str,
    uid: &str,
    attributes: &Attributes<'_>,
    invocation: Invocation<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Value {
    let mut request = json!({
        "uid": uid,
        "kind": kind(invocation.kind),
        "resource": resource(invocation.resource),
        "requestKind": kind(attributes.kind),
        "requestResource": resource(attributes.resource),
        "operation": attributes.operation.name(),
        "userInfo": user_info(attributes),
        "object": object,
        "oldObject": old,
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    });
    for (field, text) in [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", attributes.name),
        ("namespace", attributes.namespace),
    ] {
        if !text.is_empty() {
            request[field] = text.into();
        }
    }
    json!({
        "kind": "AdmissionReview",
        "apiVersion": format!("{GROUP}/{version}"),
        "request": request,
    })
}

fn kind(kind: Gvk) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn resource(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "resource": resource.plural})
}

fn user_info(attributes: &Attributes<'_>) -> Value {
    let user = attributes.user;
    let mut info = json!({"username": user.name});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.groups.is_empty() {
        info["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

/// A valid answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Verdict {
    pub(super) allowed: bool,
    /// A JSON patch, or nothing.
    pub(super) patch: Vec<u8>,
    /// The Status of a refusal; may be null.
    pub(super) result: Value,
    pub(super) warnings: Vec<String>,
    /// For the audit.
    pub(super) annotations: Vec<(String, String)>,
}

/// Reads an answer; why it is invalid otherwise, in upstream's words.
pub(super) fn verdict(
    version: &str,
    uid: &str,
    mutates: bool,
    answer: &[u8],
) -> Result<Verdict, String> {
    let review: Value = longshore_json::read(answer)
        .map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))?;
    let (given_version, given_kind) = (text(&review["apiVersion"]), text(&review["kind"]));
    let response = &review["response"];
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let patch = match text(&response["patch"]) {
        "" => Vec::new(),
        patch => STANDARD
            .decode(patch)
            .map_err(|error| format!("response.patch is not valid base64: {error}"))?,
    };
    if version == "v1" {
        let given = text(&response["uid"]);
        if given != uid {
            return Err(format!("expected response.uid={uid:?}, got {given:?}"));
        }
        let wanted = format!("{GROUP}/{version}");
        if (given_version, given_kind) != (&*wanted, "AdmissionReview") {
            return Err(format!(
                "expected webhook response of {wanted}, Kind=AdmissionReview, got {given_version}, Kind={given_kind}"
            ));
        }
        check_patch(mutates, &patch, &response["patchType"])?;
    }
    Ok(Verdict {
        allowed: response["allowed"] == true,
        patch: if mutates { patch } else { Vec::new() },
        result: response["status"].clone(),
        warnings: warnings(&response["warnings"]),
        annotations: annotations(&response["auditAnnotations"]),
    })
}

fn check_patch(mutates: bool, patch: &[u8], patch_type: &Value) -> Result<(), String> {
    let problem = match (mutates, patch.is_empty(), patch_type.as_str()) {
        (false, false, _) => "validating webhook may not return response.patch",
        (false, true, Some(_)) => "validating webhook may not return response.patchType",
        (false, true, None) | (true, true, None) | (true, false, Some("JSONPatch")) => {
            return Ok(());
        }
        (true, false, None) => "webhook returned response.patch but not response.patchType",
        (true, true, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, false, Some("")) => "webhook returned invalid response.patchType of \"\"",
        (true, false, Some(other)) => return Err(format!("unsupported patch type {other:?}")),
    };
    Err(problem.to_owned())
}

/// As many annotations as fit.
fn annotations(map: &Value) -> Vec<(String, String)> {
    let mut left = MAX_ANNOTATIONS;
    let given = map.as_object().into_iter().flatten();
    let given = given.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    given
        .take_while(|(key, value)| {
            let rest = left.checked_sub(key.len() + value.len());
            left = rest.unwrap_or_default();
            rest.is_some()
        })
        .collect()
}

fn warnings(list: &Value) -> Vec<String> {
    let mut left = MAX_WARNINGS;
    let total: usize = items(list).iter().map(|warning| text(warning).len()).sum();
    let mut taken = Vec::new();
    for warning in items(list).iter().map(text).filter(|warning| !warning.is_empty()) {
        let warning: String = match total > MAX_WARNINGS {
            true => warning.chars().take(CUT_WARNING).collect(),
            false => warning.to_owned(),
        };
        let Some(rest) = left.checked_sub(warning.len()) else { break };
        left = rest;
        if !taken.contains(&warning) {
            taken.push(warning);
        }
    }
    taken
}

/// The error of a refusal, from the Status that the webhook gave.
pub(super) fn denied(name: &str, result: Value) -> StatusError {
    let mut status = if result.is_object() { result } else { json!({}) };
    if size(&status) > MAX_STATUS {
        let message: String = text(&status["message"]).chars().take(CUT_MESSAGE).collect();
        status = json!({"message": message, "code": status["code"]});
    }
    let by = format!("admission webhook {name:?} denied the request");
    let (message, reason) = (text(&status["message"]), text(&status["reason"]));
    let message = match (message, reason) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    let code = code.filter(|code| (400..1000).contains(code)).unwrap_or(400);
    status["kind"] = "Status".into();
    status["apiVersion"] = "v1".into();
    if !status["metadata"].is_object() {
        status["metadata"] = json!({});
    }
    if matches!(text(&status["status"]), "" | "Success") {
        status["status"] = "Failure".into();
    }
    status["message"] = message.as_str().into();
    status["code"] = code.into();
    StatusError::verbatim(code, message, status)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn answer(response: Value) -> Vec<u8> {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn webhooks_answers_are_verified() {
        let patch = STANDARD.encode("[]");
        for (mutates, response, expected) in [
            (true, json!({"uid": "1", "allowed": true}), "ok"),
            (false, json!({"uid": "1", "allowed": true}), "ok"),
            (true, json!({"uid": "1", "patch": patch, "patchType": "JSONPatch"}), "ok"),
            (false, json!({"uid": "2"}), "expected response.uid=\"1\", got \"2\""),
            (false, json!(null), "webhook response was absent"),
            (true, json!({"uid": "1", "patch": "%"}), "base64"),
            (true, json!({"uid": "1", "patch": patch}), "but not response.patchType"),
            (true, json!({"uid": "1", "patchType": "JSONPatch"}), "but not response.patch"),
            (true, json!({"uid": "1", "patch": patch, "patchType": "X"}), "unsupported patch type"),
            (false, json!({"uid": "1", "patch": patch}), "may not return response.patch"),
            (false, json!({"uid": "1", "patchType": "JSONPatch"}), "return response.patchType"),
        ] {
            let found = verdict("v1", "1", mutates, &answer(response.clone()));
            let found = found.map_or_else(|error| error, |_| "ok".to_owned());
            assert!(found.contains(expected), "{response}: {found}");
        }
        for (bytes, expected) in [
            (&b"garbage"[..], "json parse error"),
            (b"[]", "absent"),
            (b"", "json parse error"),
            (br#"{"response":{"uid":"1"}}"#, "expected webhook response of admission.k8s.io/v1"),
        ] {
            let error = verdict("v1", "1", false, bytes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let old = br#"{"response":{"allowed":true,"uid":"other"}}"#;
        assert!(verdict("v1beta1", "1", false, old).unwrap().allowed, "v1beta1 verifies less");
    }

    #[test]
    fn webhooks_refusals_are_worded_like_upstream() {
        for (result, code, message) in [
            (json!(null), 400, "admission webhook \"h\" denied the request without explanation"),
            (json!({"message": "no"}), 400, "admission webhook \"h\" denied the request: no"),
            (
                json!({"reason": "Bad", "code": 403}),
                403,
                "admission webhook \"h\" denied the request: Bad",
            ),
            (
                json!({"message": "no", "code": 200, "status": "Success"}),
                400,
                "admission webhook \"h\" denied the request: no",
            ),
            (
                json!({"message": "no", "code": 70000}),
                400,
                "admission webhook \"h\" denied the request: no",
            ),
        ] {
            let error = denied("h", result);
            assert_eq!((error.code, error.message.as_str()), (code, message));
            let status = error.to_value();
            assert_eq!((&status["status"], &status["code"]), (&json!("Failure"), &json!(code)));
        }
        let long = denied("h", json!({"message": "x".repeat(1 << 20), "code": 403}));
        assert!(long.code == 403 && long.to_value().to_string().len() < 3 * CUT_MESSAGE);
        let details =
            json!({"message": "no", "reason": "Odd", "details": {"causes": [{"field": "a"}]}});
        let status = denied("h", details).to_value();
        assert_eq!(
            (&status["reason"], &status["details"]["causes"][0]["field"]),
            (&json!("Odd"), &json!("a"))
        );
    }

    #[test]
    fn webhooks_warnings_are_bounded() {
        let many: Vec<String> = (0..1000).map(|i| format!("{i} {}", "x".repeat(1000))).collect();
        let taken = warnings(&json!(many));
        assert!(taken.iter().map(String::len).sum::<usize>() <= MAX_WARNINGS);
        assert!(taken.len() > 10 && taken.iter().all(|warning| warning.len() <= CUT_WARNING));
        assert_eq!(warnings(&json!(["a", "", "a", "b"])), ["a", "b"]);
    }
}
