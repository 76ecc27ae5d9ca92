//! APIService: which server serves a version of a group.

use serde_json::{Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::{Kind, Strategy};
use crate::api_types::{Resource, grouped, status_of};
use crate::schema::names;
use crate::schema::value::{default_absent, items, map_mut, text};
use crate::schema::{Causes, Path};

const GROUP: &str = "apiregistration.k8s.io";

static PRINTER: Printer =
    Printer::new(&[NAME, string("Service"), string("Available"), AGE], |api, now| {
        let service = &api["spec"]["service"];
        let service = match service.is_null() {
            true => "Local".to_owned(),
            false => format!("{}/{}", text(&service["namespace"]), text(&service["name"])),
        };
        let mut conditions = items(&api["status"]["conditions"]).iter();
        let available = conditions.rfind(|condition| condition["type"] == "Available");
        let available = match available {
            None => "Unknown".to_owned(),
            Some(condition) if condition["status"] == "True" => "True".to_owned(),
            Some(condition) => {
                format!("{} ({})", text(&condition["status"]), text(&condition["reason"]))
            }
        };
        vec![name(api), service.into(), available.into(), age(api, now)]
    });

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        namespaced: false,
        categories: &["api-extensions"],
        subresources: &[status_of(GROUP, "APIService")],
        storage: "apiregistration.k8s.io/apiservices",
        ..grouped(GROUP, "apiservices", "apiservice", "APIService")
    },
    strategy: Strategy {
        default: |api| {
            let service = map_mut(api, "spec").and_then(|spec| map_mut(spec, "service"));
            if let Some(service) = service {
                default_absent(service, "port", 443);
            }
        },
        prepare_create: |api| {
            let is_local = api.get("spec").is_none_or(|spec| spec["service"].is_null());
            let status = match is_local {
                true => json!({"conditions": [local_condition()]}),
                false => json!({}),
            };
            api.insert("status".into(), status);
        },
        prepare_status: super::prepare::keep_all_metadata,
        validate: |api, _, causes| validate(api, causes),
        validate_status: |api, _, causes| {
            const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
            let path = Path::root("status");
            let list = path.child("conditions");
            for (i, condition) in items(&api["status"]["conditions"]).iter().enumerate() {
                let status = text(&condition["status"]);
                if !STATUSES.contains(&status) {
                    let path = list.index(i);
                    causes.not_supported(&path.child("status"), status, &STATUSES);
                }
            }
        },
        name: names::path_segment,
        printer: &PRINTER,
        versioned_updates: true,
        reset_by_status: &["spec", "metadata"],
        ..Strategy::PLAIN
    },
};

/// The condition of what this server serves itself.
pub(crate) fn local_condition() -> Value {
    json!({
        "type": "Available",
        "status": "True",
        "lastTransitionTime": crate::object::now().to_string(),
        "reason": "Local",
        "message": "Local APIServices are always available",
    })
}

fn dns_1035_label(text: &str) -> Vec<String> {
    let mut letters = text.chars();
    let is_first = letters.next().is_some_and(|first| first.is_ascii_lowercase());
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push("must be no more than 63 characters".to_owned());
    }
    if !is_first || !letters.all(is_inner) || text.ends_with('-') {
        problems.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start \
             with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  \
             or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    problems
}

fn validate(api: &Value, causes: &mut Causes) {
    let (spec, path) = (&api["spec"], Path::root("spec"));
    let (group, version) = (text(&spec["group"]), text(&spec["version"]));
    let (own, required) = (crate::object::name(api), format!("{version}.{group}"));
    if own != required && !own.is_empty() {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {required:?}");
        causes.invalid(&Path::root("metadata").child("name"), own, detail);
    }
    if group.is_empty() && version != "v1" {
        let detail = "only v1 may have an empty group and it better be legacy kube";
        causes.required(&path.child("group"), detail);
    }
    if !group.is_empty() {
        causes.each(&path.child("group"), group, names::dns_subdomain(group));
    }
    causes.each(&path.child("version"), version, dns_1035_label(version));
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let given = spec[field].as_i64().unwrap_or(0);
        if !(1..=most).contains(&given) {
            let detail = format!("must be positive and less than {most}");
            causes.invalid(&path.child(field), &given, detail);
        }
    }
    let (bundle, insecure) = (text(&spec["caBundle"]), spec["insecureSkipTLSVerify"] == true);
    let service = &spec["service"];
    if service.is_null() {
        if !bundle.is_empty() {
            let detail = "local APIServices may not have a caBundle";
            causes.invalid(&path.child("caBundle"), "", detail);
        }
        if insecure {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            causes.invalid(&path.child("insecureSkipTLSVerify"), &true, detail);
        }
        return;
    }
    let service_path = path.child("service");
    for field in ["namespace", "name"] {
        if text(&service[field]).is_empty() {
            causes.required(&service_path.child(field), "");
        }
    }
    let port = service["port"].as_i64().unwrap_or(443);
    let problems = names::port_number(port);
    if !problems.is_empty() {
        let detail = format!("port is not valid: {}", problems.join(", "));
        causes.invalid(&service_path.child("port"), &port, detail);
    }
    if insecure && !bundle.is_empty() {
        let detail = "may not be true if caBundle is present";
        causes.invalid(&path.child("insecureSkipTLSVerify"), &true, detail);
    }
}
