//! Defaults of services. Their addresses and families are decided where addresses are allocated, by
//! `admission::services`.

use serde_json::{Map, Value, json};

use crate::schema::value::{default, default_absent, is_zero, items_mut, map_mut, text};

const AFFINITY_SECONDS: i64 = 10_800;

pub(in crate::kinds) fn service(service: &mut Map<String, Value>) {
    let spec = service.entry("spec").or_insert_with(|| json!({}));
    let Some(spec) = spec.as_object_mut() else { return };
    default(spec, "sessionAffinity", "None");
    default(spec, "type", "ClusterIP");
    affinity(spec);
    for port in items_mut(spec.get_mut("ports")) {
        default(port, "protocol", "TCP");
        if let Some(number) = port.get("port").cloned() {
            default(port, "targetPort", number);
        }
    }
    let kind = spec.get("type").map_or("", text).to_owned();
    let external = spec.get("externalIPs").is_some_and(|ips| !is_zero(ips));
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") || (kind == "ClusterIP" && external) {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_absent(spec, "allocateLoadBalancerNodePorts", true);
    }
    if kind != "ExternalName" {
        default_absent(spec, "internalTrafficPolicy", "Cluster");
    }
    let Some(balancer) = map_mut(service, "status").and_then(|s| map_mut(s, "loadBalancer")) else {
        return;
    };
    for ingress in items_mut(balancer.get_mut("ingress")) {
        if ingress.get("ip").is_some_and(|ip| !is_zero(ip)) {
            default_absent(ingress, "ipMode", "VIP");
        }
    }
}

fn affinity(spec: &mut Map<String, Value>) {
    match spec.get("sessionAffinity").map_or("", text) {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP" => {
            let given = spec.get("sessionAffinityConfig").map(|c| &c["clientIP"]["timeoutSeconds"]);
            if given.is_none_or(Value::is_null) {
                spec.insert(
                    "sessionAffinityConfig".into(),
                    json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}}),
                );
            }
        }
        _ => {}
    }
}
