//! Service account tokens, each bound to one pod and renewed before it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use longshore_base::time;
use longshore_pod::spec;
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::{Error, REQUEST_TIMEOUT, within};

/// However long a token lives, it is not used for longer than this before it is renewed.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Jitter of renewals in seconds, so that tokens of pods created together are not renewed together.
const JITTER_SECONDS: u64 = 10;

/// When the renewal of a token that failed is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// The apiserver refuses a token for a pod that it does not yet know to be on this node, and its
/// own view may be behind the watch from which the node knows it.
const RETRY_DELAYS: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(400)];

/// What the apiserver gives when a projection names no life.
const DEFAULT_LIFE: i64 = 3600;

/// The tokens of a pod. The lock is held during a request: callers share its answer.
#[derive(Default)]
pub(super) struct PodTokens {
    tokens: AsyncMutex<HashMap<Request, Token>>,
}

/// The key of a token among those of one pod.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Request {
    audience: Option<String>,
    expiration_seconds: i64,
    /// The UID that the service account must have.
    account_uid: Option<String>,
}

struct Token {
    text: Arc<str>,
    renew: Timestamp,
    expires: Timestamp,
    /// When its renewal is tried again, after one that failed.
    retry: Option<Timestamp>,
}

impl PodTokens {
    pub(super) async fn get(
        &self,
        client: Option<&Client>,
        pod: &Pod,
        projection: &ServiceAccountTokenProjection,
        renewal: &watch::Sender<Option<Timestamp>>,
    ) -> Result<Arc<str>, Error> {
        let account = spec::service_account(pod).ok_or(Error::NoServiceAccount)?;
        let request = Request {
            audience: projection.audience.clone().filter(|audience| !audience.is_empty()),
            expiration_seconds: projection.expiration_seconds.unwrap_or(DEFAULT_LIFE),
            account_uid: None,
        };
        let mut tokens = self.tokens.lock().await;
        let answer = current_or_new(&mut tokens, client, pod, account, request).await;
        renewal.send_replace(tokens.values().map(|token| token.retry.unwrap_or(token.renew)).min());
        answer
    }

    /// A token for a plugin, which is renewed when it is used.
    pub(super) async fn get_for_plugin(
        &self,
        client: Option<&Client>,
        pod: &Pod,
        audience: &str,
        account_uid: &str,
    ) -> Result<Arc<str>, Error> {
        let account = spec::service_account(pod).ok_or(Error::NoServiceAccount)?;
        let request = Request {
            audience: Some(audience.to_owned()),
            expiration_seconds: DEFAULT_LIFE,
            account_uid: Some(account_uid.to_owned()),
        };
        let mut tokens = self.tokens.lock().await;
        current_or_new(&mut tokens, client, pod, account, request).await
    }
}

async fn current_or_new(
    tokens: &mut HashMap<Request, Token>,
    client: Option<&Client>,
    pod: &Pod,
    account: &str,
    request: Request,
) -> Result<Arc<str>, Error> {
    let now = Timestamp::now();
    let current = tokens.get_mut(&request);
    if let Some(token) = current.as_ref().filter(|token| now < token.renew) {
        return Ok(token.text.clone());
    }
    match (create(client, pod, account, &request).await, current) {
        (Ok(token), _) => {
            let text = token.text.clone();
            tokens.insert(request, token);
            Ok(text)
        }
        (Err(error), Some(token)) => {
            token.retry = now.saturating_add(RETRY).ok();
            if now >= token.expires {
                return Err(error);
            }
            tracing::warn!(pod = spec::name(pod), %error, "using a service account token that is due for renewal");
            Ok(token.text.clone())
        }
        (Err(error), None) => Err(error),
    }
}

/// Requests a token through the `token` subresource of the service account.
async fn create(
    client: Option<&Client>,
    pod: &Pod,
    account: &str,
    request: &Request,
) -> Result<Token, Error> {
    let namespace = spec::namespace(pod);
    let action = || format!("fetch token of service account {namespace}/{account}");
    let client = client.ok_or_else(|| Error::NoApiserver { action: action() })?;
    let body = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: request.audience.clone().map(|audience| vec![audience]),
            expiration_seconds: Some(request.expiration_seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        }),
        metadata: ObjectMeta { uid: request.account_uid.clone(), ..ObjectMeta::default() },
        ..TokenRequest::default()
    };
    let api = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let mut delays = RETRY_DELAYS.into_iter();
    let answer: TokenRequest = loop {
        let params = PostParams::default();
        let request = api.create_subresource("token", account, &params, &body);
        let created = within(REQUEST_TIMEOUT, request).await;
        match (created, delays.next()) {
            (Err(KubeError::Api(status)), Some(delay)) if status.code == 403 => {
                tokio::time::sleep(delay).await;
            }
            (created, _) => break created.map_err(|error| Error::request(action(), error))?,
        }
    };
    let empty = || Error::Request { action: action(), reason: "the answer holds no token".into() };
    let status = answer.status.ok_or_else(empty)?;
    let (Some(text), Some(expires)) =
        (status.token.filter(|token| !token.is_empty()), status.expiration_timestamp)
    else {
        return Err(empty());
    };
    // The server may have chosen another life than the requested one.
    let life =
        answer.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(request.expiration_seconds);
    let life = Duration::from_secs(u64::try_from(life).unwrap_or_default());
    let jitter = Duration::from_secs(fastrand::u64(..JITTER_SECONDS));
    let renew = renewal(expires.0, life, jitter);
    Ok(Token { text: text.into(), renew, expires: expires.0, retry: None })
}

/// When to renew a token of that life: at 80 % of it or after a day, and sooner by `jitter`.
fn renewal(expires: Timestamp, life: Duration, jitter: Duration) -> Timestamp {
    let left = time::part(life, 5).max(life.saturating_sub(MAX_AGE)).saturating_add(jitter);
    expires.saturating_sub(left).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_renewal_at_80_percent_or_after_a_day() {
        let made: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let hour = Duration::from_secs(3600);
        let cases = [
            (hour, 0, "2026-01-01T00:48:00Z"),
            (hour, 9, "2026-01-01T00:47:51Z"),
            (hour / 6, 0, "2026-01-01T00:08:00Z"),
            (hour * 24 * 365, 0, "2026-01-02T00:00:00Z"),
        ];
        for (life, jitter, expected) in cases {
            let renew = renewal(made + life, life, Duration::from_secs(jitter));
            assert_eq!(renew, expected.parse().unwrap(), "{life:?}");
        }
    }
}
