//! Credentials for registries, as the engine takes them.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use longshore_cri::v1::AuthConfig;
use serde_json::{Map, Value};

/// The value of the engine's header `X-Registry-Auth` for a pull from that registry; `None` without
/// credentials, and where they are for another registry.
///
/// bollard's own way of this header is not used: it has the standard alphabet of base64, while the engine
/// reads the URL-safe one, and takes what it cannot read for no credentials.
///
/// # Errors
/// Why they are invalid; the text has no part of them.
pub(super) fn header(auth: &AuthConfig, registry: &str) -> Result<Option<String>, &'static str> {
    if !auth.server_address.is_empty() && host(&auth.server_address) != canonical(registry) {
        return Ok(None);
    }
    let (username, password) = match auth.username.is_empty() && !auth.auth.is_empty() {
        true => decoded(&auth.auth)?,
        false => (auth.username.clone(), auth.password.clone()),
    };
    let fields = [
        ("username", username),
        ("password", password),
        ("identitytoken", auth.identity_token.clone()),
        ("registrytoken", auth.registry_token.clone()),
    ];
    let mut fields: Map<String, Value> = fields
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_owned(), Value::String(value)))
        .collect();
    if fields.is_empty() {
        return Ok(None);
    }
    fields.insert("serveraddress".to_owned(), auth.server_address.clone().into());
    Ok(Some(URL_SAFE.encode(Value::Object(fields).to_string())))
}

/// User and password of an `auth` field: base64 of both with a colon between.
fn decoded(auth: &str) -> Result<(String, String), &'static str> {
    let decoded = STANDARD.decode(auth).or_else(|_| STANDARD_NO_PAD.decode(auth));
    let text = decoded.map_err(|_| "the field auth is not base64")?;
    let text = String::from_utf8(text).map_err(|_| "the field auth is not UTF-8")?;
    let (user, password) = text.split_once(':').ok_or("the field auth has no colon")?;
    // as containerd does: some writers pad it
    Ok((user.to_owned(), password.trim_matches('\0').to_owned()))
}

/// The host of a server's address, which may be a URL.
fn host(address: &str) -> &str {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    canonical(address.split('/').next().unwrap_or_default())
}

/// Docker Hub has several names.
fn canonical(host: &str) -> &str {
    match host {
        "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com" => "docker.io",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn auth() -> AuthConfig {
        AuthConfig::default()
    }

    #[test]
    fn credentials_of_every_kind_are_passed_on() {
        let words = |username: &str, password: &str| AuthConfig {
            username: username.to_owned(),
            password: password.to_owned(),
            ..auth()
        };
        let encoded = |auth: &str| AuthConfig { auth: auth.to_owned(), ..AuthConfig::default() };
        let server = |auth: AuthConfig, address: &str| AuthConfig {
            server_address: address.to_owned(),
            ..auth
        };
        let user = json!({"username": "user", "password": "p:w?~", "serveraddress": ""});
        let at = |address: &str| {
            let mut user = user.clone();
            user["serveraddress"] = address.into();
            Some(user)
        };
        let identity = AuthConfig { identity_token: "id".to_owned(), ..auth() };
        let token = AuthConfig { registry_token: "tok".to_owned(), ..auth() };
        for (name, auth, registry, expected) in [
            ("nothing", auth(), "x.y", None),
            ("words", words("user", "p:w?~"), "x.y", Some(user.clone())),
            ("auth", encoded(&STANDARD.encode("user:p:w?~\0\0")), "x.y", Some(user.clone())),
            (
                "words before auth",
                AuthConfig { auth: "??".to_owned(), ..words("user", "p:w?~") },
                "x.y",
                Some(user.clone()),
            ),
            (
                "identity",
                identity,
                "x.y",
                Some(json!({"identitytoken": "id", "serveraddress": ""})),
            ),
            ("token", token, "x.y", Some(json!({"registrytoken": "tok", "serveraddress": ""}))),
            (
                "server",
                server(words("user", "p:w?~"), "https://x.y:1/v1/"),
                "x.y:1",
                at("https://x.y:1/v1/"),
            ),
            ("host", server(words("user", "p:w?~"), "x.y:1"), "x.y:1", at("x.y:1")),
            (
                "hub",
                server(words("user", "p:w?~"), "https://index.docker.io/v1/"),
                "docker.io",
                at("https://index.docker.io/v1/"),
            ),
            ("another server", server(words("user", "p:w?~"), "x.y"), "x.y:1", None),
            ("another host", server(encoded("??"), "x.y.z"), "x.y", None),
        ] {
            let header = header(&auth, registry).unwrap();
            let read = header.map(|header| {
                serde_json::from_slice::<Value>(&URL_SAFE.decode(header).unwrap()).unwrap()
            });
            assert_eq!(read, expected, "{name}");
        }
        for (text, expected) in [
            ("??", "the field auth is not base64"),
            ("//79", "the field auth is not UTF-8"),
            ("dXNlcg==", "the field auth has no colon"),
        ] {
            assert_eq!(header(&encoded(text), "x.y"), Err(expected));
        }
    }
}
