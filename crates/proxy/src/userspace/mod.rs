//! The first kube-proxy (`--proxy-mode=userspace`): a local port for each service port, and a relay
//! behind it that hands connections and datagrams on to endpoints, in turn or by client. Rules
//! ([`Userspace::apply`]) redirect traffic for services to these ports. [`Relays`] has both follow a
//! tracker. One a family.
//!
//! Current limitations: node ports are not bound, as they are not in iptables mode; endpoints see
//! the node as their client, which is how this mode works.

mod balancer;
mod proxier;
mod rules;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::info;

use crate::model::Cidr;
use balancer::Balancer;
pub use proxier::Relays;

/// The default timeout of session affinity.
pub const AFFINITY: Duration = Duration::from_secs(180 * 60);

/// Ports tried before a range counts as full.
const ATTEMPTS: u32 = 64;

/// What a relay carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// Where clients reach a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// A cluster, external or load balancer address.
    pub address: IpAddr,
    /// One of `externalIPs`: traffic of other machines' processes that only passes is not taken.
    pub external: bool,
    /// The only clients that may use the service, if any are named.
    pub sources: Vec<Cidr>,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// `namespace/name:port`
    pub name: String,
    /// What it carries.
    pub protocol: Protocol,
    /// Its addresses.
    pub portals: Vec<Portal>,
    /// Its port at these.
    pub port: u16,
    /// Its port at all addresses of the node.
    pub node_port: Option<u16>,
    /// For how long a client that comes again gets the same endpoint.
    pub affinity: Option<Duration>,
    /// Its endpoints.
    pub endpoints: Vec<SocketAddr>,
}

/// How relays listen.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `bindAddress`: where relays listen, in the family of the services.
    pub listen: IpAddr,
    /// The node's own address, to which traffic of its processes is led if `listen` is none.
    pub node: IpAddr,
    /// `portRange`: the ports of relays; none: whatever the kernel has free.
    pub ports: Option<RangeInclusive<u16>>,
    /// How long a UDP client that is silent, and not spoken to, keeps its endpoint.
    pub udp_idle: Duration,
    /// Connections and UDP clients at a time, at most; each takes two sockets.
    pub sessions: usize,
}

impl Settings {
    /// Defaults of the last version that had this mode.
    pub fn new(listen: IpAddr, node: IpAddr) -> Self {
        let udp_idle = Duration::from_millis(250);
        Self { listen, node, ports: None, udp_idle, sessions: 8192 }
    }
}

/// A relay could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("service port {name} ({protocol}): listen on {address}: {source}")]
pub struct Error {
    /// The service port.
    pub name: String,
    /// What it carries.
    pub protocol: Protocol,
    /// Where it was to listen.
    pub address: IpAddr,
    /// Why it cannot.
    pub source: io::Error,
}

/// All relays of a family. They end with it.
#[derive(Debug)]
pub struct Userspace {
    settings: Settings,
    relays: HashMap<(String, Protocol), Relay>,
    sessions: Arc<Semaphore>,
    /// Held: connections outlive the relay that took them, but not this.
    alive: watch::Sender<()>,
}

#[derive(Debug)]
struct Relay {
    service: ServicePort,
    port: u16,
    balancer: Shared,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A balancer, and what all sessions share.
#[derive(Clone, Debug)]
struct Shared {
    name: Arc<str>,
    balancer: Arc<Mutex<Balancer>>,
    sessions: Arc<Semaphore>,
    alive: watch::Receiver<()>,
}

impl Shared {
    fn pick(&self, client: IpAddr, anew: bool) -> Option<SocketAddr> {
        let mut balancer = self.balancer.lock();
        balancer.pick(client, anew, Instant::now())
    }

    fn set(&self, service: &ServicePort) {
        let mut balancer = self.balancer.lock();
        balancer.set(&service.endpoints, service.affinity, fastrand::usize(..));
    }
}

impl Userspace {
    /// No relays yet.
    pub fn new(settings: Settings) -> Self {
        let sessions = Arc::new(Semaphore::new(settings.sessions));
        Self { settings, relays: HashMap::new(), sessions, alive: watch::Sender::new(()) }
    }

    /// Have a relay for each of these service ports, and for no other. Relays that stay keep their
    /// port, and connections whose service is gone go on. What could not be opened is returned and
    /// tried again next time.
    pub fn set(&mut self, services: impl IntoIterator<Item = ServicePort>) -> Vec<Error> {
        let mut old = std::mem::take(&mut self.relays);
        let mut errors = Vec::new();
        for service in services {
            let key = (service.name.clone(), service.protocol);
            let relay = match old.remove(&key) {
                Some(mut relay) => {
                    relay.balancer.set(&service);
                    relay.service = service;
                    relay
                }
                None => match self.open(service) {
                    Ok(relay) => relay,
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                },
            };
            self.relays.insert(key, relay);
        }
        errors
    }

    /// The local port of a service port.
    pub fn port_of(&self, name: &str, protocol: Protocol) -> Option<u16> {
        self.relays.get(&(name.to_owned(), protocol)).map(|relay| relay.port)
    }

    fn open(&self, service: ServicePort) -> Result<Relay, Error> {
        let shared = Shared {
            name: service.name.as_str().into(),
            balancer: Arc::default(),
            sessions: self.sessions.clone(),
            alive: self.alive.subscribe(),
        };
        shared.set(&service);
        let opened = match service.protocol {
            Protocol::Tcp => self
                .bind(tcp::bind)
                .map(|(port, socket)| (port, tokio::spawn(tcp::relay(socket, shared.clone())))),
            Protocol::Udp => self.bind(udp::bind).map(|(port, socket)| {
                let relay = udp::relay(socket, shared.clone(), self.settings.udp_idle);
                (port, tokio::spawn(relay))
            }),
        };
        match opened {
            Ok((port, task)) => {
                info!(service = service.name, protocol = %service.protocol, port, "relay");
                Ok(Relay { service, port, balancer: shared, task })
            }
            Err(source) => {
                let ServicePort { name, protocol, .. } = service;
                Err(Error { name, protocol, address: self.settings.listen, source })
            }
        }
    }

    /// Bind to a port of the range, a random one, as long as there seems to be a free one.
    fn bind<T>(
        &self,
        bind: impl Fn(SocketAddr) -> io::Result<(SocketAddr, T)>,
    ) -> io::Result<(u16, T)> {
        let mut left = ATTEMPTS;
        loop {
            let port = self.settings.ports.as_ref().map_or(0, |range| {
                let size = u32::from(range.end().saturating_sub(*range.start())) + 1;
                range.start().saturating_add(fastrand::u32(..size) as u16)
            });
            match bind(SocketAddr::new(self.settings.listen, port)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && left > 0 => left -= 1,
                result => return result.map(|(address, socket)| (address.port(), socket)),
            }
        }
    }
}
