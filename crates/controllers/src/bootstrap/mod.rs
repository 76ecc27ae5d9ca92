//! Bootstrap tokens, with which nodes join: the config map `kube-public/cluster-info` is signed with
//! each, and those that have ended are deleted.

pub(crate) mod signer;
pub(crate) mod token_cleaner;

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use longshore_informer::{Informer, Options};

use crate::Context;

const TYPE: &str = "bootstrap.kubernetes.io/token";
const NAMESPACE: &str = "kube-system";
const PREFIX: &str = "bootstrap-token-";
const ID_LENGTH: usize = 6;

/// The secrets of tokens, and no others.
fn tokens(context: &Context) -> Informer<Secret> {
    let fields = Some(format!("metadata.namespace={NAMESPACE},type={TYPE}"));
    Informer::start(context.informers.client(), Options { fields, ..Options::default() })
}

/// A text of the secret's data; empty when it is absent.
fn text<'a>(secret: &'a Secret, key: &str) -> &'a str {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    bytes.and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).unwrap_or_default()
}

/// How long a token is valid.
#[derive(Debug, PartialEq)]
enum Life {
    Unlimited,
    Left(Duration),
    Over,
}

/// PURE: how long the token is valid; one whose end cannot be read is over.
fn life(secret: &Secret, now: Timestamp) -> Life {
    match text(secret, "expiration") {
        "" => Life::Unlimited,
        end => match end.parse::<Timestamp>() {
            Ok(end) if end > now => {
                Life::Left(Duration::try_from(end.duration_since(now)).unwrap_or_default())
            }
            _ => Life::Over,
        },
    }
}
