//! The actions of probes and hooks: commands in a container, or requests over the network. No
//! connection is kept between them.

mod dial;
mod exec;
mod grpc;
mod hook;
mod http;
mod tls;
mod url;

#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use longshore_base::time;
use longshore_cri::{Code, Runtime};
use tokio::time::timeout;

pub use self::hook::{Fallback, HookError};

use self::dial::{dial, join_host_port};
use self::http::{Client, Get, GetError};
use self::url::Url;

const PROBE_AGENT: &str = "kube-probe/1.36";
const HOOK_AGENT: &str = "kube-lifecycle/1.36";
/// Attempts of a probe that could not be carried out.
const MAX_ATTEMPTS: u32 = 3;

/// Runs the actions of probes and hooks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handlers {
    cri: Runtime,
    /// Probes use HTTP/2 if the server supports it.
    probes: Client,
    hooks: Client,
}

/// The container of a probe or hook.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its spec.
    pub container: &'a Container,
    /// Its container id.
    pub id: &'a str,
    /// The pod's address; "" if it has none.
    pub ip: &'a str,
}

/// The result of one probe attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The probe succeeded.
    Success,
    /// The probe succeeded with a warning.
    Warning(String),
    /// The probe failed, for this reason.
    Failure(String),
}

/// A probe could not be carried out, so it has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port is neither a number nor one of the container's.
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    PortName(String),
    /// The port number is out of range.
    #[error("invalid port number: {0}")]
    PortNumber(i32),
    /// The runtime could not run the command.
    #[error("{0}")]
    Runtime(String),
    /// The connection was lost before the end of the response.
    #[error("{0}")]
    Body(String),
    /// The probe has no handler.
    #[error("missing probe handler for {0}")]
    NoHandler(String),
}

impl Error {
    /// The probe result that upstream reports with this error.
    pub fn state(&self) -> &'static str {
        if matches!(self, Error::Body(_)) { "failure" } else { "unknown" }
    }
}

impl Handlers {
    /// Handlers that run commands through `cri`.
    pub fn new(cri: Runtime) -> Self {
        // Without TLS, only requests that need it fail.
        let probes = Client { tls: tls::config(&["h2", "http/1.1"]).ok() };
        let hooks = Client { tls: tls::config(&[]).ok() };
        Self { cri, probes, hooks }
    }

    /// Run a probe once, within its own timeout. One that could not be carried out is retried at
    /// once, a few times.
    pub async fn probe(&self, target: Target<'_>, probe: &Probe) -> Result<Outcome, Error> {
        let mut outcome = self.probe_once(target, probe).await;
        for _ in 1..MAX_ATTEMPTS {
            if outcome.is_ok() {
                break;
            }
            outcome = self.probe_once(target, probe).await;
        }
        outcome
    }

    async fn probe_once(&self, target: Target<'_>, probe: &Probe) -> Result<Outcome, Error> {
        let Target { container, id, ip } = target;
        let seconds = probe.timeout_seconds.unwrap_or(1).max(1);
        let limit = Duration::from_secs(seconds.unsigned_abs().into());
        if let Some(action) = &probe.exec {
            let command = action.command.as_deref().unwrap_or_default();
            return exec::probe(&self.cri, id, container, command, limit).await;
        }
        if let Some(action) = &probe.http_get {
            let url = url(action, container, ip)?;
            let answer = match Get::new(url, action, PROBE_AGENT) {
                Ok(get) => self.probes.get(get, Some(time::after(limit))).await,
                Err(error) => Err(error),
            };
            return match answer {
                Ok(answer) if answer.status.is_success() => Ok(Outcome::Success),
                Ok(answer) if answer.status.is_redirection() => Ok(Outcome::Warning(format!(
                    "Probe terminated redirects, Response body: {}",
                    String::from_utf8_lossy(&answer.body)
                ))),
                Ok(answer) => Ok(Outcome::Failure(format!(
                    "HTTP probe failed with statuscode: {}",
                    answer.status.as_u16()
                ))),
                Err(GetError::Body(error)) => Err(Error::Body(error)),
                Err(error @ GetError::Head { .. }) => Ok(Outcome::Failure(error.to_string())),
            };
        }
        if let Some(action) = &probe.tcp_socket {
            let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(ip);
            let port = port(&action.port, container)?;
            return Ok(connect(host, port, limit)
                .await
                .map_or_else(Outcome::Failure, |()| Outcome::Success));
        }
        if let Some(action) = &probe.grpc {
            let port = port(&IntOrString::Int(action.port), container)?;
            let service = action.service.as_deref().unwrap_or_default();
            return Ok(grpc::check(ip, port, service, limit).await);
        }
        Err(Error::NoHandler(container.name.clone()))
    }
}

/// Check that a TCP connection can be opened.
async fn connect(host: &str, port: u16, limit: Duration) -> Result<(), String> {
    match timeout(limit, dial(host, port)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("dial tcp {}: i/o timeout", join_host_port(host, port))),
    }
}

/// The URL of an action.
fn url(action: &HTTPGetAction, container: &Container, ip: &str) -> Result<Url, Error> {
    let scheme = match action.scheme.as_deref().unwrap_or_default() {
        "" => "http".to_owned(),
        scheme => scheme.to_ascii_lowercase(),
    };
    let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(ip);
    let port = port(&action.port, container)?;
    Ok(Url::new(&scheme, host, port, action.path.as_deref().unwrap_or_default()))
}

/// A port by its number, or by its name in the container.
fn port(port: &IntOrString, container: &Container) -> Result<u16, Error> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            match ports.find(|port| port.name.as_ref() == Some(name)) {
                Some(port) => port.container_port,
                // It may be a number written as a string.
                None => name.parse().map_err(|_| Error::PortName(name.clone()))?,
            }
        }
    };
    let valid = u16::try_from(number).ok().filter(|port| *port > 0);
    valid.ok_or(Error::PortNumber(number))
}

/// A gRPC error in Go's format.
fn rpc_error(code: Code, message: &str) -> String {
    format!("rpc error: code = {code:?} desc = {message}")
}
