//! Tokens that a webhook knows the users of: a TokenReview is posted to the server of a kubeconfig
//! (`--authentication-token-webhook-config-file`). Answers are cached, errors are not.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use longshore_base::ttl_cache::TtlCache;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::authenticator::AuthenticatedToken;
use crate::pki;
use crate::remote::{KubeconfigError, Remote};
use crate::user::{Extra, User};

/// How long the webhook may take, with all tries.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most answers that are cached, of each kind.
const MAX_CACHED: usize = 4096;

/// A webhook that knows the users of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenWebhookConfig {
    /// The kubeconfig with its server.
    pub kubeconfig: PathBuf,
    /// The version of TokenReview: `v1` or `v1beta1`.
    pub version: String,
    /// How long its answers are cached.
    pub ttl: Duration,
}

/// SHA-256 of a token and the audiences that it is to be for.
type Key = [u8; 32];

pub(super) struct TokenWebhook {
    remote: Remote,
    version: String,
    ttl: Duration,
    known: TtlCache<Key, AuthenticatedToken>,
    /// In a cache of its own, so that forged tokens drop no valid ones.
    unknown: TtlCache<Key, ()>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    kind: String,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    authenticated: bool,
    user: UserInfo,
    audiences: Option<Vec<String>>,
    error: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct UserInfo {
    username: String,
    uid: String,
    groups: Option<Vec<String>>,
    extra: Option<Extra>,
}

impl TokenWebhook {
    pub(super) fn load(config: &TokenWebhookConfig) -> pki::Result<TokenWebhook> {
        let invalid = |error: KubeconfigError| pki::Error::Invalid {
            path: config.kubeconfig.clone(),
            reason: error.to_string(),
        };
        Ok(TokenWebhook {
            remote: Remote::of_kubeconfig(&config.kubeconfig).map_err(invalid)?,
            version: config.version.clone(),
            ttl: config.ttl,
            known: TtlCache::new(MAX_CACHED),
            unknown: TtlCache::new(MAX_CACHED),
        })
    }

    /// The user of a token for one of the audiences, if the webhook knows it. Tokens for which it names no
    /// audience are for those of this server.
    pub(super) async fn user(
        &self,
        token: &str,
        wanted: &[String],
        own: &[String],
    ) -> Result<Option<AuthenticatedToken>, String> {
        let key = key(token, wanted);
        if let Some(known) = self.known.get(&key) {
            return Ok(Some(known));
        }
        if self.unknown.get(&key).is_some() {
            return Ok(None);
        }
        let review = json!({
            "kind": "TokenReview",
            "apiVersion": self.api_version(),
            "metadata": {"creationTimestamp": null},
            "spec": {"token": token, "audiences": wanted},
            "status": {"user": {}},
        });
        let body = Bytes::from(review.to_string());
        let answer = self.remote.post_patiently(body, TIMEOUT).await?;
        let found = self.read(&answer, wanted, own)?;
        match &found {
            Some(token) => self.known.insert(key, token.clone(), self.ttl),
            None => self.unknown.insert(key, (), self.ttl),
        }
        Ok(found)
    }

    fn api_version(&self) -> String {
        format!("authentication.k8s.io/{}", self.version)
    }

    fn read(
        &self,
        answer: &[u8],
        wanted: &[String],
        own: &[String],
    ) -> Result<Option<AuthenticatedToken>, String> {
        let unreadable = |error| format!("the answer is no TokenReview: {error}");
        let value: Value = serde_json::from_slice(answer).map_err(unreadable)?;
        let Review { api_version, kind, status } =
            serde_json::from_value(value).map_err(unreadable)?;
        if kind != "TokenReview" || api_version != self.api_version() {
            return Err(format!("the answer is a {kind} of {api_version}"));
        }
        let Status { authenticated, user, audiences, error } = status;
        let has = audiences.filter(|has| !has.is_empty()).unwrap_or_else(|| own.to_vec());
        let audiences: Vec<String> =
            wanted.iter().filter(|audience| has.contains(audience)).cloned().collect();
        match (authenticated, error.is_empty()) {
            _ if audiences.is_empty() => Ok(None),
            (false, true) => Ok(None),
            (false, false) => Err(error),
            (true, _) if user.username.is_empty() => Err("the webhook names no user".to_owned()),
            (true, _) => {
                let user = User {
                    name: user.username,
                    uid: user.uid,
                    groups: user.groups.unwrap_or_default(),
                    extra: user.extra.unwrap_or_default(),
                };
                Ok(Some(AuthenticatedToken { user: user.vouched_for(), audiences }))
            }
        }
    }
}

fn key(token: &str, audiences: &[String]) -> Key {
    let mut hash = Sha256::new();
    // lengths, so that no audience passes for a part of the token
    for part in std::iter::once(token).chain(audiences.iter().map(String::as_str)) {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::remote::testing::serve_json;

    /// A webhook that answers requests with `answer` of the posted review; and the number of its calls.
    async fn webhook(
        answer: impl Fn(Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> (TokenWebhook, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let kubeconfig = serve_json(move |review| {
            count.fetch_add(1, Ordering::SeqCst);
            answer(review)
        })
        .await;
        let (version, ttl) = ("v1".to_owned(), Duration::from_secs(60));
        (TokenWebhook::load(&TokenWebhookConfig { kubeconfig, version, ttl }).unwrap(), calls)
    }

    fn review(status: &Value) -> Value {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status})
    }

    #[tokio::test]
    async fn token_webhook_names_users_and_is_cached() {
        let (hook, calls) = webhook(|asked| {
            assert_eq!(asked["apiVersion"], "authentication.k8s.io/v1");
            assert_eq!(asked["spec"]["audiences"], json!(["api"]));
            let status = match asked["spec"]["token"].as_str() {
                Some("good") => json!({"authenticated": true, "user":
                    {"username": "ann", "uid": "7", "groups": ["dev"], "extra": {"k": ["v"]}}}),
                Some("other") => json!({"authenticated": true, "audiences": ["elsewhere"],
                    "user": {"username": "ann"}}),
                Some("nobody") => json!({"authenticated": true, "user": {"username": ""}}),
                Some("faulty") => json!({"authenticated": false, "error": "lookup failed"}),
                _ => json!({"authenticated": false}),
            };
            (200, review(&status))
        })
        .await;
        let own = ["api".to_owned()];
        for _ in 0..2 {
            let found = hook.user("good", &own, &own).await.unwrap().unwrap();
            assert_eq!((found.user.name.as_str(), found.user.uid.as_str()), ("ann", "7"));
            assert_eq!(found.user.groups, ["dev", "system:authenticated"]);
            assert_eq!(found.user.extra["k"], ["v"]);
            assert_eq!(found.audiences, own);
            assert!(hook.user("bad", &own, &own).await.unwrap().is_none());
            assert!(hook.user("other", &own, &own).await.unwrap().is_none());
        }
        assert_eq!(calls.load(Ordering::SeqCst), 3);
        for _ in 0..2 {
            assert_eq!(hook.user("faulty", &own, &own).await.unwrap_err(), "lookup failed");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 5, "errors are not cached");
        assert!(hook.user("nobody", &own, &own).await.unwrap_err().contains("no user"));
    }

    #[tokio::test]
    async fn token_webhook_failures_are_errors() {
        let own = ["api".to_owned()];
        let (refuses, calls) = webhook(|_| (403, json!({}))).await;
        assert!(refuses.user("t", &own, &own).await.unwrap_err().contains("403"));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let (other, _) = webhook(|_| {
            let mut answer = review(&json!({"authenticated": true, "user": {"username": "ann"}}));
            answer["kind"] = "SubjectAccessReview".into();
            (200, answer)
        })
        .await;
        assert!(other.user("t", &own, &own).await.is_err());
        let first = AtomicUsize::new(0);
        let (recovers, calls) = webhook(move |_| match first.fetch_add(1, Ordering::SeqCst) {
            0 => (500, json!({})),
            _ => (200, review(&json!({"authenticated": true, "user": {"username": "ann"}}))),
        })
        .await;
        assert!(recovers.user("t", &own, &own).await.unwrap().is_some());
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
