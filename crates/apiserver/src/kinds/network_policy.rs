//! NetworkPolicy.

use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::{Kind, Strategy, validate as rules, workload};
use crate::api_types::{Resource, grouped};
use crate::cidr;
use crate::schema::names;
use crate::schema::value::{default_absent, is_zero, items, items_mut, map_mut, text};
use crate::schema::{Causes, Path};

static PRINTER: Printer = Printer::new(&[NAME, string("Pod-Selector"), AGE], |policy, now| {
    let selector = workload::selector_cell(&policy["spec"]["podSelector"]);
    vec![name(policy), selector, age(policy, now)]
});

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["netpol"],
        counts_generation: true,
        ..grouped("networking.k8s.io", "networkpolicies", "networkpolicy", "NetworkPolicy")
    },
    strategy: Strategy { default: defaults, validate, printer: &PRINTER, ..Strategy::PLAIN },
};

fn defaults(policy: &mut Map<String, Value>) {
    let Some(spec) = map_mut(policy, "spec") else { return };
    for direction in ["ingress", "egress"] {
        for rule in items_mut(spec.get_mut(direction)) {
            for port in items_mut(rule.get_mut("ports")) {
                default_absent(port, "protocol", "TCP");
            }
        }
    }
    if spec.get("policyTypes").is_none_or(is_zero) {
        let types = match spec.get("egress").is_none_or(is_zero) {
            true => json!(["Ingress"]),
            false => json!(["Ingress", "Egress"]),
        };
        spec.insert("policyTypes".into(), types);
    }
}

fn validate(policy: &Value, _: Option<&Value>, causes: &mut Causes) {
    let (spec, path) = (&policy["spec"], Path::root("spec"));
    rules::selector(&path.child("podSelector"), &spec["podSelector"], causes);
    let types = path.child("policyTypes");
    if items(&spec["policyTypes"]).len() > 2 {
        let why = "may not specify more than two policyTypes";
        return causes.invalid(&types, &spec["policyTypes"], why);
    }
    for (i, given) in items(&spec["policyTypes"]).iter().enumerate() {
        rules::supported(&types.index(i), given, &["Ingress", "Egress"], causes);
    }
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let list = path.child(direction);
        for (i, rule) in items(&spec[direction]).iter().enumerate() {
            let path = list.index(i);
            let peers_path = path.child(peers);
            for (i, peer) in items(&rule[peers]).iter().enumerate() {
                peer_rules(&peers_path.index(i), peer, causes);
            }
            let ports = path.child("ports");
            for (i, port) in items(&rule["ports"]).iter().enumerate() {
                let protocols = ["TCP", "UDP", "SCTP"];
                let path = ports.index(i);
                rules::supported(&path.child("protocol"), &port["protocol"], &protocols, causes);
                port_rules(&path, port, causes);
            }
        }
    }
}

/// A port by number or name, or a range of numbers.
fn port_rules(path: &Path<'_>, port: &Value, causes: &mut Causes) {
    let (field, first) = (path.child("port"), port["port"].as_i64());
    if let Some(number) = first {
        rules::container::port_number(&field, number, causes);
    }
    if let Some(name) = port["port"].as_str() {
        causes.each(&field, name, names::port_name(name));
    }
    let Some(last) = port["endPort"].as_i64() else { return };
    let field = path.child("endPort");
    let why = match (port["port"].is_null(), first) {
        (true, _) => "may not be specified when `port` is not specified",
        (false, None) => "may not be specified when `port` is non-numeric",
        (false, Some(first)) if last < first => "must be greater than or equal to `port`",
        _ => "",
    };
    if !why.is_empty() {
        // upstream shows the first port here
        causes.invalid(&field, &first.unwrap_or(last), why);
    }
    if first.is_some() {
        rules::container::port_number(&field, last, causes);
    }
}

/// A range of addresses without some ranges within it.
fn ip_block(path: &Path<'_>, block: &Value, causes: &mut Causes) {
    const NOT_A_RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
    let (field, whole) = (path.child("cidr"), text(&block["cidr"]));
    if whole.is_empty() {
        return causes.required(&field, "");
    }
    let Some(range) = cidr::parse(whole) else {
        return causes.invalid(&field, whole, NOT_A_RANGE);
    };
    let list = path.child("except");
    for (i, given) in items(&block["except"]).iter().map(text).enumerate() {
        match cidr::parse(given) {
            None => causes.invalid(&list.index(i), given, NOT_A_RANGE),
            Some(except) if range == except || !range.contains(&except) => {
                let why = format!("must be a strict subset of `cidr` ({whole})");
                causes.invalid(&list.index(i), given, why);
            }
            Some(_) => {}
        }
    }
}

fn peer_rules(path: &Path<'_>, peer: &Value, causes: &mut Causes) {
    let selectors = ["podSelector", "namespaceSelector"];
    for field in selectors {
        rules::selector(&path.child(field), &peer[field], causes);
    }
    let has_selector = selectors.iter().any(|field| !peer[*field].is_null());
    match (has_selector, peer["ipBlock"].is_null()) {
        (false, true) => causes.required(path, "must specify a peer"),
        (true, false) => {
            causes.forbidden(path, "may not specify both ipBlock and another peer");
        }
        (false, false) => ip_block(&path.child("ipBlock"), &peer["ipBlock"], causes),
        (true, true) => {}
    }
}
