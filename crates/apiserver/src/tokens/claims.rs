//! What a service account's token says, and whether that holds now.

use serde::{Deserialize, Serialize};

use super::Error;

/// How far clocks may differ (seconds); for so long a token, or what it is bound to, outlives its end.
pub(crate) const LEEWAY: i64 = 60;

/// The claims of a token. Times are Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    /// The audiences.
    #[serde(default, deserialize_with = "one_or_many")]
    pub(crate) aud: Vec<String>,
    /// The end of its life.
    pub(crate) exp: i64,
    /// When it was issued.
    #[serde(default)]
    pub(crate) iat: i64,
    /// The issuer.
    pub(crate) iss: String,
    /// The token's own name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) jti: String,
    /// Whose it is, and what it is bound to.
    #[serde(rename = "kubernetes.io")]
    pub(crate) kubernetes: Kubernetes,
    /// The begin of its life.
    #[serde(default)]
    pub(crate) nbf: i64,
    /// The user.
    pub(crate) sub: String,
}

/// The claim `kubernetes.io`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kubernetes {
    /// The namespace of the account, and of the pod or secret.
    pub(crate) namespace: String,
    /// The node that the token is bound to, or that the pod ran on when the token was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Reference>,
    /// The pod that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Reference>,
    /// The secret that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Reference>,
    /// The account.
    pub(crate) serviceaccount: Reference,
    /// After this time a use of the token shows a client that does not reload it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) warnafter: Option<i64>,
}

/// One life of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    /// Its name.
    #[serde(default)]
    pub(crate) name: String,
    /// Its UID; empty for a node that was gone already.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

impl Claims {
    /// Which of the wanted audiences the token is for, if it was issued by one of `issuers` and is
    /// good at this time (Unix seconds).
    pub(super) fn accept(
        &self,
        issuers: &[String],
        wanted: &[String],
        now: i64,
    ) -> Result<Vec<String>, Error> {
        if !issuers.contains(&self.iss) {
            return Err(Error::Issuer(self.iss.clone()));
        }
        let audiences: Vec<String> =
            wanted.iter().filter(|audience| self.aud.contains(audience)).cloned().collect();
        if audiences.is_empty() {
            return Err(Error::Audience { has: self.aud.clone(), wanted: wanted.to_vec() });
        }
        let (earliest, latest) = (now.saturating_sub(LEEWAY), now.saturating_add(LEEWAY));
        if earliest > self.exp {
            return Err(Error::Expired);
        }
        if latest < self.nbf || latest < self.iat {
            return Err(Error::NotYet);
        }
        Ok(audiences)
    }
}

/// `aud` may be a single text.
fn one_or_many<'de, D: serde::Deserializer<'de>>(source: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(source)? {
        Audience::One(audience) => vec![audience],
        Audience::Many(audiences) => audiences,
    })
}
