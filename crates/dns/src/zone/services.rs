//! The records of one service.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_server::proto::rr::rdata::{A, AAAA, SRV};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};

use super::objects::{Endpoint, Kind, Port, Service};
use super::{Found, Question, Zone};
use crate::random::Shuffle;

/// Records of what one address or endpoint name stands for.
pub(super) const MAX_OWNERS: usize = 64;

/// Which part of a service is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Selection<'a> {
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

impl Zone {
    pub(super) fn find_service(
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
    pub(super) fn addresses_of(
        &self,
        service: &Service,
        name: &Name,
        kind: RecordType,
    ) -> Vec<Record> {
        let v4 = service.v4.iter().copied().map(IpAddr::V4);
        let all = v4.chain(service.v6.iter().copied().map(IpAddr::V6));
        let records = all.filter_map(|address| self.address_record(name, address, kind));
        records.take(MAX_OWNERS).collect()
    }

    pub(super) fn address_record(
        &self,
        name: &Name,
        address: IpAddr,
        kind: RecordType,
    ) -> Option<Record> {
        let data = match (address, kind) {
            (IpAddr::V4(address), RecordType::A) => RData::A(A(address)),
            (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA(AAAA(address)),
            _ => return None,
        };
        Some(Record::from_rdata(name.clone(), self.ttl, data))
    }
}

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

pub(super) fn without_underscore(label: &[u8]) -> &[u8] {
    label.strip_prefix(b"_").unwrap_or(label)
}
