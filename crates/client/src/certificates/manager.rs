//! Rotates one pair: requests it when there is none, and again before it expires.

use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use longshore_base::files::{self, if_present};
use longshore_base::panics;
use longshore_base::retry::Delays;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::metrics::CertificateMetrics;
use super::pair::Leaf;
use super::request::{Request, RequestError, Signer, Template};
use super::rotation;
use super::store::{Store, StoreError};
use crate::CredentialState;

/// How often the files are checked: somebody else may replace them, and the clock of a machine that
/// was suspended jumps.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The backoff between attempts, which doubles.
const INITIAL_BACKOFF: Duration = Duration::from_secs(2);
const MAX_BACKOFF: Duration = Duration::from_secs(32);
/// The backoff after a request that was denied.
const DENIED_BACKOFF: Duration = Duration::from_secs(300);
/// How often the same error is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(300);
/// How long a request to renew may wait for its approval; a first one has an hour.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(15 * 60);
const INITIAL_TIMEOUT: Duration = Duration::from_secs(3600);

/// Makes the client that sends a request; the argument is whether the store has a valid pair. The
/// error says what is missing.
pub(super) type ClientFactory =
    Box<dyn Fn(bool) -> BoxFuture<'static, Result<Client, String>> + Send + Sync>;

/// The parts of a certificate manager.
pub(super) struct Parts {
    pub(super) store: Store,
    pub(super) signer: Signer,
    /// The certificate wanted; `None`: not known yet.
    pub(super) template: watch::Receiver<Option<Template>>,
    pub(super) new_client: ClientFactory,
    /// Whether it is rotated before it expires; state_without only a missing one is requested.
    pub(super) renew: bool,
    /// The state while the store has no valid pair, given the reason.
    pub(super) state_without: Box<dyn Fn(String) -> CredentialState + Send + Sync>,
    pub(super) state: watch::Sender<CredentialState>,
    pub(super) metrics: CertificateMetrics,
}

/// The certificate manager: the task that rotates one pair.
pub struct CertificateManager {
    parts: Parts,
    known: Option<Known>,
    version: u64,
    /// Why the last attempt failed.
    last_error: Option<String>,
}

/// A pair of the store, with the jitter that decides when it is rotated.
struct Known {
    leaf: Leaf,
    jitter: f64,
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// There is no client to send the request with.
    #[error("{0}")]
    NoClient(String),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a task panicked")]
    Task,
}

impl CertificateManager {
    pub(super) fn new(parts: Parts) -> Self {
        let mut manager = Self { parts, known: None, version: 0, last_error: None };
        manager.reload();
        manager
    }

    /// Rotates the pair. Never ends; drop it to stop.
    pub async fn run(mut self) {
        loop {
            self.wait_until_due().await;
            // a signer may issue less than was requested: a new request at once would get the same
            if self.replace().await
                && let Err(reason) = self.rotation_due(Timestamp::now())
            {
                warn!("the new certificate does not meet the request: {reason}");
                self.wait(MAX_BACKOFF).await;
            }
        }
    }

    /// Reads the store and publishes the state if it changed.
    pub(super) fn reload(&mut self) {
        let found = self.parts.store.current().unwrap_or_else(|error| {
            warn!("cannot use the certificate: {error}");
            None
        });
        if let Some(leaf) = &found {
            match self.parts.signer {
                Signer::Client => self.parts.metrics.client(leaf.until),
                Signer::Serving => self.parts.metrics.server(leaf.until),
            }
        }
        if found.as_ref() != self.known.as_ref().map(|known| &known.leaf) {
            self.known = found.map(|leaf| Known { leaf, jitter: fastrand::f64() });
            self.version = self.version.saturating_add(1);
        }
        let state = match self.missing(Timestamp::now()) {
            Some(missing) => match &self.last_error {
                Some(last_error) => (self.parts.state_without)(format!("{missing}; {last_error}")),
                None => (self.parts.state_without)(missing),
            },
            None => CredentialState::Certificate(self.version),
        };
        self.parts.state.send_if_modified(|last| {
            let changed = *last != state;
            *last = state;
            changed
        });
    }

    /// Why there is no valid pair; `None`: there is one.
    fn missing(&self, now: Timestamp) -> Option<String> {
        let path = self.parts.store.current_path();
        match &self.known {
            None => Some(format!("there is no certificate at {} yet", path.display())),
            Some(Known { leaf, .. }) if leaf.is_expired(now) => {
                Some(format!("the certificate at {} expired at {}", path.display(), leaf.until))
            }
            Some(_) => None,
        }
    }

    /// When the pair is to be rotated, or, as an error, why that is to be done now.
    fn rotation_due(&self, now: Timestamp) -> Result<Timestamp, String> {
        if let Some(missing) = self.missing(now) {
            let fallback = (self.parts.state_without)(missing.clone());
            // a kubeconfig with valid credentials of its own needs none
            let serves = !self.parts.renew && fallback == CredentialState::Kubeconfig;
            return if serves { Ok(Timestamp::MAX) } else { Err(missing) };
        }
        let Some(Known { leaf, jitter }) = &self.known else { return Ok(Timestamp::MAX) };
        if !self.parts.renew {
            return Ok(leaf.until);
        }
        if let Some(missing) =
            self.parts.template.borrow().as_ref().and_then(|wanted| rotation::lacks(leaf, wanted))
        {
            return Err(missing);
        }
        let due = rotation::rotation(leaf.from, leaf.until, *jitter);
        if now < due { Ok(due) } else { Err(format!("it expires at {}", leaf.until)) }
    }

    async fn wait_until_due(&mut self) {
        loop {
            self.reload();
            let now = Timestamp::now();
            let wanted = self.parts.template.borrow_and_update().is_some();
            let wait = match self.rotation_due(now) {
                Err(reason) if wanted => return info!("requesting a new certificate: {reason}"),
                Err(_) => CHECK_INTERVAL,
                Ok(due) => Duration::try_from(due.duration_since(now))
                    .unwrap_or(CHECK_INTERVAL)
                    .min(CHECK_INTERVAL),
            };
            self.wait(wait).await;
        }
    }

    /// Waits, or until the template changes.
    async fn wait(&mut self, time: Duration) {
        let changed = async {
            if self.parts.template.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = changed => {}
        }
    }

    /// Tries until there is a new pair, or none is needed any more. Returns whether it was requested
    /// here.
    async fn replace(&mut self) -> bool {
        let mut delays = Delays::doubling(INITIAL_BACKOFF, MAX_BACKOFF);
        let mut last = None::<(String, tokio::time::Instant)>;
        loop {
            let failure = match self.attempt().await {
                Ok(new) => return new,
                Err(failure) => failure,
            };
            match self.parts.signer {
                Signer::Client => self.parts.metrics.client_not_renewed(),
                Signer::Serving => self.parts.metrics.server_not_renewed(),
            }
            let text = failure.to_string();
            let remind = last
                .as_ref()
                .is_none_or(|(logged, at)| *logged != text || at.elapsed() >= LOG_INTERVAL);
            if remind {
                error!("cannot get a new certificate: {text}");
                last = Some((text.clone(), tokio::time::Instant::now()));
            }
            let rejected = matches!(failure, Failure::Request(RequestError::Rejected { .. }));
            self.last_error = Some(text);
            self.reload();
            let backoff = delays.next_delay();
            self.wait(if rejected { DENIED_BACKOFF } else { backoff }).await;
            self.reload();
            if self.rotation_due(Timestamp::now()).is_ok() {
                self.last_error = None;
                return false;
            }
        }
    }

    /// Sends one request. `false`: the template changed meanwhile.
    async fn attempt(&mut self) -> Result<bool, Failure> {
        let wanted = self.parts.template.borrow_and_update().clone();
        let Some(template) = wanted else { return Ok(false) };
        let good = self.missing(Timestamp::now()).is_none();
        let client = (self.parts.new_client)(good).await.map_err(Failure::NoClient)?;
        let first = !good && self.parts.signer == Signer::Client;
        let draft = first.then(|| KeyDraft::of(&self.parts.store));
        let key = match &draft {
            Some(draft) => draft.load_or_make()?,
            None => rcgen::KeyPair::generate().map_err(RequestError::Make)?,
        };
        let key_pem = key.serialize_pem();
        let request = Request::new(self.parts.signer, &template, key, first)?;
        let timeout = if first { INITIAL_TIMEOUT } else { RENEWAL_TIMEOUT };
        let issued = tokio::select! {
            issued = request.wait_for_certificate(client, timeout) => issued,
            // the request no longer matches the template
            Ok(_) = self.parts.template.wait_for(|wanted| wanted.as_ref() != Some(&template)) => {
                return Ok(false);
            }
        };
        let issued = match (issued, &draft) {
            (
                Err(error @ (RequestError::Rejected { .. } | RequestError::Unusable { .. })),
                Some(draft),
            ) => {
                // the same key would only find the same request again
                draft.remove();
                return Err(error.into());
            }
            (issued, _) => issued?,
        };
        let now = Timestamp::now();
        let before = self.known.as_ref().map(|known| known.leaf.from);
        let store = self.parts.store.clone();
        let kept = panics::blocking(move || store.update(&issued, &key_pem, now));
        let leaf = kept.await.map_err(|_| Failure::Task)??;
        info!(path = %self.parts.store.current_path().display(), until = %leaf.until, "certificate rotated");
        if let (Some(from), Signer::Serving) = (before, self.parts.signer) {
            let age = Duration::try_from(now.duration_since(from)).unwrap_or_default();
            self.parts.metrics.server_replaced(age);
        }
        if let Some(draft) = draft {
            draft.remove();
        }
        self.last_error = None;
        self.reload();
        Ok(true)
    }
}

/// The key of a first request, kept so that a daemon that starts again finds its request.
struct KeyDraft(std::path::PathBuf);

impl KeyDraft {
    fn of(store: &Store) -> Self {
        Self(store.dir().join("kubelet-client.key.tmp"))
    }

    fn load_or_make(&self) -> Result<rcgen::KeyPair, Failure> {
        let kept = std::fs::read_to_string(&self.0).ok();
        if let Some(key) = kept.and_then(|pem| rcgen::KeyPair::from_pem(&pem).ok()) {
            return Ok(key);
        }
        let key = rcgen::KeyPair::generate().map_err(RequestError::Make)?;
        let at = |source| StoreError::File { path: self.0.clone(), source };
        self.0.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(at)?;
        files::replace(&self.0, key.serialize_pem().as_bytes()).map_err(at)?;
        Ok(key)
    }

    fn remove(&self) {
        if let Err(error) = if_present(std::fs::remove_file(&self.0)) {
            warn!(path = %self.0.display(), "cannot remove: {error}");
        }
    }
}
