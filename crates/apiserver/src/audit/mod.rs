//! The audit log: who did what, when, and how it ended, as a policy says (audit.k8s.io/v1). Events go to a file or
//! to a webhook, or both.
//!
//! `policy` decides how much of a request is recorded; `record` collects it while the request is
//! handled; `backend` hands events on, in the caller's time or in batches.
//!
//! Memory is bounded: a backend holds so many events and bytes. Beyond them, requests wait in a blocking
//! mode; in batch mode events lose their bodies, and at last are dropped and counted. A backend that is slow
//! or gone delays nothing but requests whose mode is a blocking one.

mod backend;
mod event;
mod held;
mod log_file;
mod managed_fields;
mod metrics;
mod policy;
mod record;
mod webhook;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue, USER_AGENT};
use hyper::http::request::Parts;
use jiff::Timestamp;

use self::backend::{Backend, Sink};
pub use self::backend::{BatchConfig, Mode, TruncateConfig};
use self::event::Event;
pub(crate) use self::held::held;
pub use self::log_file::Rotation;
use self::metrics::Metrics;
use self::policy::{Decision, Policy};
pub(crate) use self::record::{
    Received, Record, annotate, begin, current, impersonated, panicked, records_bodies, refuse,
    request_object, request_patch, scope, wants_response,
};
use crate::authz::Target;
use crate::object;
use crate::user::User;

/// Names a request in the events about it, and in its response.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// The longest user agent that is recorded whole, in bytes.
const MAX_USER_AGENT: usize = 1024;
/// The most addresses that are recorded of what proxies say.
const MAX_FORWARDED: usize = 256;

/// What is recorded, and where.
#[derive(Clone, Debug, Default)]
pub struct AuditConfig {
    /// The policy; without it nothing is recorded.
    pub policy_file: Option<PathBuf>,
    /// The log, if there is one.
    pub log: Option<LogConfig>,
    /// The webhook, if there is one.
    pub webhook: Option<WebhookConfig>,
}

/// The form of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// An object a line.
    #[default]
    Json,
    /// A line of text an event, without bodies.
    Legacy,
}

/// A log of events.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// The file; `None` is the standard output.
    pub path: Option<PathBuf>,
    /// When the file is replaced by an empty one, and what becomes of it.
    pub rotation: Rotation,
    /// How events are written.
    pub format: LogFormat,
    /// When they are written.
    pub mode: Mode,
    /// How large they may be.
    pub truncate: Option<TruncateConfig>,
}

/// A webhook that events are sent to.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// Where it is, as a kubeconfig.
    pub config_file: PathBuf,
    /// How long to wait after the first failure of a call.
    pub initial_backoff: Duration,
    /// When events are sent.
    pub mode: Mode,
    /// How large they may be.
    pub truncate: Option<TruncateConfig>,
}

/// Why the audit cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy cannot be read.
    #[error("loading audit policy file: failed to read file path {path:?}: {source}")]
    ReadPolicy {
        /// Of the policy.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The policy is not valid.
    #[error("loading audit policy file: {reason}: from file {}", path.display())]
    Policy {
        /// Of the policy.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The log cannot be opened.
    #[error("ensureLogFile: {}: {source}", path.display())]
    Log {
        /// Of the log.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The webhook's configuration cannot be used.
    #[error("initializing audit webhook: {reason}")]
    Webhook {
        /// What is wrong with which kubeconfig.
        reason: String,
    },
}

/// The audit of a server.
pub(crate) struct Audit {
    /// `None`: nothing is recorded.
    policy: Option<Policy>,
    backends: Vec<Backend>,
    metrics: Arc<Metrics>,
}

impl Audit {
    /// Opens the backends; needs a runtime.
    pub(crate) fn start(config: &AuditConfig) -> Result<Arc<Audit>, AuditError> {
        let metrics = Arc::new(Metrics::default());
        let policy = config.policy_file.as_ref().map(read_policy).transpose()?;
        let mut backends = Vec::new();
        if let Some(log) = &config.log {
            let sink = Sink::log(log)?;
            if policy.is_none() {
                tracing::warn!(
                    "No audit policy file provided, no events will be recorded for log backend"
                );
            } else {
                backends.push(Backend::new(sink, log.mode, log.truncate, metrics.clone()));
            }
        }
        if let Some(webhook) = &config.webhook {
            if policy.is_none() {
                tracing::warn!(
                    "No audit policy file provided, no events will be recorded for webhook backend"
                );
            } else {
                let sink = Sink::webhook(webhook)?;
                backends.push(Backend::new(sink, webhook.mode, webhook.truncate, metrics.clone()));
            }
        }
        Ok(Arc::new(Audit { policy: policy.filter(|_| !backends.is_empty()), backends, metrics }))
    }

    /// A record for a request that has just come; `None` when nothing is recorded.
    pub(crate) fn record(
        self: &Arc<Self>,
        head: &Parts,
        id: &HeaderValue,
        peer: Option<SocketAddr>,
    ) -> Option<Arc<Record>> {
        self.policy.as_ref()?;
        let event = Event {
            audit_id: String::from_utf8_lossy(id.as_bytes()).into_owned(),
            request_uri: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            source_ips: source_ips(&head.headers, peer),
            user_agent: user_agent(&head.headers),
            received: Timestamp::now(),
            ..Event::default()
        };
        Some(Record::new(self.clone(), event))
    }

    fn evaluate(&self, user: Option<&User>, verb: &str, target: &Target<'_>) -> Decision {
        let policy = self.policy.as_ref();
        let decision = policy.map(|policy| policy.evaluate(user, verb, target));
        let decision = decision.unwrap_or_else(|| Policy::default().evaluate(user, verb, target));
        self.metrics.level(decision.level);
        decision
    }

    /// Hands events on, in order. `false`: one could not be stored, and must be.
    async fn deliver(self: Arc<Self>, events: Vec<Event>) -> bool {
        let mut all = true;
        for event in events {
            self.metrics.event();
            let event = Arc::new(event);
            for backend in &self.backends {
                all &= backend.process(event.clone()).await;
            }
        }
        all
    }

    /// Hands on what waits, for a moment; what comes later is dropped.
    pub(crate) async fn stop(&self) {
        futures::future::join_all(self.backends.iter().map(Backend::stop)).await;
    }

    /// In Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.render()
    }
}

fn read_policy(path: &PathBuf) -> Result<Policy, AuditError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| AuditError::ReadPolicy { path: path.clone(), source })?;
    let (policy, warnings) =
        Policy::parse(&text).map_err(|reason| AuditError::Policy { path: path.clone(), reason })?;
    for warning in warnings {
        tracing::warn!(path = %path.display(), "the audit policy has an {warning}");
    }
    Ok(policy)
}

/// The ID of a request, which is made and put into its headers if its client has given none.
pub(crate) fn audit_id(headers: &mut HeaderMap) -> Option<HeaderValue> {
    if let Some(id) = headers.get(AUDIT_ID).filter(|id| !id.is_empty()) {
        return Some(id.clone());
    }
    let id = HeaderValue::try_from(object::new_uid().ok()?).ok()?;
    headers.insert(AUDIT_ID, id.clone());
    Some(id)
}

/// How a client has tried to authenticate, in upstream's words. `has_certificate`: it showed one.
pub(crate) fn attempted(authorization: Option<&HeaderValue>, has_certificate: bool) -> String {
    let scheme = authorization
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.trim().split_once(' '))
        .map(|(scheme, _)| scheme.to_lowercase());
    let methods: Vec<&str> = ["basic", "bearer"]
        .into_iter()
        .filter(|known| scheme.as_deref() == Some(known))
        .chain(has_certificate.then_some("x509"))
        .collect();
    match methods.as_slice() {
        [] => "Authentication failed, no credentials provided".to_owned(),
        methods => format!("Authentication failed, attempted: {}", methods.join(", ")),
    }
}

/// Where a request came from: what proxies say, and then the peer, which alone can be trusted. Of too many
/// addresses the last stay, which the nearest proxies have added.
fn source_ips(headers: &HeaderMap, peer: Option<SocketAddr>) -> Vec<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let parse = |text: &str| text.trim().parse::<std::net::IpAddr>().ok();
    let forwarded = text("x-forwarded-for").unwrap_or_default().rsplit(',').filter_map(parse);
    let mut addresses: Vec<_> = forwarded.take(MAX_FORWARDED).map(|ip| ip.to_canonical()).collect();
    addresses.reverse();
    let real = text("x-real-ip").and_then(parse).map(|ip| ip.to_canonical());
    addresses.extend(real.filter(|real| !addresses.contains(real)));
    let peer = peer.map(|peer| peer.ip().to_canonical());
    addresses.extend(peer.filter(|peer| addresses.last() != Some(peer)));
    addresses.iter().map(ToString::to_string).collect()
}

fn user_agent(headers: &HeaderMap) -> String {
    let value = headers.get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    match value.get(..MAX_USER_AGENT).filter(|_| value.len() > MAX_USER_AGENT) {
        Some(start) => format!("{}...TRUNCATED", String::from_utf8_lossy(start)),
        None => String::from_utf8_lossy(value).into_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn audit_source_ips_are_those_of_proxies_and_the_peer() {
        for (forwarded, real, peer, expected) in [
            ("", "", "10.0.0.1:4", "10.0.0.1"),
            ("1.1.1.1, 2.2.2.2", "", "10.0.0.1:4", "1.1.1.1 2.2.2.2 10.0.0.1"),
            ("1.1.1.1,nonsense", "1.1.1.1", "10.0.0.1:4", "1.1.1.1 10.0.0.1"),
            ("1.1.1.1", "3.3.3.3", "10.0.0.1:4", "1.1.1.1 3.3.3.3 10.0.0.1"),
            ("1.1.1.1,10.0.0.1", "", "10.0.0.1:4", "1.1.1.1 10.0.0.1"),
            ("", "", "[::ffff:10.0.0.1]:4", "10.0.0.1"),
            ("", "::1", "[fd00::1]:4", "::1 fd00::1"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", HeaderValue::from_str(forwarded).unwrap());
            headers.insert("x-real-ip", HeaderValue::from_str(real).unwrap());
            let found = source_ips(&headers, Some(peer.parse().unwrap()));
            assert_eq!(found.join(" "), expected, "{forwarded} {real} {peer}");
        }
    }

    #[test]
    fn audit_source_ips_are_bounded_and_counted() {
        let forwarded = "1.1.1.1,".repeat((64 << 10) / 8) + "2.2.2.2";
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_str(&forwarded).unwrap());
        let source_ips = source_ips(&headers, Some("10.0.0.1:4".parse().unwrap()));
        assert_eq!(source_ips.len(), MAX_FORWARDED + 1);
        assert_eq!(source_ips[MAX_FORWARDED - 2..], ["1.1.1.1", "2.2.2.2", "10.0.0.1"]);
        let event = Event { source_ips, ..Event::default() };
        assert!(event.size() >= Event::default().size() + MAX_FORWARDED * (48 + 7));
    }

    #[test]
    fn audit_user_agents_are_bounded() {
        let mut headers = HeaderMap::new();
        assert_eq!(user_agent(&headers), "");
        headers.insert(USER_AGENT, HeaderValue::from_str(&"a".repeat(1024)).unwrap());
        assert_eq!(user_agent(&headers).len(), 1024);
        headers.insert(USER_AGENT, HeaderValue::from_str(&"a".repeat(1025)).unwrap());
        assert_eq!(user_agent(&headers), "a".repeat(1024) + "...TRUNCATED");
    }

    #[test]
    fn audit_names_attempts_to_authenticate() {
        for (authorization, certificate, expected) in [
            ("", false, "Authentication failed, no credentials provided"),
            ("Bearer x", false, "Authentication failed, attempted: bearer"),
            ("Basic x", true, "Authentication failed, attempted: basic, x509"),
            ("Bearer", false, "Authentication failed, no credentials provided"),
        ] {
            let value = HeaderValue::from_str(authorization).unwrap();
            assert_eq!(attempted(Some(&value), certificate), expected);
        }
        let mut headers = HeaderMap::new();
        let made = audit_id(&mut headers).unwrap();
        assert_eq!((audit_id(&mut headers), made.len()), (Some(made), 36));
    }
}
