//! The records of the cluster as an immutable snapshot, and what it answers to a question: pure.
//!
//! What there is follows the specification of DNS-based service discovery of Kubernetes, version
//! 1.1.0, and where that leaves a choice CoreDNS as kubeadm configures it. There are no wildcards.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_server::proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};

use crate::names::{Domain, Reverse, undashed};
use crate::random::Shuffle;
use crate::shards::Shards;

/// The version of the specification.
const SCHEMA_VERSION: &str = "1.1.0";
/// The time to live of the record of that version, in seconds.
const SCHEMA_TTL: u32 = 28_800;
/// CNAME records in one answer.
const MAX_ALIASES: usize = 8;
/// The service under whose addresses this server is known.
const OWN_SERVICE: (&str, &str) = ("kube-system", "kube-dns");

/// Which names of pods are answered: those of `<address>.<namespace>.pod.<domain>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum PodNames {
    /// None.
    Disabled,
    /// Any address in a namespace that exists.
    #[default]
    Insecure,
    /// Addresses of pods of the namespace.
    Verified,
}

/// The key of a service in lower case: namespace, NUL, name. No label of Kubernetes has a NUL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(Arc<[u8]>);

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        let key = [namespace.as_bytes(), &[0], name.as_bytes()].concat().to_ascii_lowercase();
        Self(key.into())
    }

    /// Namespace and name.
    fn parts(&self) -> (&[u8], &[u8]) {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        (&self.0[..end], self.0.get(end + 1..).unwrap_or_default())
    }
}

impl std::borrow::Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// A service with what is behind it.
#[derive(Debug, PartialEq)]
pub(crate) struct Service {
    pub(crate) kind: Kind,
    /// What its name stands for: cluster IPs, or the addresses of the endpoints of a headless service.
    pub(crate) v4: Vec<Ipv4Addr>,
    /// The same of the other family.
    pub(crate) v6: Vec<Ipv6Addr>,
    /// Its endpoints, in the parts that they were published in.
    pub(crate) endpoints: Vec<Arc<[Endpoint]>>,
    /// Endpoints count as ready whatever they say.
    pub(crate) publishes_all: bool,
}

/// What a service is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// It is another name for this one.
    External(Name),
    /// It has cluster IPs, and these ports.
    Cluster(Vec<Port>),
    /// It is the set of its endpoints.
    Headless,
}

/// A port of a service or an endpoint, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: Box<str>,
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
}

/// An endpoint of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Its label, in lower case.
    pub(crate) hostname: Box<str>,
    pub(crate) address: IpAddr,
    pub(crate) ready: bool,
    /// The same for all of a slice.
    pub(crate) ports: Arc<[Port]>,
}

impl Service {
    /// The endpoints that have names.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Endpoint> {
        let all = self.endpoints.iter().flat_map(|part| part.iter());
        all.filter(|endpoint| endpoint.ready || self.publishes_all)
    }
}

/// Whom an address belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    /// The label of the endpoint; `None`: it is a cluster IP. Those come first.
    pub(crate) hostname: Option<Box<str>>,
    /// The service.
    pub(crate) service: Key,
}

/// A snapshot of all records of the cluster. A copy shares what did not change.
#[derive(Debug, Clone)]
pub struct Zone {
    domain: Domain,
    /// The time to live of records, in seconds.
    ttl: u32,
    pod_names: PodNames,
    pub(crate) services: Shards<Key, Arc<Service>>,
    /// Owners in order.
    pub(crate) addresses: Shards<IpAddr, Arc<[Owner]>>,
    pub(crate) namespaces: Shards<Box<[u8]>, ()>,
    /// Namespaces of the pods with an address.
    pub(crate) pods: Shards<IpAddr, Arc<[Box<str>]>>,
    pub(crate) synced: bool,
    /// The serial number of the zones: the time of the last change, in seconds since 1970.
    pub(crate) serial: u32,
}

/// A question for a zone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    /// As it was asked.
    pub(crate) name: &'a Name,
    pub(crate) kind: RecordType,
    /// How many records are enough: more do not fit into the answer.
    pub(crate) limit: usize,
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// All is said.
    Complete,
    /// The name has no record of this type; with the SOA record of the zone.
    NoData(Box<Record>),
    /// There is no such name; with the SOA record of the zone.
    NameError(Box<Record>),
    /// The name is of no zone here; as it was asked or as the last alias has it.
    Elsewhere(Name),
    /// Zones are not transferred.
    Refused,
    /// The objects of the cluster are not known yet.
    NotSynced,
}

/// An answer of a zone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) records: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
    pub(crate) outcome: Outcome,
}

/// What one name has.
enum Found {
    Records(Vec<Record>, Vec<Record>),
    Alias(Name),
    /// The name exists.
    Nothing,
    NoName,
    Elsewhere,
}

impl Found {
    fn records(records: Vec<Record>) -> Self {
        Self::Records(records, Vec::new())
    }
}

impl Zone {
    /// A zone without records.
    pub(crate) fn new(domain: Domain, ttl: u32, pod_names: PodNames) -> Self {
        Self {
            domain,
            ttl,
            pod_names,
            services: Shards::default(),
            addresses: Shards::default(),
            namespaces: Shards::default(),
            pods: Shards::default(),
            synced: false,
            serial: 0,
        }
    }

    /// Answers a question.
    pub(crate) fn answer(&self, question: &Question<'_>, random: &mut Shuffle) -> Answer {
        let mut records = Vec::new();
        let mut name = question.name.clone();
        let end = |records, outcome| Answer { records, additionals: Vec::new(), outcome };
        if matches!(question.kind, RecordType::AXFR | RecordType::IXFR) {
            return end(records, Outcome::Refused);
        }
        loop {
            let lower = name.to_lowercase();
            let soa = |zone: &Name| Box::new(self.soa(zone));
            let zone = || match Reverse::of(&lower) {
                Some(reverse) => soa(&reverse.name()),
                None => soa(self.domain.name()),
            };
            match self.find(&name, &lower, question, random) {
                Found::Records(more, additionals) if !more.is_empty() => {
                    records.extend(more);
                    return Answer { records, additionals, outcome: Outcome::Complete };
                }
                Found::NoName | Found::Nothing | Found::Records(..) if !self.synced => {
                    return end(records, Outcome::NotSynced);
                }
                Found::Records(..) | Found::Nothing => {
                    return end(records, Outcome::NoData(zone()));
                }
                Found::NoName => return end(records, Outcome::NameError(zone())),
                Found::Elsewhere => return end(records, Outcome::Elsewhere(name)),
                // A circle leads nowhere.
                Found::Alias(target) if target == name || is_passed(&records, &target) => {
                    return end(records, Outcome::NoData(zone()));
                }
                Found::Alias(target) => {
                    let alias = RData::CNAME(CNAME(target.clone()));
                    records.push(Record::from_rdata(name, self.ttl, alias));
                    let is_asked_for = question.kind == RecordType::CNAME;
                    if is_asked_for || records.len() >= MAX_ALIASES {
                        return end(records, Outcome::Complete);
                    }
                    name = target;
                }
            }
        }
    }

    fn find(
        &self,
        name: &Name,
        lower: &Name,
        question: &Question<'_>,
        random: &mut Shuffle,
    ) -> Found {
        if let Some(reverse) = Reverse::of(lower) {
            return self.find_address(reverse, name, lower, question.kind);
        }
        let Some(labels) = self.domain.strip(lower) else { return Found::Elsewhere };
        let kind = question.kind;
        match labels[..] {
            [] => self.apex(name, kind),
            [b"svc"] | [b"pod"] => Found::Nothing,
            [b"svc" | b"pod", namespace] => {
                if self.namespaces.get(namespace).is_some() {
                    Found::Nothing
                } else {
                    Found::NoName
                }
            }
            [b"svc", namespace, service] => {
                self.find_service(name, namespace, service, Selection::All, question, random)
            }
            [b"svc", namespace, service, endpoint] => {
                let selection = Selection::Endpoint(endpoint);
                self.find_service(name, namespace, service, selection, question, random)
            }
            [b"svc", namespace, service, protocol, port] => {
                let (protocol, port) = (without_underscore(protocol), without_underscore(port));
                let selection = Selection::Port { protocol, port };
                self.find_service(name, namespace, service, selection, question, random)
            }
            [b"pod", namespace, pod] => self.find_pod(name, namespace, pod, kind),
            [b"dns-version"] if kind == RecordType::TXT => {
                let version = RData::TXT(TXT::new(vec![SCHEMA_VERSION.to_owned()]));
                Found::records(vec![Record::from_rdata(name.clone(), SCHEMA_TTL, version)])
            }
            [b"dns-version"] => Found::Nothing,
            [b"dns", b"ns"] => Found::records(self.own_addresses(name, kind)),
            _ => Found::NoName,
        }
    }

    fn apex(&self, name: &Name, kind: RecordType) -> Found {
        match kind {
            RecordType::SOA => Found::records(vec![self.soa(name)]),
            RecordType::NS => {
                let (namespace, service) = OWN_SERVICE;
                let own: &[&[u8]] = match self.own_service() {
                    Some(_) => &[service.as_bytes(), namespace.as_bytes(), b"svc"],
                    None => &[b"ns", b"dns"],
                };
                let Some(target) = self.domain.below(own) else { return Found::Nothing };
                let both = [RecordType::A, RecordType::AAAA].into_iter();
                let glue = both.flat_map(|kind| self.own_addresses(&target, kind)).collect();
                let record = Record::from_rdata(name.clone(), self.ttl, RData::NS(NS(target)));
                Found::Records(vec![record], glue)
            }
            _ => Found::Nothing,
        }
    }

    fn own_service(&self) -> Option<&Arc<Service>> {
        self.services.get(&Key::new(OWN_SERVICE.0, OWN_SERVICE.1))
    }

    fn own_addresses(&self, name: &Name, kind: RecordType) -> Vec<Record> {
        self.own_service().map(|own| self.addresses_of(own, name, kind)).unwrap_or_default()
    }

    /// The SOA record of a zone.
    fn soa(&self, zone: &Name) -> Record {
        let below = |label: &[u8]| {
            let name = Name::from_labels([label]).and_then(|name| name.append_domain(zone));
            name.unwrap_or_else(|_| zone.clone())
        };
        let server = below(b"dns").prepend_label("ns").unwrap_or_else(|_| zone.clone());
        let data =
            SOA::new(server, below(b"hostmaster"), self.serial, 7200, 1800, 86_400, self.ttl);
        Record::from_rdata(zone.clone(), self.ttl.min(300), RData::SOA(data))
    }

    fn find_address(&self, reverse: Reverse, name: &Name, lower: &Name, kind: RecordType) -> Found {
        let Some(owners) = reverse.address(lower).and_then(|address| self.addresses.get(&address))
        else {
            return Found::Elsewhere;
        };
        if kind != RecordType::PTR {
            return Found::Nothing;
        }
        // A cluster IP is of its service and of nothing else.
        let clusters = owners.iter().take_while(|owner| owner.hostname.is_none()).take(1);
        let endpoints = || owners.iter().take(MAX_OWNERS);
        let mut records: Vec<_> = clusters.filter_map(|owner| self.pointer(name, owner)).collect();
        if records.is_empty() {
            records = endpoints().filter_map(|owner| self.pointer(name, owner)).collect();
        }
        Found::records(records)
    }

    fn pointer(&self, name: &Name, owner: &Owner) -> Option<Record> {
        let (namespace, service) = owner.service.parts();
        let target = match &owner.hostname {
            None => self.domain.below(&[service, namespace, b"svc"]),
            Some(host) => self.domain.below(&[host.as_bytes(), service, namespace, b"svc"]),
        };
        Some(Record::from_rdata(name.clone(), self.ttl, RData::PTR(PTR(target?))))
    }

    fn find_pod(&self, name: &Name, namespace: &[u8], pod: &[u8], kind: RecordType) -> Found {
        let exists = self.namespaces.get(namespace).is_some();
        let address = undashed(pod).filter(|_| exists);
        let address = address.filter(|address| match self.pod_names {
            PodNames::Disabled => false,
            PodNames::Insecure => true,
            PodNames::Verified => self
                .pods
                .get(address)
                .is_some_and(|owners| owners.iter().any(|owner| owner.as_bytes() == namespace)),
        });
        let Some(address) = address else { return Found::NoName };
        Found::records(self.address_record(name, address, kind).into_iter().collect())
    }

    fn find_service(
        &self,
        name: &Name,
        namespace: &[u8],
        service: &[u8],
        selection: Selection<'_>,
        question: &Question<'_>,
        random: &mut Shuffle,
    ) -> Found {
        let key = [namespace, &[0], service].concat();
        let Some(service) = self.services.get(&key[..]) else { return Found::NoName };
        let kind = question.kind;
        match (&service.kind, selection) {
            (Kind::External(_), Selection::Endpoint(_)) => Found::NoName,
            (Kind::External(target), _) => match kind {
                RecordType::A | RecordType::AAAA | RecordType::CNAME => {
                    Found::Alias(target.clone())
                }
                _ => Found::Nothing,
            },
            // the frequent ones
            (Kind::Cluster(_), Selection::All) if kind != RecordType::SRV => {
                Found::records(self.some_addresses(service, name, question, random))
            }
            (Kind::Headless, Selection::All) if kind != RecordType::SRV => {
                if service.v4.is_empty() && service.v6.is_empty() {
                    return Found::NoName;
                }
                Found::records(self.some_addresses(service, name, question, random))
            }
            (Kind::Cluster(ports), Selection::All | Selection::Port { .. }) => {
                let ports: Vec<_> = ports.iter().filter(|port| selection.has(port)).collect();
                if ports.is_empty() && !matches!(selection, Selection::All) {
                    return Found::NoName;
                }
                match kind {
                    RecordType::SRV => self.cluster_ports(name, &key, service, &ports),
                    _ => Found::records(self.some_addresses(service, name, question, random)),
                }
            }
            (Kind::Cluster(_) | Kind::Headless, _) => {
                self.endpoints(name, &key, service, selection, question, random)
            }
        }
    }

    /// SRV records of the ports of a service with cluster IPs.
    fn cluster_ports(&self, name: &Name, key: &[u8], service: &Service, ports: &[&Port]) -> Found {
        let (namespace, label) = split(key);
        let Some(target) = self.domain.below(&[label, namespace, b"svc"]) else {
            return Found::Nothing;
        };
        let count = ports.len() * (service.v4.len() + service.v6.len());
        let record = |port: &&Port| {
            let data = SRV::new(0, weight(count), port.port, target.clone());
            Record::from_rdata(name.clone(), self.ttl, RData::SRV(data))
        };
        let both = [RecordType::A, RecordType::AAAA].into_iter();
        let additionals = both.flat_map(|kind| self.addresses_of(service, &target, kind));
        Found::Records(ports.iter().map(record).collect(), additionals.collect())
    }

    /// Records of single endpoints: those of a name, or of a port.
    fn endpoints(
        &self,
        name: &Name,
        key: &[u8],
        service: &Service,
        selection: Selection<'_>,
        question: &Question<'_>,
        random: &mut Shuffle,
    ) -> Found {
        let selected: Vec<&Endpoint> =
            service.ready().filter(|endpoint| selection.has_endpoint(endpoint)).collect();
        if selected.is_empty() {
            return Found::NoName;
        }
        // What does not fit is left out at random.
        let (after, before) = {
            let (before, after) = selected.split_at(random.below(selected.len()));
            (after, before)
        };
        let in_turn = after.iter().chain(before).copied();
        if question.kind != RecordType::SRV {
            let mut addresses: Vec<IpAddr> = Vec::new();
            let wanted = in_turn.map(|endpoint| endpoint.address);
            for address in wanted.filter(|address| is_of(*address, question.kind)) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
                if addresses.len() >= question.limit.min(MAX_OWNERS) {
                    break;
                }
            }
            let kind = question.kind;
            let records = addresses.into_iter();
            let records = records.filter_map(|address| self.address_record(name, address, kind));
            return Found::records(records.collect());
        }
        let (namespace, label) = split(key);
        let ports = |endpoint: &Endpoint| {
            let ports = Arc::clone(&endpoint.ports);
            (0..ports.len()).filter_map(move |at| ports.get(at).cloned())
        };
        let count = selected
            .iter()
            .map(|endpoint| endpoint.ports.iter().filter(|port| selection.has(port)).count())
            .sum();
        let (mut records, mut additionals) = (Vec::new(), Vec::new());
        for endpoint in in_turn {
            if records.len() >= question.limit {
                break;
            }
            let labels = [endpoint.hostname.as_bytes(), label, namespace, b"svc"];
            let Some(target) = self.domain.below(&labels) else { continue };
            for port in ports(endpoint).filter(|port| selection.has(port)) {
                let data = SRV::new(0, weight(count), port.port, target.clone());
                let record = Record::from_rdata(name.clone(), self.ttl, RData::SRV(data));
                if records.len() < MAX_OWNERS && records.contains(&record) {
                    continue;
                }
                records.push(record);
            }
            let kind = family_of(endpoint.address);
            additionals.extend(self.address_record(&target, endpoint.address, kind));
        }
        Found::Records(records, additionals)
    }

    /// The addresses of a service in random order, as many as there is room for.
    fn some_addresses(
        &self,
        service: &Service,
        name: &Name,
        question: &Question<'_>,
        random: &mut Shuffle,
    ) -> Vec<Record> {
        let count = match question.kind {
            RecordType::A => service.v4.len(),
            RecordType::AAAA => service.v6.len(),
            _ => 0,
        };
        let start = random.below(count);
        let record = |address| Record::from_rdata(name.clone(), self.ttl, address);
        let mut records: Vec<Record> = match question.kind {
            RecordType::A => in_turn(&service.v4, start)
                .take(question.limit)
                .map(|address| record(RData::A(A(*address))))
                .collect(),
            RecordType::AAAA => in_turn(&service.v6, start)
                .take(question.limit)
                .map(|address| record(RData::AAAA(AAAA(*address))))
                .collect(),
            _ => Vec::new(),
        };
        random.shuffle(&mut records);
        records
    }

    /// The addresses of a service, a few.
    fn addresses_of(&self, service: &Service, name: &Name, kind: RecordType) -> Vec<Record> {
        let v4 = service.v4.iter().copied().map(IpAddr::V4);
        let all = v4.chain(service.v6.iter().copied().map(IpAddr::V6));
        let records = all.filter_map(|address| self.address_record(name, address, kind));
        records.take(MAX_OWNERS).collect()
    }

    fn address_record(&self, name: &Name, address: IpAddr, kind: RecordType) -> Option<Record> {
        let data = match (address, kind) {
            (IpAddr::V4(address), RecordType::A) => RData::A(A(address)),
            (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA(AAAA(address)),
            _ => return None,
        };
        Some(Record::from_rdata(name.clone(), self.ttl, data))
    }
}

fn is_passed(aliases: &[Record], name: &Name) -> bool {
    aliases.iter().any(|alias| alias.name == *name)
}

/// Records of what one address or endpoint name stands for.
const MAX_OWNERS: usize = 64;

fn in_turn<T>(items: &[T], start: usize) -> impl Iterator<Item = &T> {
    let (before, after) = items.split_at(start.min(items.len()));
    after.iter().chain(before)
}

fn split(key: &[u8]) -> (&[u8], &[u8]) {
    let end = key.iter().position(|byte| *byte == 0).unwrap_or(key.len());
    (&key[..end], key.get(end + 1..).unwrap_or_default())
}

fn family_of(address: IpAddr) -> RecordType {
    if address.is_ipv4() { RecordType::A } else { RecordType::AAAA }
}

fn is_of(address: IpAddr, kind: RecordType) -> bool {
    family_of(address) == kind
}

/// The weight of one SRV record of so many: together they are 100, and none is 0.
fn weight(count: usize) -> u16 {
    u16::try_from(100_usize.checked_div(count).unwrap_or(100)).unwrap_or(100).max(1)
}

fn without_underscore(label: &[u8]) -> &[u8] {
    label.strip_prefix(b"_").unwrap_or(label)
}

/// Which part of a service is asked for.
#[derive(Debug, Clone, Copy)]
enum Selection<'a> {
    All,
    Endpoint(&'a [u8]),
    Port { protocol: &'a [u8], port: &'a [u8] },
}

impl Selection<'_> {
    fn has(&self, port: &Port) -> bool {
        match self {
            Self::All | Self::Endpoint(_) => true,
            Self::Port { protocol, port: name } => {
                !port.name.is_empty()
                    && port.name.as_bytes() == *name
                    && port.protocol.as_bytes() == *protocol
            }
        }
    }

    fn has_endpoint(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::All => true,
            Self::Endpoint(label) => endpoint.hostname.as_bytes() == *label,
            Self::Port { .. } => endpoint.ports.iter().any(|port| self.has(port)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests;
