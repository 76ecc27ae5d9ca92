//! Columns and cells of role bindings and requests for certificates.

use jiff::Timestamp;
use serde_json::Value;

use super::age::human;
use super::{AGE, NAME, Printer, age, labels, name, or, string, wide};
use crate::csr::{APPROVED, DENIED, FAILED};
use crate::schema::value::{items, text};

pub(in crate::kinds) static BINDINGS: Printer = Printer::new(
    &[NAME, string("Role"), AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts")],
    binding,
);

pub(in crate::kinds) static SIGNING_REQUESTS: Printer = Printer::new(
    &[
        NAME,
        AGE,
        string("SignerName"),
        string("Requestor"),
        string("RequestedDuration"),
        string("Condition"),
    ],
    signing_request,
);

pub(in crate::kinds) static POD_CERTIFICATES: Printer = Printer::new(
    &[
        NAME,
        string("PodName"),
        string("ServiceAccountName"),
        string("NodeName"),
        string("SignerName"),
        string("State"),
        string("UnverifiedUserAnnotations"),
    ],
    pod_certificate,
);

fn binding(binding: &Value, now: Timestamp) -> Vec<Value> {
    let role = &binding["roleRef"];
    let subjects = |kind: &str| -> Value {
        let all = items(&binding["subjects"]).iter().filter(|subject| subject["kind"] == kind);
        let names: Vec<String> = all
            .map(|subject| match text(&subject["namespace"]) {
                "" => text(&subject["name"]).to_owned(),
                namespace => format!("{namespace}/{}", text(&subject["name"])),
            })
            .collect();
        names.join(", ").into()
    };
    vec![
        name(binding),
        format!("{}/{}", text(&role["kind"]), text(&role["name"])).into(),
        age(binding, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

fn signing_request(request: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &request["spec"];
    let duration = spec["expirationSeconds"].as_i64().map(human).unwrap_or_default();
    vec![
        name(request),
        age(request, now),
        or(text(&spec["signerName"]), "<none>"),
        text(&spec["username"]).into(),
        or(&duration, "<none>"),
        condition(&request["status"]).into(),
    ]
}

fn pod_certificate(request: &Value, _: Timestamp) -> Vec<Value> {
    let spec = &request["spec"];
    let verdicts = ["Issued", "Denied", "Failed"];
    let conditions = items(&request["status"]["conditions"]).iter().rev();
    let mut states = conditions.map(|condition| text(&condition["type"]));
    let state = states.find(|kind| verdicts.contains(kind)).unwrap_or("Pending");
    let fields = ["podName", "serviceAccountName", "nodeName", "signerName"];
    std::iter::once(name(request))
        .chain(fields.map(|field| text(&spec[field]).into()))
        .chain([state.into(), labels(&spec["unverifiedUserAnnotations"])])
        .collect()
}

fn condition(status: &Value) -> String {
    let has = |kind: &str| items(&status["conditions"]).iter().any(|c| c["type"] == kind);
    let mut words = vec![match () {
        () if has(DENIED) => "Denied",
        () if has(APPROVED) => "Approved",
        () => "Pending",
    }];
    if has(FAILED) {
        words.push("Failed");
    }
    if !text(&status["certificate"]).is_empty() {
        words.push("Issued");
    }
    words.join(",")
}
