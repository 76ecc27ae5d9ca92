//! Bootstrap tokens: secrets in `kube-system` by which a machine proves that it may join, and by which it
//! knows that it has found the right cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde::Serialize;

use crate::{Error, Result};

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";
/// The group that may request certificates of nodes, as kubeadm names it.
pub(crate) const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const ID: usize = 6;
const SECRET: usize = 16;
const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// A hundred years.
const LONGEST: Duration = Duration::from_secs(100 * 8766 * 3600);

/// A token, `abcdef.0123456789abcdef`: an id that may be shown and a secret that may not.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}.…)", self.id)
    }
}

impl Token {
    /// PURE.
    ///
    /// # Errors
    /// The text is no token; the error does not repeat it.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = || {
            Error::refused(
                "the token must be of the form abcdef.0123456789abcdef: 6 and 16 lower-case letters and digits",
            )
        };
        let (id, secret) = text.split_once('.').ok_or_else(invalid)?;
        if !is_part(id, ID) || !is_part(secret, SECRET) {
            return Err(invalid());
        }
        Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// A random one.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn random() -> Result<Self> {
        Ok(Self { id: letters(ID)?, secret: letters(SECRET)? })
    }

    /// The public part.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The secret part.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// All of it, to be shown to the administrator.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// PURE: the secret that is this token for the cluster.
    pub fn object(&self, expiration: Option<Timestamp>, description: &str) -> Secret {
        let mut data: BTreeMap<String, String> = [
            ("token-id", self.id.as_str()),
            ("token-secret", self.secret.as_str()),
            ("usage-bootstrap-authentication", "true"),
            ("usage-bootstrap-signing", "true"),
            ("auth-extra-groups", GROUP),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        if let Some(end) = expiration {
            // whole seconds, as in upstream's
            let end = Timestamp::from_second(end.as_second()).unwrap_or(end);
            data.insert("expiration".to_owned(), end.to_string());
        }
        if !description.is_empty() {
            data.insert("description".to_owned(), description.to_owned());
        }
        let mut secret = Secret {
            type_: Some(TYPE.to_owned()),
            data: Some(
                data.into_iter()
                    .map(|(key, value)| (key, ByteString(value.into_bytes())))
                    .collect(),
            ),
            ..Secret::default()
        };
        secret.metadata.name = Some(format!("{PREFIX}{}", self.id));
        secret.metadata.namespace = Some(NAMESPACE.to_owned());
        secret
    }
}

fn is_part(text: &str, length: usize) -> bool {
    text.len() == length
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Random letters without bias.
fn letters(count: usize) -> Result<String> {
    let mut text = String::with_capacity(count);
    while text.len() < count {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::refused(format!("no random numbers: {error}")))?;
        let fair = bytes.iter().filter(|byte| usize::from(**byte) < 252);
        let found = fair.filter_map(|byte| LETTERS.get(usize::from(*byte) % LETTERS.len()));
        text.extend(found.take(count - text.len()).map(|letter| char::from(*letter)));
    }
    Ok(text)
}

/// What is shown of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// All of it; an administrator may read the secrets anyway.
    pub token: String,
    /// When it ends; `None`: never.
    pub expires: Option<String>,
    /// How long that is from now, in seconds; 0: it is over.
    pub seconds_left: Option<i64>,
    /// What it may be used for.
    pub usages: Vec<String>,
    /// What it is for.
    pub description: String,
    /// Groups of its user.
    pub groups: Vec<String>,
}

/// PURE: what is shown of a secret; `None`: it is no token.
pub fn listed(secret: &Secret, now: Timestamp) -> Option<Listed> {
    let field = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
    };
    let token = Token::parse(&format!("{}.{}", field("token-id"), field("token-secret"))).ok()?;
    if secret.type_.as_deref() != Some(TYPE) {
        return None;
    }
    let expires = Some(field("expiration")).filter(|text| !text.is_empty());
    let seconds_left = expires.as_ref().map(|text| match text.parse::<Timestamp>() {
        Ok(end) => end.as_second().saturating_sub(now.as_second()).max(0),
        Err(_) => 0,
    });
    let usages = secret.data.iter().flatten().filter_map(|(key, value)| {
        (value.0 == b"true")
            .then(|| key.strip_prefix("usage-bootstrap-").map(str::to_owned))
            .flatten()
    });
    Some(Listed {
        token: token.reveal(),
        expires,
        seconds_left,
        usages: usages.collect(),
        description: printable(&field("description")),
        groups: field("auth-extra-groups")
            .split(',')
            .filter(|group| !group.is_empty())
            .map(printable)
            .collect(),
    })
}

/// What others wrote must not steer a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// PURE: the table of tokens.
pub fn table(tokens: &[Listed]) -> String {
    let rows = tokens.iter().map(|token| {
        let left = match token.seconds_left {
            None => "<forever>".to_owned(),
            Some(0) => "<expired>".to_owned(),
            Some(seconds) => short(seconds),
        };
        [
            token.token.clone(),
            left,
            token.expires.clone().map_or_else(|| "<never>".to_owned(), |text| printable(&text)),
            token.usages.join(","),
            token.description.clone(),
        ]
    });
    let head = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION"].map(str::to_owned);
    columns(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// PURE: rows with columns below each other.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A time as people say it, in the largest unit that fits.
pub(crate) fn short(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// PURE: when a token of this time to live ends; `None`: never.
pub fn expiration(ttl: Duration, now: Timestamp) -> Result<Option<Timestamp>> {
    if ttl.is_zero() {
        return Ok(None);
    }
    let long =
        || Error::refused("--ttl: a token is valid for a hundred years at most; 0 is for ever");
    let ttl = SignedDuration::try_from(ttl.min(LONGEST).max(Duration::from_secs(1)))
        .map_err(|_| long())
        .and_then(|kept| if ttl > LONGEST { Err(long()) } else { Ok(kept) })?;
    now.checked_add(ttl).map(Some).map_err(|_| long())
}

/// Creates a token.
pub async fn create(
    client: &Client,
    token: &Token,
    ttl: Duration,
    description: &str,
) -> Result<()> {
    let object = token.object(expiration(ttl, Timestamp::now())?, description);
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            Err(Error::refused(format!("there is a token {} already", token.id())))
        }
        Err(error) => Err(Error::api("cannot create the token", &error)),
    }
}

/// All tokens.
pub async fn list(client: &Client) -> Result<Vec<Listed>> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let parameters = ListParams::default().fields(&format!("type={TYPE}"));
    let found = api.list(&parameters).await;
    let found = found.map_err(|error| Error::api("cannot list the tokens", &error))?;
    let now = Timestamp::now();
    Ok(found.items.iter().filter_map(|secret| listed(secret, now)).collect())
}

/// Deletes the token with this id, or this token.
pub async fn delete(client: &Client, name: &str) -> Result<()> {
    let id = name.split('.').next().unwrap_or_default();
    if !is_part(id, ID) {
        return Err(Error::refused(format!("{:?} is not a token or the id of one", printable(id))));
    }
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = format!("{PREFIX}{id}");
    let found = api.get_opt(&secret).await;
    let found = found.map_err(|error| Error::api("cannot read the token", &error))?;
    match found.filter(|secret| secret.type_.as_deref() == Some(TYPE)) {
        None => Err(Error::refused(format!("there is no token {id}"))),
        Some(found) => match api.delete(&found.name_any(), &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::api("cannot delete the token", &error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    #[test]
    fn token_format() {
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        assert_eq!((token.id(), token.secret()), ("abcdef", "0123456789abcdef"));
        assert!(!format!("{token:?}").contains("0123"));
        for text in [
            "",
            ".",
            "abcdef",
            "abcdef.",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcde",
            "abcdef.0123456789abcdef0",
            "abcdé.0123456789abcdef",
            "abcdef.0123456789abcde.",
        ] {
            assert!(Token::parse(text).is_err(), "{text}");
        }
        let error = Token::parse("zyxwvu.9876543210zyxwv").unwrap_err().to_string();
        assert!(!error.contains("zyxwvu") && !error.contains("98765"), "{error}");
    }

    #[test]
    fn tokens_that_are_random_are_valid_and_differ() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(one, other);
        assert_eq!(Token::parse(&one.reveal()).unwrap(), one);
    }

    #[test]
    fn tokens_are_listed_as_they_were_created() {
        let now: Timestamp = NOW.parse().unwrap();
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let end = expiration(Duration::from_secs(86_400), now).unwrap();
        let shown = listed(&token.object(end, "for\x1b[2J tests"), now).unwrap();
        assert_eq!(shown.token, token.reveal());
        assert_eq!(shown.expires.as_deref(), Some("2026-01-02T00:00:00Z"));
        assert_eq!(shown.seconds_left, Some(86_400));
        assert_eq!(shown.usages, ["authentication", "signing"]);
        assert_eq!(shown.groups, [GROUP]);
        let shown = [shown, listed(&token.object(None, ""), now).unwrap()];
        let text = table(&shown);
        assert!(text.contains("24h") && text.contains("<forever>"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        let other = Secret { type_: Some("Opaque".into()), ..token.object(None, "") };
        assert_eq!(listed(&other, now), None);
        assert_eq!(listed(&Secret::default(), now), None);
    }

    #[test]
    fn tokens_end_when_their_time_is_over_or_cannot_be_read() {
        let now: Timestamp = NOW.parse().unwrap();
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        for end in ["2025-12-31T23:59:59Z", NOW, "tomorrow"] {
            let mut secret = token.object(None, "");
            let data = secret.data.as_mut().unwrap();
            data.insert("expiration".into(), ByteString(end.as_bytes().to_vec()));
            assert_eq!(listed(&secret, now).unwrap().seconds_left, Some(0), "{end}");
        }
    }

    #[test]
    fn tokens_have_a_longest_life() {
        let now: Timestamp = NOW.parse().unwrap();
        assert_eq!(expiration(Duration::ZERO, now).unwrap(), None);
        assert!(expiration(LONGEST, now).unwrap().is_some());
        assert!(expiration(Duration::MAX, now).is_err());
        assert!(expiration(LONGEST.saturating_add(Duration::from_secs(1)), now).is_err());
    }

    proptest! {
        #[test]
        fn token_parser_takes_nothing_else(text in ".{0,30}") {
            if let Ok(token) = Token::parse(&text) {
                prop_assert_eq!(token.reveal(), text);
            }
        }
    }
}
