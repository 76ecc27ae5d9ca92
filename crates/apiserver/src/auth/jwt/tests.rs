//! Tokens of an issuer that serves its keys on loopback.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::json;

use super::keys::tests::Signer;
use super::*;
use crate::remote::testing::serve_documents;

/// An issuer.
struct Provider {
    url: String,
    authority: String,
    keys: Arc<Mutex<Vec<Value>>>,
    /// How often its keys were fetched.
    fetches: Arc<AtomicUsize>,
}

impl Provider {
    async fn start(signer: &Signer) -> Provider {
        let keys = Arc::new(Mutex::new(vec![signer.jwk()]));
        let fetches = Arc::new(AtomicUsize::new(0));
        let (served, count) = (keys.clone(), fetches.clone());
        let (url, authority) = serve_documents(move |own, path| match path {
            "/.well-known/openid-configuration" => {
                (200, json!({"issuer": own, "jwks_uri": format!("{own}/keys")}))
            }
            "/elsewhere" => {
                (200, json!({"issuer": "https://other", "jwks_uri": format!("{own}/keys")}))
            }
            "/plain" => (200, json!({"issuer": own, "jwks_uri": "http://127.0.0.1:1/keys"})),
            "/keys" => {
                count.fetch_add(1, Ordering::SeqCst);
                (200, json!({"keys": *served.lock()}))
            }
            _ => (404, Value::Null),
        })
        .await;
        Provider { url, authority, keys, fetches }
    }

    fn text(&self, more: &str) -> String {
        let authority = self.authority.replace('\n', "\n      ");
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n\
             - issuer:\n    url: {}\n    audiences: [us, them]\n    audienceMatchPolicy: MatchAny\n    \
             certificateAuthority: |\n      {authority}\n{more}",
            self.url
        )
    }

    fn config(&self, more: &str) -> JwtConfig {
        let text = format!(
            "{}\n  claimMappings:\n    username: {{claim: sub, prefix: 'x:'}}\n",
            self.text(more)
        );
        let file = AuthenticationFile::parse(&text).unwrap();
        JwtConfig { file, path: None, algorithms: ALGORITHMS.map(str::to_owned).into() }
    }

    async fn authenticators(&self) -> JwtAuthenticators {
        let own = JwtAuthenticators::new(self.config(""), Vec::new()).unwrap();
        own.fetch_due().await;
        own
    }

    fn claims(&self) -> Value {
        let now = Timestamp::now().as_second();
        json!({"iss": self.url, "aud": "us", "sub": "ann", "exp": now + 600, "nbf": now - 10})
    }
}

async fn refusal(own: &JwtAuthenticators, token: &str) -> String {
    own.user(token).await.unwrap().unwrap_err()
}

#[tokio::test]
async fn jwt_of_an_issuer_authenticates_its_user() {
    let signer = Signer::new("a");
    let provider = Provider::start(&signer).await;
    let own = provider.authenticators().await;
    let claims = provider.claims();
    let user = own.user(&signer.sign(&claims)).await.unwrap().unwrap();
    assert_eq!(user.name, "x:ann");
    assert_eq!(user.groups, ["system:authenticated"]);
    let now = Timestamp::now().as_second();
    for (field, value, why) in [
        ("aud", json!("others"), "expected audience"),
        ("aud", json!([]), "expected audience"),
        ("aud", json!(null), "expected audience"),
        ("exp", json!(now - 1), "token is expired"),
        ("exp", json!(null), "no expiration"),
        ("exp", json!("9999999999"), "no expiration"),
        ("nbf", json!(now + 3600), "current time before the nbf"),
        ("sub", json!(null), "username"),
    ] {
        let mut claims = claims.clone();
        claims[field] = value;
        let error = refusal(&own, &signer.sign(&claims)).await;
        assert!(error.starts_with("oidc: ") && error.contains(why), "{field}: {error}");
    }
    let mut several = claims.clone();
    several["aud"] = json!(["others", "them"]);
    assert!(own.user(&signer.sign(&several)).await.unwrap().is_ok());
    let mut stranger = claims.clone();
    stranger["iss"] = "https://stranger".into();
    assert!(own.user(&signer.sign(&stranger)).await.is_none());
    assert!(own.user("not.a.token").await.is_none());
    let forged = Signer::new("a").sign(&claims);
    assert!(refusal(&own, &forged).await.contains("failed to verify signature"));
    let unsigned = signer.sign_with(&json!({"alg": "none"}), &claims);
    assert!(refusal(&own, &unsigned).await.contains("unsupported algorithm"));
}

#[tokio::test]
async fn jwt_keys_are_fetched_again_for_new_ones_and_not_without_end() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let provider = Provider::start(&old).await;
    let own = provider.authenticators().await;
    let claims = provider.claims();
    assert!(own.user(&old.sign(&claims)).await.unwrap().is_ok());
    assert_eq!(provider.fetches.load(Ordering::SeqCst), 1);
    *provider.keys.lock() = vec![new.jwk()];
    assert!(own.user(&new.sign(&claims)).await.unwrap().is_ok());
    assert_eq!(provider.fetches.load(Ordering::SeqCst), 2);
    assert!(own.user(&old.sign(&claims)).await.unwrap().is_err(), "it is withdrawn");
    for _ in 0..20 {
        refusal(&own, &Signer::new("unknown").sign(&claims)).await;
    }
    let fetches = provider.fetches.load(Ordering::SeqCst);
    assert!((3..=4).contains(&fetches), "{fetches}");
    let mut expired = claims;
    expired["exp"] = json!(1);
    refusal(&own, &Signer::new("unknown").sign(&expired)).await;
    assert_eq!(provider.fetches.load(Ordering::SeqCst), fetches, "not for what is refused anyway");
}

#[tokio::test]
async fn jwt_issuers_that_are_not_who_they_say_have_no_keys() {
    let signer = Signer::new("a");
    let provider = Provider::start(&signer).await;
    for path in ["/elsewhere", "/plain", "/missing"] {
        let config = provider.config(&format!("    discoveryURL: {}{path}", provider.url));
        let own = JwtAuthenticators::new(config, Vec::new()).unwrap();
        own.fetch_due().await;
        let error = refusal(&own, &signer.sign(&provider.claims())).await;
        assert_eq!(error, "oidc: authenticator not initialized", "{path}");
    }
    assert_eq!(provider.fetches.load(Ordering::SeqCst), 0);
    // its certificate is of a CA that is not the configured one
    let other = Provider::start(&signer).await;
    let liar = Provider { url: provider.url.clone(), ..other };
    let own = liar.authenticators().await;
    assert!(refusal(&own, &signer.sign(&liar.claims())).await.contains("not initialized"));
}

/// Groups that are in a token of another issuer, which an endpoint gives to those who have the access token.
#[tokio::test]
async fn jwt_distributed_groups_are_fetched() {
    let (signer, of_groups) = (Signer::new("a"), Arc::new(Signer::new("g")));
    let claims = Arc::new(Mutex::new(json!({"roles": ["dev", "ops"]})));
    let (own, signs) = (claims.clone(), of_groups.clone());
    let now = Timestamp::now().as_second();
    let (groups_url, authority) = serve_documents(move |url, path| match path {
        "/.well-known/openid-configuration" => {
            (200, json!({"issuer": url, "jwks_uri": format!("{url}/keys")}))
        }
        "/keys" => (200, json!({"keys": [signs.jwk()]})),
        "/groups" => {
            let mut given = own.lock().clone();
            if given.get("iss").is_none() {
                given["iss"] = url.into();
            }
            if given.get("aud").is_none() {
                given["aud"] = "us".into();
            }
            given["exp"] = json!(now + 600);
            (200, json!(signs.sign(&given)))
        }
        _ => (403, Value::Null),
    })
    .await;
    let provider = Provider::start(&signer).await;
    // endpoints have the CA of the issuer
    let both = Provider { authority: format!("{}{authority}", provider.authority), ..provider };
    let text = format!(
        "{}  claimMappings:\n    username: {{claim: sub, prefix: ''}}\n    groups: {{claim: roles, prefix: 'x:'}}\n",
        both.text("")
    );
    let file = AuthenticationFile::parse(&text).unwrap();
    let algorithms = ALGORITHMS.map(str::to_owned).into();
    let config = JwtConfig { file, path: None, algorithms };
    let all = JwtAuthenticators::new(config, Vec::new()).unwrap();
    all.fetch_due().await;
    let token = |path: &str| {
        let mut token = both.claims();
        token["_claim_names"] = json!({"roles": "s"});
        token["_claim_sources"] =
            json!({"s": {"endpoint": format!("{groups_url}{path}"), "access_token": "t"}});
        signer.sign(&token)
    };
    let user = all.user(&token("/groups")).await.unwrap().unwrap();
    assert_eq!(user.groups, ["x:dev", "x:ops", "system:authenticated"]);
    let error = refusal(&all, &token("/elsewhere")).await;
    assert!(
        error.contains("could not expand distributed claims") && error.contains("403"),
        "{error}"
    );
    for (given, why) in [
        (json!({}), "did not contain claim: roles"),
        (json!({"roles": ["dev"], "aud": "others"}), "expected audience"),
        (json!({"roles": ["dev"], "iss": both.url}), "failed to verify signature"),
        (json!({"roles": [1]}), "parse groups claim"),
    ] {
        *claims.lock() = given;
        let error = refusal(&all, &token("/groups")).await;
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[tokio::test]
async fn jwt_config_is_reloaded_when_it_is_valid() {
    let signer = Signer::new("a");
    let provider = Provider::start(&signer).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let with = |prefix: &str| {
        let name = format!("  claimMappings:\n    username: {{claim: sub, prefix: '{prefix}'}}\n");
        provider.text(&name)
    };
    std::fs::write(file.path(), with("a:")).unwrap();
    let (config, anonymous) = JwtConfig::of_file(file.path()).unwrap();
    assert_eq!(anonymous, None);
    let own = JwtAuthenticators::new(config, Vec::new()).unwrap();
    own.fetch_due().await;
    let token = signer.sign(&provider.claims());
    for (text, expected) in [
        (with("a:"), "a:ann"),
        (with("b:"), "b:ann"),
        ("nonsense".to_owned(), "b:ann"),
        (with("c:").replace("audiences: [us, them]", "audiences: []"), "b:ann"),
        (format!("{}anonymous: {{enabled: true}}\n", with("d:")), "b:ann"),
        (with("e:").replace(&provider.url, "https://127.0.0.1:1"), "b:ann"),
        (with("f:"), "f:ann"),
    ] {
        own.reload(&text).await.ok();
        assert_eq!(own.user(&token).await.unwrap().unwrap().name, expected, "{text}");
    }
}
