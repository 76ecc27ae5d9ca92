//! Addresses and node ports of services: each is given to one service at a time. Rules are those of
//! upstream's `registry/core/service` (`storage/alloc.go`, `strategy.go`).
//!
//! What is taken is in the store, so that any number of servers share it: an IPAddress object for each
//! address, which only one of them can make, and a bitmap of ports ([`ports`]). A write is planned
//! with what this server knows of them, then what it needs is reserved ([`reservation`]); what another
//! one took meanwhile is planned again. Nothing is released but what the service was given. A write whose end
//! is not known (the store failed, or its client went away meanwhile) releases nothing: what is lost by
//! that, `tasks::addresses` and `tasks::node_ports` find.

mod families;
pub(crate) mod ports;
mod ranges;
mod reservation;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::ports::StoredPorts;
use self::ranges::Ranges;
pub(crate) use self::ranges::{Addresses, Holder, is_managed};
use self::reservation::Abandoned;
pub(crate) use self::reservation::{Reservation, address_of};
use super::plugins::Plugins;
use crate::api_types::Resource;
use crate::cache::Cache;
use crate::cidr::{Cidr, ServiceRanges, family_of};
use crate::object;
use crate::registry::Registry;
use crate::schema::service::{
    is_external, is_headless, needs_address, needs_health_port, needs_node_ports,
};
use crate::schema::value::{is_zero, items, same, text};
use crate::status::{Cause, StatusError};

const KIND: &str = "Service";

const TAKEN: &str = "provided port is already allocated";
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
    pub(crate) fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// All ports once, from a random one on: those first that services seldom ask for by number.
    fn candidates(self, random: u64) -> impl Iterator<Item = u16> {
        let size = self.len();
        let reserved = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
        let turned = move |first: u64, count: u64| {
            let start = random.checked_rem(count).unwrap_or(0);
            (start..count).chain(0..start).map(move |index| first.saturating_add(index))
        };
        let offsets = turned(reserved, size.saturating_sub(reserved)).chain(turned(0, reserved));
        offsets.filter_map(move |offset| self.first.checked_add(u16::try_from(offset).ok()?))
    }

    fn len(self) -> u64 {
        u64::from(self.last.abs_diff(self.first)).saturating_add(1)
    }
}

impl fmt::Display for NodePorts {
    /// As upstream stores it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.first, self.last)
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
    /// All IPAddress objects, as far as this server has seen them.
    addresses: Cache<Addresses>,
    node_ports: NodePorts,
    /// The bitmap of ports as this server has last seen it.
    ports: Mutex<StoredPorts>,
    /// Held while ports are taken or released, so that this server's own writes do not conflict.
    ports_turn: tokio::sync::Mutex<()>,
    plugins: Plugins,
    /// What was taken for writes that were given up.
    abandoned: Mutex<Vec<Abandoned>>,
}

/// Addresses and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) addresses: HashSet<IpAddr>,
    pub(crate) ports: HashSet<u16>,
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

    fn add(&mut self, other: Allocation) {
        self.addresses.extend(other.addresses);
        self.ports.extend(other.ports);
    }

    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty()
    }

    /// What of it is not in `other`.
    fn without(&self, other: &Allocation) -> Allocation {
        Allocation {
            addresses: self.addresses.difference(&other.addresses).copied().collect(),
            ports: self.ports.difference(&other.ports).copied().collect(),
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
            addresses: Cache::new("networking.k8s.io", "ipaddresses")?,
            node_ports,
            ports: Mutex::default(),
            ports_turn: tokio::sync::Mutex::default(),
            plugins,
            abandoned: Mutex::default(),
        })
    }

    /// The ranges that the cluster is configured with.
    pub(crate) fn configured(&self) -> ServiceRanges {
        self.configured
    }

    /// The node ports that the cluster is configured with.
    pub(crate) fn node_ports(&self) -> NodePorts {
        self.node_ports
    }

    /// What is known of an IPAddress object.
    pub(crate) fn holder(&self, address: IpAddr) -> Option<Holder> {
        self.addresses.read().get(address).cloned()
    }

    /// Whether an address is in a range of any ServiceCIDR.
    pub(crate) fn is_in_range(&self, address: IpAddr) -> bool {
        self.cidrs.read().contains(address)
            || self.configured.iter().any(|range| range.contains(address))
    }

    /// Reads the ServiceCIDRs and the addresses that are taken. Before that there are none.
    pub(crate) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        self.cidrs.load(registry).await?;
        self.addresses.load(registry).await
    }

    /// Follows them until `stop`.
    pub(crate) async fn run(&self, registry: &Registry, stop: CancellationToken) {
        tokio::join!(self.cidrs.run(registry, &stop), self.addresses.run(registry, &stop));
    }

    /// Before a service is written: waits a moment until ranges that this server has written are in effect.
    pub(crate) async fn catch_up(&self, registry: &Registry, resource: &Resource) {
        if resource.kind == KIND {
            self.cidrs.catch_up(registry).await;
        }
    }

    /// Reads all that is taken.
    async fn refresh(&self, registry: &Registry) -> Result<(), StatusError> {
        self.addresses.load(registry).await?;
        self.note_ports(ports::read(registry, self.node_ports).await?);
        Ok(())
    }

    fn note_ports(&self, seen: StoredPorts) {
        *self.ports.lock() = seen;
    }

    /// Reserves what a new service needs; `None` for objects of other resources.
    pub(crate) async fn admit_create(
        &self,
        registry: &Registry,
        resource: &Resource,
        object: &mut Value,
        dry_run: bool,
    ) -> Result<Option<Reservation<'_>>, StatusError> {
        if resource.kind != KIND {
            return Ok(None);
        }
        self.reserve(registry, resource, object, None, dry_run).await.map(Some)
    }

    /// For an update of the stored service `old`, as long as it needs nothing new. `Some(None)`: something
    /// is to be reserved first, or refused, by [`ServiceAllocator::reserve`].
    #[allow(clippy::option_option)]
    pub(crate) fn admit_update(
        &self,
        resource: &Resource,
        subresource: &str,
        object: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Option<Option<Reservation<'_>>> {
        if resource.kind != KIND || !subresource.is_empty() {
            return None;
        }
        let mut planned = object.clone();
        let (plan, _) = self.plan(resource, &mut planned, Some(old), &Allocation::default());
        let needs_nothing = plan.is_ok_and(|plan| plan.is_empty());
        if needs_nothing {
            *object = planned;
        }
        Some(needs_nothing.then(|| self.reservation(object, Some(old), dry_run)))
    }

    /// For the deletion of a stored service.
    pub(crate) fn admit_delete(
        &self,
        resource: &Resource,
        object: &Value,
        dry_run: bool,
    ) -> Option<Reservation<'_>> {
        if resource.kind != KIND {
            return None;
        }
        let mut reservation = self.reservation(object, Some(object), dry_run);
        reservation.begin();
        Some(reservation)
    }

    /// Fills in what a new service (`old` is `None`) or a changed one lacks, with what is free as far as this
    /// server knows, and `lost` is not. Returns what is to be reserved for it, and whether something was
    /// not free.
    fn plan(
        &self,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
        lost: &Allocation,
    ) -> (Result<Allocation, StatusError>, bool) {
        if let Err(error) = self.admit_external(resource, service, old) {
            return (Err(error), false);
        }
        if let Some(old) = old {
            drop_stale_allocations(service, old);
        }
        let mut plan = Plan {
            allocator: self,
            lost,
            before: old.map(Allocation::of).unwrap_or_default(),
            taken: Allocation::default(),
            meets_taken: false,
        };
        let planned = plan
            .admit_addresses(resource, service, old)
            .and_then(|()| plan.admit_ports(resource, service, old))
            .and_then(|()| plan.admit_health_port(service, old));
        (planned.map(|()| plan.taken), plan.meets_taken)
    }
}

/// What is chosen for one write of a service.
struct Plan<'a> {
    allocator: &'a ServiceAllocator,
    /// What others were found to have.
    lost: &'a Allocation,
    /// What the service held before.
    before: Allocation,
    taken: Allocation,
    /// Something was not free.
    meets_taken: bool,
}

impl ServiceAllocator {
    /// Completes the families of a service. Returns those of the cluster.
    fn complete_families(
        &self,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
    ) -> Result<Vec<&'static str>, StatusError> {
        let configured: Vec<_> = self.configured.iter().map(|range| range.family()).collect();
        families::normalize(service, old);
        families::complete(&configured, service, old)
            .map_err(|causes| StatusError::invalid(resource, object::name(service), causes.0))?;
        Ok(configured)
    }

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

impl Plan<'_> {
    /// Takes the first of these addresses that is free.
    fn take_address(&mut self, mut addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
        let known = self.allocator.addresses.read();
        let is_free = |address: &IpAddr| {
            !known.contains(*address)
                && !self.lost.addresses.contains(address)
                && !self.taken.addresses.contains(address)
        };
        let found = addresses.find(is_free);
        self.meets_taken |= found.is_none();
        self.taken.addresses.extend(found);
        found
    }

    fn take_port(&mut self, port: u16) -> bool {
        let is_free = !self.allocator.ports.lock().ports.contains(port)
            && !self.lost.ports.contains(&port)
            && !self.taken.ports.contains(&port);
        self.meets_taken |= !is_free;
        is_free && self.taken.ports.insert(port)
    }

    fn admit_addresses(
        &mut self,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        let configured = self.allocator.complete_families(resource, service, old)?;
        let is_kept = old.is_some_and(|old| families::is_kept_preference(service, old));
        // A service that was headless stays so, which the rules of the object see to.
        let first = old.filter(|old| needs_address(old)).unwrap_or(service);
        if !needs_address(service) || is_headless(first) || is_kept {
            return Ok(());
        }
        let spec = &service["spec"];
        let mut addresses = items(&spec["clusterIPs"]).to_vec();
        let had = old
            .filter(|old| needs_address(old))
            .map_or(&[][..], |old| items(&old["spec"]["clusterIPs"]));
        // Whether it still has what it had is for those rules too.
        let families: Vec<String> =
            items(&spec["ipFamilies"]).iter().map(|family| text(family).to_owned()).collect();
        addresses.resize(addresses.len().max(families.len()), "".into());
        let is_configured = |family: &str| configured.contains(&family);
        let lacking = families.iter().enumerate().skip(had.len());
        for (index, family) in lacking.filter(|(_, family)| is_configured(family)) {
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
        addresses.retain(|address| !is_zero(address));
        let spec = object::child_mut(service, "spec");
        if let (Some(first), true) = (addresses.first(), had.is_empty()) {
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
                "provided port is not in the valid range. The range of valid ports is {}",
                self.allocator.node_ports
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
        let mut ports = self.allocator.node_ports.candidates(random());
        let port = ports.find(|port| self.take_port(*port));
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

/// The node ports that a service holds, in their order.
pub(crate) fn node_ports_of(service: &Value) -> Vec<u16> {
    let mut ports = Allocation::of(service).ports.into_iter().collect::<Vec<_>>();
    ports.sort_unstable();
    ports
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
