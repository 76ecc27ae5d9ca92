//! Addresses and node ports of services: each is given to one service at a time.
//! What is taken is kept in memory and read from the stored services at start.
//!
//! Current limitations: one address family, and one apiserver per store.

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::cidr::Cidr;
use crate::facts::Resource;
use crate::object;
use crate::status::{Cause, StatusError};

const NODE_PORTS: RangeInclusive<u16> = 30000..=32767;

/// The addresses and node ports of all services.
pub(crate) struct ServiceAllocator {
    range: Cidr,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    addresses: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

/// What was taken for one write; given back unless the write happened and [`Reservation::keep`] was called.
pub(crate) struct Reservation<'a> {
    allocator: &'a ServiceAllocator,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl Reservation<'_> {
    pub(crate) fn keep(mut self) {
        self.addresses.clear();
        self.ports.clear();
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut taken = self.allocator.lock();
        for address in &self.addresses {
            taken.addresses.remove(address);
        }
        for port in &self.ports {
            taken.ports.remove(port);
        }
    }
}

impl ServiceAllocator {
    pub(crate) fn new(range: Cidr) -> ServiceAllocator {
        ServiceAllocator { range, taken: Mutex::default() }
    }

    pub(crate) fn range(&self) -> Cidr {
        self.range
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a stored service holds.
    pub(crate) fn occupy(&self, service: &Value) {
        let mut taken = self.lock();
        taken.addresses.extend(addresses(service));
        taken.ports.extend(ports(service));
    }

    /// Gives back what a service held and, if it still exists, holds no longer.
    pub(crate) fn release(&self, service: &Value, now: Option<&Value>) {
        let kept = now.map_or_else(Default::default, |now| (addresses(now), ports(now)));
        let mut taken = self.lock();
        for address in addresses(service).difference(&kept.0) {
            taken.addresses.remove(address);
        }
        for port in ports(service).difference(&kept.1) {
            taken.ports.remove(port);
        }
    }

    /// Fills in what a new service (`old` is `None`) or a changed one lacks, and takes it.
    pub(crate) fn admit(
        &self,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
    ) -> Result<Reservation<'_>, StatusError> {
        if let Some(old) = old {
            drop_left_overs(service, old);
        }
        let mut reservation =
            Reservation { allocator: self, addresses: Vec::new(), ports: Vec::new() };
        let held = old.map_or_else(Default::default, |old| (addresses(old), ports(old)));
        self.admit_address(resource, service, &held.0, &mut reservation)?;
        self.admit_ports(resource, service, &held.1, &mut reservation)?;
        Ok(reservation)
    }

    fn admit_address(
        &self,
        resource: &Resource,
        service: &mut Value,
        held: &HashSet<IpAddr>,
        reservation: &mut Reservation<'_>,
    ) -> Result<(), StatusError> {
        if service["spec"]["type"] == "ExternalName" {
            return Ok(());
        }
        let given = service["spec"]["clusterIP"]
            .as_str()
            .or_else(|| service["spec"]["clusterIPs"][0].as_str())
            .unwrap_or_default()
            .to_owned();
        let address = match given.as_str() {
            "None" => given,
            "" => {
                let address = self.take_any_address().ok_or_else(|| {
                    StatusError::internal(format!(
                        "failed to allocate a serviceIP for Service {:?}: range is full",
                        object::name(service)
                    ))
                })?;
                reservation.addresses.push(address);
                address.to_string()
            }
            text => {
                let fault = match text.parse::<IpAddr>() {
                    // How an address must look is for the rules of the object to say.
                    Err(_) => return Ok(()),
                    Ok(address) if held.contains(&address) => None,
                    Ok(address) if !self.range.contains(address) => Some(format!(
                        "the provided IP ({address}) is not in the valid range. The range of valid IPs is {}",
                        self.range
                    )),
                    Ok(address) if !self.lock().addresses.insert(address) => {
                        Some("provided IP is already allocated".to_owned())
                    }
                    Ok(address) => {
                        reservation.addresses.push(address);
                        None
                    }
                };
                if let Some(why) = fault {
                    let why = format!("failed to allocate IP {text}: {why}");
                    return Err(invalid(
                        resource,
                        service,
                        "spec.clusterIPs".into(),
                        &json!([text]),
                        &why,
                    ));
                }
                given
            }
        };
        let family = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => "IPv4",
            Ok(IpAddr::V6(_)) => "IPv6",
            Err(_) => self.range.family(),
        };
        let spec = object::child_mut(service, "spec");
        spec.insert("clusterIP".into(), address.as_str().into());
        spec.insert("clusterIPs".into(), json!([address]));
        spec.entry("ipFamilies").or_insert_with(|| json!([family]));
        spec.entry("ipFamilyPolicy").or_insert_with(|| "SingleStack".into());
        Ok(())
    }

    fn take_any_address(&self) -> Option<IpAddr> {
        let size = self.range.size();
        // The first ones are left for those that ask for an address, as long as there are others.
        let reserved = (size / 16).clamp(u64::from(size > 16), 256);
        let mut taken = self.lock();
        let others = random().checked_rem(size.saturating_sub(reserved)).unwrap_or(0);
        let start = reserved.saturating_add(others);
        (0..size)
            .map(|step| {
                self.range.address(start.saturating_add(step).checked_rem(size).unwrap_or(0))
            })
            .find(|address| taken.addresses.insert(*address))
    }

    fn admit_ports(
        &self,
        resource: &Resource,
        service: &mut Value,
        held: &HashSet<u16>,
        reservation: &mut Reservation<'_>,
    ) -> Result<(), StatusError> {
        let kind = service["spec"]["type"].as_str().unwrap_or_default();
        let is_balancer = kind == "LoadBalancer";
        let wants_ports = kind == "NodePort"
            || (is_balancer && service["spec"]["allocateLoadBalancerNodePorts"] != false);
        let wants_health = is_balancer
            && service["spec"]["externalTrafficPolicy"] == "Local"
            && service["spec"]["healthCheckNodePort"].as_u64().unwrap_or(0) == 0;
        let count = service["spec"]["ports"].as_array().map_or(0, Vec::len);
        for index in 0..count {
            let port = &service["spec"]["ports"][index];
            let given = port["nodePort"].as_u64().unwrap_or(0);
            let taken = match given {
                0 if !wants_ports => continue,
                0 => self.take_any_port()?,
                given => {
                    // One number may serve several protocols of one service.
                    let is_own =
                        |port: u16| held.contains(&port) || reservation.ports.contains(&port);
                    match u16::try_from(given).ok().filter(|port| NODE_PORTS.contains(port)) {
                        Some(port) if is_own(port) => continue,
                        Some(port) if self.lock().ports.insert(port) => port,
                        fault => {
                            let why = match fault {
                                Some(_) => "provided port is already allocated".to_owned(),
                                None => format!(
                                    "provided port is not in the valid range. The range of valid ports is {}-{}",
                                    NODE_PORTS.start(),
                                    NODE_PORTS.end()
                                ),
                            };
                            let field = format!("spec.ports[{index}].nodePort");
                            return Err(invalid(resource, service, field, &json!(given), &why));
                        }
                    }
                }
            };
            reservation.ports.push(taken);
            service["spec"]["ports"][index]["nodePort"] = taken.into();
        }
        if wants_health {
            let port = self.take_any_port()?;
            reservation.ports.push(port);
            service["spec"]["healthCheckNodePort"] = port.into();
        }
        Ok(())
    }

    fn take_any_port(&self) -> Result<u16, StatusError> {
        let size = NODE_PORTS.len() as u64;
        let start = random().checked_rem(size).unwrap_or(0);
        let mut taken = self.lock();
        (0..size)
            .map(|step| start.saturating_add(step).checked_rem(size).unwrap_or(0))
            .map(|step| NODE_PORTS.start().saturating_add(u16::try_from(step).unwrap_or(0)))
            .find(|port| taken.ports.insert(*port))
            .ok_or_else(|| StatusError::internal("failed to allocate a nodePort: range is full"))
    }
}

/// A service that changes its type gives up what only the old type has, though a patch leaves it where it was.
fn drop_left_overs(service: &mut Value, old: &Value) {
    let rank = |service: &Value| match service["spec"]["type"].as_str() {
        Some("ExternalName") => 0,
        Some("NodePort") => 2,
        Some("LoadBalancer") => 3,
        _ => 1,
    };
    let (now, before) = (rank(service), rank(old));
    let spec = object::child_mut(service, "spec");
    for (least, fields) in [
        (1, ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"].as_slice()),
        (2, &["externalTrafficPolicy"]),
        (3, &["allocateLoadBalancerNodePorts", "healthCheckNodePort", "loadBalancerClass"]),
    ] {
        if now < least && before >= least {
            // A value that is new is the client's own mistake, which the rules will name.
            spec.retain(|field, value| {
                !fields.contains(&field.as_str()) || *value != old["spec"][field]
            });
        }
    }
    if now < 2 && before >= 2 {
        let held = ports(old);
        let is_held = |port: &Value| {
            port.as_u64().is_some_and(|port| held.iter().any(|held| u64::from(*held) == port))
        };
        let list = spec.get_mut("ports").and_then(Value::as_array_mut);
        for port in list.into_iter().flatten().filter_map(Value::as_object_mut) {
            if port.get("nodePort").is_some_and(is_held) {
                port.remove("nodePort");
            }
        }
    }
}

fn addresses(service: &Value) -> HashSet<IpAddr> {
    let list = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    list.chain([&service["spec"]["clusterIP"]])
        .filter_map(|address| address.as_str()?.parse().ok())
        .collect()
}

fn ports(service: &Value) -> HashSet<u16> {
    let list = service["spec"]["ports"].as_array().into_iter().flatten();
    list.map(|port| &port["nodePort"])
        .chain([&service["spec"]["healthCheckNodePort"]])
        .filter_map(|port| u16::try_from(port.as_u64()?).ok().filter(|port| *port > 0))
        .collect()
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
