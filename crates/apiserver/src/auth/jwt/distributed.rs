//! Distributed claims (OpenID Connect Core, section 5.6.2): a token names an endpoint that has a claim in a
//! token of its own. Only the claim of the groups is looked for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::check_claims;
use super::config::Issuer;
use super::keys::Token;
use super::provider::Provider;
use crate::http_client::{Tls, tls};
use crate::remote;

/// How long an endpoint may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most issuers of such tokens that are known.
const MAX_ISSUERS: usize = 16;

/// Where a claim is.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Endpoint {
    endpoint: String,
    access_token: String,
}

/// PURE: where the claim is, if it is not in the claims themselves. An endpoint without a URL has an
/// aggregated claim, which is not looked at, as upstream does not.
fn endpoint_of(claims: &Value, name: &str) -> Result<Option<Endpoint>, String> {
    if claims.get(name).is_some() {
        return Ok(None);
    }
    let Some(names) = claims.get("_claim_names") else { return Ok(None) };
    let names: HashMap<String, String> = serde_json::from_value(names.clone())
        .map_err(|error| format!("oidc: error parsing distributed claim names: {error}"))?;
    let sources = claims.get("_claim_sources").ok_or("oidc: no claim sources")?;
    let mut sources: HashMap<String, Endpoint> =
        serde_json::from_value(sources.clone()).map_err(|error| {
            // the error itself may quote a token
            format!("oidc: could not parse claim sources: column {}", error.column())
        })?;
    let Some(source) = names.get(name) else { return Ok(None) };
    let found = sources.remove(source).ok_or_else(|| {
        format!("id token _claim_names contained a source {source} missing in _claims_sources")
    })?;
    Ok(Some(found).filter(|found| !found.endpoint.is_empty()))
}

/// Looks up the claim of one authenticator.
pub(super) struct DistributedClaim {
    /// The claim.
    name: String,
    audiences: Vec<String>,
    algorithms: Vec<String>,
    authority: String,
    tls: Tls,
    /// The issuers of tokens that endpoints gave.
    providers: Mutex<HashMap<String, Arc<Provider>>>,
}

impl DistributedClaim {
    /// Looks up that claim for an issuer, whose CA the endpoints have too.
    pub(super) fn new(
        name: &str,
        issuer: &Issuer,
        algorithms: &[String],
    ) -> Result<DistributedClaim, String> {
        let authority = issuer.certificate_authority.clone();
        let own = Some(authority.as_bytes()).filter(|authority| !authority.is_empty());
        Ok(DistributedClaim {
            name: name.to_owned(),
            audiences: issuer.audiences.clone(),
            algorithms: algorithms.to_vec(),
            tls: Arc::new(tls::client(own, false, None)?),
            authority,
            providers: Mutex::default(),
        })
    }

    /// The claim that is looked up.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The value of the claim, if verified claims say that it is elsewhere.
    pub(super) async fn value(&self, claims: &Value, now: i64) -> Result<Option<Value>, String> {
        let failed = |why: String| format!("could not expand distributed claims: {why}");
        match endpoint_of(claims, &self.name).map_err(failed)? {
            None => Ok(None),
            Some(endpoint) => self.resolve(&endpoint, now).await.map(Some).map_err(failed),
        }
    }

    async fn resolve(&self, endpoint: &Endpoint, now: i64) -> Result<Value, String> {
        let (name, url) = (&self.name, &endpoint.endpoint);
        let text = self.fetch(endpoint).await;
        let text =
            text.map_err(|why| format!("while getting distributed claim {name:?}: {why}"))?;
        let token = Token::read(text.trim()).map_err(|why| {
            format!("getting untrusted issuer from endpoint {url} failed for claim {name:?}: {why}")
        })?;
        let failed = |why: &dyn std::fmt::Display| format!("verify distributed claim token: {why}");
        let issuer = token.untrusted_issuer();
        token.check_algorithm(&self.algorithms).map_err(|why| failed(&why))?;
        check_claims(token.unverified(), issuer, &self.audiences, now)
            .map_err(|why| failed(&why))?;
        let provider = self.provider(issuer)?;
        let known = provider.keys();
        let verified = known.as_ref().and_then(|(keys, _)| token.verify(keys).ok());
        let newer;
        let claims = match verified {
            Some(claims) => claims,
            None => {
                let generation = known.as_ref().map(|(_, generation)| *generation);
                newer = provider.newer_keys(generation).await;
                match &newer {
                    Some(keys) => token.verify(keys).map_err(|why| failed(&why))?,
                    None if known.is_none() => {
                        return Err(format!(
                            "verifying untrusted issuer {issuer} failed: verifier not initialized \
                             for issuer: {issuer:?}"
                        ));
                    }
                    None => return Err(failed(&super::keys::Error::Signature)),
                }
            }
        };
        claims.get(name).cloned().ok_or_else(|| {
            format!(
                "jwt returned by distributed claim endpoint {url:?} did not contain claim: {name}"
            )
        })
    }

    async fn fetch(&self, endpoint: &Endpoint) -> Result<String, String> {
        // the access token is not for anybody to read
        if !endpoint.endpoint.starts_with("https://") {
            return Err(format!("{:?} is not https", endpoint.endpoint));
        }
        let token = Some(endpoint.access_token.as_str()).filter(|token| !token.is_empty());
        let answer = remote::get(&endpoint.endpoint, token, &self.tls, TIMEOUT).await?;
        match answer.code {
            200..=226 => String::from_utf8(answer.body.into())
                .map_err(|_| "could not decode distributed claim response".to_owned()),
            code => Err(format!("error while getting distributed claim JWT: {code}")),
        }
    }

    fn provider(&self, issuer: &str) -> Result<Arc<Provider>, String> {
        let mut providers = self.providers.lock();
        if let Some(known) = providers.get(issuer) {
            return Ok(Arc::clone(known));
        }
        if !issuer.starts_with("https://") {
            return Err(format!("verifying untrusted issuer {issuer} failed: it is not https"));
        }
        let described = Issuer {
            url: issuer.to_owned(),
            certificate_authority: self.authority.clone(),
            ..Issuer::default()
        };
        let made = Arc::new(Provider::new(&described)?);
        if providers.len() >= MAX_ISSUERS {
            providers.clear();
        }
        providers.insert(issuer.to_owned(), Arc::clone(&made));
        Ok(made)
    }

    /// The issuers whose keys are old.
    pub(super) fn due(&self) -> Vec<Arc<Provider>> {
        self.providers.lock().values().filter(|one| one.is_due()).cloned().collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn jwt_distributed_claims_have_endpoints() {
        let of = |claims: Value| endpoint_of(&claims, "groups");
        let sources =
            json!({"s": {"endpoint": "https://e", "access_token": "t"}, "a": {"JWT": "x"}});
        let named =
            |source: &str| json!({"_claim_names": {"groups": source}, "_claim_sources": sources});
        let found = of(named("s")).unwrap().unwrap();
        assert_eq!((found.endpoint.as_str(), found.access_token.as_str()), ("https://e", "t"));
        let mut own = named("s");
        own["groups"] = json!(["a"]);
        for none in
            [own, named("a"), json!({}), json!({"_claim_names": {"x": "s"}, "_claim_sources": {}})]
        {
            assert_eq!(of(none.clone()), Ok(None), "{none}");
        }
        for (claims, why) in [
            (named("other"), "contained a source other missing in _claims_sources"),
            (json!({"_claim_names": {"groups": "s"}}), "no claim sources"),
            (json!({"_claim_names": ["s3cret"]}), "error parsing distributed claim names"),
            (
                json!({"_claim_names": {"groups": "s"}, "_claim_sources": {"s": {"access_token": 1}}}),
                "could not parse claim sources",
            ),
        ] {
            let error = of(claims).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
