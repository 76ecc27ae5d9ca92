//! The records of the cluster as an immutable snapshot, and what it answers to a question: pure.
//!
//! What there is follows the specification of DNS-based service discovery of Kubernetes, version
//! 1.1.0, and where that leaves a choice CoreDNS as kubeadm configures it. There are no wildcards.

mod objects;
mod services;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use hickory_server::proto::rr::rdata::{CNAME, NS, PTR, SOA, TXT};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};

use self::services::{MAX_OWNERS, Selection, without_underscore};
use crate::names::{Domain, Reverse, undashed};
use crate::random::Shuffle;
use crate::shards::Shards;

pub(crate) use self::objects::{Endpoint, Key, Kind, Owner, Port, Service};

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
        if matches!(kind, RecordType::SOA | RecordType::NS) && *lower == reverse.name() {
            return self.apex(name, kind);
        }
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
}

fn is_passed(aliases: &[Record], name: &Name) -> bool {
    aliases.iter().any(|alias| alias.name == *name)
}
