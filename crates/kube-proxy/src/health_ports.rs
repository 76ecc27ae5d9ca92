//! The health-check node ports of services.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::any;
use longshore_proxy::Family;
use longshore_proxy::health;
use longshore_proxy::model::{HealthCheck, ServiceName};
use longshore_proxy::render::Settings;
use longshore_server::serve_plain;
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tracing::info;

use super::server::{SharedHealth, respond};

/// Connections that wait to be taken.
const BACKLOG: i32 = 128;

/// A port could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("health checks of service {service} at {address}: {source}")]
pub(super) struct Error {
    pub(super) service: ServiceName,
    address: SocketAddr,
    source: io::Error,
}

/// The open ports of one family. They close with it.
#[derive(Debug)]
pub(super) struct HealthPorts {
    health: SharedHealth,
    ports: BTreeMap<SocketAddr, Port>,
}

/// A port, what it answers, and the task that does.
#[derive(Debug)]
struct Port {
    service: ServiceName,
    check: Arc<Mutex<HealthCheck>>,
    task: AbortHandle,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HealthPorts {
    pub(super) fn new(health: SharedHealth) -> Self {
        Self { health, ports: BTreeMap::new() }
    }

    /// Has ports for these checks and for no other. What could not be opened is returned, and tried
    /// again next time.
    pub(super) fn set(
        &mut self,
        checks: &BTreeMap<ServiceName, HealthCheck>,
        settings: &Settings,
    ) -> Vec<Error> {
        let wanted = health::listeners(checks, settings);
        self.ports.retain(|address, port| wanted.get(address) == Some(&&port.service));
        let mut errors = Vec::new();
        for (address, service) in wanted {
            let Some(check) = checks.get(service).copied() else { continue };
            if let Some(port) = self.ports.get(&address) {
                *port.check.lock() = check;
                continue;
            }
            match self.open(address, service, check) {
                Ok(port) => {
                    info!(%service, %address, "health checks");
                    self.ports.insert(address, port);
                }
                Err(source) => errors.push(Error { service: service.clone(), address, source }),
            }
        }
        errors
    }

    fn open(
        &self,
        address: SocketAddr,
        service: &ServiceName,
        check: HealthCheck,
    ) -> io::Result<Port> {
        let listener = listen(address)?;
        let check = Arc::new(Mutex::new(check));
        let (health, of, name) = (self.health.clone(), Arc::clone(&check), service.clone());
        let answer = any(async move || {
            let check = *of.lock();
            respond(health.with(|health, now| health.service(&name, check, now)))
        });
        let router = Router::new().route("/", answer.clone()).route("/{*path}", answer);
        let task = tokio::spawn(serve_plain(listener, router)).abort_handle();
        Ok(Port { service: service.clone(), check, task })
    }
}

/// Listens in one family alone: the other has its own.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = Family::of(address.ip());
    let domain = if family == Family::V6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if family == Family::V6 {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
