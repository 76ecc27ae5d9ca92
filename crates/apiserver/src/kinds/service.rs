//! Service.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{Kind, Strategy, defaults, printers, validate, warnings};
use crate::api_types::{Gvk, PROXY, Resource, Subresource, core, status};
use crate::schema::names;
use crate::schema::value::{default, is_zero, items, items_mut, map_mut, text};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["svc"],
        categories: &["all"],
        subresources: &[
            Subresource { name: "proxy", gvk: Gvk::core("ServiceProxyOptions"), verbs: PROXY },
            status("Service"),
        ],
        fields: Some(&[("spec.clusterIP", "spec.clusterIP"), ("spec.type", "spec.type")]),
        ..core("services", "service", "Service", "services/specs")
    },
    strategy: Strategy {
        default: defaults::service::service,
        prepare_create: |service| {
            service.insert("status".into(), json!({"loadBalancer": {}}));
        },
        prepare_update: |service, old| keep_allocated(service, &old["spec"]),
        validate: validate::network::service,
        name: names::dns_label,
        printer: &printers::SERVICES,
        returned_when_deleted: true,
        created_on_update: true,
        warnings: warnings::service,
        ..Strategy::PLAIN
    },
};

/// Keeps node ports that an update omits.
fn keep_allocated(service: &mut Map<String, Value>, old: &Value) {
    let Some(spec) = map_mut(service, "spec") else { return };
    let kind = spec.get("type").map_or("", text).to_owned();
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        && matches!(text(&old["type"]), "NodePort" | "LoadBalancer")
        && spec.get("allocateLoadBalancerNodePorts") != Some(&json!(false))
    {
        let place = |port: &Map<String, Value>| {
            let protocol = port.get("protocol").map_or("", text).to_owned();
            (port.get("port").and_then(Value::as_i64), protocol)
        };
        let mut given = HashMap::new();
        for port in items(&old["ports"]).iter().filter_map(Value::as_object) {
            given
                .entry(place(port))
                .or_insert_with(|| port.get("nodePort").unwrap_or(&Value::Null));
        }
        for port in items_mut(spec.get_mut("ports")) {
            if let Some(given) = given.get(&place(port)).filter(|number| !is_zero(number)) {
                default(port, "nodePort", (*given).clone());
            }
        }
    }
    if text(&old["type"]) == "LoadBalancer"
        && kind == "LoadBalancer"
        && text(&old["externalTrafficPolicy"]) == "Local"
        && spec.get("externalTrafficPolicy") == Some(&json!("Local"))
    {
        let given = old["healthCheckNodePort"].clone();
        if !is_zero(&given) {
            default(spec, "healthCheckNodePort", given);
        }
    }
}
