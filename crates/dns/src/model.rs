//! The objects of the cluster, as they change, made into the records of a [`Zone`]: pure.
//!
//! One change costs work in proportion to the service that it is about.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_server::proto::rr::Name;
use k8s_openapi::api::core::v1::{Pod, Service as ServiceObject};
use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::names::{Domain, dashed};
use crate::zone::{Endpoint, Key, Kind, Owner, PodNames, Port, Service, Zone};

/// The label of a slice with the name of its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The longest label of a name.
const MAX_LABEL: usize = 63;

/// The objects, and the records that follow from them.
#[derive(Debug)]
pub(crate) struct Model {
    zone: Zone,
    services: HashMap<Key, Declared>,
    /// The slices of a service by name.
    slices: HashMap<Key, BTreeMap<Box<str>, Arc<[Endpoint]>>>,
    /// Addresses of pods by namespace and name.
    pods: HashMap<Key, Vec<IpAddr>>,
}

/// What a service object says.
#[derive(Debug)]
struct Declared {
    kind: Kind,
    addresses: Vec<IpAddr>,
    publishes_all: bool,
    has_selector: bool,
}

impl Model {
    /// A model without objects.
    pub(crate) fn new(domain: Domain, ttl: u32, pod_names: PodNames) -> Self {
        Self {
            zone: Zone::new(domain, ttl, pod_names),
            services: HashMap::new(),
            slices: HashMap::new(),
            pods: HashMap::new(),
        }
    }

    /// The records now; `serial` is the time in seconds since 1970.
    pub(crate) fn snapshot(&mut self, serial: u32) -> Zone {
        self.zone.serial = serial;
        self.zone.clone()
    }

    /// All objects are known that there were at the start.
    pub(crate) fn set_synced(&mut self) {
        self.zone.synced = true;
    }

    /// A service is there, or changed.
    pub(crate) fn apply_service(&mut self, service: &ServiceObject) {
        let Some(key) = key(&service.metadata) else { return };
        match declared(service) {
            Some(declared) => {
                self.services.insert(key.clone(), declared);
            }
            None => {
                self.services.remove(&key);
            }
        }
        self.rebuild(&key);
    }

    /// A service is gone.
    pub(crate) fn delete_service(&mut self, metadata: &ObjectMeta) {
        let Some(key) = key(metadata) else { return };
        self.services.remove(&key);
        self.rebuild(&key);
    }

    /// A slice is there, or changed. Returns whether its service is headless and has a selector:
    /// CoreDNS measures how long those take.
    pub(crate) fn apply_slice(&mut self, slice: &EndpointSlice) -> bool {
        let Some((service, name)) = slice_key(&slice.metadata) else { return false };
        let endpoints = endpoints(slice);
        self.slices.entry(service.clone()).or_default().insert(name, endpoints);
        self.rebuild(&service);
        self.services
            .get(&service)
            .is_some_and(|service| service.kind == Kind::Headless && service.has_selector)
    }

    /// A slice is gone, or is of another service now.
    pub(crate) fn delete_slice(&mut self, metadata: &ObjectMeta) {
        let Some((service, name)) = slice_key(metadata) else { return };
        let Some(slices) = self.slices.get_mut(&service) else { return };
        slices.remove(&name);
        if slices.is_empty() {
            self.slices.remove(&service);
        }
        self.rebuild(&service);
    }

    /// A namespace is there.
    pub(crate) fn apply_namespace(&mut self, name: &str) {
        self.zone.namespaces.insert(name.as_bytes().to_ascii_lowercase().into(), ());
    }

    /// A namespace is gone.
    pub(crate) fn delete_namespace(&mut self, name: &str) {
        self.zone.namespaces.remove(&name.as_bytes().to_ascii_lowercase()[..]);
    }

    /// A pod is there, or changed.
    pub(crate) fn apply_pod(&mut self, pod: &Pod) {
        let Some(key) = key(&pod.metadata) else { return };
        let status = pod.status.as_ref();
        let is_over = matches!(
            status.and_then(|status| status.phase.as_deref()),
            Some("Succeeded" | "Failed")
        );
        let status = status.filter(|_| !is_over);
        let all = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten();
        let one = status.and_then(|status| status.pod_ip.as_ref());
        let texts = all.map(|address| &address.ip).chain(one);
        let addresses: BTreeSet<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
        self.set_pod(&key, &pod.metadata, addresses.into_iter().collect());
    }

    /// A pod is gone.
    pub(crate) fn delete_pod(&mut self, metadata: &ObjectMeta) {
        if let Some(key) = key(metadata) {
            self.set_pod(&key, metadata, Vec::new());
        }
    }

    fn set_pod(&mut self, key: &Key, metadata: &ObjectMeta, addresses: Vec<IpAddr>) {
        let namespace: Box<str> =
            metadata.namespace.as_deref().unwrap_or_default().to_ascii_lowercase().into();
        let old = match addresses.is_empty() {
            true => self.pods.remove(key),
            false => self.pods.insert(key.clone(), addresses.clone()),
        };
        // Pods of a host's network share its address.
        let mut change = |address: &IpAddr, is_added: bool| {
            let owners = self.zone.pods.get(address).map(|owners| owners.to_vec());
            let mut owners = owners.unwrap_or_default();
            if is_added {
                owners.push(namespace.clone());
            } else if let Some(at) = owners.iter().position(|owner| *owner == namespace) {
                owners.remove(at);
            }
            if owners.is_empty() {
                self.zone.pods.remove(address);
            } else {
                self.zone.pods.insert(*address, owners.into());
            }
        };
        let old = old.unwrap_or_default();
        old.iter().filter(|address| !addresses.contains(address)).for_each(|it| change(it, false));
        addresses.iter().filter(|address| !old.contains(address)).for_each(|it| change(it, true));
    }

    /// Makes the records of a service anew.
    fn rebuild(&mut self, key: &Key) {
        let old = self.zone.services.get(key).cloned();
        let new = self.services.get(key).map(|declared| {
            let slices = self.slices.get(key).into_iter().flat_map(BTreeMap::values);
            Arc::new(service(declared, slices.cloned().collect()))
        });
        if old == new {
            return;
        }
        let (before, after) = (owners(key, old.as_deref()), owners(key, new.as_deref()));
        for (address, owner) in before.difference(&after) {
            self.change_owner(*address, owner, false);
        }
        for (address, owner) in after.difference(&before) {
            self.change_owner(*address, owner, true);
        }
        match new {
            Some(new) => self.zone.services.insert(key.clone(), new),
            None => {
                self.zone.services.remove(key);
            }
        }
    }

    fn change_owner(&mut self, address: IpAddr, owner: &Owner, is_added: bool) {
        let owners = self.zone.addresses.get(&address).map(|owners| owners.to_vec());
        let mut owners = owners.unwrap_or_default();
        match owners.binary_search(owner) {
            Ok(at) if !is_added => {
                owners.remove(at);
            }
            Err(at) if is_added => owners.insert(at, owner.clone()),
            _ => return,
        }
        if owners.is_empty() {
            self.zone.addresses.remove(&address);
        } else {
            self.zone.addresses.insert(address, owners.into());
        }
    }
}

fn key(metadata: &ObjectMeta) -> Option<Key> {
    Some(Key::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?))
}

/// The service of a slice, and its own name.
fn slice_key(metadata: &ObjectMeta) -> Option<(Key, Box<str>)> {
    let service = metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    let key = Key::new(metadata.namespace.as_deref()?, service);
    Some((key, metadata.name.as_deref()?.into()))
}

/// `None`: the service has no records.
fn declared(object: &ServiceObject) -> Option<Declared> {
    let spec = object.spec.as_ref()?;
    let own = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    let texts: BTreeSet<&String> = own.filter(|text| !text.is_empty()).collect();
    let kind = if spec.type_.as_deref() == Some("ExternalName") {
        Kind::External(external(spec.external_name.as_deref()?)?)
    } else if texts.iter().any(|text| *text == "None") {
        Kind::Headless
    } else {
        let ports = spec.ports.iter().flatten();
        Kind::Cluster(
            ports
                .filter_map(|port| {
                    Some(Port {
                        name: label(port.name.as_deref()),
                        protocol: protocol(port.protocol.as_deref())?,
                        port: u16::try_from(port.port).ok()?,
                    })
                })
                .collect(),
        )
    };
    let addresses: BTreeSet<IpAddr> = match kind {
        Kind::Cluster(_) => texts.iter().filter_map(|text| text.parse().ok()).collect(),
        _ => BTreeSet::new(),
    };
    // It waits for its cluster IP.
    if matches!(kind, Kind::Cluster(_)) && addresses.is_empty() {
        return None;
    }
    Some(Declared {
        kind,
        addresses: addresses.into_iter().collect(),
        publishes_all: spec.publish_not_ready_addresses == Some(true),
        has_selector: spec.selector.as_ref().is_some_and(|selector| !selector.is_empty()),
    })
}

/// The target of an alias; an address is none.
fn external(text: &str) -> Option<Name> {
    if text.parse::<IpAddr>().is_ok() {
        return None;
    }
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    (!name.is_root()).then_some(name)
}

fn label(text: Option<&str>) -> Box<str> {
    text.unwrap_or_default().to_ascii_lowercase().into()
}

fn protocol(text: Option<&str>) -> Option<&'static str> {
    match text.unwrap_or("TCP") {
        "TCP" => Some("tcp"),
        "UDP" => Some("udp"),
        "SCTP" => Some("sctp"),
        _ => None,
    }
}

/// The endpoints of a slice, each with one of its addresses.
fn endpoints(slice: &EndpointSlice) -> Arc<[Endpoint]> {
    let port = |port: &EndpointPort| {
        Some(Port {
            name: label(port.name.as_deref()),
            protocol: protocol(port.protocol.as_deref())?,
            // absent: all ports
            port: u16::try_from(port.port?).ok()?,
        })
    };
    let ports: Arc<[Port]> = slice.ports.iter().flatten().filter_map(port).collect();
    let each = |endpoint: &SliceEndpoint| {
        let hostname = endpoint.hostname.as_deref().filter(|name| !name.is_empty());
        let hostname = hostname.filter(|name| name.len() <= MAX_LABEL);
        let conditions = endpoint.conditions.as_ref();
        let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
        let addresses = endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok());
        let one = |address: IpAddr| Endpoint {
            hostname: hostname
                .map_or_else(|| dashed(address).into(), |name| name.to_ascii_lowercase().into()),
            address,
            ready,
            ports: Arc::clone(&ports),
        };
        addresses.map(one).collect::<Vec<_>>()
    };
    // Of a slice of names there are no addresses to give.
    let of_addresses = matches!(&*slice.address_type, "IPv4" | "IPv6");
    slice.endpoints.iter().flatten().filter(|_| of_addresses).flat_map(each).collect()
}

fn service(declared: &Declared, endpoints: Vec<Arc<[Endpoint]>>) -> Service {
    let mut service = Service {
        kind: declared.kind.clone(),
        v4: Vec::new(),
        v6: Vec::new(),
        endpoints,
        publishes_all: declared.publishes_all,
    };
    let addresses: BTreeSet<IpAddr> = match declared.kind {
        Kind::Cluster(_) => declared.addresses.iter().copied().collect(),
        Kind::Headless => service.ready().map(|endpoint| endpoint.address).collect(),
        Kind::External(_) => {
            service.endpoints = Vec::new();
            BTreeSet::new()
        }
    };
    let v4 = |address: &IpAddr| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    };
    let v6 = |address: &IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(*address),
    };
    service.v4 = addresses.iter().filter_map(v4).collect::<Vec<Ipv4Addr>>();
    service.v6 = addresses.iter().filter_map(v6).collect::<Vec<Ipv6Addr>>();
    service
}

/// Whom the addresses of a service belong to.
fn owners(key: &Key, service: Option<&Service>) -> BTreeSet<(IpAddr, Owner)> {
    let Some(service) = service else { return BTreeSet::new() };
    let owner = |hostname| Owner { hostname, service: key.clone() };
    let mut owners: BTreeSet<_> = service
        .ready()
        .map(|endpoint| (endpoint.address, owner(Some(endpoint.hostname.clone()))))
        .collect();
    if let Kind::Cluster(_) = service.kind {
        let v4 = service.v4.iter().map(|address| (IpAddr::V4(*address), owner(None)));
        owners.extend(v4);
        owners.extend(service.v6.iter().map(|address| (IpAddr::V6(*address), owner(None))));
    }
    owners
}
