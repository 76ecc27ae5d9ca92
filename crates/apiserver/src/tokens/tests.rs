#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use proptest::prelude::*;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::*;

const NOW: i64 = 1_800_000_000;
const API: &str = "https://kubernetes.default.svc.cluster.local";

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A new key on P-256 in a file.
fn key(dir: &Path, name: &str) -> PathBuf {
    write(dir, name, &KeyPair::generate().unwrap().serialize_pem())
}

/// `openssl` with these arguments; standard output.
fn openssl(line: &str, dir: &Path) -> Vec<u8> {
    let output = Command::new("openssl").args(line.split(' ')).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn tokens(config: &TokenConfig, own_key: &Path) -> Tokens {
    Tokens::new(config, own_key.to_owned(), "10.0.0.1:6443").unwrap()
}

fn claims() -> Claims {
    let life = |name: &str| Reference { name: name.into(), uid: format!("{name}-uid") };
    Claims {
        aud: vec![API.into()],
        exp: NOW + 3600,
        iat: NOW,
        iss: API.into(),
        jti: "9a1c".into(),
        kubernetes: Kubernetes {
            namespace: "ns".into(),
            node: Some(life("n1")),
            pod: Some(life("web")),
            secret: None,
            serviceaccount: life("sa"),
            warnafter: Some(NOW + 3607),
        },
        nbf: NOW,
        sub: "system:serviceaccount:ns:sa".into(),
    }
}

fn parts(token: &str) -> [Vec<u8>; 3] {
    let parts: Vec<Vec<u8>> = token.split('.').map(|part| BASE64.decode(part).unwrap()).collect();
    parts.try_into().unwrap()
}

/// A token of any header and payload, with the signature that `key` gives it.
fn forge(key: &SigningKey, header: &Value, payload: &[u8]) -> String {
    let message = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(payload));
    format!("{message}.{}", BASE64.encode(key.sign(message.as_bytes()).unwrap()))
}

#[test]
fn token_claims_are_upstreams() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = tokens(&TokenConfig::default(), &key(dir.path(), "sa.key"));
    let token = tokens.sign(&claims()).unwrap();
    let [header, payload, signature] = parts(&token);
    let kid = tokens.keys[0].id();
    assert_eq!(String::from_utf8(header).unwrap(), format!(r#"{{"alg":"ES256","kid":"{kid}"}}"#));
    assert_eq!(
        String::from_utf8(payload).unwrap(),
        concat!(
            r#"{"aud":["https://kubernetes.default.svc.cluster.local"],"exp":1800003600,"#,
            r#""iat":1800000000,"iss":"https://kubernetes.default.svc.cluster.local","jti":"9a1c","#,
            r#""kubernetes.io":{"namespace":"ns","node":{"name":"n1","uid":"n1-uid"},"#,
            r#""pod":{"name":"web","uid":"web-uid"},"serviceaccount":{"name":"sa","uid":"sa-uid"},"#,
            r#""warnafter":1800003607},"nbf":1800000000,"sub":"system:serviceaccount:ns:sa"}"#,
        )
    );
    assert_eq!(signature.len(), 64);
    let (read, audiences) = tokens.verify(&token, tokens.audiences(), NOW).unwrap();
    assert_eq!((read, audiences), (claims(), vec![API.to_owned()]));
}

/// OpenSSL makes the keys, names them and verifies what they sign.
#[test]
fn token_signing_keys_of_every_type() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    openssl("genrsa -traditional -out rsa1.pem 2048", dir);
    openssl("pkcs8 -topk8 -nocrypt -in rsa1.pem -out rsa8.pem", dir);
    openssl("ecparam -name prime256v1 -genkey -noout -out ec1.pem", dir);
    openssl("pkcs8 -topk8 -nocrypt -in ec1.pem -out ec8.pem", dir);
    openssl("ecparam -name secp384r1 -genkey -noout -out ec384.pem", dir);
    for (name, algorithm) in [
        ("rsa1.pem", "RS256"),
        ("rsa8.pem", "RS256"),
        ("ec1.pem", "ES256"),
        ("ec8.pem", "ES256"),
        ("ec384.pem", "ES384"),
    ] {
        openssl(&format!("pkey -in {name} -pubout -out pub.pem"), dir);
        let spki = openssl("pkey -pubin -in pub.pem -outform DER", dir);
        let config = TokenConfig { key_files: vec![dir.join("pub.pem")], ..TokenConfig::default() };
        let tokens = tokens(&config, &dir.join(name));
        let token = tokens.sign(&claims()).unwrap();
        let header: Value = serde_json::from_slice(&parts(&token)[0]).unwrap();
        let kid = BASE64.encode(Sha256::digest(&spki));
        assert_eq!(header, json!({"alg": algorithm, "kid": kid}), "{name}");
        tokens.verify(&token, &[API.into()], NOW).unwrap();

        let jwk = &tokens.key_set()["keys"][0];
        assert_eq!(
            (&jwk["kid"], &jwk["alg"], &jwk["use"]),
            (&json!(kid), &json!(algorithm), &json!("sig"))
        );
        let decode = |field: &str| BASE64.decode(jwk[field].as_str().unwrap()).unwrap();
        // What the set says of the key is in the key as OpenSSL has it, number by number.
        let fields: &[&str] = if algorithm == "RS256" { &["n", "e"] } else { &["x", "y"] };
        for field in fields {
            let number = decode(field);
            assert!(spki.windows(number.len()).any(|window| window == number), "{name} {field}");
            assert!(algorithm != "RS256" || number[0] != 0, "{name} {field}");
        }
        if algorithm == "RS256" {
            let (message, _) = token.rsplit_once('.').unwrap();
            write(dir, "message", message);
            std::fs::write(dir.join("signature"), &parts(&token)[2]).unwrap();
            openssl("dgst -sha256 -verify pub.pem -signature signature message", dir);
        }
    }
}

#[test]
fn token_signing_key_errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    openssl("genrsa -out short.pem 1024", dir.path());
    openssl("ecparam -name secp521r1 -genkey -noout -out p521.pem", dir.path());
    openssl("genpkey -algorithm ed25519 -out ed.pem", dir.path());
    write(dir.path(), "empty.pem", "");
    for name in ["short.pem", "p521.pem", "ed.pem", "empty.pem", "absent.pem"] {
        let path = dir.path().join(name);
        let error = SigningKey::load(&path).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
        let error = keys::load_public(&path).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn token_validity_and_audience() {
    let dir = tempfile::tempdir().unwrap();
    let config = TokenConfig {
        issuers: vec![API.into(), "https://old".into()],
        audiences: vec!["api".into()],
        ..TokenConfig::default()
    };
    let tokens = tokens(&config, &key(dir.path(), "sa.key"));
    let good = Claims { aud: vec!["api".into(), "vault".into()], ..claims() };
    let at = |exp: i64, nbf: i64| Claims { exp, nbf, iat: nbf, ..good.clone() };
    let audience = |has: &[&str], wanted: &str| {
        Some(Error::Audience {
            has: has.iter().map(|has| has.to_string()).collect(),
            wanted: vec![wanted.into()],
        })
    };
    for (claims, wanted, expected) in [
        (good.clone(), "api", None),
        (good.clone(), "vault", None),
        (good.clone(), "other", audience(&["api", "vault"], "other")),
        (Claims { aud: vec![], ..good.clone() }, "api", audience(&[], "api")),
        (Claims { iss: "https://old".into(), ..good.clone() }, "api", None),
        (Claims { iss: "x".into(), ..good.clone() }, "api", Some(Error::Issuer("x".into()))),
        (Claims { iss: String::new(), ..good.clone() }, "api", Some(Error::Issuer(String::new()))),
        // clocks may differ by a minute
        (at(NOW - 60, NOW - 3600), "api", None),
        (at(NOW - 61, NOW - 3600), "api", Some(Error::Expired)),
        (at(NOW + 3600, NOW + 60), "api", None),
        (at(NOW + 3600, NOW + 61), "api", Some(Error::NotYet)),
        (Claims { iat: NOW + 61, ..good.clone() }, "api", Some(Error::NotYet)),
        (at(i64::MIN, 0), "api", Some(Error::Expired)),
        (at(i64::MAX, i64::MIN), "api", None),
    ] {
        let token = tokens.sign(&claims).unwrap();
        let verified = tokens.verify(&token, &[wanted.into()], NOW);
        assert_eq!(verified.err(), expected, "{claims:?} for {wanted}");
    }
}

#[test]
fn token_forgeries() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = tokens(&TokenConfig::default(), &key(dir.path(), "sa.key"));
    let foreign_key = SigningKey::load(&key(dir.path(), "other.key")).unwrap();
    let (own, kid) = (&tokens.signing, tokens.keys[0].id());
    let good = tokens.sign(&claims()).unwrap();
    let [_, payload, _] = parts(&good);
    let pieces: Vec<&str> = good.split('.').collect();
    let (header, body, signature) = (pieces[0], pieces[1], pieces[2]);
    let admin = String::from_utf8(payload.clone()).unwrap().replace(":sa\"", ":admin\"");
    let encode = |value: Value| BASE64.encode(value.to_string());
    let none = encode(json!({"alg": "none"}));
    let hmac = encode(json!({"alg": "HS256", "kid": kid}));
    for (what, token, expected) in [
        ("no algorithm", format!("{none}.{body}."), Error::NoKey),
        ("no algorithm, signed", format!("{none}.{body}.{signature}"), Error::NoKey),
        ("the public key as a secret", format!("{hmac}.{body}.{signature}"), Error::NoKey),
        (
            "other claims",
            format!("{header}.{}.{signature}", BASE64.encode(&admin)),
            Error::Signature,
        ),
        ("no signature", format!("{header}.{body}."), Error::Signature),
        ("half a signature", format!("{header}.{body}.{}", &signature[..44]), Error::Signature),
        (
            "zeros for a signature",
            format!("{header}.{body}.{}", BASE64.encode([0; 64])),
            Error::Signature,
        ),
        (
            "another's key",
            forge(&foreign_key, &json!({"alg": "ES256", "kid": kid}), &payload),
            Error::Signature,
        ),
        (
            "another's key by its name",
            forge(
                &foreign_key,
                &json!({"alg": "ES256", "kid": foreign_key.public().id()}),
                &payload,
            ),
            Error::NoKey,
        ),
        (
            "another algorithm",
            forge(own, &json!({"alg": "ES384", "kid": kid}), &payload),
            Error::NoKey,
        ),
        (
            "an extension",
            forge(own, &json!({"alg": "ES256", "kid": kid, "crit": ["b64"]}), &payload),
            Error::NotAToken,
        ),
        ("an empty header", format!(".{body}.{signature}"), Error::NotAToken),
        ("a header that is a list", forge(own, &json!(["ES256"]), &payload), Error::NotAToken),
        ("a fourth part", format!("{good}.{signature}"), Error::NotAToken),
        ("two parts", format!("{header}.{body}"), Error::NotAToken),
        ("padding", format!("{good}=="), Error::NotAToken),
        ("a line break", format!("{good}\n"), Error::NotAToken),
        ("JSON", json!({"payload": body, "signature": signature}).to_string(), Error::NotAToken),
        ("nothing", String::new(), Error::NotAToken),
        ("dots", ".".repeat(60_000), Error::NotAToken),
        ("too much", "a".repeat(1 << 20), Error::NotAToken),
        (
            "depth",
            forge(own, &json!({"alg": "ES256"}), "[".repeat(40_000).as_bytes()),
            Error::Claims(String::new()),
        ),
        ("no claims", forge(own, &json!({"alg": "ES256"}), b"{}"), Error::Claims(String::new())),
        (
            "claims that are no text",
            forge(own, &json!({"alg": "ES256"}), b"\xff\xfe"),
            Error::Claims(String::new()),
        ),
    ] {
        let error = tokens.verify(&token, &[API.into()], NOW).expect_err(what);
        let is_as_expected = std::mem::discriminant(&error) == std::mem::discriminant(&expected);
        assert!(is_as_expected, "{what}: {error:?}");
    }
    // A token that does not name its key is tried with each.
    tokens.verify(&forge(own, &json!({"alg": "ES256"}), &payload), &[API.into()], NOW).unwrap();
}

#[test]
fn token_signing_key_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (key(dir.path(), "old.key"), key(dir.path(), "new.key"));
    let before = tokens(&TokenConfig::default(), &old);
    let token = before.sign(&claims()).unwrap();
    let both = TokenConfig { key_files: vec![old, new.clone()], ..TokenConfig::default() };
    let during = tokens(&TokenConfig { signing_key_file: Some(new.clone()), ..both }, &new);
    during.verify(&token, &[API.into()], NOW).unwrap();
    let renewed = during.sign(&claims()).unwrap();
    let after = tokens(&TokenConfig::default(), &new);
    after.verify(&renewed, &[API.into()], NOW).unwrap();
    assert_eq!(after.verify(&token, &[API.into()], NOW), Err(Error::NoKey));
    assert_eq!(during.key_set()["keys"].as_array().unwrap().len(), 2);
}

#[test]
fn token_key_file_with_several_keys() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384]
        .map(|kind| KeyPair::generate_for(kind).unwrap());
    let certificate = rcgen::CertificateParams::default().self_signed(&pairs[1]).unwrap().pem();
    let text = format!("{}{certificate}{}", pairs[0].public_key_pem(), pairs[0].serialize_pem());
    let keys = keys::load_public(&write(dir.path(), "keys.pem", &text)).unwrap();
    let algorithms: Vec<&str> = keys.iter().map(PublicKey::algorithm).collect();
    assert_eq!(algorithms, ["ES256", "ES384", "ES256"]);
    assert_eq!(keys[0].id(), keys[2].id());
}

#[test]
fn token_discovery_requires_an_https_issuer() {
    let dir = tempfile::tempdir().unwrap();
    let key = key(dir.path(), "sa.key");
    let of = |issuer: &str, jwks_uri: Option<&str>| {
        let config = TokenConfig {
            issuers: vec![issuer.into()],
            jwks_uri: jwks_uri.map(str::to_owned),
            ..TokenConfig::default()
        };
        tokens(&config, &key).configuration().cloned()
    };
    assert_eq!(
        of("https://example.com/issuer", None).unwrap(),
        json!({
            "issuer": "https://example.com/issuer",
            "jwks_uri": "https://10.0.0.1:6443/openid/v1/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    );
    assert_eq!(of("https://a", Some("https://b/keys")).unwrap()["jwks_uri"], "https://b/keys");
    for (issuer, jwks_uri) in [
        ("kubernetes/serviceaccount", None),
        ("http://a", None),
        ("https://a?b", None),
        ("https://a#b", None),
        ("https://a", Some("http://b")),
    ] {
        assert_eq!(of(issuer, jwks_uri), None, "{issuer}");
    }
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(text in ".{0,200}", dots in 0usize..5, flip in 0usize..2000, bit in 0u8..8) {
        let dir = tempfile::tempdir().unwrap();
        let tokens = tokens(&TokenConfig::default(), &key(dir.path(), "sa.key"));
        let wanted = [API.to_owned()];
        prop_assert!(tokens.verify(&text, &wanted, NOW).is_err());
        prop_assert!(tokens.verify(&vec![text.as_str(); dots].join("."), &wanted, NOW).is_err());
        // One bit of a good token changed, wherever it is.
        let mut token = tokens.sign(&claims()).unwrap().into_bytes();
        let index = flip % token.len();
        token[index] ^= 1 << bit;
        if let Ok(token) = String::from_utf8(token) {
            prop_assert!(tokens.verify(&token, &wanted, NOW).is_err());
        }
    }
}
