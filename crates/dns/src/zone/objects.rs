//! What a zone is made of: services, their endpoints, and whom addresses belong to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_server::proto::rr::Name;

/// The key of a service in lower case: namespace, NUL, name. No label of Kubernetes has a NUL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(Arc<[u8]>);

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        let key = [namespace.as_bytes(), &[0], name.as_bytes()].concat().to_ascii_lowercase();
        Self(key.into())
    }

    /// Namespace and name.
    pub(super) fn parts(&self) -> (&[u8], &[u8]) {
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
