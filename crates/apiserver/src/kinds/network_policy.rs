//! NetworkPolicy.

use serde_json::{Map, Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::{Kind, Strategy, validate as rules, workload};
use crate::api_types::{Resource, grouped};
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
    for (i, given) in items(&spec["policyTypes"]).iter().enumerate() {
        rules::one_of(&types.index(i), given, &["Egress", "Ingress"], causes);
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
                let protocols = ["SCTP", "TCP", "UDP"];
                let path = ports.index(i);
                rules::one_of(&path.child("protocol"), &port["protocol"], &protocols, causes);
                if let Some(number) = port["port"].as_i64() {
                    for detail in crate::schema::names::port_number(number) {
                        causes.invalid(&path.child("port"), &number, detail);
                    }
                }
            }
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
        (false, false) if text(&peer["ipBlock"]["cidr"]).is_empty() => {
            let block = path.child("ipBlock");
            causes.required(&block.child("cidr"), "");
        }
        _ => {}
    }
}
