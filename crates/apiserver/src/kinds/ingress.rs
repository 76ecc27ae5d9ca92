//! Ingress and IngressClass.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::printers::{AGE, NAME, Printer, age, name, or, string};
use super::{Kind, Strategy, validate as rules};
use crate::api_types::{Resource, grouped, status_of};
use crate::schema::names;
use crate::schema::value::{default_absent, is_zero, items, map_mut, text};
use crate::schema::{Causes, Path};

static CLASSES: Printer =
    Printer::new(&[NAME, string("Controller"), string("Parameters"), AGE], |class, now| {
        let given = &class["spec"]["parameters"];
        let parameters = match given.is_null() {
            true => "<none>".to_owned(),
            false => {
                let group = text(&given["apiGroup"]);
                let kind = text(&given["kind"]);
                let kind =
                    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
                format!("{kind}/{}", text(&given["name"]))
            }
        };
        vec![
            name(class),
            text(&class["spec"]["controller"]).into(),
            parameters.into(),
            age(class, now),
        ]
    });

static INGRESSES: Printer = Printer::new(
    &[NAME, string("Class"), string("Hosts"), string("Address"), string("Ports"), AGE],
    cells,
);

pub(super) static CLASS: Kind = Kind {
    resource: Resource {
        namespaced: false,
        counts_generation: true,
        ..grouped("networking.k8s.io", "ingressclasses", "ingressclass", "IngressClass")
    },
    strategy: Strategy {
        default: |class| {
            let parameters = map_mut(class, "spec").and_then(|spec| map_mut(spec, "parameters"));
            if let Some(parameters) = parameters {
                default_absent(parameters, "scope", "Cluster");
            }
        },
        validate: class,
        printer: &CLASSES,
        ..Strategy::PLAIN
    },
};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["ing"],
        subresources: &[status_of("networking.k8s.io", "Ingress")],
        storage: "ingress",
        counts_generation: true,
        ..grouped("networking.k8s.io", "ingresses", "ingress", "Ingress")
    },
    strategy: Strategy {
        prepare_create: |ingress| {
            ingress.insert("status".into(), json!({"loadBalancer": {}}));
        },
        validate,
        printer: &INGRESSES,
        ..Strategy::PLAIN
    },
};

/// The longest name of a controller.
const MAX_CONTROLLER: usize = 250;

fn class(class: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let controller = &class["spec"]["controller"];
    match (text(controller), old) {
        ("", None) => causes.required(&path.child("controller"), ""),
        (given, None) if !given.contains('/') => {
            let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            causes.invalid(&path.child("controller"), given, detail);
            if given.len() > MAX_CONTROLLER {
                causes.too_long(&path.child("controller"), MAX_CONTROLLER);
            }
        }
        (given, None) if given.len() > MAX_CONTROLLER => {
            causes.too_long(&path.child("controller"), MAX_CONTROLLER);
        }
        (_, Some(old)) => {
            let was = &old["spec"]["controller"];
            rules::immutable(&path.child("controller"), controller, was, causes);
        }
        _ => {}
    }
    if !class["spec"]["parameters"].is_null() {
        parameters(&path.child("parameters"), &class["spec"]["parameters"], causes);
    }
}

fn parameters(path: &Path<'_>, reference: &Value, causes: &mut Causes) {
    if let Some(group) = reference["apiGroup"].as_str() {
        causes.each(&path.child("apiGroup"), group, names::dns_subdomain(group));
    }
    for (field, what) in [("kind", ""), ("name", "")] {
        match text(&reference[field]) {
            "" => causes.required(&path.child(field), what),
            given => causes.each(&path.child(field), given, names::path_segment(given)),
        }
    }
    let (namespace, scope) = (&reference["namespace"], text(&reference["scope"]));
    let path_of = |field| path.child(field);
    match (scope, namespace.is_null()) {
        ("Namespace", true) => {
            let detail = "`parameters.scope` is set to 'Namespace'";
            causes.required(&path_of("namespace"), detail);
        }
        ("Namespace", false) => {
            causes.each(&path_of("namespace"), text(namespace), names::dns_label(text(namespace)));
        }
        ("Cluster", false) => {
            let detail = "`parameters.scope` is set to 'Cluster'";
            causes.forbidden(&path_of("namespace"), detail);
        }
        ("Cluster", true) => {}
        ("", _) if reference["scope"].is_null() => causes.required(&path_of("scope"), ""),
        (other, _) => causes.not_supported(&path_of("scope"), other, &["Cluster", "Namespace"]),
    }
}

fn validate(ingress: &Value, _: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&ingress["spec"], Path::root("spec"));
    if is_zero(&spec["rules"]) && spec["defaultBackend"].is_null() {
        causes.invalid(
            &path,
            &spec["rules"],
            "either `defaultBackend` or `rules` must be specified",
        );
    }
    if !spec["defaultBackend"].is_null() {
        backend(&path.child("defaultBackend"), &spec["defaultBackend"], causes);
    }
    if let Some(class) = spec["ingressClassName"].as_str() {
        causes.each(&path.child("ingressClassName"), class, names::dns_subdomain(class));
    }
    let list = path.child("tls");
    for (i, tls) in items(&spec["tls"]).iter().enumerate() {
        let path = list.index(i);
        let hosts = path.child("hosts");
        for (i, host) in items(&tls["hosts"]).iter().map(text).enumerate() {
            let plain = host.strip_prefix("*.").unwrap_or(host);
            causes.each(&hosts.index(i), host, names::dns_subdomain(plain));
        }
        let secret = text(&tls["secretName"]);
        if !secret.is_empty() {
            causes.each(&path.child("secretName"), secret, names::dns_subdomain(secret));
        }
    }
    let list = path.child("rules");
    for (i, rule) in items(&spec["rules"]).iter().enumerate() {
        let path = list.index(i);
        let host = text(&rule["host"]);
        if !host.is_empty() {
            let plain = host.strip_prefix("*.").unwrap_or(host);
            causes.each(&path.child("host"), host, names::dns_subdomain(plain));
        }
        if rule["http"].is_null() {
            continue;
        }
        let http = path.child("http");
        let paths = http.child("paths");
        let all = items(&rule["http"]["paths"]);
        if all.is_empty() {
            causes.required(&paths, "");
        }
        for (i, entry) in all.iter().enumerate() {
            let path = paths.index(i);
            let given = text(&entry["path"]);
            if entry["pathType"].is_null() {
                causes.required(&path.child("pathType"), "pathType must be specified");
                continue;
            }
            match text(&entry["pathType"]) {
                "Exact" | "Prefix" if !given.starts_with('/') => {
                    causes.invalid(&path.child("path"), given, "must be an absolute path");
                }
                "Exact" | "Prefix" => {
                    for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                        if given.contains(bad) {
                            let detail = format!("must not contain '{bad}'");
                            causes.invalid(&path.child("path"), given, detail);
                        }
                    }
                    for bad in ["/..", "/."] {
                        if given.ends_with(bad) {
                            let detail = format!("cannot end with '{bad}'");
                            causes.invalid(&path.child("path"), given, detail);
                        }
                    }
                }
                "ImplementationSpecific" if !given.is_empty() && !given.starts_with('/') => {
                    causes.invalid(&path.child("path"), given, "must be an absolute path");
                }
                "ImplementationSpecific" => {}
                other => causes.not_supported(
                    &path.child("pathType"),
                    other,
                    &["Exact", "ImplementationSpecific", "Prefix"],
                ),
            }
            backend(&path.child("backend"), &entry["backend"], causes);
        }
    }
}

/// An object in the namespace that serves what no service does.
fn resource(path: &Path<'_>, reference: &Value, causes: &mut Causes) {
    if let Some(group) = reference["apiGroup"].as_str() {
        causes.each(&path.child("apiGroup"), group, names::dns_subdomain(group));
    }
    for field in ["kind", "name"] {
        match text(&reference[field]) {
            "" => causes.required(&path.child(field), ""),
            given => causes.each(&path.child(field), given, names::path_segment(given)),
        }
    }
}

fn backend(path: &Path<'_>, backend: &Value, causes: &mut Causes) {
    match (backend["resource"].is_null(), backend["service"].is_null()) {
        (false, false) => {
            causes.invalid(path, "", "cannot set both resource and service backends");
        }
        (true, true) => causes.invalid(path, "", "resource or service backend is required"),
        (false, true) => resource(&path.child("resource"), &backend["resource"], causes),
        (true, false) => {
            let (service, whole) = (&backend["service"], path);
            let path = path.child("service");
            match text(&service["name"]) {
                "" => causes.required(&path.child("name"), ""),
                name => causes.each(&path.child("name"), name, names::dns_label(name)),
            }
            let port = path.child("port");
            let (number, name) =
                (service["port"]["number"].as_i64().unwrap_or(0), text(&service["port"]["name"]));
            match (number, name) {
                (0, "") => causes.required(whole, "port name or number is required"),
                (0, name) => causes.each(&port.child("name"), name, names::port_name(name)),
                (number, "") => {
                    for detail in names::port_number(number) {
                        causes.invalid(&port.child("number"), &number, detail);
                    }
                }
                _ => causes.invalid(whole, "", "cannot set both port name & port number"),
            }
        }
    }
}

fn cells(ingress: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &ingress["spec"];
    let class = match text(&spec["ingressClassName"]) {
        "" => text(&ingress["metadata"]["annotations"]["kubernetes.io/ingress.class"]),
        class => class,
    };
    let hosts: Vec<&str> = items(&spec["rules"])
        .iter()
        .map(|rule| text(&rule["host"]))
        .filter(|h| !h.is_empty())
        .collect();
    let addresses: BTreeSet<&str> = items(&ingress["status"]["loadBalancer"]["ingress"])
        .iter()
        .map(|entry| match text(&entry["ip"]) {
            "" => text(&entry["hostname"]),
            ip => ip,
        })
        .collect();
    let hosts = match hosts.get(..3) {
        Some(first) if hosts.len() > 3 => {
            format!("{} + {} more...", first.join(","), hosts.len().saturating_sub(3))
        }
        _ => hosts.join(","),
    };
    let ports = if is_zero(&spec["tls"]) { "80" } else { "80, 443" };
    vec![
        name(ingress),
        or(class, "<none>"),
        or(&hosts, "*"),
        addresses.into_iter().collect::<Vec<_>>().join(",").into(),
        ports.into(),
        age(ingress, now),
    ]
}
