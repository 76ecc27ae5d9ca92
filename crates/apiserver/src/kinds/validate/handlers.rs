//! Rules for probes and lifecycle hooks.

use serde_json::Value;

use super::container::{counts, port_number};
use super::one_of;
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::value::{items, text};

pub(in crate::kinds) fn probe(path: &Path<'_>, probe: &Value, causes: &mut Causes) {
    if probe.is_null() {
        return;
    }
    handler(path, probe, None, causes);
    counts(
        path,
        probe,
        &[
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ],
        causes,
    );
    if let Some(seconds) = probe["terminationGracePeriodSeconds"].as_i64().filter(|s| *s <= 0) {
        causes.invalid(
            &path.child("terminationGracePeriodSeconds"),
            &seconds,
            "must be greater than 0",
        );
    }
}

pub(in crate::kinds) fn lifecycle(
    path: &Path<'_>,
    lifecycle: &Value,
    grace: Option<i64>,
    causes: &mut Causes,
) {
    for hook in ["postStart", "preStop"] {
        if !lifecycle[hook].is_null() {
            handler(&path.child(hook), &lifecycle[hook], grace, causes);
        }
    }
}

/// Exactly one handler.
fn handler(path: &Path<'_>, handler: &Value, grace: Option<i64>, causes: &mut Causes) {
    let given = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"]
        .into_iter()
        .filter(|h| !handler[*h].is_null());
    let mut any = false;
    for name in given {
        let path = path.child(name);
        if any {
            causes.forbidden(&path, "may not specify more than 1 handler type");
            continue;
        }
        any = true;
        let handler = &handler[name];
        match name {
            "exec" => {
                if items(&handler["command"]).is_empty() {
                    causes.required(&path.child("command"), "");
                }
            }
            "httpGet" => http_get(&path, handler, causes),
            "tcpSocket" => port(&path.child("port"), &handler["port"], causes),
            "grpc" => {
                port_number(&path.child("port"), handler["port"].as_i64().unwrap_or(0), causes)
            }
            _ => sleep(&path, handler, grace, causes),
        }
    }
    if !any {
        causes.required(path, "must specify a handler type");
    }
}

fn http_get(path: &Path<'_>, get: &Value, causes: &mut Causes) {
    if text(&get["path"]).is_empty() {
        causes.required(&path.child("path"), "");
    }
    port(&path.child("port"), &get["port"], causes);
    one_of(&path.child("scheme"), &get["scheme"], &["HTTP", "HTTPS"], causes);
    for header in items(&get["httpHeaders"]) {
        let name = text(&header["name"]);
        causes.each(&path.child("httpHeaders"), name, names::header_name(name));
    }
}

/// A port by number or by name.
pub(in crate::kinds) fn port(path: &Path<'_>, port: &Value, causes: &mut Causes) {
    match port.as_str() {
        Some(name) => causes.each(path, name, names::port_name(name)),
        None => port_number(path, port.as_i64().unwrap_or(0), causes),
    }
}

fn sleep(path: &Path<'_>, sleep: &Value, grace: Option<i64>, causes: &mut Causes) {
    let seconds = sleep["seconds"].as_i64().unwrap_or(0);
    if let Some(grace) = grace
        && !(0..=grace).contains(&seconds)
    {
        causes.invalid(
            path,
            &seconds,
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})"),
        );
    }
}
