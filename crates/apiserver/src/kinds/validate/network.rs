//! Rules for services, endpoints and endpoint slices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Serialize;
use serde_json::Value;

use super::container::port_number;
use super::{handlers, immutable, meta, one_of, pod, supported};
use crate::cidr::{self, FAMILIES};
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::service::{is_external, is_headless, needs_address, needs_health_port};
use crate::schema::value::{is_zero, items, same, text};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const AFFINITY_LIMIT: i64 = 86_400;

pub(in crate::kinds) fn service(service: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let spec = &service["spec"];
    let kind = text(&spec["type"]);
    let headless = text(&spec["clusterIP"]) == "None";
    if let Some(old) = old.filter(|old| needs_address(old) && needs_address(service)) {
        kept_addresses(&path, spec, &old["spec"], causes);
        if !is_headless(service) && !is_headless(old) {
            kept_families(&path, spec, &old["spec"], causes);
        }
    }
    one_of(
        &path.child("type"),
        &spec["type"],
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        causes,
    );
    if items(&spec["ports"]).is_empty() && !headless && kind != "ExternalName" {
        causes.required(&path.child("ports"), "");
    }
    if matches!(kind, "LoadBalancer" | "NodePort") && headless {
        let list = path.child("clusterIPs");
        causes.invalid(
            &list.index(0),
            "None",
            format!("may not be set to 'None' for {kind} services"),
        );
    }
    if kind == "ExternalName" {
        external_name(&path, spec, causes);
    } else {
        service_addresses(service, causes);
        policies(&path, spec, causes);
    }
    service_ports(&path, spec, kind, causes);
    meta::labels(&path.child("selector"), &spec["selector"], causes);
    affinity(&path, spec, causes);
    for (i, ip) in items(&spec["externalIPs"]).iter().enumerate() {
        endpoint_ip(&path.child("externalIPs").index(i), ip, causes);
    }
    external_policy(&path.child("externalTrafficPolicy"), service, causes);
    health_port(&path.child("healthCheckNodePort"), service, old, causes);
    load_balancer(&path, spec, old, causes);
    if !is_zero(&spec["internalTrafficPolicy"]) {
        one_of(
            &path.child("internalTrafficPolicy"),
            &spec["internalTrafficPolicy"],
            &["Cluster", "Local"],
            causes,
        );
    }
}

fn external_policy(path: &Path<'_>, service: &Value, causes: &mut Causes) {
    let policy = &service["spec"]["externalTrafficPolicy"];
    match (is_external(service), is_zero(policy)) {
        (true, _) => one_of(path, policy, &["Cluster", "Local"], causes),
        (false, true) => {}
        (false, false) => {
            causes.invalid(path, policy, "may only be set for externally-accessible services");
        }
    }
}

/// The port at which nodes answer a load balancer: with one whose traffic stays on its node, and then fixed.
fn health_port(path: &Path<'_>, service: &Value, old: Option<&Value>, causes: &mut Causes) {
    let port = |service: &Value| service["spec"]["healthCheckNodePort"].as_i64().unwrap_or(0);
    let number = port(service);
    match needs_health_port(service) {
        true if number == 0 => causes.required(path, ""),
        true => port_number(path, number, causes),
        false if number == 0 => {}
        false => causes.invalid(
            path,
            &number,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
    }
    let is_kept = |old: &&Value| needs_health_port(old) && needs_health_port(service);
    if old.filter(is_kept).is_some_and(|old| port(old) != number) {
        causes.forbidden(path, "field is immutable");
    }
}

/// What is of load balancers alone.
fn load_balancer(path: &Path<'_>, spec: &Value, old: Option<&Value>, causes: &mut Causes) {
    const OTHERS: &str = "may only be used when `type` is 'LoadBalancer'";
    let is_balancer = spec["type"] == "LoadBalancer";
    let ranges = items(&spec["loadBalancerSourceRanges"]);
    // upstream's spelling
    let ranges_path = path.child("LoadBalancerSourceRanges");
    if !is_balancer && !ranges.is_empty() {
        causes.forbidden(&ranges_path, OTHERS);
    }
    let earlier = old.map_or(&[][..], |old| items(&old["spec"]["loadBalancerSourceRanges"]));
    for (i, range) in ranges.iter().enumerate().filter(|(_, range)| !earlier.contains(range)) {
        if cidr::parse(text(range).trim()).is_none() {
            let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            causes.invalid(&ranges_path.index(i), range, why);
        }
    }
    if !is_balancer && !spec["allocateLoadBalancerNodePorts"].is_null() {
        causes.forbidden(&path.child("allocateLoadBalancerNodePorts"), OTHERS);
    }
    let (class_path, class) = (path.child("loadBalancerClass"), &spec["loadBalancerClass"]);
    match class.is_null() {
        true => {}
        false if !is_balancer => causes.forbidden(&class_path, OTHERS),
        false => causes.each(&class_path, text(class), names::qualified(text(class))),
    }
    let was =
        old.map(|old| &old["spec"]).filter(|old| is_balancer && old["type"] == "LoadBalancer");
    if was.is_some_and(|old| !same(&old["loadBalancerClass"], class)) {
        causes.invalid(&class_path, class, "may not change once set");
    }
}

fn external_name(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let has_addresses = !is_zero(&spec["clusterIPs"]) || !is_zero(&spec["clusterIP"]);
    for (field, is_set) in [
        ("clusterIPs", has_addresses),
        ("ipFamilies", !is_zero(&spec["ipFamilies"])),
        ("ipFamilyPolicy", !spec["ipFamilyPolicy"].is_null()),
    ] {
        if is_set {
            causes.forbidden(&path.child(field), "may not be set for ExternalName services");
        }
    }
    let name = text(&spec["externalName"]);
    match name.strip_suffix('.').unwrap_or(name) {
        "" => causes.required(&path.child("externalName"), ""),
        name => causes.each(&path.child("externalName"), name, names::dns_subdomain(name)),
    }
}

/// The addresses of a service with its families. The allocator of addresses relies on these rules too.
pub(crate) fn service_addresses(service: &Value, causes: &mut Causes) {
    if !needs_address(service) {
        return;
    }
    let (path, spec) = (Path::root("spec"), &service["spec"]);
    let list_path = path.child("clusterIPs");
    let (one, list) = (text(&spec["clusterIP"]), items(&spec["clusterIPs"]));
    match (one, list.first()) {
        ("", Some(_)) => {
            causes.invalid(&list_path, list, "must be empty when `clusterIP` is not specified")
        }
        ("", None) => {}
        (_, None) => causes.required(&list_path, ""),
        (one, Some(first)) if text(first) != one => {
            causes.invalid(&list_path, list, "first value must match `clusterIP`");
        }
        _ => {}
    }
    let families = items(&spec["ipFamilies"]);
    for (i, family) in families.iter().enumerate() {
        let list = path.child("ipFamilies");
        supported(&list.index(i), family, &FAMILIES, causes);
        if families.iter().take(i).any(|earlier| earlier == family) {
            causes.duplicate(&list.index(i), family, "");
        }
    }
    if !spec["ipFamilyPolicy"].is_null() {
        let values = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        supported(&path.child("ipFamilyPolicy"), &spec["ipFamilyPolicy"], &values, causes);
    }
    let mut addresses = Vec::new();
    for (i, ip) in list.iter().enumerate() {
        match ip == "None" && i == 0 {
            true if list.len() == 1 => {}
            true => causes.invalid(&list_path, list, "'None' must be the first and only value"),
            false => addresses.extend(pod::ip(&list_path.index(i), ip, causes)),
        }
    }
    if list.len() > 2 {
        causes.invalid(&list_path, list, "may only hold up to 2 values");
    }
    // What is no address would only make the rest look wrong.
    if is_headless(service) || addresses.len() != list.len() {
        return;
    }
    let has = |is_v4: bool| addresses.iter().any(|address| address.is_ipv4() == is_v4);
    if list.len() > 1 && !(has(true) && has(false)) {
        causes.invalid(&list_path, list, "may specify no more than one IP for each IP family");
    }
    for (i, (address, family)) in addresses.iter().zip(families).enumerate() {
        let family = text(family);
        if FAMILIES.contains(&family) && family != cidr::family_of(*address) {
            let why = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            causes.invalid(&list_path.index(i), &list[i], why);
        }
    }
}

fn policies(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    for (field, values) in [
        ("internalTrafficPolicy", &["Cluster", "Local"][..]),
        ("trafficDistribution", &["PreferClose", "PreferSameZone", "PreferSameNode"]),
    ] {
        if !spec[field].is_null() {
            supported(&path.child(field), &spec[field], values, causes);
        }
    }
}

const NO_CHANGE: &str = "may not change once set";

/// The first address stays as long as the service has addresses at all; the second one may come, and go
/// when the service says that it wants one only.
fn kept_addresses(path: &Path<'_>, new: &Value, old: &Value, causes: &mut Causes) {
    let (list_path, given) = (path.child("clusterIPs"), &new["clusterIPs"]);
    let (new_list, old_list) = (items(given), items(&old["clusterIPs"]));
    if new_list.len() == old_list.len() {
        for (i, _) in new_list.iter().zip(old_list).enumerate().filter(|(_, (a, b))| a != b) {
            causes.invalid(&list_path.index(i), given, NO_CHANGE);
        }
        return;
    }
    match (new_list.first(), old_list.first()) {
        (None, _) => {
            causes.invalid(&list_path.index(0), given, "primary clusterIP can not be unset");
        }
        (Some(first), Some(had)) if first != had => {
            causes.invalid(&list_path.index(0), given, NO_CHANGE);
        }
        _ => {}
    }
    if new_list.len() < old_list.len() && new_list.len() == 1 {
        single_stack(path, new, "clusterIP", causes);
    }
}

/// The same of families, which headless services may change.
fn kept_families(path: &Path<'_>, new: &Value, old: &Value, causes: &mut Causes) {
    let (list_path, given) = (path.child("ipFamilies"), &new["ipFamilies"]);
    let (new_list, old_list) = (items(given), items(&old["ipFamilies"]));
    if new_list.len() == old_list.len() {
        if new_list != old_list {
            causes.invalid(&list_path.index(0), given, NO_CHANGE);
        }
        return;
    }
    let is_less = new_list.len() < old_list.len();
    if is_less && items(&new["clusterIPs"]).is_empty() {
        causes.invalid(&list_path.index(0), given, "primary ipFamily can not be unset");
    }
    if let (Some(first), Some(had)) = (new_list.first(), old_list.first())
        && first != had
    {
        // upstream repeats the addresses here
        causes.invalid(&list_path.index(0), &new["clusterIPs"], NO_CHANGE);
    }
    if is_less && new_list.len() == 1 {
        single_stack(path, new, "ipFamily", causes);
    }
}

fn single_stack(path: &Path<'_>, spec: &Value, released: &str, causes: &mut Causes) {
    if spec["ipFamilyPolicy"] != "SingleStack" {
        let why = format!("must be set to 'SingleStack' when releasing the secondary {released}");
        causes.invalid(&path.child("ipFamilyPolicy"), &spec["ipFamilyPolicy"], why);
    }
}

/// What Go shows of a port that is there twice.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ShownPort<'a> {
    name: &'a str,
    protocol: &'a str,
    app_protocol: Option<&'a str>,
    port: i64,
    target_port: i64,
    node_port: i64,
}

fn service_ports(path: &Path<'_>, spec: &Value, kind: &str, causes: &mut Causes) {
    let list = path.child("ports");
    let ports = items(&spec["ports"]);
    let (mut seen_names, mut seen_ports, mut seen_nodes) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (i, port) in ports.iter().enumerate() {
        let path = list.index(i);
        let name = text(&port["name"]);
        if name.is_empty() && ports.len() > 1 {
            causes.required(&path.child("name"), "");
        } else if !name.is_empty() {
            causes.each(&path.child("name"), name, names::dns_label(name));
            if !seen_names.insert(name) {
                causes.duplicate(&path.child("name"), name, "");
            }
        }
        let number = port["port"].as_i64().unwrap_or(0);
        let protocol = text(&port["protocol"]);
        port_number(&path.child("port"), number, causes);
        one_of(&path.child("protocol"), &port["protocol"], &PROTOCOLS, causes);
        handlers::port(&path.child("targetPort"), &port["targetPort"], causes);
        app_protocol(&path, port, causes);
        if !seen_ports.insert((protocol, number)) {
            let shown = ShownPort {
                name: "",
                protocol,
                app_protocol: None,
                port: number,
                target_port: 0,
                node_port: 0,
            };
            causes.duplicate(&path, &shown, "");
        }
        let Some(node) = port["nodePort"].as_i64().filter(|n| *n != 0) else { continue };
        if kind == "ClusterIP" {
            causes.forbidden(&path.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
        port_number(&path.child("nodePort"), node, causes);
        if !seen_nodes.insert((protocol, node)) {
            causes.duplicate(&path.child("nodePort"), &node, "");
        }
    }
}

fn affinity(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    one_of(&path.child("sessionAffinity"), &spec["sessionAffinity"], &["ClientIP", "None"], causes);
    if spec["sessionAffinity"] == "ClientIP" {
        let seconds =
            spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].as_i64().unwrap_or(0);
        if !(1..=AFFINITY_LIMIT).contains(&seconds) {
            causes.invalid(
                &path.child("sessionAffinityConfig").child("clientIP").child("timeoutSeconds"),
                &seconds,
                format!("must be greater than 0 and less than {AFFINITY_LIMIT}"),
            );
        }
    }
}

/// An address that traffic may be sent to: never this machine, never the link, or a service could
/// be made to reach what only the node itself may.
fn endpoint_ip(path: &Path<'_>, value: &Value, causes: &mut Causes) -> Option<IpAddr> {
    let address = pod::ip(path, value, causes)?;
    // ::ffff:127.0.0.1 is 127.0.0.1 to the kernel
    let (loopback, link, multicast) = match address.to_canonical() {
        IpAddr::V4(ip) => (ip.is_loopback(), ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(ip) => {
            (ip.is_loopback(), ip.is_unicast_link_local(), ip.segments()[0] == 0xff02)
        }
    };
    if address.is_unspecified() {
        causes.invalid(path, value, format!("may not be unspecified ({address})"));
    }
    if loopback {
        causes.invalid(path, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if link {
        causes.invalid(
            path,
            value,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        );
    }
    if multicast {
        causes.invalid(
            path,
            value,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        );
    }
    Some(address)
}

pub(in crate::kinds) fn endpoints(endpoints: &Value, causes: &mut Causes) {
    let root = Path::root("subsets");
    for (i, subset) in items(&endpoints["subsets"]).iter().enumerate() {
        let path = root.index(i);
        if items(&subset["addresses"]).is_empty() && items(&subset["notReadyAddresses"]).is_empty()
        {
            causes.required(&path, "must specify `addresses` or `notReadyAddresses`");
        }
        for list in ["addresses", "notReadyAddresses"] {
            let list_path = path.child(list);
            for (j, address) in items(&subset[list]).iter().enumerate() {
                let path = list_path.index(j);
                let ip = path.child("ip");
                if endpoint_ip(&ip, &address["ip"], causes).is_none() {
                    // upstream has two checks of an address, each with its words
                    causes.invalid(&ip, text(&address["ip"]), "must be a valid IP address");
                }
                if !text(&address["hostname"]).is_empty() {
                    hostname(&path, address, causes);
                }
                node_name(&path, address, causes);
            }
        }
        let ports = items(&subset["ports"]);
        let list_path = path.child("ports");
        for (j, port) in ports.iter().enumerate() {
            let path = list_path.index(j);
            match text(&port["name"]) {
                "" if ports.len() > 1 => causes.required(&path.child("name"), ""),
                "" => {}
                name => causes.each(&path.child("name"), name, names::dns_label(name)),
            }
            port_number(&path.child("port"), port["port"].as_i64().unwrap_or(0), causes);
            one_of(&path.child("protocol"), &port["protocol"], &PROTOCOLS, causes);
            app_protocol(&path, port, causes);
        }
    }
}

/// The protocol above that of a port has a name of its own, or none.
fn app_protocol(path: &Path<'_>, port: &Value, causes: &mut Causes) {
    if let Some(protocol) = port["appProtocol"].as_str() {
        causes.each(&path.child("appProtocol"), protocol, names::qualified(protocol));
    }
}

fn hostname(path: &Path<'_>, endpoint: &Value, causes: &mut Causes) {
    if let Some(host) = endpoint["hostname"].as_str() {
        causes.each(&path.child("hostname"), host, names::dns_label(host));
    }
}

fn node_name(path: &Path<'_>, endpoint: &Value, causes: &mut Causes) {
    if let Some(node) = endpoint["nodeName"].as_str() {
        causes.each(&path.child("nodeName"), node, names::dns_subdomain(node));
    }
}

pub(in crate::kinds) fn endpoint_slice(slice: &Value, old: Option<&Value>, causes: &mut Causes) {
    let kind_path = Path::root("addressType");
    one_of(&kind_path, &slice["addressType"], &["FQDN", "IPv4", "IPv6"], causes);
    if let Some(old) = old {
        immutable(&kind_path, &slice["addressType"], &old["addressType"], causes);
    }
    slice_ports(slice, causes);
    let list = Path::root("endpoints");
    let endpoints = items(&slice["endpoints"]);
    if endpoints.len() > 1000 {
        return causes.too_many(&list, endpoints.len(), 1000);
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        let path = list.index(i);
        let addresses_path = path.child("addresses");
        let addresses = items(&endpoint["addresses"]);
        if addresses.is_empty() {
            causes.required(&addresses_path, "must contain at least 1 address");
        } else if addresses.len() > 100 {
            causes.too_many(&addresses_path, addresses.len(), 100);
        }
        for (j, address) in addresses.iter().enumerate() {
            slice_address(&addresses_path.index(j), text(&slice["addressType"]), address, causes);
        }
        hostname(&path, endpoint, causes);
        node_name(&path, endpoint, causes);
        hints(&path.child("hints"), &endpoint["hints"], causes);
    }
}

/// Where traffic to an endpoint is best sent from.
fn hints(path: &Path<'_>, hints: &Value, causes: &mut Causes) {
    const MAX: usize = 8;
    type Rule = fn(&str) -> Vec<String>;
    for (field, rule) in
        [("forZones", names::label_value as Rule), ("forNodes", names::dns_subdomain)]
    {
        let list = path.child(field);
        let given = items(&hints[field]);
        if given.len() > MAX {
            return causes.too_many(&list, given.len(), MAX);
        }
        let mut seen = BTreeSet::new();
        for (i, name) in given.iter().map(|hint| text(&hint["name"])).enumerate() {
            let path = list.index(i);
            if !seen.insert(name) {
                causes.duplicate(&path.child("name"), name, "");
            }
            causes.each(&path.child("name"), name, rule(name));
        }
    }
}

fn slice_address(path: &Path<'_>, kind: &str, address: &Value, causes: &mut Causes) {
    match kind {
        "IPv4" | "IPv6" => {
            let wrong = endpoint_ip(path, address, causes)
                .is_some_and(|ip| ip.is_ipv4() != (kind == "IPv4"));
            if wrong {
                causes.invalid(path, address, format!("must be an {kind} address"));
            }
        }
        "FQDN" => {
            let name = text(address);
            causes.each(path, name, names::dns_subdomain(name.strip_suffix('.').unwrap_or(name)));
        }
        _ => {}
    }
}

fn slice_ports(slice: &Value, causes: &mut Causes) {
    let list = Path::root("ports");
    let ports = items(&slice["ports"]);
    if ports.len() > 20_000 {
        return causes.too_many(&list, ports.len(), 20_000);
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = list.index(i);
        let name = text(&port["name"]);
        if !name.is_empty() {
            causes.each(&path.child("name"), name, names::dns_label(name));
        }
        if !seen.insert(name) {
            causes.duplicate(&path.child("name"), name, "");
        }
        supported(&path.child("protocol"), &port["protocol"], &PROTOCOLS, causes);
        app_protocol(&path, port, causes);
    }
}
