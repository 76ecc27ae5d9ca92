//! Keeps one pair good: asks for it when there is none, and again in the last part of its life.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use longshore_base::{files, panics};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::due;
use super::metrics::CertificateMetrics;
use super::pair::Leaf;
use super::request::{Request, RequestError, Signer, Template};
use super::store::{Store, StoreError};
use crate::CredentialState;

/// How often the files are looked at: somebody else may replace them, and a machine that slept has
/// a clock that leaps.
const LOOK: Duration = Duration::from_secs(30);
/// The pauses between tries: each twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(32);
/// The pause after a request that was refused: whoever did that will hardly change his mind soon.
const REFUSED_PAUSE: Duration = Duration::from_secs(300);
/// How often a lack that only a person can mend is told again.
const REMINDER: Duration = Duration::from_secs(300);
/// How long a request to renew may wait for its approval; a first one has an hour.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(15 * 60);
const FIRST_PATIENCE: Duration = Duration::from_secs(3600);

/// Gives the client for a request; it is told whether the store has a pair that is good. The error
/// says what is missing.
pub(super) type Way = Box<dyn Fn(bool) -> BoxFuture<'static, Result<Client, String>> + Send + Sync>;

/// What a keeper is made of.
pub(super) struct Parts {
    pub(super) store: Store,
    pub(super) signer: Signer,
    /// What is wanted; `None`: that is not known yet.
    pub(super) template: watch::Receiver<Option<Template>>,
    pub(super) way: Way,
    /// Whether it is renewed before it ends; otherwise only what is missing is asked for.
    pub(super) renew: bool,
    /// What clients do while the store has nothing good, from what is missing.
    pub(super) otherwise: Box<dyn Fn(String) -> CredentialState + Send + Sync>,
    pub(super) standing: watch::Sender<CredentialState>,
    pub(super) metrics: CertificateMetrics,
}

/// The task that keeps one pair.
pub struct Keeper {
    parts: Parts,
    known: Option<Known>,
    version: u64,
    /// Why the last try gave nothing.
    trouble: Option<String>,
}

/// A pair of the store, with the lot that decides when it is renewed.
struct Known {
    leaf: Leaf,
    lot: f64,
}

/// Why a try gave no pair.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Nobody can be asked.
    #[error("{0}")]
    NoWay(String),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a task ended badly")]
    Task,
}

impl Keeper {
    pub(super) fn new(parts: Parts) -> Self {
        let mut keeper = Self { parts, known: None, version: 0, trouble: None };
        keeper.look();
        keeper
    }

    /// Keeps the pair. Never ends; drop it to stop.
    pub async fn run(mut self) {
        loop {
            self.until_due().await;
            // a signer may give less than was asked for: asking again at once would get the same
            if self.replace().await
                && let Err(reason) = self.due(Timestamp::now())
            {
                warn!("the new certificate is no better: {reason}");
                self.pause(LONGEST_PAUSE).await;
            }
        }
    }

    /// Reads the store, and tells of what has changed.
    pub(super) fn look(&mut self) {
        let found = self.parts.store.current().unwrap_or_else(|error| {
            warn!("the certificate cannot be used: {error}");
            None
        });
        if let Some(leaf) = &found {
            match self.parts.signer {
                Signer::Client => self.parts.metrics.client(leaf.until),
                Signer::Serving => self.parts.metrics.server(leaf.until),
            }
        }
        if found.as_ref() != self.known.as_ref().map(|known| &known.leaf) {
            self.known = found.map(|leaf| Known { leaf, lot: lot() });
            self.version = self.version.saturating_add(1);
        }
        let standing = match self.lack(Timestamp::now()) {
            Some(lack) => match &self.trouble {
                Some(trouble) => (self.parts.otherwise)(format!("{lack}; {trouble}")),
                None => (self.parts.otherwise)(lack),
            },
            None => CredentialState::Kept(self.version),
        };
        self.parts.standing.send_if_modified(|told| {
            let changed = *told != standing;
            *told = standing;
            changed
        });
    }

    /// Why the pair cannot be shown to anybody; `None`: it can.
    fn lack(&self, now: Timestamp) -> Option<String> {
        let path = self.parts.store.current_path();
        match &self.known {
            None => Some(format!("there is no certificate at {} yet", path.display())),
            Some(Known { leaf, .. }) if leaf.is_expired(now) => {
                Some(format!("the certificate at {} ended at {}", path.display(), leaf.until))
            }
            Some(_) => None,
        }
    }

    /// Why the pair is to be replaced now; or when it will have to be.
    fn due(&self, now: Timestamp) -> Result<Timestamp, String> {
        if let Some(lack) = self.lack(now) {
            let otherwise = (self.parts.otherwise)(lack.clone());
            // a kubeconfig that serves by itself is left in peace
            let serves = !self.parts.renew && otherwise == CredentialState::Kubeconfig;
            return if serves { Ok(Timestamp::MAX) } else { Err(lack) };
        }
        let Some(Known { leaf, lot }) = &self.known else { return Ok(Timestamp::MAX) };
        if !self.parts.renew {
            return Ok(leaf.until);
        }
        if let Some(lack) =
            self.parts.template.borrow().as_ref().and_then(|wanted| due::lacks(leaf, wanted))
        {
            return Err(lack);
        }
        let due = due::rotation(leaf.from, leaf.until, *lot);
        if now < due { Ok(due) } else { Err(format!("it ends at {}", leaf.until)) }
    }

    async fn until_due(&mut self) {
        loop {
            self.look();
            let now = Timestamp::now();
            let wanted = self.parts.template.borrow_and_update().is_some();
            let pause = match self.due(now) {
                Err(reason) if wanted => return info!("a new certificate is asked for: {reason}"),
                Err(_) => LOOK,
                Ok(due) => Duration::try_from(due.duration_since(now)).unwrap_or(LOOK).min(LOOK),
            };
            self.pause(pause).await;
        }
    }

    /// Waits; less long when something else is wanted.
    async fn pause(&mut self, pause: Duration) {
        let changed = async {
            if self.parts.template.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = changed => {}
        }
    }

    /// Tries until there is another pair, or none is wanted any more. Whether it is one that was
    /// asked for here.
    async fn replace(&mut self) -> bool {
        let (mut pause, mut told) = (FIRST_PAUSE, None::<(String, tokio::time::Instant)>);
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
            let remind =
                told.as_ref().is_none_or(|(said, at)| *said != text || at.elapsed() >= REMINDER);
            if remind {
                error!("no new certificate: {text}");
                told = Some((text.clone(), tokio::time::Instant::now()));
            }
            let refused = matches!(failure, Failure::Request(RequestError::Refused { .. }));
            self.trouble = Some(text);
            self.look();
            self.pause(if refused { REFUSED_PAUSE } else { pause }).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
            self.look();
            if self.due(Timestamp::now()).is_ok() {
                self.trouble = None;
                return false;
            }
        }
    }

    /// Asks once. `false`: what is wanted has changed meanwhile.
    async fn attempt(&mut self) -> Result<bool, Failure> {
        let wanted = self.parts.template.borrow_and_update().clone();
        let Some(template) = wanted else { return Ok(false) };
        let good = self.lack(Timestamp::now()).is_none();
        let client = (self.parts.way)(good).await.map_err(Failure::NoWay)?;
        let first = !good && self.parts.signer == Signer::Client;
        let draft = first.then(|| KeyDraft::of(&self.parts.store));
        let key = match &draft {
            Some(draft) => draft.load_or_make()?,
            None => rcgen::KeyPair::generate().map_err(RequestError::Make)?,
        };
        let key_pem = key.serialize_pem();
        let request = Request::new(self.parts.signer, &template, key, first)?;
        let patience = if first { FIRST_PATIENCE } else { RENEWAL_PATIENCE };
        let issued = tokio::select! {
            issued = request.fulfil(client, patience) => issued,
            // what is asked for now is not what is wanted any more
            Ok(_) = self.parts.template.wait_for(|wanted| wanted.as_ref() != Some(&template)) => {
                return Ok(false);
            }
        };
        let issued = match (issued, &draft) {
            (
                Err(error @ (RequestError::Refused { .. } | RequestError::Spent { .. })),
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
        info!(path = %self.parts.store.current_path().display(), until = %leaf.until, "a new certificate");
        if let (Some(from), Signer::Serving) = (before, self.parts.signer) {
            let age = Duration::try_from(now.duration_since(from)).unwrap_or_default();
            self.parts.metrics.server_replaced(age);
        }
        if let Some(draft) = draft {
            draft.remove();
        }
        self.trouble = None;
        self.look();
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
        if let Err(error) = std::fs::remove_file(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(path = %self.0.display(), "cannot remove: {error}");
        }
    }
}

/// A number from 0 to 1 that nobody can foresee; enough for spreading load.
fn lot() -> f64 {
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}
