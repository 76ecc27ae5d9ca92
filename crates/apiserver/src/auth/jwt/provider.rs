//! The keys of an issuer: discovered at its URL, read again when a token names a key that is not known, and
//! from time to time, so that keys that the issuer has withdrawn do not count for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_base::rate::TokenBucket;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use tokio::sync::Mutex as AsyncMutex;

use super::config::Issuer;
use super::keys::{self, Key};
use crate::http_client::{Tls, tls};
use crate::remote::{self, Answer};

/// How long an issuer may take for one document.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Tokens with keys that are not known have the keys read again so often in a row,
const BURST: f64 = 3.0;
/// and then so often a second.
const RATE: f64 = 0.1;
/// How old keys become.
pub(super) const MAX_AGE: Duration = Duration::from_secs(600);
const WELL_KNOWN: &str = "/.well-known/openid-configuration";

/// What is fetched from an issuer.
#[derive(Clone)]
struct Fetched {
    keys: Arc<Vec<Key>>,
    at: Instant,
    /// Incremented with each fetch.
    generation: u64,
}

/// An issuer and its keys.
pub(super) struct Provider {
    url: String,
    discovery_url: String,
    tls: Tls,
    /// Where the keys are, once they are found.
    fetched: RwLock<Option<Fetched>>,
    refetches: Mutex<TokenBucket>,
    /// One fetch at a time.
    fetching: AsyncMutex<()>,
}

impl Provider {
    /// Nothing is fetched yet.
    pub(super) fn new(issuer: &Issuer) -> Result<Provider, String> {
        let authority = issuer.certificate_authority.as_bytes();
        let authority = Some(authority).filter(|authority| !authority.is_empty());
        let discovery_url = match issuer.discovery_url.as_str() {
            "" => {
                let url = issuer.url.strip_suffix('/').unwrap_or(&issuer.url);
                format!("{url}{WELL_KNOWN}")
            }
            url => url.to_owned(),
        };
        Ok(Provider {
            url: issuer.url.clone(),
            discovery_url,
            tls: Arc::new(tls::client(authority, false, None)?),
            fetched: RwLock::default(),
            refetches: Mutex::new(TokenBucket::new(RATE, BURST, Instant::now())),
            fetching: AsyncMutex::default(),
        })
    }

    /// The keys that are known, with the number of their fetch; `None` before the first.
    pub(super) fn keys(&self) -> Option<(Arc<Vec<Key>>, u64)> {
        let fetched = self.fetched.read();
        fetched.as_ref().map(|fetched| (fetched.keys.clone(), fetched.generation))
    }

    /// Whether keys are to be fetched whether a token asks for it or not.
    pub(super) fn is_due(&self) -> bool {
        let fetched = self.fetched.read();
        fetched.as_ref().is_none_or(|fetched| fetched.at.elapsed() >= MAX_AGE)
    }

    /// Keys that are newer than those of that generation, or any if there is none, if they may be fetched
    /// now.
    pub(super) async fn newer_keys(&self, than: Option<u64>) -> Option<Arc<Vec<Key>>> {
        let newer = || self.keys().filter(|(_, generation)| Some(*generation) != than);
        if let Some((keys, _)) = newer() {
            return Some(keys);
        }
        let _alone = self.fetching.lock().await;
        if let Some((keys, _)) = newer() {
            return Some(keys);
        }
        if !self.refetches.lock().try_take(Instant::now()) {
            return None;
        }
        match self.fetch_alone().await {
            Ok(()) => newer().map(|(keys, _)| keys),
            Err(why) => {
                tracing::warn!(issuer = self.url, %why, "oidc authenticator: cannot fetch keys");
                None
            }
        }
    }

    /// Fetches the keys.
    pub(super) async fn fetch(&self) -> Result<(), String> {
        let _alone = self.fetching.lock().await;
        self.fetch_alone().await
    }

    async fn fetch_alone(&self) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Discovered {
            issuer: String,
            #[serde(default)]
            jwks_uri: String,
        }
        let found = self.document(&self.discovery_url).await?;
        let found: Discovered = serde_json::from_slice(&found.body)
            .map_err(|error| format!("failed to decode provider discovery object: {error}"))?;
        if found.issuer != self.url {
            return Err(format!(
                "issuer did not match the issuer returned by provider, expected {:?} got {:?}",
                self.url, found.issuer
            ));
        }
        if !found.jwks_uri.starts_with("https://") {
            return Err(format!("the provider's JWKS URL {:?} is not https", found.jwks_uri));
        }
        let set = self.document(&found.jwks_uri).await?;
        let keys = Arc::new(keys::read_set(&set.body)?);
        let mut fetched = self.fetched.write();
        let generation = fetched.as_ref().map_or(0, |known| known.generation).wrapping_add(1);
        *fetched = Some(Fetched { keys, at: Instant::now(), generation });
        Ok(())
    }

    async fn document(&self, url: &str) -> Result<Answer, String> {
        let answer = remote::get(url, None, &self.tls, TIMEOUT).await?;
        match answer.code {
            200 => Ok(answer),
            code => Err(format!("Get {url:?}: status {code}")),
        }
    }
}
