//! One plugin: for which images and pods it is called, and what is kept of its answers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use longshore_base::ttl_cache::TtlCache;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::config::{self, TokenAttributes};
use crate::error::Error;
use crate::exec::Plugin;
use crate::protocol::{CacheKeyType, Logins, Request, Response};
use crate::urls::matches_image;
use crate::{Given, Requester};

/// How many answers of a plugin are kept.
const MAX_CACHED: usize = 1000;

/// Why a plugin gives nothing for an image. The words are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProvideError {
    /// The service account is not to be had.
    #[error("failed to get service account: {0}")]
    Account(String),
    /// Its token is not to be had.
    #[error("failed to get service account token: {0}")]
    Token(String),
    /// The plugin has failed.
    #[error("failed to get credential from external registry credential provider: {0}")]
    Plugin(#[from] Error),
    /// The token is the password, and would be kept for other pods.
    #[error(
        "credential provider plugin returned the service account token as the password which is not \
         allowed when service account cache type is not set to 'Token'"
    )]
    EchoedToken,
}

/// Which service account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountReference {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A plugin.
pub(crate) struct Provider {
    config: config::Provider,
    plugin: Box<dyn Plugin>,
    cache: TtlCache<CacheKey, Arc<Logins>>,
    calls: Mutex<HashMap<CallKey, WeakShared<Call>>>,
}

/// A call that callers at the same time share.
type Call = BoxFuture<'static, Result<Arc<Response>, Error>>;

type Hash = [u8; 32];

/// Calls with the same key are one.
#[derive(PartialEq, Eq, Hash)]
struct CallKey {
    image: String,
    token: Option<Hash>,
    annotations: BTreeMap<String, String>,
}

/// For what an answer holds.
#[derive(Clone, PartialEq, Eq, Hash)]
struct CacheKey {
    images: Images,
    account: Option<AccountKey>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Images {
    All,
    /// Of a registry, with its port.
    Registry(String),
    One(String),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct AccountKey {
    account: AccountReference,
    annotations: BTreeMap<String, String>,
    /// If what is given ends with the token.
    token: Option<Hash>,
}

/// The service account that a plugin is called for.
struct Identity {
    account: AccountReference,
    annotations: BTreeMap<String, String>,
    token: Arc<str>,
    /// Whether what is given holds for other tokens of the account.
    shared: bool,
}

impl Provider {
    pub(crate) fn new(config: config::Provider, plugin: Box<dyn Plugin>) -> Self {
        Self { config, plugin, cache: TtlCache::new(MAX_CACHED), calls: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// What it gives for an image; `None`: it is not for this image, or not for this pod.
    pub(crate) async fn provide(
        &self,
        image: &str,
        pod: &dyn Requester,
    ) -> Result<Option<Given>, ProvideError> {
        if !self.config.match_images.iter().any(|pattern| matches_image(pattern, image)) {
            return Ok(None);
        }
        let identity = match &self.config.token_attributes {
            None => None,
            Some(attributes) if pod.service_account().is_empty() => {
                if attributes.require_service_account == Some(true) {
                    return Ok(None);
                }
                None
            }
            Some(attributes) => match identify(attributes, pod).await? {
                None => return Ok(None),
                identity => identity,
            },
        };
        let account = identity.as_ref().map(|identity| identity.account.clone());
        let key = identity.as_ref().map(Identity::cache_key);
        if let Some(logins) = self.cached(image, &key) {
            return Ok(Some(Given { logins, account }));
        }
        let response = self.call(image, identity.as_ref()).await?;
        if identity.is_some_and(|own| own.shared && own.is_password_in(&response.auth)) {
            return Err(ProvideError::EchoedToken);
        }
        let logins = Arc::new(response.auth.clone());
        let life = response.cache_duration.or(self.config.default_cache_duration);
        let life = life.unwrap_or_default().get();
        if life > Duration::ZERO {
            let images = match response.cache_key_type {
                CacheKeyType::Image => Images::One(image.to_owned()),
                CacheKeyType::Registry => Images::Registry(registry(image).to_owned()),
                CacheKeyType::Global => Images::All,
            };
            self.cache.insert(CacheKey { images, account: key }, Arc::clone(&logins), life);
        }
        Ok(Some(Given { logins, account }))
    }

    fn cached(&self, image: &str, account: &Option<AccountKey>) -> Option<Arc<Logins>> {
        let registry = Images::Registry(registry(image).to_owned());
        [Images::One(image.to_owned()), registry, Images::All]
            .into_iter()
            .find_map(|images| self.cache.get(&CacheKey { images, account: account.clone() }))
    }

    /// The answer of the plugin, which callers at the same time share.
    async fn call(&self, image: &str, own: Option<&Identity>) -> Result<Arc<Response>, Error> {
        let annotations = own.map(|own| own.annotations.clone()).unwrap_or_default();
        let key = CallKey {
            image: image.to_owned(),
            token: own.map(Identity::token_hash),
            annotations: annotations.clone(),
        };
        let call = {
            let mut calls = self.calls.lock();
            calls.retain(|_, call| call.upgrade().is_some_and(|call| call.peek().is_none()));
            match calls.get(&key).and_then(WeakShared::upgrade) {
                Some(running) => running,
                None => {
                    let request = Request {
                        image: image.to_owned(),
                        service_account_token: own
                            .map(|own| own.token.to_string())
                            .unwrap_or_default(),
                        service_account_annotations: annotations,
                    };
                    let answer = self.plugin.answer(request);
                    let call: Shared<Call> =
                        answer.map(|answer| answer.map(Arc::new)).boxed().shared();
                    calls.extend(call.downgrade().map(|call| (key, call)));
                    call
                }
            }
        };
        call.await
    }
}

/// The registry of an image, with its port.
fn registry(image: &str) -> &str {
    image.split_once('/').map_or(image, |(registry, _)| registry)
}

/// The identity of a pod that has a service account; `None`: that lacks a required annotation, by which
/// workloads opt in.
async fn identify(
    attributes: &TokenAttributes,
    pod: &dyn Requester,
) -> Result<Option<Identity>, ProvideError> {
    let account = pod.account().await.map_err(ProvideError::Account)?;
    let (required, optional) = (
        &attributes.required_service_account_annotation_keys,
        &attributes.optional_service_account_annotation_keys,
    );
    if let Some(key) = required.iter().find(|key| !account.annotations.contains_key(*key)) {
        tracing::debug!(key, "required annotation not found");
        return Ok(None);
    }
    let keys = required.iter().chain(optional);
    let annotation = |key: &String| Some((key.clone(), account.annotations.get(key)?.clone()));
    let annotations = keys.filter_map(annotation).collect();
    let audience = &attributes.service_account_token_audience;
    let token = pod.token(audience, &account.uid).await.map_err(ProvideError::Token)?;
    Ok(Some(Identity {
        account: AccountReference {
            uid: account.uid,
            namespace: pod.namespace().to_owned(),
            name: pod.service_account().to_owned(),
        },
        annotations,
        token,
        shared: attributes.cache_type != "Token",
    }))
}

impl Identity {
    fn token_hash(&self) -> Hash {
        Sha256::digest(self.token.as_bytes()).into()
    }

    fn cache_key(&self) -> AccountKey {
        AccountKey {
            account: self.account.clone(),
            annotations: self.annotations.clone(),
            token: (!self.shared).then(|| self.token_hash()),
        }
    }

    fn is_password_in(&self, logins: &Logins) -> bool {
        logins.values().any(|login| login.password == *self.token)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use longshore_config::GoDuration;
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::Account;
    use crate::protocol::Login;

    /// A plugin in memory, which takes a second.
    struct Scripted {
        calls: Arc<AtomicUsize>,
        key: CacheKeyType,
        life: Option<GoDuration>,
        echo: bool,
        fails: bool,
    }

    impl Plugin for Scripted {
        fn answer(&self, request: Request) -> BoxFuture<'static, Result<Response, Error>> {
            let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let (cache_key_type, cache_duration, echo, fails) =
                (self.key, self.life, self.echo, self.fails);
            async move {
                sleep(Duration::from_secs(1)).await;
                if fails {
                    return Err(Error::Decode);
                }
                let password = if echo { request.service_account_token } else { format!("{call}") };
                let login = Login { username: "u".to_owned(), password };
                let auth = [(request.image, login)].into();
                Ok(Response { cache_key_type, cache_duration, auth })
            }
            .boxed()
        }
    }

    struct Pod {
        account: &'static str,
        annotations: BTreeMap<String, String>,
        token: &'static str,
    }

    impl Pod {
        fn of(account: &'static str, token: &'static str) -> Self {
            let annotations = [("role".to_owned(), "r".to_owned())].into();
            Self { account, annotations, token }
        }
    }

    impl Requester for Pod {
        fn namespace(&self) -> &str {
            "ns"
        }

        fn service_account(&self) -> &str {
            self.account
        }

        fn account(&self) -> BoxFuture<'_, Result<Account, String>> {
            let account = match self.account {
                "missing" => Err("no such account".to_owned()),
                name => Ok(Account {
                    uid: format!("uid-{name}"),
                    annotations: self.annotations.clone(),
                }),
            };
            std::future::ready(account).boxed()
        }

        fn token<'a>(
            &'a self,
            audience: &'a str,
            uid: &'a str,
        ) -> BoxFuture<'a, Result<Arc<str>, String>> {
            assert_eq!((audience, uid), ("reg", format!("uid-{}", self.account).as_str()));
            std::future::ready(match self.token {
                "" => Err("refused".to_owned()),
                token => Ok(token.into()),
            })
            .boxed()
        }
    }

    fn provider(
        key: CacheKeyType,
        change: impl FnOnce(&mut config::Provider, &mut Scripted),
    ) -> (Provider, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let mut plugin =
            Scripted { calls: Arc::clone(&calls), key, life: None, echo: false, fails: false };
        let mut config = config::Provider {
            name: "helper".to_owned(),
            match_images: vec!["*.example".to_owned()],
            default_cache_duration: Some(GoDuration::secs(60)),
            ..config::Provider::default()
        };
        change(&mut config, &mut plugin);
        (Provider::new(config, Box::new(plugin)), calls)
    }

    fn with_tokens(config: &mut config::Provider, cache_type: &str) {
        config.token_attributes = Some(TokenAttributes {
            service_account_token_audience: "reg".to_owned(),
            cache_type: cache_type.to_owned(),
            require_service_account: Some(true),
            required_service_account_annotation_keys: vec!["role".to_owned()],
            ..TokenAttributes::default()
        });
    }

    async fn password(provider: &Provider, image: &str, pod: &Pod) -> String {
        match provider.provide(image, pod).await {
            Ok(Some(given)) => given.logins.values().next().unwrap().password.clone(),
            Ok(None) => "nothing".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_are_kept_for_the_images_and_the_time_that_the_plugin_says() {
        let pod = Pod::of("", "");
        let (a, b, other) = ("a.example/x", "a.example/y", "b.example/x");
        for (key, expected) in [
            (CacheKeyType::Image, ["1", "1", "2", "3"]),
            (CacheKeyType::Registry, ["1", "1", "1", "2"]),
            (CacheKeyType::Global, ["1", "1", "1", "1"]),
        ] {
            let (own, _) = provider(key, |_, _| ());
            for (image, expected) in [a, a, b, other].into_iter().zip(expected) {
                assert_eq!(password(&own, image, &pod).await, expected, "{key:?} {image}");
            }
            advance(Duration::from_secs(61)).await;
            assert_ne!(password(&own, a, &pod).await, "1", "it has expired");
        }
        assert_eq!(
            password(&provider(CacheKeyType::Image, |_, _| ()).0, "other/x", &pod).await,
            "nothing"
        );
        for (life, default, kept) in [
            (Some(GoDuration::ZERO), 60, false),
            (None, 0, false),
            (Some(GoDuration::secs(-1)), 60, false),
            (Some(GoDuration::secs(1000)), 0, true),
            (Some(GoDuration::nanos(i64::MAX)), 0, true),
        ] {
            let (own, _) = provider(CacheKeyType::Image, |config, plugin| {
                config.default_cache_duration = Some(GoDuration::secs(default));
                plugin.life = life;
            });
            assert_eq!(password(&own, a, &pod).await, "1");
            advance(Duration::from_secs(500)).await;
            assert_eq!(password(&own, a, &pod).await == "1", kept, "{life:?} {default}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_at_the_same_time_share_a_call() {
        let (own, calls) = provider(CacheKeyType::Image, |config, _| {
            config.default_cache_duration = Some(GoDuration::ZERO);
        });
        let pod = Pod::of("", "");
        let call = |image| password(&own, image, &pod);
        let three = tokio::join!(call("a.example/x"), call("a.example/x"), call("a.example/y"));
        assert_eq!(three, ("1".into(), "1".into(), "2".into()));
        assert_eq!(call("a.example/x").await, "3");
        // one that gives up does not end the call of the other
        let first = tokio::time::timeout(Duration::from_millis(500), call("a.example/x"));
        let (first, second) = tokio::join!(first, call("a.example/x"));
        assert!(first.is_err());
        assert_eq!((second.as_str(), calls.load(Ordering::Relaxed)), ("4", 4));
        assert!(own.calls.lock().len() <= 1, "calls that are over are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_of_service_accounts_are_theirs_alone() {
        let image = "a.example/x";
        for (cache_type, expected) in
            [("ServiceAccount", ["1", "1", "1", "2", "3"]), ("Token", ["1", "1", "2", "3", "4"])]
        {
            let (own, _) =
                provider(CacheKeyType::Global, |config, _| with_tokens(config, cache_type));
            let mut changed = Pod::of("x", "t1");
            changed.annotations.insert("role".to_owned(), "other".to_owned());
            let pods = [
                Pod::of("x", "t1"),
                Pod::of("x", "t1"),
                Pod::of("x", "t2"),
                Pod::of("y", "t3"),
                changed,
            ];
            for (pod, expected) in pods.iter().zip(expected) {
                assert_eq!(password(&own, image, pod).await, expected, "{cache_type}");
            }
            let given = own.provide(image, &pods[0]).await.unwrap().unwrap();
            let account = given.account.unwrap();
            let parts = (account.uid.as_str(), account.namespace.as_str(), account.name.as_str());
            assert_eq!(parts, ("uid-x", "ns", "x"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn plugins_with_tokens_are_called_for_pods_that_have_what_they_need() {
        let image = "a.example/x";
        let (own, calls) = provider(CacheKeyType::Image, |config, _| with_tokens(config, "Token"));
        assert_eq!(password(&own, image, &Pod::of("", "t")).await, "nothing");
        let plain = Pod { annotations: BTreeMap::new(), ..Pod::of("x", "t") };
        assert_eq!(password(&own, image, &plain).await, "nothing");
        let missing = password(&own, image, &Pod::of("missing", "t")).await;
        assert_eq!(missing, "failed to get service account: no such account");
        let refused = password(&own, image, &Pod::of("x", "")).await;
        assert_eq!(refused, "failed to get service account token: refused");
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        let (own, _) = provider(CacheKeyType::Image, |config, _| {
            with_tokens(config, "Token");
            let tokens = config.token_attributes.as_mut().unwrap();
            tokens.require_service_account = Some(false);
            tokens.required_service_account_annotation_keys.clear();
        });
        let given = own.provide(image, &Pod::of("", "")).await.unwrap().unwrap();
        assert!(given.account.is_none(), "a pod without an account has the node's");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_no_password_for_other_pods() {
        for (cache_type, expected) in [
            ("Token", "t"),
            (
                "ServiceAccount",
                "credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'",
            ),
        ] {
            let (own, _) = provider(CacheKeyType::Image, |config, plugin| {
                with_tokens(config, cache_type);
                plugin.echo = true;
            });
            assert_eq!(password(&own, "a.example/x", &Pod::of("x", "t")).await, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_not_kept() {
        let (own, calls) = provider(CacheKeyType::Image, |_, plugin| plugin.fails = true);
        for count in 1..=2 {
            let error = password(&own, "a.example/x", &Pod::of("", "")).await;
            assert_eq!(
                error,
                "failed to get credential from external registry credential provider: error decoding \
                 credential provider plugin response from stdout"
            );
            assert_eq!(calls.load(Ordering::Relaxed), count);
        }
    }
}
