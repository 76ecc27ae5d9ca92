//! Addresses and node ports of services: each is given to one service at a time. Rules are those of
//! upstream's `registry/core/service` (`storage/alloc.go`, `strategy.go`).
//!
//! Allocations are kept in memory, by the service's UID, and read from the stored services at
//! start. Nothing is released but what the service was given. A write whose end is not known (the
//! store failed, or its client went away meanwhile) releases nothing until [`ServiceAllocator::repair`]
//! has seen what became of it.
//!
//! Current limitations: one apiserver per store.

mod families;
mod ranges;

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) use self::ranges::{MANAGED_BY, is_managed};
use self::ranges::{Ranges, ReservedAddresses};
use super::plugins::Plugins;
use crate::api_types::Resource;
use crate::cache::Cache;
use crate::cidr::{Cidr, ServiceRanges, family_of};
use crate::kinds::core;
use crate::object;
use crate::registry::Registry;
use crate::schema::service::{
    is_external, is_headless, needs_address, needs_health_port, needs_node_ports,
};
use crate::schema::value::{is_zero, items, same, text};
use crate::status::{Cause, StatusError};

const KIND: &str = "Service";

const TAKEN: &str = "provided port is already allocated";
/// After this time a write that was abandoned has either reached the store or never will.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The ports of nodes that services get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePorts {
    first: u16,
    last: u16,
}

impl Default for NodePorts {
    fn default() -> NodePorts {
        NodePorts { first: 30000, last: 32767 }
    }
}

impl NodePorts {
    fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn len(self) -> u64 {
        u64::from(self.last.abs_diff(self.first)).saturating_add(1)
    }
}

impl FromStr for NodePorts {
    type Err = String;

    /// `30000-32767`, or `30000+2767`.
    fn from_str(text: &str) -> Result<NodePorts, String> {
        let number = |text: &str| text.trim().parse::<u16>().ok();
        let (first, last) = match (text.split_once('-'), text.split_once('+')) {
            (Some((first, last)), _) => (number(first), number(last)),
            (None, Some((first, more))) => {
                let last = |first: u16| first.checked_add(number(more)?);
                (number(first), number(first).and_then(last))
            }
            (None, None) => (number(text), number(text)),
        };
        match (first, last) {
            (Some(first @ 1..), Some(last)) if first <= last => Ok(NodePorts { first, last }),
            _ => Err(format!("{text:?} is not a range of ports such as 30000-32767")),
        }
    }
}

/// The addresses and node ports of all services.
pub(crate) struct ServiceAllocator {
    configured: ServiceRanges,
    cidrs: Cache<Ranges>,
    reserved: Cache<ReservedAddresses>,
    node_ports: NodePorts,
    plugins: Plugins,
    taken: Mutex<Taken>,
    /// Writes whose end is not known.
    unknown_outcomes: Mutex<Vec<UnknownOutcome>>,
}

/// The UIDs of the services that hold a thing: one, but for faults of earlier versions.
type Holders<T> = HashMap<T, Vec<Box<str>>>;

#[derive(Default)]
struct Taken {
    addresses: Holders<IpAddr>,
    ports: Holders<u16>,
}

/// Addresses and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) addresses: HashSet<IpAddr>,
    pub(crate) ports: HashSet<u16>,
}

/// The service that holds something.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    uid: Box<str>,
    namespace: Box<str>,
    name: Box<str>,
}

#[derive(Debug)]
struct UnknownOutcome {
    owner: Owner,
    /// What it held before, and took for the write.
    allocation: Allocation,
    since: Instant,
}

/// One write of a service, with what was taken for it. Dropped before [`Reservation::begin`], it
/// gives that back.
pub(crate) struct Reservation<'a> {
    allocator: &'a ServiceAllocator,
    owner: Owner,
    /// What the service held before.
    before: Allocation,
    taken: Allocation,
    /// Nothing is really taken.
    is_dry_run: bool,
    is_begun: bool,
}

impl Reservation<'_> {
    /// From here on the store may have the new object, whatever happens to this write.
    pub(crate) fn begin(&mut self) {
        self.is_begun = true;
    }

    /// The end of the write: the service that is stored now, `None` when there is none any more, or the
    /// error. What is no longer held is given back.
    pub(crate) fn end(self, written: Result<Option<&Value>, &StatusError>) {
        match written {
            Ok(now) => self.settle(now),
            // A store that failed may have written all the same.
            Err(error) if error.code >= 500 => drop(self),
            Err(_) => self.cancel(),
        }
    }

    fn settle(mut self, now: Option<&Value>) {
        self.is_begun = false;
        if !self.is_dry_run {
            let before = std::mem::take(&mut self.before);
            let taken = std::mem::take(&mut self.taken);
            self.allocator.release(&self.owner, &before.with(taken), now);
        }
    }

    /// The store refused the write: nothing has changed.
    pub(crate) fn cancel(mut self) {
        self.is_begun = false;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        match (self.is_dry_run, self.is_begun) {
            (true, _) => {}
            (false, false) => self.allocator.release(&self.owner, &taken, None),
            (false, true) => {
                let allocation = std::mem::take(&mut self.before).with(taken);
                let owner = self.owner.clone();
                let unknown_outcomes = UnknownOutcome { owner, allocation, since: Instant::now() };
                self.allocator.unknown_outcomes.lock().push(unknown_outcomes);
            }
        }
    }
}

impl Allocation {
    /// What a service of its type holds. An ExternalName service holds nothing, whatever it says.
    pub(crate) fn of(service: &Value) -> Allocation {
        let spec = &service["spec"];
        let mut allocation = Allocation::default();
        if needs_address(service) {
            let list = items(&spec["clusterIPs"]).iter().chain([&spec["clusterIP"]]);
            allocation.addresses = list.filter_map(|address| text(address).parse().ok()).collect();
        }
        if needs_node_ports(service) {
            let list = items(&spec["ports"]).iter().map(|port| &port["nodePort"]);
            allocation.ports = list.filter_map(port_of).collect();
        }
        if needs_health_port(service) {
            allocation.ports.extend(port_of(&spec["healthCheckNodePort"]));
        }
        allocation
    }

    fn with(mut self, other: Allocation) -> Allocation {
        self.addresses.extend(other.addresses);
        self.ports.extend(other.ports);
        self
    }
}

impl Owner {
    fn of(service: &Value) -> Owner {
        Owner {
            uid: object::uid(service).into(),
            namespace: object::namespace(service).into(),
            name: object::name(service).into(),
        }
    }
}

impl Taken {
    fn add(&mut self, uid: &str, allocation: &Allocation) -> Vec<String> {
        let mut shared = Vec::new();
        for address in &allocation.addresses {
            if !add_holder(&mut self.addresses, *address, uid) {
                shared.push(address.to_string());
            }
        }
        for port in &allocation.ports {
            if !add_holder(&mut self.ports, *port, uid) {
                shared.push(format!("port {port}"));
            }
        }
        shared
    }
}

/// Adds a holder. `false`: there is another one.
fn add_holder<T: Eq + Hash>(taken: &mut Holders<T>, thing: T, uid: &str) -> bool {
    let holders = taken.entry(thing).or_default();
    if !holders.iter().any(|holder| **holder == *uid) {
        holders.push(uid.into());
    }
    holders.len() == 1
}

/// Allocates what is free.
fn take<T: Eq + Hash>(taken: &mut Holders<T>, thing: T, uid: &str) -> bool {
    match taken.entry(thing) {
        Entry::Occupied(_) => false,
        Entry::Vacant(entry) => {
            entry.insert(vec![uid.into()]);
            true
        }
    }
}

fn free<T: Eq + Hash>(taken: &mut Holders<T>, thing: T, uid: &str) {
    if let Entry::Occupied(mut entry) = taken.entry(thing) {
        entry.get_mut().retain(|holder| **holder != *uid);
        if entry.get().is_empty() {
            entry.remove();
        }
    }
}

impl ServiceAllocator {
    pub(crate) fn new(
        configured: ServiceRanges,
        node_ports: NodePorts,
        plugins: Plugins,
    ) -> Result<ServiceAllocator, StatusError> {
        Ok(ServiceAllocator {
            configured,
            cidrs: Cache::new("networking.k8s.io", "servicecidrs")?,
            reserved: Cache::new("networking.k8s.io", "ipaddresses")?,
            node_ports,
            plugins,
            taken: Mutex::default(),
            unknown_outcomes: Mutex::default(),
        })
    }

    /// The ranges that the cluster is configured with.
    pub(crate) fn configured(&self) -> ServiceRanges {
        self.configured
    }

    /// Reads the ServiceCIDRs and the addresses that users have reserved. Before that there are none.
    pub(crate) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        self.cidrs.load(registry).await?;
        self.reserved.load(registry).await
    }

    /// Follows them until `stop`.
    pub(crate) async fn run(&self, registry: &Registry, stop: CancellationToken) {
        tokio::join!(self.cidrs.run(registry, &stop), self.reserved.run(registry, &stop));
    }

    /// Before a service is written: waits a moment until ranges and reservations that this server has
    /// written are in effect.
    pub(crate) async fn catch_up(&self, registry: &Registry, resource: &Resource) {
        if resource.kind == KIND {
            self.cidrs.catch_up(registry).await;
            self.reserved.catch_up(registry).await;
        }
    }

    /// Notes what a stored service holds. Returns what another one holds too.
    pub(crate) fn occupy(&self, service: &Value) -> Vec<String> {
        self.taken.lock().add(object::uid(service), &Allocation::of(service))
    }

    fn release(&self, owner: &Owner, allocation: &Allocation, now: Option<&Value>) {
        let kept = now.map(Allocation::of).unwrap_or_default();
        let mut taken = self.taken.lock();
        for address in allocation.addresses.difference(&kept.addresses) {
            free(&mut taken.addresses, *address, &owner.uid);
        }
        for port in allocation.ports.difference(&kept.ports) {
            free(&mut taken.ports, *port, &owner.uid);
        }
    }

    /// Resolves writes of unknown outcome, and releases what is not allocated by the stored services.
    pub(crate) async fn repair(
        &self,
        registry: &Registry,
        now: Instant,
    ) -> Result<(), StatusError> {
        let mut due = self.due(now).into_iter();
        while let Some(write) = due.next() {
            let owner = &write.owner;
            match registry.find(core("services")?, &owner.namespace, &owner.name).await {
                Ok(stored) => self.resolve(&write, stored),
                Err(error) => {
                    let mut unknown_outcomes = self.unknown_outcomes.lock();
                    unknown_outcomes.push(write);
                    unknown_outcomes.extend(due);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The abandoned writes that can no longer reach the store.
    fn due(&self, now: Instant) -> Vec<UnknownOutcome> {
        let is_due = |write: &mut UnknownOutcome| now.duration_since(write.since) >= SETTLE_TIMEOUT;
        self.unknown_outcomes.lock().extract_if(.., is_due).collect()
    }

    /// `stored`: what is stored under the service's name now.
    fn resolve(&self, write: &UnknownOutcome, stored: Option<Value>) {
        let own = stored.filter(|service| *object::uid(service) == *write.owner.uid);
        if let Some(service) = &own {
            self.occupy(service);
        }
        self.release(&write.owner, &write.allocation, own.as_ref());
    }

    /// Begins the deletion of a service.
    fn begin_delete(&self, service: &Value, is_dry_run: bool) -> Reservation<'_> {
        Reservation {
            allocator: self,
            owner: Owner::of(service),
            before: Allocation::of(service),
            taken: Allocation::default(),
            is_dry_run,
            is_begun: true,
        }
    }

    /// Reserves what a new service needs; `None` for objects of other resources.
    pub(crate) fn admit_create(
        &self,
        resource: &Resource,
        object: &mut Value,
        dry_run: bool,
    ) -> Result<Option<Reservation<'_>>, StatusError> {
        let is_service = resource.kind == KIND;
        is_service.then(|| self.admit(resource, object, None, dry_run)).transpose()
    }

    /// The same for an update of the stored service `old`.
    pub(crate) fn admit_update(
        &self,
        resource: &Resource,
        subresource: &str,
        object: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Result<Option<Reservation<'_>>, StatusError> {
        let is_service = resource.kind == KIND && subresource.is_empty();
        is_service.then(|| self.admit(resource, object, Some(old), dry_run)).transpose()
    }

    /// The same for the deletion of a stored service.
    pub(crate) fn admit_delete(
        &self,
        resource: &Resource,
        object: &Value,
        dry_run: bool,
    ) -> Option<Reservation<'_>> {
        (resource.kind == KIND).then(|| self.begin_delete(object, dry_run))
    }

    /// Fills in what a new service (`old` is `None`) or a changed one lacks, and takes it. With
    /// `is_dry_run` it is only checked whether it is free.
    pub(crate) fn admit(
        &self,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
        is_dry_run: bool,
    ) -> Result<Reservation<'_>, StatusError> {
        self.admit_external(resource, service, old)?;
        if let Some(old) = old {
            drop_stale_allocations(service, old);
        }
        let before = old.map(Allocation::of).unwrap_or_default();
        // Of an update the stored object says which service it is.
        let owner = Owner::of(old.unwrap_or(service));
        if !is_dry_run {
            // What it has stays its own, though an earlier version of this server forgot it.
            self.taken.lock().add(&owner.uid, &before);
        }
        let mut reservation = Reservation {
            allocator: self,
            owner,
            before,
            taken: Allocation::default(),
            is_dry_run,
            is_begun: false,
        };
        reservation.admit_addresses(resource, service, old)?;
        reservation.admit_ports(resource, service, old)?;
        reservation.admit_health_port(service, old)?;
        Ok(reservation)
    }
}

impl ServiceAllocator {
    /// The admission plugin DenyServiceExternalIPs (against CVE-2020-8554): addresses outside the
    /// cluster, to which a service draws traffic, stay or go but none is added.
    fn admit_external(
        &self,
        resource: &Resource,
        service: &Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        let earlier = old.map_or(&[][..], |old| items(&old["spec"]["externalIPs"]));
        let earlier: HashSet<&str> = earlier.iter().map(text).collect();
        let mut addresses = items(&service["spec"]["externalIPs"]).iter();
        if !self.plugins.deny_service_external_ips
            || addresses.all(|address| earlier.contains(text(address)))
        {
            return Ok(());
        }
        let why = "Use of external IPs is denied by admission control";
        Err(StatusError::forbidden(resource, object::name(service), why))
    }
}

impl Reservation<'_> {
    /// Takes the first of these addresses that is free.
    fn take_address(&mut self, mut addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
        let reserved = self.allocator.reserved.read();
        let mut taken = self.allocator.taken.lock();
        let is_free = |address: &IpAddr| {
            !reserved.contains(*address) && !taken.addresses.contains_key(address)
        };
        let address = addresses
            .find(|address| is_free(address) && !self.taken.addresses.contains(address))?;
        if !self.is_dry_run {
            take(&mut taken.addresses, address, &self.owner.uid);
        }
        self.taken.addresses.insert(address);
        Some(address)
    }

    fn take_port(&mut self, port: u16) -> bool {
        let mut taken = self.allocator.taken.lock();
        let is_free = match self.is_dry_run {
            true => !taken.ports.contains_key(&port),
            false => take(&mut taken.ports, port, &self.owner.uid),
        };
        is_free && self.taken.ports.insert(port)
    }

    fn admit_addresses(
        &mut self,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        let configured: Vec<_> =
            self.allocator.configured.iter().map(|range| range.family()).collect();
        families::normalize(service, old);
        families::complete(&configured, service, old)
            .map_err(|causes| StatusError::invalid(resource, object::name(service), causes.0))?;
        let is_kept = old.is_some_and(|old| families::is_kept_preference(service, old));
        if !needs_address(service) || is_headless(service) || is_kept {
            return Ok(());
        }
        let spec = &service["spec"];
        let mut addresses = items(&spec["clusterIPs"]).to_vec();
        let had = old
            .filter(|old| needs_address(old))
            .map_or(&[][..], |old| items(&old["spec"]["clusterIPs"]));
        // That what it had has changed is for the rules of the object to refuse.
        if !addresses.starts_with(had) && !had.starts_with(&addresses) {
            return Ok(());
        }
        let families: Vec<String> =
            items(&spec["ipFamilies"]).iter().map(|family| text(family).to_owned()).collect();
        addresses.resize(addresses.len().max(families.len()), "".into());
        for (index, family) in families.iter().enumerate().skip(had.len()) {
            let address = match text(&addresses[index]) {
                "" => self.take_any_address(service, family)?.to_string(),
                given => {
                    self.take_given_address(given).map_err(|why| {
                        let why = format!("failed to allocate IP {given}: {why}");
                        let path = "spec.clusterIPs".to_owned();
                        invalid(resource, service, path, &json!(addresses), &why)
                    })?;
                    given.to_owned()
                }
            };
            addresses[index] = address.into();
        }
        let spec = object::child_mut(service, "spec");
        if let Some(first) = addresses.first() {
            spec.insert("clusterIP".into(), first.clone());
        }
        spec.insert("clusterIPs".into(), addresses.into());
        Ok(())
    }

    fn take_given_address(&mut self, given: &str) -> Result<(), &'static str> {
        const OUTSIDE: &str = "the provided network does not match the current range";
        let address: IpAddr = given.parse().map_err(|_| OUTSIDE)?;
        if !self.usable_ranges(family_of(address)).iter().any(|range| range.contains(address)) {
            return Err(OUTSIDE);
        }
        match self.take_address([address].into_iter()) {
            Some(_) => Ok(()),
            None => Err("provided IP is already allocated"),
        }
    }

    fn usable_ranges(&self, family: &str) -> Vec<Cidr> {
        self.allocator.cidrs.read().usable(family, self.allocator.configured.iter())
    }

    fn take_any_address(&mut self, service: &Value, family: &str) -> Result<IpAddr, StatusError> {
        let ranges = self.usable_ranges(family);
        let start = random();
        self.take_address(ranges.iter().flat_map(|range| range.candidates(start))).ok_or_else(
            || {
                StatusError::internal(format!(
                    "failed to allocate a serviceIP for Service {:?}: range is full",
                    object::name(service)
                ))
            },
        )
    }

    fn admit_ports(
        &mut self,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        if !needs_node_ports(service) {
            return Ok(());
        }
        // Requested ports come first, so that they are not allocated to another port of the same service.
        for (index, port) in items(&service["spec"]["ports"]).iter().enumerate() {
            let given = &port["nodePort"];
            if is_zero(given) {
                continue;
            }
            if let Err(why) = self.take_given_port(given) {
                let path = format!("spec.ports[{index}].nodePort");
                return Err(invalid(resource, service, path, given, &why));
            }
        }
        let is_balancer = service["spec"]["type"] == "LoadBalancer";
        if is_balancer && service["spec"]["allocateLoadBalancerNodePorts"] == false {
            return Ok(());
        }
        let mut number_of: HashMap<i64, Value> = HashMap::new();
        let ports = service["spec"]["ports"].as_array_mut();
        let ports = ports.map_or(&mut [][..], Vec::as_mut_slice);
        for port in ports.iter() {
            if let (Some(number), false) = (port["port"].as_i64(), is_zero(&port["nodePort"])) {
                number_of.entry(number).or_insert_with(|| port["nodePort"].clone());
            }
        }
        for port in ports.iter_mut().filter(|port| is_zero(&port["nodePort"])) {
            let number = port["port"].as_i64().filter(|_| old.is_none());
            // A port that a new service has for two protocols is one node port.
            let shared = number.and_then(|number| number_of.get(&number).cloned());
            port["nodePort"] = match shared {
                Some(shared) => shared,
                None => self.take_any_port()?.into(),
            };
            if let Some(number) = number {
                number_of.insert(number, port["nodePort"].clone());
            }
        }
        Ok(())
    }

    /// One number may serve several protocols of one service.
    fn take_given_port(&mut self, given: &Value) -> Result<(), String> {
        match port_of(given).filter(|port| self.allocator.node_ports.contains(*port)) {
            Some(port) if self.before.ports.contains(&port) => Ok(()),
            Some(port) if self.taken.ports.contains(&port) => Ok(()),
            Some(port) if self.take_port(port) => Ok(()),
            Some(_) => Err(TAKEN.to_owned()),
            None => Err(format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                self.allocator.node_ports.first, self.allocator.node_ports.last
            )),
        }
    }

    /// The health-check port of nodes for load balancers. It is no other
    /// port of the service, and does not change as long as the service needs one.
    fn admit_health_port(
        &mut self,
        service: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        let had =
            |old: &Value| needs_health_port(old) && !is_zero(&old["spec"]["healthCheckNodePort"]);
        if !needs_health_port(service) || old.is_some_and(had) {
            return Ok(());
        }
        let given = &service["spec"]["healthCheckNodePort"];
        if is_zero(given) {
            let port = self.take_any_port()?;
            service["spec"]["healthCheckNodePort"] = port.into();
            return Ok(());
        }
        let port = port_of(given);
        let is_other = port.is_some_and(|port| {
            self.before.ports.contains(&port) || self.taken.ports.contains(&port)
        });
        let verdict = if is_other { Err(TAKEN.to_owned()) } else { self.take_given_port(given) };
        verdict.map_err(|why| {
            StatusError::internal(format!(
                "failed to allocate requested HealthCheck NodePort {given}: {why}"
            ))
        })
    }

    fn take_any_port(&mut self) -> Result<u16, StatusError> {
        let NodePorts { first, .. } = self.allocator.node_ports;
        let size = self.allocator.node_ports.len();
        let start = random().checked_rem(size).unwrap_or(0);
        let at = |step: u64| start.saturating_add(step).checked_rem(size).unwrap_or(0);
        let port = |step| first.saturating_add(u16::try_from(at(step)).unwrap_or(0));
        let port = (0..size).map(port).find(|port| self.take_port(*port));
        port.ok_or_else(|| StatusError::internal("failed to allocate a nodePort: range is full"))
    }
}

/// A service that changes its type gives up what only the old type has, though its writer left it
/// where it was. A value that is new is the writer's own mistake, which the rules name.
fn drop_stale_allocations(service: &mut Value, old: &Value) {
    let was = |is: fn(&Value) -> bool, new: &Value| is(old) && !is(new);
    let is_balancer = |service: &Value| service["spec"]["type"] == "LoadBalancer";
    let mut fields: Vec<&str> = Vec::new();
    let is_same = |field: &str| same(&service["spec"][field], &old["spec"][field]);
    if was(needs_address, service) {
        if is_same("clusterIP") && is_same("clusterIPs") {
            fields.extend(["clusterIP", "clusterIPs"]);
        }
        fields.extend(["ipFamilies", "ipFamilyPolicy"].iter().filter(|field| is_same(field)));
    }
    if was(needs_health_port, service) {
        fields.extend(["healthCheckNodePort"].iter().filter(|field| is_same(field)));
    }
    if was(is_balancer, service) {
        let own = ["allocateLoadBalancerNodePorts", "loadBalancerClass"];
        fields.extend(own.iter().filter(|field| is_same(field)));
    }
    if was(is_external, service) && is_same("externalTrafficPolicy") {
        fields.push("externalTrafficPolicy");
    }
    let numbers = |service: &Value| -> BTreeSet<u16> {
        items(&service["spec"]["ports"]).iter().filter_map(|p| port_of(&p["nodePort"])).collect()
    };
    let drops_ports = was(needs_node_ports, service) && numbers(service).is_subset(&numbers(old));
    let drops_ingress = was(is_balancer, service);
    let spec = object::child_mut(service, "spec");
    spec.retain(|field, _| !fields.contains(&field.as_str()));
    if drops_ports {
        let list = spec.get_mut("ports").and_then(Value::as_array_mut);
        for port in list.into_iter().flatten().filter_map(Value::as_object_mut) {
            port.remove("nodePort");
        }
    }
    if drops_ingress {
        object::child_mut(service, "status").insert("loadBalancer".into(), json!({}));
    }
}

fn port_of(value: &Value) -> Option<u16> {
    u16::try_from(value.as_u64()?).ok().filter(|port| *port > 0)
}

fn invalid(
    resource: &Resource,
    service: &Value,
    field: String,
    value: &Value,
    why: &str,
) -> StatusError {
    let cause = Cause {
        reason: "FieldValueInvalid",
        message: format!("Invalid value: {value}: {why}"),
        field,
    };
    StatusError::invalid(resource, object::name(service), vec![cause])
}

/// Only spreads the choice: any number will do when the system has no randomness to give.
fn random() -> u64 {
    getrandom::u64().unwrap_or(0)
}

#[cfg(test)]
#[path = "services_tests.rs"]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
