//! Bootstrap tokens, with which a node requests its first certificate: secrets in the namespace
//! `kube-system` with the token, its groups and its expiration.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;
use subtle::ConstantTimeEq;

use crate::object;
use crate::schema::value::text;
use crate::user::User;

/// The namespace of the secrets.
pub(super) const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";
/// What a name of a group may have besides letters and digits of ASCII, in lower case.
const MAX_GROUP: usize = 256;

/// A bearer token that has the form of a bootstrap token: `abcdef.0123456789abcdef`.
pub(super) struct BootstrapToken<'a> {
    id: &'a str,
    secret: &'a str,
}

impl<'a> BootstrapToken<'a> {
    pub(super) fn parse(token: &'a str) -> Option<BootstrapToken<'a>> {
        let (id, secret) = token.split_once('.')?;
        let is = |text: &str, length| {
            text.len() == length
                && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        (is(id, 6) && is(secret, 16)).then_some(BootstrapToken { id, secret })
    }

    /// The name of its secret.
    pub(super) fn secret_name(&self) -> String {
        format!("bootstrap-token-{}", self.id)
    }

    /// The user of the token at `now`, according to its secret, or why it is not valid.
    pub(super) fn validate(&self, secret: &Value, now: Timestamp) -> Result<User, &'static str> {
        if object::is_deleting(secret) {
            return Err("its secret is being deleted");
        }
        if secret["type"] != TYPE {
            return Err("its secret is of another type");
        }
        let field = |key: &str| STANDARD.decode(text(&secret["data"][key])).unwrap_or_default();
        if !bool::from(field("token-secret").ct_eq(self.secret.as_bytes())) {
            return Err("it is not the one of its secret");
        }
        if field("token-id") != self.id.as_bytes() {
            return Err("its secret has another id");
        }
        let readable =
            |key| String::from_utf8(field(key)).map_err(|_| "its secret is not readable");
        let expiration = readable("expiration")?;
        if !expiration.is_empty() {
            match expiration.parse::<Timestamp>() {
                Ok(end) if end > now => {}
                Ok(_) => return Err("it has expired"),
                Err(_) => return Err("its expiration cannot be read"),
            }
        }
        if field("usage-bootstrap-authentication") != b"true" {
            return Err("it is not for authentication");
        }
        let mut groups = vec![GROUP.to_owned()];
        let extra = readable("auth-extra-groups")?;
        for group in extra.split(',').filter(|_| !extra.is_empty()) {
            if !is_group(group) {
                return Err("its secret names a group outside of system:bootstrappers:");
            }
            if !groups.iter().any(|known| known == group) {
                groups.push(group.to_owned());
            }
        }
        groups.sort();
        Ok(User::authenticated(format!("system:bootstrap:{}", self.id), groups))
    }
}

/// `system:bootstrappers:` and lower-case letters, digits, `:` and `-`, of which the last two may not end it.
fn is_group(group: &str) -> bool {
    let Some(name) = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')) else {
        return false;
    };
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= MAX_GROUP
        && name.bytes().last().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(byte) || b":-".contains(&byte))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(change: &[(&str, &str)]) -> Value {
        let mut secret =
            json!({"type": TYPE, "metadata": {"name": "bootstrap-token-abcdef"}, "data": {}});
        let good = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
        ];
        for (key, value) in good.iter().chain(change) {
            secret["data"][*key] = STANDARD.encode(value).into();
        }
        secret
    }

    fn validate(secret: &Value) -> Result<User, &'static str> {
        let token = BootstrapToken::parse("abcdef.0123456789abcdef").unwrap();
        token.validate(secret, "2026-01-01T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn bootstrap_token_format() {
        for token in [
            "",
            ".",
            "abcdef",
            "abcdef.",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcde",
            "abcdef.0123456789abcdefa",
            "abcdef.0123456789abcde.",
            "abcdé.0123456789abcdef",
            "../../.0123456789abcdef",
        ] {
            assert!(BootstrapToken::parse(token).is_none(), "{token}");
        }
        let token = BootstrapToken::parse("abcdef.0123456789abcdef").unwrap();
        assert_eq!(token.secret_name(), "bootstrap-token-abcdef");
    }

    #[test]
    fn bootstrap_token_valid() {
        let user = validate(&secret(&[])).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(user.groups, ["system:bootstrappers", "system:authenticated"]);
        let kubeadm = "system:bootstrappers:kubeadm:default-node-token";
        let user = validate(&secret(&[
            ("auth-extra-groups", kubeadm),
            ("expiration", "2026-01-01T01:00:01+01:00"),
        ]));
        assert_eq!(user.unwrap().groups, ["system:bootstrappers", kubeadm, "system:authenticated"]);
    }

    #[test]
    fn bootstrap_token_invalid_secrets() {
        for change in [
            ("token-secret", "0123456789abcdee"),
            ("token-secret", ""),
            ("token-secret", "0123456789abcdef0"),
            ("token-id", "abcdee"),
            ("usage-bootstrap-authentication", "True"),
            ("usage-bootstrap-authentication", ""),
            ("expiration", "2026-01-01T00:00:00Z"),
            ("expiration", "2025-01-01T00:00:00Z"),
            ("expiration", "tomorrow"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers"),
            ("auth-extra-groups", "system:bootstrappers:"),
            ("auth-extra-groups", "system:bootstrappers:a-"),
            ("auth-extra-groups", "system:bootstrappers:a,system:masters"),
            ("auth-extra-groups", "system:bootstrappers:a,"),
        ] {
            assert!(validate(&secret(&[change])).is_err(), "{change:?}");
        }
        let mut other = secret(&[]);
        other["type"] = "Opaque".into();
        assert!(validate(&other).is_err());
        let mut deleting = secret(&[]);
        deleting["metadata"]["deletionTimestamp"] = "2025-12-31T23:59:59Z".into();
        assert!(validate(&deleting).is_err());
        for odd in [json!({}), json!(null), json!({"type": TYPE, "data": {"token-secret": "%"}})] {
            assert!(validate(&odd).is_err(), "{odd}");
        }
    }
}
