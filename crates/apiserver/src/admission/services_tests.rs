use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::executor::block_on;
use futures::stream::BoxStream;
use longshore_store::{Error, Expect, KeyValue, ListOptions, Page, Revision, Store, WatchItem};
use proptest::prelude::*;

use super::ports::PortSet;
use super::*;
use crate::kinds::{self, core, known};

/// A store in memory, without history.
#[derive(Default)]
struct Memory(Mutex<(Revision, BTreeMap<String, KeyValue>)>);

#[async_trait]
impl Store for Memory {
    async fn get(&self, key: &str) -> longshore_store::Result<Option<KeyValue>> {
        Ok(self.0.lock().1.get(key).cloned())
    }

    async fn list(&self, prefix: &str, _: ListOptions) -> longshore_store::Result<Page> {
        let state = self.0.lock();
        let items = state.1.values().filter(|stored| stored.key.starts_with(prefix));
        Ok(Page { items: items.cloned().collect(), revision: state.0, remaining: 0 })
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        _: Option<Duration>,
    ) -> longshore_store::Result<KeyValue> {
        let mut state = self.0.lock();
        let current = state.1.get(key).cloned();
        let expected = match expect {
            Expect::Absent => None,
            Expect::Revision(revision) => Some(revision),
        };
        if current.as_ref().map(|stored| stored.mod_revision) != expected {
            return Err(Error::Conflict { key: key.into(), current });
        }
        state.0 += 1;
        let stored = KeyValue {
            key: key.into(),
            value,
            create_revision: state.0,
            mod_revision: state.0,
            is_stale: false,
        };
        state.1.insert(key.to_owned(), stored.clone());
        Ok(stored)
    }

    async fn delete(
        &self,
        key: &str,
        expect: Revision,
    ) -> longshore_store::Result<(KeyValue, Revision)> {
        let mut state = self.0.lock();
        let current = state.1.get(key).cloned();
        match current.filter(|stored| stored.mod_revision == expect) {
            Some(stored) => {
                state.0 += 1;
                state.1.remove(key);
                Ok((stored, state.0))
            }
            None => Err(Error::Conflict { key: key.into(), current: state.1.get(key).cloned() }),
        }
    }

    async fn watch(
        &self,
        _: &str,
        _: Revision,
    ) -> longshore_store::Result<BoxStream<'static, longshore_store::Result<WatchItem>>> {
        Err(Error::Backend("there is no history".to_owned()))
    }

    async fn revision(&self) -> longshore_store::Result<Revision> {
        Ok(self.0.lock().0)
    }

    async fn compact(&self, _: Revision) -> longshore_store::Result<()> {
        Ok(())
    }
}

/// What one apiserver allocates with.
struct Server {
    allocator: ServiceAllocator,
    registry: Registry,
}

/// Servers that share a store.
fn servers<const COUNT: usize>(range: &str, plugins: Plugins) -> [Server; COUNT] {
    let store = Arc::new(Memory::default());
    let servers = [(); COUNT].map(|()| Server {
        allocator: ServiceAllocator::new(range.parse().unwrap(), NodePorts::default(), plugins)
            .unwrap(),
        registry: Registry::new(store.clone()),
    });
    let (registry, ports) = (&servers[0].registry, NodePorts::default());
    let nothing = StoredPorts::default();
    assert!(block_on(ports::replace(registry, ports, &nothing, &PortSet::new(ports))).unwrap());
    servers
}

fn server(range: &str) -> Server {
    let [server] = servers(range, Plugins::default());
    server
}

impl Server {
    fn reserve(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        is_dry_run: bool,
    ) -> Result<Reservation<'_>, StatusError> {
        block_on(self.allocator.reserve(&self.registry, resource(), service, old, is_dry_run))
    }

    fn end(&self, reservation: Reservation<'_>, now: Option<&Value>) {
        block_on(reservation.end(&self.registry, Ok(now)));
    }

    fn delete(&self, service: &Value, is_dry_run: bool) {
        let reservation = self.allocator.admit_delete(resource(), service, is_dry_run).unwrap();
        self.end(reservation, None);
    }

    /// A user reserves an address.
    fn put_address(&self, name: &str) {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {"name": name}, "spec": {"parentRef": {"resource": "r", "name": "n"}}});
        let addresses = known("networking.k8s.io", "ipaddresses").unwrap();
        let _ = block_on(self.registry.create(addresses, object, None));
    }

    /// All that is taken in the store.
    fn taken(&self) -> Allocation {
        let addresses = known("networking.k8s.io", "ipaddresses").unwrap();
        let objects = block_on(self.registry.list_all(addresses, "")).unwrap();
        let ports = block_on(ports::read(&self.registry, NodePorts::default())).unwrap();
        Allocation {
            addresses: objects.iter().map(|it| object::name(it).parse().unwrap()).collect(),
            ports: ports.ports.iter().collect(),
        }
    }
}

fn service(spec: Value) -> Value {
    let metadata = json!({"name": "s", "namespace": "default", "uid": "u"});
    json!({"kind": "Service", "metadata": metadata, "spec": spec})
}

fn resource() -> &'static Resource {
    core("services").unwrap()
}

fn service_cidr(name: &str, cidrs: &[&str], is_ready: bool) -> Value {
    let status = if is_ready { "True" } else { "False" };
    json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs},
        "status": {"conditions": [{"type": "Ready", "status": status}]}})
}

/// Updates a service to this spec.
fn change(server: &Server, old: &Value, spec: Value) -> Result<Value, StatusError> {
    let stored = json!({"name": "s", "namespace": "default", "uid": "u", "resourceVersion": "1"});
    let (mut new, mut old) = (service(spec), old.clone());
    new["metadata"] = stored.clone();
    old["metadata"] = stored;
    kinds::apply_defaults(resource(), &mut new);
    let reservation = server.reserve(&mut new, Some(&old), false)?;
    kinds::validate_update(resource(), &new, &old)?;
    server.end(reservation, Some(&new));
    Ok(new)
}

fn admit(server: &Server, spec: Value) -> Result<Value, StatusError> {
    let mut service = service(spec);
    let reservation = server.reserve(&mut service, None, false)?;
    server.end(reservation, Some(&service));
    Ok(service)
}

#[test]
fn service_ip_allocation_uses_each_address_once() {
    let server = server("10.0.0.0/29");
    let mut given = BTreeSet::new();
    for _ in 0..6 {
        given.insert(
            admit(&server, json!({"type": "ClusterIP"})).unwrap()["spec"]["clusterIP"].to_string(),
        );
    }
    assert_eq!(given.len(), 6);
    let full = admit(&server, json!({"type": "ClusterIP"})).unwrap_err();
    assert!(full.message.contains("range is full"), "{full}");
    let one = service(json!({"clusterIP": "10.0.0.3"}));
    server.delete(&one, true);
    assert!(admit(&server, json!({"type": "ClusterIP"})).is_err(), "a dry run frees nothing");
    server.delete(&one, false);
    assert_eq!(
        admit(&server, json!({"type": "ClusterIP"})).unwrap()["spec"]["clusterIP"],
        "10.0.0.3"
    );
}

#[test]
fn service_allocations_are_released() {
    let server = server("10.0.0.0/24");
    let asked = json!({"type": "NodePort", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
        "ports": [{"port": 1, "nodePort": 30001}]});
    for _ in 0..2 {
        let mut failed = service(asked.clone());
        let reservation = server.reserve(&mut failed, None, false).unwrap();
        block_on(reservation.cancel(&server.registry));
    }
    // A dry run takes nothing even for a moment.
    let mut tried = service(asked.clone());
    let dry = server.reserve(&mut tried, None, true).unwrap();
    assert_eq!(tried["spec"]["clusterIP"], "10.0.0.9");
    admit(&server, asked.clone()).unwrap();
    drop(dry);
    let error = server.reserve(&mut service(asked), None, true).err().unwrap();
    assert!(error.message.contains("provided IP is already allocated"), "{error}");
    // A fault in the second port gives the first back too.
    let mut faulty =
        service(json!({"type": "NodePort", "ports": [{"nodePort": 30002}, {"nodePort": 1}]}));
    let error = server.reserve(&mut faulty, None, false).err().unwrap();
    assert!(error.message.contains(
        "spec.ports[1].nodePort: Invalid value: 1: provided port is not in the valid range"
    ));
    admit(&server, json!({"type": "NodePort", "ports": [{"nodePort": 30002}]})).unwrap();
}

#[test]
fn node_port_is_shared_by_protocols_of_one_service_only() {
    let server = server("10.0.0.0/24");
    let dns =
        json!([{"protocol": "UDP", "nodePort": 30053}, {"protocol": "TCP", "nodePort": 30053}]);
    admit(&server, json!({"type": "NodePort", "ports": dns})).unwrap();
    let taken =
        admit(&server, json!({"type": "NodePort", "ports": [{"nodePort": 30053}]})).unwrap_err();
    assert_eq!(taken.code, 422);
    let ports = json!([{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]);
    let made = admit(&server, json!({"type": "NodePort", "ports": ports})).unwrap();
    let numbers = &made["spec"]["ports"];
    assert!(numbers[0]["nodePort"].is_u64());
    assert_eq!(numbers[0]["nodePort"], numbers[1]["nodePort"]);
}

#[test]
fn service_allocation_by_type() {
    let server = server("10.0.0.0/24");
    let external = admit(&server, json!({"type": "ExternalName", "externalName": "x"})).unwrap();
    assert!(external["spec"].get("clusterIP").is_none());
    let balanced = admit(
        &server,
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{}]}),
    )
    .unwrap();
    assert!(
        balanced["spec"]["healthCheckNodePort"].is_u64()
            && balanced["spec"]["ports"][0]["nodePort"].is_u64()
    );
    let bare =
        json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{}]});
    assert!(admit(&server, bare).unwrap()["spec"]["ports"][0].get("nodePort").is_none());
}

/// Finding 5: what an ExternalName service says it has is not its own.
#[test]
fn service_allocation_of_external_name_is_empty() {
    let server = server("10.0.0.0/24");
    let victim = json!({"type": "NodePort", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
        "ports": [{"port": 1, "nodePort": 30001}]});
    admit(&server, victim).unwrap();
    let old = json!({"metadata": {"name": "t", "uid": "thief"}, "spec": {
        "type": "ExternalName", "externalName": "x", "clusterIP": "10.0.0.9",
        "clusterIPs": ["10.0.0.9"], "ports": [{"port": 1, "nodePort": 30001}]}});
    assert_eq!(Allocation::of(&old), Allocation::default());
    for (kind, field) in [("ClusterIP", "clusterIPs"), ("NodePort", "clusterIPs")] {
        let mut new = old.clone();
        new["spec"]["type"] = kind.into();
        let error = server.reserve(&mut new, Some(&old), false).err().unwrap();
        assert!(error.message.contains(field) && error.message.contains("already allocated"));
    }
    let mut new = old.clone();
    new["spec"] = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}]});
    let error = server.reserve(&mut new, Some(&old), false).err().unwrap();
    assert!(error.message.contains("nodePort: Invalid value: 30001: provided port is already"));
    // And its end takes nothing from anybody.
    server.delete(&old, false);
    let again = json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"]});
    assert!(admit(&server, again).is_err());
}

/// Finding 5: `healthCheckNodePort` is a node port like others.
#[test]
fn health_check_ports_are_allocated() {
    let server = server("10.0.0.0/24");
    let balancer = |port: u64, own: u64| {
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port,
            "ports": [{"port": 1, "nodePort": own}]})
    };
    admit(&server, balancer(30005, 30006)).unwrap();
    for (port, own, why) in [
        (30005, 30007, "already allocated"),
        (30006, 30007, "already allocated"),
        (30008, 30008, "already allocated"),
        (22, 30007, "not in the valid range"),
        (10250, 30007, "not in the valid range"),
        (99_999_999, 30007, "not in the valid range"),
    ] {
        let error = admit(&server, balancer(port, own)).unwrap_err();
        assert!(error.message.contains(why), "{port}: {error}");
        assert!(error.message.contains("failed to allocate requested HealthCheck NodePort"));
    }
    let taken = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30005}]});
    assert!(admit(&server, taken.clone()).is_err());
    // A service that needs it no longer gives it back.
    let old = service(balancer(30005, 30006));
    let mut new = old.clone();
    new["spec"]["externalTrafficPolicy"] = "Cluster".into();
    let reservation = server.reserve(&mut new, Some(&old), false).unwrap();
    assert!(new["spec"].get("healthCheckNodePort").is_none());
    server.end(reservation, Some(&new));
    admit(&server, taken).unwrap();
}

/// Finding 6, CVE-2020-8554: with DenyServiceExternalIPs no service draws traffic for an address
/// that it did not have.
#[test]
fn deny_external_ips_allows_unchanged_or_removed() {
    let spec = |ips: &[&str]| service(json!({"externalIPs": ips}));
    let deny = Plugins { deny_service_external_ips: true, ..Plugins::default() };
    let [on] = servers("10.0.0.0/24", deny);
    let off = server("10.0.0.0/24");
    for (new, old, expected) in [
        (spec(&[]), None, true),
        (spec(&["1.2.3.4"]), None, false),
        (spec(&["1.2.3.4"]), Some(spec(&[])), false),
        (spec(&["1.2.3.4"]), Some(spec(&["1.2.3.4", "1.2.3.5"])), true),
        (spec(&["1.2.3.4", "1.2.3.6"]), Some(spec(&["1.2.3.4", "1.2.3.5"])), false),
        (spec(&[]), Some(spec(&["1.2.3.4"])), true),
    ] {
        let answer = on.reserve(&mut new.clone(), old.as_ref(), false);
        assert_eq!(answer.is_ok(), expected, "{new}");
        if let Err(error) = answer {
            assert_eq!(error.code, 403);
            assert!(error.message.contains("Use of external IPs is denied by admission control"));
        }
        assert!(off.reserve(&mut new.clone(), old.as_ref(), false).is_ok());
    }
}

/// Each port is a candidate once, those that are asked for by number last.
#[test]
fn node_port_candidates_are_all_ports_once() {
    for (range, reserved) in
        [("30000-32767", 86), ("30000-30019", 16), ("30000-30015", 0), ("7-7", 0)]
    {
        let range: NodePorts = range.parse().unwrap();
        for random in [0, 1, 77, u64::MAX] {
            let all: Vec<u16> = range.candidates(random).collect();
            let distinct: BTreeSet<u16> = all.iter().copied().collect();
            assert_eq!((all.len() as u64, distinct.len() as u64), (range.len(), range.len()));
            assert!(all.iter().all(|port| range.contains(*port)));
            let last: BTreeSet<u16> = all.iter().rev().take(reserved).copied().collect();
            assert!(last.iter().all(|port| usize::from(port - range.first) < reserved));
        }
    }
}

/// Two servers of one store.
#[test]
fn service_allocation_is_shared_by_servers() {
    let [first, second] = servers("10.0.0.0/29", Plugins::default());
    let asked = || {
        json!({"type": "NodePort", "clusterIP": "10.0.0.3", "clusterIPs": ["10.0.0.3"],
        "ports": [{"port": 1, "nodePort": 30001}]})
    };
    let mut given = BTreeSet::new();
    given.insert(admit(&first, asked()).unwrap()["spec"]["clusterIP"].to_string());
    let error = admit(&second, asked()).unwrap_err();
    assert!(
        error.message.contains("failed to allocate IP 10.0.0.3: provided IP is already allocated"),
        "{error}"
    );
    let ports = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}]});
    let error = admit(&second, ports.clone()).unwrap_err();
    let why = "spec.ports[0].nodePort: Invalid value: 30001: provided port is already allocated";
    assert!(error.message.contains(why), "{error}");
    assert_eq!(first.taken().addresses.len(), 1, "what was refused left nothing");
    for server in [&second, &first, &second, &first, &second] {
        let made = admit(server, json!({"type": "ClusterIP"})).unwrap();
        given.insert(made["spec"]["clusterIP"].to_string());
    }
    assert_eq!(given.len(), 6);
    assert!(
        admit(&first, json!({"type": "ClusterIP"})).unwrap_err().message.contains("range is full")
    );
    // What one releases the other finds.
    second.delete(&service(asked()), false);
    let again = admit(&first, json!({"type": "ClusterIP"})).unwrap();
    assert_eq!(again["spec"]["clusterIP"], "10.0.0.3");
    admit(&first, ports).unwrap_err();
    second.delete(&again, false);
    let mut moved = service(asked());
    moved["spec"]["type"] = "ClusterIP".into();
    admit(&first, asked()).unwrap();
}

/// A service does not release what another has by now.
#[test]
fn service_allocation_of_others_is_not_released() {
    let server = server("10.0.0.0/24");
    let other = json!({"metadata": {"name": "other", "uid": "o"}, "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"]}});
    admit(&server, other["spec"].clone()).unwrap();
    server.delete(&other, false);
    let mut tried = service(other["spec"].clone());
    assert!(server.reserve(&mut tried, None, true).is_err());
    server.delete(&service(other["spec"].clone()), false);
    assert!(server.reserve(&mut tried, None, true).is_ok());
}

fn list<'a>(service: &'a Value, field: &str) -> Vec<&'a str> {
    items(&service["spec"][field]).iter().map(text).collect()
}

#[test]
fn service_ip_allocation_of_both_families() {
    let server = server("10.0.0.0/24,fd00::/64");
    let both = admit(&server, json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"}));
    let both = both.unwrap();
    assert_eq!(list(&both, "ipFamilies"), ["IPv4", "IPv6"]);
    let addresses = list(&both, "clusterIPs");
    assert!(addresses[0].starts_with("10.0.0.") && addresses[1].starts_with("fd00::"), "{both}");
    assert_eq!(both["spec"]["clusterIP"], addresses[0]);
    let six = admit(&server, json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]})).unwrap();
    assert!(list(&six, "clusterIPs")[0].starts_with("fd00::"), "{six}");
    // The second one is taken: the first is given back.
    let asked = |v6: &str| {
        json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", v6],
            "ipFamilyPolicy": "RequireDualStack"})
    };
    let error = admit(&server, asked(addresses[1])).unwrap_err();
    let why = format!("failed to allocate IP {}: provided IP is already allocated", addresses[1]);
    assert!(error.message.contains(&why), "{error}");
    let given = admit(&server, asked("fd00::9")).unwrap();
    assert_eq!(list(&given, "ipFamilies"), ["IPv4", "IPv6"]);
    for (taken, is_taken) in [("10.0.0.9", true), ("fd00::9", true), ("fd00::8", false)] {
        let asked = json!({"type": "ClusterIP", "clusterIP": taken});
        assert_eq!(admit(&server, asked).is_err(), is_taken, "{taken}");
    }
}

#[test]
fn service_ip_allocation_follows_upgrades_and_downgrades() {
    let server = server("10.0.0.0/24,fd00::/64");
    let ports = json!([{"port": 80}]);
    let start = json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "ports": ports});
    let mut single = service(start);
    kinds::apply_defaults(resource(), &mut single);
    let single = admit(&server, single["spec"].clone()).unwrap();
    let with = |old: &Value, field: &str, value: Value| {
        let mut spec = old["spec"].clone();
        spec[field] = value;
        spec
    };
    let upgrade = with(&single, "ipFamilyPolicy", "RequireDualStack".into());
    let double = change(&server, &single, upgrade).unwrap();
    let [first, second] = list(&double, "clusterIPs")[..] else { panic!("{double}") };
    assert_eq!((first, double["spec"]["clusterIP"].as_str()), ("10.0.0.9", Some("10.0.0.9")));
    let is_taken = |address: &str| {
        let asked = json!({"type": "ClusterIP", "clusterIP": address});
        server.reserve(&mut service(asked), None, true).is_err()
    };
    assert!(is_taken(second));
    // Another second address is refused, and not taken.
    let mut other = double["spec"].clone();
    other["clusterIPs"][1] = "fd00::ffff:ffff:ffff:ffff".into();
    let error = change(&server, &double, other).unwrap_err();
    assert!(error.message.contains("spec.clusterIPs[1]"), "{error}");
    assert!(!is_taken("fd00::ffff:ffff:ffff:ffff"));
    // A client that names no families and addresses keeps both.
    let mut plain = double["spec"].clone();
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        plain.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(change(&server, &double, plain).unwrap()["spec"], double["spec"]);
    let downgrade = with(&double, "ipFamilyPolicy", "SingleStack".into());
    let again = change(&server, &double, downgrade).unwrap();
    assert_eq!(
        (list(&again, "clusterIPs"), list(&again, "ipFamilies")),
        (vec![first], vec!["IPv4"])
    );
    assert!(!is_taken(second) && is_taken(first));
    // An ExternalName service has none, and gets new ones when it is no longer one.
    let named =
        json!({"type": "ExternalName", "externalName": "a.example", "sessionAffinity": "None"});
    let named = change(&server, &again, named).unwrap();
    assert!(!is_taken(first) && list(&named, "ipFamilies").is_empty(), "{named}");
    let mut back = single["spec"].clone();
    for field in ["clusterIP", "clusterIPs", "ipFamilies"] {
        back.as_object_mut().unwrap().remove(field);
    }
    back["ipFamilyPolicy"] = "PreferDualStack".into();
    let back = change(&server, &named, back).unwrap();
    assert!(list(&back, "clusterIPs").iter().all(|address| is_taken(address)), "{back}");
    assert_eq!(list(&back, "clusterIPs").len(), 2);
}

#[test]
fn service_ip_allocation_uses_service_cidrs() {
    let server = server("10.0.0.0/30");
    let ask = |address: &str| {
        admit(&server, json!({"type": "ClusterIP", "clusterIP": address}))
            .map(|service| list(&service, "clusterIPs")[0].to_owned())
    };
    let outside = "the provided network does not match the current range";
    assert!(ask("10.1.0.9").unwrap_err().message.contains(outside));
    server.allocator.cidrs.put(&service_cidr("more", &["10.1.0.0/28", "fd01::/64"], false));
    assert!(ask("10.1.0.9").unwrap_err().message.contains(outside));
    server.allocator.cidrs.put(&service_cidr("more", &["10.1.0.0/28", "fd01::/64"], true));
    ask("10.1.0.9").unwrap();
    assert!(ask("10.1.0.9").unwrap_err().message.contains("already allocated"));
    assert!(ask("10.1.0.15").unwrap_err().message.contains(outside));
    // The family is not the cluster's, though there is a range of it.
    assert!(ask("fd01::9").unwrap_err().message.contains("IPv6 is not configured on this cluster"));
    // First the range of the flag, then others, without what users have reserved.
    server.put_address("10.1.0.8");
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
    server.allocator.cidrs.put(&going);
    let one = service(json!({"clusterIP": "10.1.0.9"}));
    server.delete(&one, false);
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
    /// A user reserves an address, if it is free.
    Reserve,
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
        1 => Just(Step::Reserve),
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
struct Services {
    services: BTreeMap<usize, (u64, Value)>,
    last: u64,
}

impl Services {
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
    server: &'a Server,
    store: &mut Services,
    (name, spec, dry_run): (usize, Option<Value>, bool),
) -> Option<Write<'a>> {
    let old = store.services.get(&name).cloned();
    let Some(spec) = spec else {
        let (version, old) = old?;
        let reservation = server.allocator.admit_delete(resource(), &old, dry_run).unwrap();
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
    let reservation = server.reserve(&mut new, old.as_ref(), dry_run).ok()?;
    let valid = match &old {
        Some(old) => kinds::validate_update(resource(), &new, old),
        None => kinds::validate_create(resource(), &new),
    };
    if valid.is_err() {
        block_on(reservation.cancel(&server.registry));
        return None;
    }
    Some(Write { name, version, new: Some(new), reservation })
}

fn held_once(store: &Services) -> Result<(), TestCaseError> {
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
    /// Finding 5: whatever clients do at the same time at two servers, no address and no port is held by two
    /// services, and when all is done nothing is taken that no service holds, unless the end of a write was
    /// not known.
    #[test]
    fn service_allocation_has_no_duplicates_or_leaks(steps in proptest::collection::vec(step(), 1..60)) {
        let both: [Server; 2] = servers("10.0.0.0/28,fd00::/124", Plugins::default());
        let mut store = Services::default();
        let mut writes: std::collections::VecDeque<(&Server, Write<'_>)> = Default::default();
        let mut has_lost = false;
        let rest = std::iter::repeat_n(Step::Store, 60);
        for (count, step) in steps.into_iter().chain(rest).enumerate() {
            match step {
                Step::Begin { name, spec, dry_run } => {
                    let server = &both[count & 1];
                    let begun = begin(server, &mut store, (name, spec, dry_run));
                    writes.extend(begun.map(|write| (server, write)));
                }
                Step::Store => if let Some((server, mut write)) = writes.pop_front() {
                    write.reservation.begin();
                    match write.reservation.is_dry_run || store.apply(&write) {
                        true => server.end(write.reservation, write.new.as_ref()),
                        false => block_on(write.reservation.cancel(&server.registry)),
                    }
                },
                Step::Abandon { applied } => {
                    if let Some((_, mut write)) = writes.pop_front()
                        && applied && !write.reservation.is_dry_run
                    {
                        write.reservation.begin();
                        store.apply(&write);
                        has_lost = true;
                    }
                }
                Step::Repair => for server in &both {
                    block_on(server.allocator.release_abandoned(&server.registry)).unwrap();
                },
                Step::Range { is_ready } => for server in &both {
                    server.allocator.cidrs.put(&service_cidr("more", &["10.1.0.0/30"], is_ready));
                },
                Step::Reserve => both[0].put_address("10.0.0.2"),
            }
            held_once(&store)?;
        }
        prop_assert!(writes.is_empty());
        for server in &both {
            block_on(server.allocator.release_abandoned(&server.registry)).unwrap();
        }
        let mut held = Allocation::default();
        for (_, service) in store.services.values() {
            held.add(Allocation::of(service));
        }
        let mut taken = both[0].taken();
        prop_assert!(held.without(&taken).is_empty(), "not taken: {:?}", held.without(&taken));
        if !has_lost {
            let user: IpAddr = "10.0.0.2".parse().unwrap();
            if !held.addresses.contains(&user) {
                taken.addresses.remove(&user);
            }
            prop_assert_eq!(taken, held);
        }
    }
}
