use serde_json::json;

use super::*;
use crate::kinds::lookup;

fn resource(group: &str, plural: &str) -> &'static Resource {
    lookup(group, "v1", plural).expect("served")
}

#[test]
fn status_messages_are_upstreams() {
    let pods = resource("", "pods");
    let leases = resource("coordination.k8s.io", "leases");
    let table = [
        (StatusError::not_found(pods, "x"), 404, "NotFound", r#"pods "x" not found"#),
        (
            StatusError::not_found(leases, "x"),
            404,
            "NotFound",
            r#"leases.coordination.k8s.io "x" not found"#,
        ),
        (
            StatusError::already_exists(pods, "x"),
            409,
            "AlreadyExists",
            r#"pods "x" already exists"#,
        ),
        (
            StatusError::conflict(pods, "x", MODIFIED),
            409,
            "Conflict",
            "Operation cannot be fulfilled on pods \"x\": the object has been modified; please apply your changes to \
             the latest version and try again",
        ),
        (StatusError::forbidden(pods, "", "no"), 403, "Forbidden", "pods is forbidden: no"),
        (StatusError::forbidden(pods, "x", "no"), 403, "Forbidden", r#"pods "x" is forbidden: no"#),
        (StatusError::unauthorized(), 401, "Unauthorized", "Unauthorized"),
        (StatusError::expired("too old"), 410, "Expired", "too old"),
        (StatusError::gone("gone"), 410, "Gone", "gone"),
        (
            StatusError::method_not_allowed(),
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        (
            StatusError::unsupported_media_type(&["a/b", "c/d"]),
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: a/b, c/d",
        ),
        (
            StatusError::not_acceptable(&["a/b"]),
            406,
            "NotAcceptable",
            "only the following media types are accepted: a/b",
        ),
        (StatusError::too_large("x"), 413, "RequestEntityTooLarge", "Request entity too large: x"),
        (StatusError::too_many_requests("slow", 2), 429, "TooManyRequests", "slow"),
        (StatusError::internal("x"), 500, "InternalError", "Internal error occurred: x"),
        (StatusError::timeout("x"), 504, "Timeout", "Timeout: x"),
        (StatusError::service_unavailable("x"), 503, "ServiceUnavailable", "x"),
    ];
    for (error, code, reason, message) in table {
        assert_eq!((error.code, error.reason, error.message.as_str()), (code, reason, message));
        let value = error.to_value();
        assert_eq!((&value["kind"], &value["status"]), (&json!("Status"), &json!("Failure")));
        assert_eq!(value["code"], json!(code));
    }
}

#[test]
fn status_invalid_lists_every_cause() {
    let cause = |field: &str| Cause {
        reason: "FieldValueRequired",
        message: "Required value".into(),
        field: field.into(),
    };
    let one = StatusError::invalid(resource("", "pods"), "x", vec![cause("spec.a")]);
    assert_eq!(one.message, r#"Pod "x" is invalid: spec.a: Required value"#);
    let leases = resource("coordination.k8s.io", "leases");
    let two = StatusError::invalid(leases, "x", vec![cause("a"), cause("b"), cause("b")]);
    assert_eq!(
        two.message,
        r#"Lease.coordination.k8s.io "x" is invalid: [a: Required value, b: Required value]"#
    );
    assert_eq!(
        two.to_value()["details"],
        json!({
            "name": "x", "group": "coordination.k8s.io", "kind": "Lease",
            "causes": [
                {"reason": "FieldValueRequired", "message": "Required value", "field": "a"},
                {"reason": "FieldValueRequired", "message": "Required value", "field": "b"},
                {"reason": "FieldValueRequired", "message": "Required value", "field": "b"},
            ],
        })
    );
}

#[test]
fn status_details_omit_empty_fields() {
    let value = StatusError::not_found(resource("", "pods"), "x").to_value();
    assert_eq!(value["details"], json!({"name": "x", "kind": "pods"}));
    let value = StatusError::too_many_requests("slow", 2).to_value();
    assert_eq!(value["details"], json!({"retryAfterSeconds": 2}));
    assert_eq!(StatusError::unauthorized().to_value().get("details"), None);
}
