//! Errors as the API shows them: every refusal is a `v1.Status` object with upstream's code, reason
//! and wording, since clients match on all three. Everything in this crate that can refuse a request
//! returns [`StatusError`]; the server writes it out with [`StatusError::to_value`].

use serde_json::{Map, Value, json};

use crate::api_types::Resource;

/// A refusal, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StatusError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, for example `NotFound`.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
    /// What the refusal is about, where there is something to name.
    pub details: Option<Box<Details>>,
    /// With what a list can go on nevertheless; mostly empty.
    pub continue_token: Box<str>,
}

/// The `details` of a Status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// API group, empty for the core group.
    pub group: String,
    /// Resource in the plural, or the kind where a body was invalid.
    pub kind: String,
    /// Each single cause, for invalid objects one per field.
    pub causes: Vec<Cause>,
    /// Seconds after which trying again makes sense; 0 is "not said".
    pub retry_after_seconds: u32,
    /// The whole Status, where somebody else gave it.
    pub verbatim: Option<Value>,
    /// The answer is the message, and no Status.
    pub is_text: bool,
}

/// One cause in the details of a Status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable cause, for example `FieldValueRequired`; may be empty.
    pub reason: &'static str,
    /// What is wrong.
    pub message: String,
    /// Path of the field, for example `spec.containers[0].name`; may be empty.
    pub field: String,
}

/// The message of an update that lost the race for the stored object.
pub const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// What a kind is called with its group.
fn qualified(group: &str, kind: &str) -> String {
    match group {
        "" => kind.to_owned(),
        group => format!("{kind}.{group}"),
    }
}

/// The cause of an option of which there are only those choices.
#[must_use]
pub fn unsupported(field: &str, value: &str, choices: &[&str]) -> Cause {
    let choices: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
    Cause {
        reason: "FieldValueNotSupported",
        message: format!("Unsupported value: {value}: supported values: {}", choices.join(", ")),
        field: field.to_owned(),
    }
}

/// Reasons that code elsewhere compares.
const REASONS: [&str; 6] =
    ["AlreadyExists", "Conflict", "Expired", "Forbidden", "Invalid", "NotFound"];

impl StatusError {
    fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: Box::default(),
        }
    }

    fn about(
        code: u16,
        reason: &'static str,
        resource: &Resource,
        name: &str,
        message: String,
    ) -> Self {
        Self::plain(code, reason, message).with_details(Details {
            name: name.to_owned(),
            group: resource.group.to_owned(),
            kind: resource.plural.to_owned(),
            ..Details::default()
        })
    }

    /// The same error with these details.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// The same error with a token to go on with a list.
    #[must_use]
    pub fn continuing(mut self, token: String) -> Self {
        self.continue_token = token.into();
        self
    }

    /// The same error with a retry delay for the client.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// 404: no object of that name.
    #[must_use]
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        Self::not_found_of((resource.group, resource.plural), name)
    }

    /// The same for what upstream names otherwise: its group, and what its kind is called.
    #[must_use]
    pub fn not_found_of((group, kind): (&str, &str), name: &str) -> Self {
        let message = format!("{} {name:?} not found", qualified(group, kind));
        Self::plain(404, "NotFound", message).with_details(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            ..Details::default()
        })
    }

    /// 404: no such page. The answer is this text.
    #[must_use]
    pub fn no_such_page() -> Self {
        Self::plain(404, "NotFound", "404 page not found\n")
            .with_details(Details { is_text: true, ..Details::default() })
    }

    /// 404: no such path, group, version or resource.
    #[must_use]
    pub fn no_such_path() -> Self {
        // With details, since kubectl reads those of any 404.
        Self::plain(404, "NotFound", "the server could not find the requested resource")
            .with_details(Details::default())
    }

    /// 409: the name is taken.
    #[must_use]
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::about(409, "AlreadyExists", resource, name, message)
    }

    /// 409: every name tried for a `generateName` was taken.
    #[must_use]
    pub fn generate_name_conflict(resource: &Resource, name: &str) -> Self {
        let message = format!(
            "{} {name:?} already exists, the server was not able to generate a unique name for the object",
            resource.qualified()
        );
        Self::about(409, "AlreadyExists", resource, name, message).retry_after(1)
    }

    /// 409: the request does not fit the stored object; `why` is [`MODIFIED`] for a stale update.
    #[must_use]
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        Self::conflict_of((resource.group, resource.plural), name, why)
    }

    /// The same for what upstream names otherwise: its group, and what its kind is called.
    #[must_use]
    pub fn conflict_of((group, kind): (&str, &str), name: &str, why: &str) -> Self {
        let qualified = qualified(group, kind);
        let message = format!("Operation cannot be fulfilled on {qualified} {name:?}: {why}");
        Self::plain(409, "Conflict", message).with_details(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            ..Details::default()
        })
    }

    /// 409: an apply would change fields of other managers, one cause per field.
    #[must_use]
    pub fn apply_conflict(message: String, causes: Vec<Cause>) -> Self {
        Self::plain(409, "Conflict", message).with_details(Details { causes, ..Details::default() })
    }

    /// 422: the object breaks these rules, one cause per field.
    #[must_use]
    pub fn invalid(resource: &Resource, name: &str, causes: Vec<Cause>) -> Self {
        Self::invalid_kind(resource.group, resource.kind, name, causes)
    }

    /// The same for one of the options of a request, of a kind such as `ListOptions`.
    #[must_use]
    pub fn invalid_option(
        options: &str,
        field: &str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        let cause = Cause { reason, message: message.into(), field: field.to_owned() };
        Self::invalid_options(options, vec![cause])
    }

    /// The same for an option of which there are only those choices.
    #[must_use]
    pub fn unsupported_option(options: &str, field: &str, value: &str, choices: &[&str]) -> Self {
        Self::invalid_options(options, vec![unsupported(field, value, choices)])
    }

    /// The same for all that is wrong with the options of a request.
    #[must_use]
    pub fn invalid_options(options: &str, causes: Vec<Cause>) -> Self {
        Self::invalid_kind("meta.k8s.io", options, "", causes)
    }

    /// The same for what is no resource, such as the options of a request.
    #[must_use]
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> Self {
        let qualified = qualified(group, kind);
        let mut lines: Vec<String> = Vec::with_capacity(causes.len());
        for cause in &causes {
            let line = format!("{}: {}", cause.field, cause.message);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let all = match lines.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Self::plain(422, "Invalid", format!("{qualified} {name:?} is invalid: {all}")).with_details(
            Details {
                name: name.to_owned(),
                group: group.to_owned(),
                kind: kind.to_owned(),
                causes,
                ..Details::default()
            },
        )
    }

    /// 422: a patch that is well formed but cannot be carried out on the stored object. `why` is for this
    /// server: see [`Self::without_causes`].
    #[must_use]
    pub fn unprocessable(why: impl Into<String>) -> Self {
        Self::plain(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
        )
        .with_details(Details {
            causes: vec![Cause { reason: "", message: why.into(), field: "patch".into() }],
            ..Details::default()
        })
    }

    /// The same error without what clients are not shown.
    #[must_use]
    pub fn without_causes(mut self) -> Self {
        if let Some(details) = &mut self.details {
            details.causes.retain(|cause| !cause.reason.is_empty());
        }
        self
    }

    /// 400: the request cannot be understood.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    /// 403: the caller may not do this to this object (`name` may be empty).
    #[must_use]
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = match name {
            "" => format!("{} is forbidden: {why}", resource.qualified()),
            _ => format!("{} {name:?} is forbidden: {why}", resource.qualified()),
        };
        Self::about(403, "Forbidden", resource, name, message)
    }

    /// 403: the caller may not use this path, which is no resource.
    #[must_use]
    pub fn forbidden_path(why: &str) -> Self {
        Self::plain(403, "Forbidden", format!("forbidden: {why}")).with_details(Details::default())
    }

    /// 401: the caller is not known.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::plain(401, "Unauthorized", "Unauthorized")
    }

    /// 410 `Expired`: the resource version or continue token is older than what the store keeps.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    /// 410 `Gone`: the requested object or version no longer exists.
    #[must_use]
    pub fn gone(message: impl Into<String>) -> Self {
        Self::plain(410, "Gone", message)
    }

    /// 405: the method is not served on this resource.
    #[must_use]
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::plain(405, "MethodNotAllowed", message).with_details(Details::default())
    }

    /// 405: the verb is not served on this resource, which is a custom one.
    #[must_use]
    pub fn verb_not_allowed(resource: &Resource, verb: &str) -> Self {
        let message =
            format!("{verb} is not supported on resources of kind {:?}", resource.qualified());
        Self::about(405, "MethodNotAllowed", resource, "", message)
    }

    /// 405: the definition of the resource is being deleted.
    #[must_use]
    pub fn terminating_definition(resource: &Resource) -> Self {
        let message = "create not allowed while custom resource definition is terminating";
        Self::about(405, "MethodNotAllowed", resource, "", message.to_owned())
    }

    /// 415: the route takes no body of this content type.
    #[must_use]
    pub fn not_consumed() -> Self {
        Self::plain(415, "UnsupportedMediaType", "415: Unsupported Media Type")
            .with_details(Details::default())
    }

    /// 406: the route produces none of the types in `Accept`.
    #[must_use]
    pub fn not_produced(produced: &[&str]) -> Self {
        let produced = produced.join(", ");
        let message = format!("406: Not Acceptable\n\nAvailable representations: {produced}");
        Self::plain(406, "NotAcceptable", message).with_details(Details::default())
    }

    /// 406: the client takes no answer of the kind that it requested.
    #[must_use]
    pub fn not_acceptable_kind(message: impl Into<String>) -> Self {
        Self::plain(406, "NotAcceptable", message)
    }

    /// 415: the body's content type is none of `accepted`.
    #[must_use]
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::plain(415, "UnsupportedMediaType", message)
    }

    /// 406: none of the types in `Accept` can be produced.
    #[must_use]
    pub fn not_acceptable(produced: &[&str]) -> Self {
        let message =
            format!("only the following media types are accepted: {}", produced.join(", "));
        Self::plain(406, "NotAcceptable", message)
    }

    /// 413: the body, or its operation, exceeds a limit.
    #[must_use]
    pub fn too_large(why: impl std::fmt::Display) -> Self {
        Self::plain(413, "RequestEntityTooLarge", format!("Request entity too large: {why}"))
    }

    /// 429: try again after so many seconds.
    #[must_use]
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::plain(429, "TooManyRequests", message).retry_after(retry_after_seconds)
    }

    /// 429 for a rate of writes that is limited by configuration.
    #[must_use]
    pub fn rate_limited(why: &str) -> Self {
        Self::plain(429, "TooManyRequests", format!("Too many requests: {why}"))
    }

    /// 500 with this message alone.
    #[must_use]
    pub fn internal_plain(message: impl Into<String>) -> Self {
        Self::plain(500, "", message)
    }

    /// 500: the fault is ours.
    #[must_use]
    pub fn internal(why: impl std::fmt::Display) -> Self {
        let why = why.to_string();
        Self::plain(500, "InternalError", format!("Internal error occurred: {why}")).with_details(
            Details {
                causes: vec![Cause { reason: "", message: why, field: String::new() }],
                ..Details::default()
            },
        )
    }

    /// 504: the request took longer than it may.
    #[must_use]
    pub fn timeout(why: impl std::fmt::Display) -> Self {
        Self::plain(504, "Timeout", format!("Timeout: {why}")).with_details(Details::default())
    }

    /// 503: something that the request needs is not there.
    #[must_use]
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::plain(503, "ServiceUnavailable", message)
    }

    /// A refusal whose Status somebody else gave, such as a webhook.
    #[must_use]
    pub fn verbatim(code: u16, message: String, status: Value) -> Self {
        let reason = REASONS.iter().find(|known| status["reason"] == **known);
        Self::plain(code, reason.copied().unwrap_or_default(), message)
            .with_details(Details { verbatim: Some(status), ..Details::default() })
    }

    /// The `v1.Status` object.
    #[must_use]
    pub fn to_value(&self) -> Value {
        if let Some(status) = self.details.as_ref().and_then(|details| details.verbatim.clone()) {
            return status;
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.continue_token.is_empty() {
            status["metadata"]["continue"] = (*self.continue_token).into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.to_value();
        }
        status
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut map = Map::new();
        for (key, text) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind)] {
            put(&mut map, key, text);
        }
        if !self.causes.is_empty() {
            map.insert("causes".into(), self.causes.iter().map(Cause::to_value).collect());
        }
        if self.retry_after_seconds > 0 {
            map.insert("retryAfterSeconds".into(), self.retry_after_seconds.into());
        }
        Value::Object(map)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut map = Map::new();
        for (key, text) in
            [("reason", self.reason), ("message", &self.message), ("field", &self.field)]
        {
            put(&mut map, key, text);
        }
        Value::Object(map)
    }
}

/// The wire form omits empty strings.
fn put(map: &mut Map<String, Value>, key: &str, text: &str) {
    if !text.is_empty() {
        map.insert(key.to_owned(), text.into());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "status_tests.rs"]
mod tests;
