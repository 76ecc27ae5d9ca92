//! What a service needs by its type.

use serde_json::Value;

use super::value::{items, text};

/// Whether it has addresses, or is headless: all but an ExternalName service.
pub(crate) fn needs_address(service: &Value) -> bool {
    service["spec"]["type"] != "ExternalName"
}

/// Whether its name leads to its endpoints themselves.
pub(crate) fn is_headless(service: &Value) -> bool {
    matches!(items(&service["spec"]["clusterIPs"]), [one] if one == "None")
}

/// Whether its ports may have node ports.
pub(crate) fn needs_node_ports(service: &Value) -> bool {
    matches!(text(&service["spec"]["type"]), "NodePort" | "LoadBalancer")
}

/// Whether nodes answer a load balancer for it.
pub(crate) fn needs_health_port(service: &Value) -> bool {
    let spec = &service["spec"];
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

/// Whether traffic comes to it from outside the cluster.
pub(crate) fn is_external(service: &Value) -> bool {
    let spec = &service["spec"];
    needs_node_ports(service)
        || (spec["type"] == "ClusterIP" && !items(&spec["externalIPs"]).is_empty())
}
