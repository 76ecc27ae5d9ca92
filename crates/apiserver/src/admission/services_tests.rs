use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::kinds;

fn service(spec: Value) -> Value {
    json!({"kind": "Service", "metadata": {"name": "s", "uid": "u"}, "spec": spec})
}

fn resource() -> &'static Resource {
    core("services").unwrap()
}

fn allocator(range: &str) -> ServiceAllocator {
    ServiceAllocator::new(range.parse().unwrap(), NodePorts::default(), Plugins::default()).unwrap()
}

fn service_cidr(name: &str, cidrs: &[&str], is_ready: bool) -> Value {
    let status = if is_ready { "True" } else { "False" };
    json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs},
        "status": {"conditions": [{"type": "Ready", "status": status}]}})
}

/// Updates a service to this spec.
fn change(allocator: &ServiceAllocator, old: &Value, spec: Value) -> Result<Value, StatusError> {
    let stored = json!({"name": "s", "namespace": "default", "uid": "u", "resourceVersion": "1"});
    let (mut new, mut old) = (service(spec), old.clone());
    new["metadata"] = stored.clone();
    old["metadata"] = stored;
    kinds::apply_defaults(resource(), &mut new);
    let reservation = allocator.admit(resource(), &mut new, Some(&old), false)?;
    kinds::validate_update(resource(), &new, &old)?;
    reservation.settle(Some(&new));
    Ok(new)
}

fn admit(allocator: &ServiceAllocator, spec: Value) -> Result<Value, StatusError> {
    let mut service = service(spec);
    let reservation = allocator.admit(resource(), &mut service, None, false)?;
    reservation.settle(Some(&service));
    Ok(service)
}

#[test]
fn service_ip_allocation_uses_each_address_once() {
    let allocator = allocator("10.0.0.0/29");
    let mut given = BTreeSet::new();
    for _ in 0..6 {
        given.insert(
            admit(&allocator, json!({"type": "ClusterIP"})).unwrap()["spec"]["clusterIP"]
                .to_string(),
        );
    }
    assert_eq!(given.len(), 6);
    let full = admit(&allocator, json!({"type": "ClusterIP"})).unwrap_err();
    assert!(full.message.contains("range is full"), "{full}");
    let one = service(json!({"clusterIP": "10.0.0.3"}));
    allocator.begin_delete(&one, true).settle(None);
    assert!(admit(&allocator, json!({"type": "ClusterIP"})).is_err(), "a dry run frees nothing");
    allocator.begin_delete(&one, false).settle(None);
    assert_eq!(
        admit(&allocator, json!({"type": "ClusterIP"})).unwrap()["spec"]["clusterIP"],
        "10.0.0.3"
    );
}

#[test]
fn service_allocations_are_released() {
    let allocator = allocator("10.0.0.0/24");
    let asked = json!({"type": "NodePort", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
        "ports": [{"port": 1, "nodePort": 30001}]});
    for _ in 0..2 {
        let mut failed = service(asked.clone());
        drop(allocator.admit(resource(), &mut failed, None, false).unwrap());
    }
    // A dry run takes nothing even for a moment.
    let mut tried = service(asked.clone());
    let dry = allocator.admit(resource(), &mut tried, None, true).unwrap();
    assert_eq!(tried["spec"]["clusterIP"], "10.0.0.9");
    admit(&allocator, asked.clone()).unwrap();
    drop(dry);
    let error = allocator.admit(resource(), &mut service(asked), None, true).err().unwrap();
    assert!(error.message.contains("provided IP is already allocated"), "{error}");
    // A fault in the second port gives the first back too.
    let mut faulty =
        service(json!({"type": "NodePort", "ports": [{"nodePort": 30002}, {"nodePort": 1}]}));
    let error = allocator.admit(resource(), &mut faulty, None, false).err().unwrap();
    assert!(error.message.contains(
        "spec.ports[1].nodePort: Invalid value: 1: provided port is not in the valid range"
    ));
    admit(&allocator, json!({"type": "NodePort", "ports": [{"nodePort": 30002}]})).unwrap();
}

#[test]
fn node_port_is_shared_by_protocols_of_one_service_only() {
    let allocator = allocator("10.0.0.0/24");
    let dns =
        json!([{"protocol": "UDP", "nodePort": 30053}, {"protocol": "TCP", "nodePort": 30053}]);
    admit(&allocator, json!({"type": "NodePort", "ports": dns})).unwrap();
    let taken =
        admit(&allocator, json!({"type": "NodePort", "ports": [{"nodePort": 30053}]})).unwrap_err();
    assert_eq!(taken.code, 422);
    let ports = json!([{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]);
    let made = admit(&allocator, json!({"type": "NodePort", "ports": ports})).unwrap();
    let numbers = &made["spec"]["ports"];
    assert!(numbers[0]["nodePort"].is_u64());
    assert_eq!(numbers[0]["nodePort"], numbers[1]["nodePort"]);
}

#[test]
fn service_allocation_by_type() {
    let allocator = allocator("10.0.0.0/24");
    let external = admit(&allocator, json!({"type": "ExternalName", "externalName": "x"})).unwrap();
    assert!(external["spec"].get("clusterIP").is_none());
    let balanced = admit(
        &allocator,
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{}]}),
    )
    .unwrap();
    assert!(
        balanced["spec"]["healthCheckNodePort"].is_u64()
            && balanced["spec"]["ports"][0]["nodePort"].is_u64()
    );
    let bare =
        json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{}]});
    assert!(admit(&allocator, bare).unwrap()["spec"]["ports"][0].get("nodePort").is_none());
}

/// Finding 5: what an ExternalName service says it has is not its own.
#[test]
fn service_allocation_of_external_name_is_empty() {
    let allocator = allocator("10.0.0.0/24");
    let victim = json!({"type": "NodePort", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
        "ports": [{"port": 1, "nodePort": 30001}]});
    admit(&allocator, victim).unwrap();
    let old = json!({"metadata": {"name": "t", "uid": "thief"}, "spec": {
        "type": "ExternalName", "externalName": "x", "clusterIP": "10.0.0.9",
        "clusterIPs": ["10.0.0.9"], "ports": [{"port": 1, "nodePort": 30001}]}});
    assert_eq!(Allocation::of(&old), Allocation::default());
    for (kind, field) in [("ClusterIP", "clusterIPs"), ("NodePort", "clusterIPs")] {
        let mut new = old.clone();
        new["spec"]["type"] = kind.into();
        let error = allocator.admit(resource(), &mut new, Some(&old), false).err().unwrap();
        assert!(error.message.contains(field) && error.message.contains("already allocated"));
    }
    let mut new = old.clone();
    new["spec"] = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}]});
    let error = allocator.admit(resource(), &mut new, Some(&old), false).err().unwrap();
    assert!(error.message.contains("nodePort: Invalid value: 30001: provided port is already"));
    // And its end takes nothing from anybody.
    allocator.begin_delete(&old, false).settle(None);
    let again = json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"]});
    assert!(admit(&allocator, again).is_err());
}

/// Finding 5: `healthCheckNodePort` is a node port like others.
#[test]
fn health_check_ports_are_allocated() {
    let allocator = allocator("10.0.0.0/24");
    let balancer = |port: u64, own: u64| {
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port,
            "ports": [{"port": 1, "nodePort": own}]})
    };
    admit(&allocator, balancer(30005, 30006)).unwrap();
    for (port, own, why) in [
        (30005, 30007, "already allocated"),
        (30006, 30007, "already allocated"),
        (30008, 30008, "already allocated"),
        (22, 30007, "not in the valid range"),
        (10250, 30007, "not in the valid range"),
        (99_999_999, 30007, "not in the valid range"),
    ] {
        let error = admit(&allocator, balancer(port, own)).unwrap_err();
        assert!(error.message.contains(why), "{port}: {error}");
        assert!(error.message.contains("failed to allocate requested HealthCheck NodePort"));
    }
    let taken = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30005}]});
    assert!(admit(&allocator, taken.clone()).is_err());
    // A service that needs it no longer gives it back.
    let old = service(balancer(30005, 30006));
    let mut new = old.clone();
    new["spec"]["externalTrafficPolicy"] = "Cluster".into();
    let reservation = allocator.admit(resource(), &mut new, Some(&old), false).unwrap();
    assert!(new["spec"].get("healthCheckNodePort").is_none());
    reservation.settle(Some(&new));
    admit(&allocator, taken).unwrap();
}

/// Finding 6, CVE-2020-8554: with DenyServiceExternalIPs no service draws traffic for an address
/// that it did not have.
#[test]
fn deny_external_ips_allows_unchanged_or_removed() {
    let spec = |ips: &[&str]| service(json!({"externalIPs": ips}));
    let choose = |plugins| {
        ServiceAllocator::new("10.0.0.0/24".parse().unwrap(), NodePorts::default(), plugins)
            .unwrap()
    };
    let on = choose(Plugins { deny_service_external_ips: true, ..Plugins::default() });
    let off = choose(Plugins::default());
    for (new, old, expected) in [
        (spec(&[]), None, true),
        (spec(&["1.2.3.4"]), None, false),
        (spec(&["1.2.3.4"]), Some(spec(&[])), false),
        (spec(&["1.2.3.4"]), Some(spec(&["1.2.3.4", "1.2.3.5"])), true),
        (spec(&["1.2.3.4", "1.2.3.6"]), Some(spec(&["1.2.3.4", "1.2.3.5"])), false),
        (spec(&[]), Some(spec(&["1.2.3.4"])), true),
    ] {
        let answer = on.admit(resource(), &mut new.clone(), old.as_ref(), false);
        assert_eq!(answer.is_ok(), expected, "{new}");
        if let Err(error) = answer {
            assert_eq!(error.code, 403);
            assert!(error.message.contains("Use of external IPs is denied by admission control"));
        }
        assert!(off.admit(resource(), &mut new.clone(), old.as_ref(), false).is_ok());
    }
}

/// What is read at start is held by each service that has it, until the last of them is gone.
#[test]
fn service_allocation_conflicts_are_reported() {
    let allocator = allocator("10.0.0.0/24");
    let stored = |uid: &str| json!({"metadata": {"uid": uid}, "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.9"}});
    assert!(allocator.occupy(&stored("a")).is_empty());
    assert!(allocator.occupy(&stored("a")).is_empty());
    assert_eq!(allocator.occupy(&stored("b")), ["10.0.0.9"]);
    let asked = json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"]});
    allocator.begin_delete(&stored("a"), false).settle(None);
    assert!(admit(&allocator, asked.clone()).is_err());
    allocator.begin_delete(&stored("b"), false).settle(None);
    assert!(admit(&allocator, asked).is_ok());
}

fn list<'a>(service: &'a Value, field: &str) -> Vec<&'a str> {
    items(&service["spec"][field]).iter().map(text).collect()
}

#[test]
fn service_ip_allocation_of_both_families() {
    let allocator = allocator("10.0.0.0/24,fd00::/64");
    let both = admit(&allocator, json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"}));
    let both = both.unwrap();
    assert_eq!(list(&both, "ipFamilies"), ["IPv4", "IPv6"]);
    let addresses = list(&both, "clusterIPs");
    assert!(addresses[0].starts_with("10.0.0.") && addresses[1].starts_with("fd00::"), "{both}");
    assert_eq!(both["spec"]["clusterIP"], addresses[0]);
    let six = admit(&allocator, json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]})).unwrap();
    assert!(list(&six, "clusterIPs")[0].starts_with("fd00::"), "{six}");
    // The second one is taken: the first is given back.
    let asked = |v6: &str| {
        json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", v6],
            "ipFamilyPolicy": "RequireDualStack"})
    };
    let error = admit(&allocator, asked(addresses[1])).unwrap_err();
    let why = format!("failed to allocate IP {}: provided IP is already allocated", addresses[1]);
    assert!(error.message.contains(&why), "{error}");
    let given = admit(&allocator, asked("fd00::9")).unwrap();
    assert_eq!(list(&given, "ipFamilies"), ["IPv4", "IPv6"]);
    for (taken, is_taken) in [("10.0.0.9", true), ("fd00::9", true), ("fd00::8", false)] {
        let asked = json!({"type": "ClusterIP", "clusterIP": taken});
        assert_eq!(admit(&allocator, asked).is_err(), is_taken, "{taken}");
    }
}

#[test]
fn service_ip_allocation_follows_upgrades_and_downgrades() {
    let allocator = allocator("10.0.0.0/24,fd00::/64");
    let ports = json!([{"port": 80}]);
    let start = json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "ports": ports});
    let mut single = service(start);
    kinds::apply_defaults(resource(), &mut single);
    let single = admit(&allocator, single["spec"].clone()).unwrap();
    let with = |old: &Value, field: &str, value: Value| {
        let mut spec = old["spec"].clone();
        spec[field] = value;
        spec
    };
    let upgrade = with(&single, "ipFamilyPolicy", "RequireDualStack".into());
    let double = change(&allocator, &single, upgrade).unwrap();
    let [first, second] = list(&double, "clusterIPs")[..] else { panic!("{double}") };
    assert_eq!((first, double["spec"]["clusterIP"].as_str()), ("10.0.0.9", Some("10.0.0.9")));
    let is_taken = |address: &str| {
        let asked = json!({"type": "ClusterIP", "clusterIP": address});
        allocator.admit(resource(), &mut service(asked), None, true).is_err()
    };
    assert!(is_taken(second));
    // Another second address is refused, and not taken.
    let mut other = double["spec"].clone();
    other["clusterIPs"][1] = "fd00::ffff:ffff:ffff:ffff".into();
    let error = change(&allocator, &double, other).unwrap_err();
    assert!(error.message.contains("spec.clusterIPs[1]"), "{error}");
    assert!(!is_taken("fd00::ffff:ffff:ffff:ffff"));
    // A client that names no families and addresses keeps both.
    let mut plain = double["spec"].clone();
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        plain.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(change(&allocator, &double, plain).unwrap()["spec"], double["spec"]);
    let downgrade = with(&double, "ipFamilyPolicy", "SingleStack".into());
    let again = change(&allocator, &double, downgrade).unwrap();
    assert_eq!(
        (list(&again, "clusterIPs"), list(&again, "ipFamilies")),
        (vec![first], vec!["IPv4"])
    );
    assert!(!is_taken(second) && is_taken(first));
    // An ExternalName service has none, and gets new ones when it is no longer one.
    let named =
        json!({"type": "ExternalName", "externalName": "a.example", "sessionAffinity": "None"});
    let named = change(&allocator, &again, named).unwrap();
    assert!(!is_taken(first) && list(&named, "ipFamilies").is_empty(), "{named}");
    let mut back = single["spec"].clone();
    for field in ["clusterIP", "clusterIPs", "ipFamilies"] {
        back.as_object_mut().unwrap().remove(field);
    }
    back["ipFamilyPolicy"] = "PreferDualStack".into();
    let back = change(&allocator, &named, back).unwrap();
    assert!(list(&back, "clusterIPs").iter().all(|address| is_taken(address)), "{back}");
    assert_eq!(list(&back, "clusterIPs").len(), 2);
}

#[test]
fn service_ip_allocation_uses_service_cidrs() {
    let allocator = allocator("10.0.0.0/30");
    let ask = |address: &str| {
        admit(&allocator, json!({"type": "ClusterIP", "clusterIP": address}))
            .map(|service| list(&service, "clusterIPs")[0].to_owned())
    };
    let outside = "the provided network does not match the current range";
    assert!(ask("10.1.0.9").unwrap_err().message.contains(outside));
    allocator.cidrs.put(&service_cidr("more", &["10.1.0.0/28", "fd01::/64"], false));
    assert!(ask("10.1.0.9").unwrap_err().message.contains(outside));
    allocator.cidrs.put(&service_cidr("more", &["10.1.0.0/28", "fd01::/64"], true));
    ask("10.1.0.9").unwrap();
    assert!(ask("10.1.0.9").unwrap_err().message.contains("already allocated"));
    assert!(ask("10.1.0.15").unwrap_err().message.contains(outside));
    // The family is not the cluster's, though there is a range of it.
    assert!(ask("fd01::9").unwrap_err().message.contains("IPv6 is not configured on this cluster"));
    // First the range of the flag, then others, without what users have reserved.
    allocator.reserved.put(&json!({"metadata": {"name": "10.1.0.8"}}));
    assert!(ask("10.1.0.8").unwrap_err().message.contains("already allocated"));
    let given: BTreeSet<String> = (0..2).map(|_| ask("").unwrap()).collect();
    assert!(given.iter().all(|address| address.starts_with("10.0.0.")), "{given:?}");
    let given: BTreeSet<String> = (0..12).map(|_| ask("").unwrap()).collect();
    assert!(given.len() == 12 && given.iter().all(|address| address.starts_with("10.1.0.")));
    assert!(!given.contains("10.1.0.8") && !given.contains("10.1.0.9"), "{given:?}");
    assert!(ask("").unwrap_err().message.contains("range is full"));
    // One that goes gives nothing more, and what was given of it comes back to nobody.
    let mut going = service_cidr("more", &["10.1.0.0/28"], true);
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    allocator.cidrs.put(&going);
    let one = service(json!({"clusterIP": "10.1.0.9"}));
    allocator.begin_delete(&one, false).settle(None);
    assert!(ask("").is_err() && ask("10.1.0.9").is_err());
}

/// One step of clients that write the same few services at the same time.
#[derive(Clone, Debug)]
enum Step {
    /// A client's write of this service reaches the store's door. `None` deletes it.
    Begin { name: usize, spec: Option<Value>, dry_run: bool },
    /// The store takes or refuses the oldest write under way.
    Store,
    /// It succeeds or not, and the response is lost.
    Abandon { applied: bool },
    /// Time passes.
    Repair,
    /// A ServiceCIDR comes, or goes out of use.
    Range { is_ready: bool },
    /// A user reserves an address, or not.
    Reserve(bool),
}

fn spec() -> impl Strategy<Value = Value> {
    let kinds = prop_oneof![
        Just("ClusterIP"),
        Just("NodePort"),
        Just("LoadBalancer"),
        Just("ExternalName")
    ];
    let port = || prop_oneof![2 => Just(0u16), 3 => 30000u16..30004];
    let address = || {
        prop_oneof![
            3 => Just(""),
            1 => Just("None"),
            1 => Just("10.0.0.1"),
            1 => Just("10.0.0.2"),
            1 => Just("10.1.0.2"),
            1 => Just("fd00::1"),
            1 => Just("fd00::2"),
        ]
    };
    let policy = prop_oneof![
        Just(""),
        Just("SingleStack"),
        Just("PreferDualStack"),
        Just("RequireDualStack")
    ];
    let families = prop_oneof![
        3 => Just(&[][..]),
        1 => Just(&["IPv4"][..]),
        1 => Just(&["IPv6"][..]),
        1 => Just(&["IPv4", "IPv6"][..]),
        1 => Just(&["IPv6", "IPv4"][..]),
    ];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let ports = (port(), port(), port());
    (kinds, address(), address(), policy, families, flags, ports).prop_map(
        |(kind, address, other, policy, families, (plural, both, local, fits), ports)| {
            let (first, second, health) = ports;
            let mut spec = json!({
                "type": kind,
                "externalName": "example.com",
                "ports": [
                    {"name": "a", "port": 1, "nodePort": first},
                    {"name": "b", "port": 2, "nodePort": second},
                ],
                "healthCheckNodePort": health,
            });
            if !address.is_empty() {
                spec["clusterIP"] = address.into();
            }
            if plural && !address.is_empty() {
                spec["clusterIPs"] = if both { json!([address, other]) } else { json!([address]) };
            }
            if !policy.is_empty() {
                spec["ipFamilyPolicy"] = policy.into();
            }
            if !families.is_empty() {
                spec["ipFamilies"] = json!(families);
            }
            if local {
                spec["externalTrafficPolicy"] = "Local".into();
            }
            if fits {
                fit(&mut spec);
            }
            spec
        },
    )
}

/// Leaves out what services of the type cannot have, or most writes would be refused by the rules.
fn fit(spec: &mut Value) {
    let given = service(spec.clone());
    let is_headless = spec["clusterIP"] == "None";
    let (fields, node_ports) = (spec.as_object_mut().unwrap(), needs_node_ports(&given));
    if !needs_health_port(&given) {
        fields.remove("healthCheckNodePort");
    }
    if !node_ports {
        fields.remove("externalTrafficPolicy");
        fields["ports"] = json!([{"name": "a", "port": 1}]);
    } else if given["spec"]["ports"][0]["nodePort"] == given["spec"]["ports"][1]["nodePort"] {
        fields["ports"] = json!([{"name": "a", "port": 1}, {"name": "b", "port": 2}]);
    }
    if !needs_address(&given) || (node_ports && is_headless) {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            fields.remove(field);
        }
    }
    if items(&given["spec"]["clusterIPs"]).len() == 2
        || fields.get("ipFamilies").is_some_and(|families| items(families).len() == 2)
    {
        fields.insert("ipFamilyPolicy".into(), "RequireDualStack".into());
    }
}

fn step() -> impl Strategy<Value = Step> {
    let begin = (0..4usize, proptest::option::weighted(0.8, spec()), any::<bool>(), any::<bool>());
    prop_oneof![
        6 => begin.prop_map(|(name, spec, a, b)| Step::Begin { name, spec, dry_run: a && b }),
        4 => Just(Step::Store),
        1 => any::<bool>().prop_map(|applied| Step::Abandon { applied }),
        1 => Just(Step::Repair),
        1 => any::<bool>().prop_map(|is_ready| Step::Range { is_ready }),
        1 => any::<bool>().prop_map(Step::Reserve),
    ]
}

/// A write under way.
struct Write<'a> {
    name: usize,
    /// The version that it was made from; `None` for a new service.
    version: Option<u64>,
    new: Option<Value>,
    reservation: Reservation<'a>,
}

#[derive(Default)]
struct Store {
    services: BTreeMap<usize, (u64, Value)>,
    last: u64,
}

impl Store {
    /// `false`: there was a conflict.
    fn apply(&mut self, write: &Write<'_>) -> bool {
        if self.services.get(&write.name).map(|(version, _)| *version) != write.version {
            return false;
        }
        self.last += 1;
        match &write.new {
            Some(new) => drop(self.services.insert(write.name, (self.last, new.clone()))),
            None => drop(self.services.remove(&write.name)),
        }
        true
    }
}

/// As `operations` prepare a write.
fn begin<'a>(
    allocator: &'a ServiceAllocator,
    store: &mut Store,
    (name, spec, dry_run): (usize, Option<Value>, bool),
) -> Option<Write<'a>> {
    let old = store.services.get(&name).cloned();
    let Some(spec) = spec else {
        let (version, old) = old?;
        let reservation = allocator.begin_delete(&old, dry_run);
        return Some(Write { name, version: Some(version), new: None, reservation });
    };
    store.last += 1;
    let uid = format!("uid-{}", store.last);
    let mut new =
        json!({"metadata": {"name": format!("s{name}"), "namespace": "default"}, "spec": spec});
    kinds::apply_defaults(resource(), &mut new);
    let (version, mut old) = old.unzip();
    if let Some(old) = &mut old {
        old["metadata"]["resourceVersion"] = "1".into();
    }
    match &old {
        Some(old) => {
            kinds::prepare_update(resource(), &mut new, old);
            new["metadata"]["resourceVersion"] = "1".into();
        }
        None => {
            kinds::prepare_create(resource(), &mut new);
            new["metadata"]["uid"] = uid.into();
            new["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
    }
    let mut reservation = allocator.admit(resource(), &mut new, old.as_ref(), dry_run).ok()?;
    match &old {
        Some(old) => kinds::validate_update(resource(), &new, old).ok()?,
        None => kinds::validate_create(resource(), &new).ok()?,
    }
    reservation.begin();
    Some(Write { name, version, new: Some(new), reservation })
}

fn held_once(store: &Store) -> Result<(), TestCaseError> {
    let (mut addresses, mut ports) = (HashSet::new(), HashSet::new());
    for (_, service) in store.services.values() {
        let allocation = Allocation::of(service);
        let (list, families) = (list(service, "clusterIPs"), list(service, "ipFamilies"));
        if needs_address(service) && !is_headless(service) {
            let of: Vec<&str> = list.iter().map(|ip| family_of(ip.parse().unwrap())).collect();
            prop_assert_eq!(&of, &families);
            prop_assert_eq!(allocation.addresses.len(), list.len());
            prop_assert_eq!(&service["spec"]["clusterIP"], list[0]);
        }
        for address in allocation.addresses {
            prop_assert!(addresses.insert(address), "{address} is allocated twice");
        }
        for port in allocation.ports {
            prop_assert!(ports.insert(port), "{port} is allocated twice");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Finding 5: whatever clients do at the same time, no address and no port is held by two
    /// services, and when all is done nothing is taken that no service holds.
    #[test]
    fn service_allocation_has_no_duplicates_or_leaks(steps in proptest::collection::vec(step(), 1..60)) {
        let allocator = allocator("10.0.0.0/28,fd00::/124");
        let mut store = Store::default();
        let mut writes: std::collections::VecDeque<Write<'_>> = Default::default();
        let later = Instant::now() + SETTLE_TIMEOUT + SETTLE_TIMEOUT;
        let repair = |store: &Store| {
            for write in allocator.due(later) {
                let name: usize = write.owner.name[1..].parse().unwrap();
                allocator.resolve(&write, store.services.get(&name).map(|(_, s)| s.clone()));
            }
        };
        let rest = std::iter::repeat_n(Step::Store, 60);
        for step in steps.into_iter().chain(rest) {
            match step {
                Step::Begin { name, spec, dry_run } => {
                    writes.extend(begin(&allocator, &mut store, (name, spec, dry_run)));
                }
                Step::Store => if let Some(write) = writes.pop_front() {
                    match write.reservation.is_dry_run || store.apply(&write) {
                        true => write.reservation.settle(write.new.as_ref()),
                        false => write.reservation.cancel(),
                    }
                },
                Step::Abandon { applied } => {
                    let write = writes.pop_front().filter(|write| {
                        applied && !write.reservation.is_dry_run
                    });
                    if let Some(write) = write {
                        store.apply(&write);
                    }
                }
                Step::Repair => repair(&store),
                Step::Range { is_ready } => {
                    allocator.cidrs.put(&service_cidr("more", &["10.1.0.0/30"], is_ready));
                }
                Step::Reserve(by_user) => {
                    let manager = if by_user { "user" } else { MANAGED_BY.1 };
                    let labels = json!({MANAGED_BY.0: manager});
                    let metadata = json!({"name": "10.0.0.2", "labels": labels});
                    allocator.reserved.put(&json!({"metadata": metadata}));
                }
            }
            held_once(&store)?;
        }
        prop_assert!(writes.is_empty());
        repair(&store);
        let mut expected = Taken::default();
        for (_, service) in store.services.values() {
            expected.add(object::uid(service), &Allocation::of(service));
        }
        let taken = allocator.taken.lock();
        prop_assert_eq!(&taken.addresses, &expected.addresses);
        prop_assert_eq!(&taken.ports, &expected.ports);
    }
}
