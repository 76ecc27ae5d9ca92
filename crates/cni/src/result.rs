//! What plugins answer.

use std::net::IpAddr;

use serde_json::Value;

/// The addresses of an interface inside the container, IPv4 before IPv6, otherwise in the result's order.
/// Results of all versions are read.
#[must_use]
pub fn addresses(result: &Value, interface: &str) -> Vec<IpAddr> {
    let mut found = current(result, interface);
    if found.is_empty() {
        found = ["ip4", "ip6"]
            .iter()
            .filter_map(|family| address(result.get(family)?.get("ip")?))
            .collect();
    }
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    found
}

/// From 0.3.0 on: a list, whose items name the interface by its number.
fn current(result: &Value, interface: &str) -> Vec<IpAddr> {
    let Some(ips) = result.get("ips").and_then(Value::as_array) else { return Vec::new() };
    let is_ours = |number: &Value| {
        let number = number.as_u64().and_then(|number| usize::try_from(number).ok());
        let entry = number.and_then(|number| result.get("interfaces")?.get(number));
        // A number that leads nowhere excludes nothing.
        entry.is_none_or(|entry| {
            let name = entry.get("name").and_then(Value::as_str);
            let inside =
                entry.get("sandbox").and_then(Value::as_str).is_some_and(|s| !s.is_empty());
            inside && name == Some(interface)
        })
    };
    ips.iter()
        .filter(|ip| ip.get("interface").is_none_or(is_ours))
        .filter_map(|ip| address(ip.get("address")?))
        .collect()
}

/// The address of `10.0.0.2/24`.
fn address(value: &Value) -> Option<IpAddr> {
    let text = value.as_str()?;
    text.split('/').next()?.parse().ok()
}
