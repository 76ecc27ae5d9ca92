//! Finds out which cluster a token is of, as kubeadm does: the config map `kube-public/cluster-info` has
//! the address and the CA of the cluster. It is read from a server that nothing vouches for yet; then its
//! signature by the token's secret, and the hash of the CA's public key, show that it is the right one,
//! and the CA that the server is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use kube::config::Kubeconfig;
use longshore_tls::{NoVerifier, pem};
use ring::{digest, hmac};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tokens::{Token, printable};
use crate::{Error, Result};

const PATH: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const WHAT: &str = "cannot learn about the cluster";
/// The largest answer that is read.
const MAX_ANSWER: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A cluster, which a token and a hash vouch for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Its apiserver, as `https://HOST:PORT`.
    pub url: String,
    /// Its CA in PEM: the certificates that a hash vouches for, and no other.
    pub ca: String,
}

/// PURE: the hash of a CA's public key, as `sha256:HEX`.
///
/// # Errors
/// The PEM has no certificate.
pub fn hash_of(ca: &str) -> Result<String> {
    hash_of_der(&CertificateDer::from_pem_slice(ca.as_bytes()).map_err(invalid_ca)?)
}

fn invalid_ca(reason: impl std::fmt::Display) -> Error {
    Error::refused(format!("the CA of the cluster: {reason}"))
}

fn hash_of_der(der: &CertificateDer<'_>) -> Result<String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(invalid_ca)?;
    let hash = digest::digest(&digest::SHA256, certificate.public_key().raw);
    let digits: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{digits}"))
}

/// PURE: a hash that was given, in lower case.
///
/// # Errors
/// It is no hash.
pub fn parse_hash(text: &str) -> Result<String> {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Error::refused(format!(
            "--discovery-token-ca-cert-hash: {:?} is not sha256: with 64 hexadecimal digits",
            printable(text)
        )));
    }
    Ok(text.to_ascii_lowercase())
}

/// PURE: of the CA's certificates in PEM those that have one of these hashes. A bundle with one more is
/// what a server would send that wants to pass for the cluster.
///
/// # Errors
/// There is none.
fn pinned(ca: &str, hashes: &[String]) -> Result<String> {
    let (mut pem, mut others) = (String::new(), Vec::new());
    for der in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let der = der.map_err(invalid_ca)?;
        let hash = hash_of_der(&der)?;
        match hashes.contains(&hash) {
            true => pem::append(&mut pem, "CERTIFICATE", &der),
            false => others.push(hash),
        }
    }
    if !pem.is_empty() {
        return Ok(pem);
    }
    others.truncate(4);
    let found = if others.is_empty() { "none".to_owned() } else { others.join(" and ") };
    Err(Error::cluster(
        WHAT,
        format!(
            "its CA has the hash {found}, and not {}: this is another cluster, or the hash is wrong",
            hashes.join(" or ")
        ),
    ))
}

/// PURE: whether a detached JSON web signature of `content` is by the token.
fn is_signed(content: &str, signature: &str, token: &Token) -> bool {
    #[derive(Deserialize)]
    struct Header {
        alg: String,
        kid: String,
    }
    let mut parts = signature.split('.');
    let (Some(header), Some(""), Some(tag), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let named = URL_SAFE_NO_PAD.decode(header).ok();
    let named = named.and_then(|text| serde_json::from_slice::<Header>(&text).ok());
    if !named.is_some_and(|header| header.alg == "HS256" && header.kid == token.id()) {
        return false;
    }
    let Ok(tag) = URL_SAFE_NO_PAD.decode(tag) else { return false };
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret().as_bytes());
    hmac::verify(&key, signed.as_bytes(), &tag).is_ok()
}

/// PURE: the cluster that a config map `cluster-info` is about, if the token has signed it and the CA has
/// one of these hashes.
///
/// # Errors
/// What is wrong with it.
pub fn verified(
    data: &BTreeMap<String, String>,
    token: &Token,
    hashes: &[String],
) -> Result<Cluster> {
    let content = data
        .get("kubeconfig")
        .ok_or_else(|| Error::cluster(WHAT, "its config map cluster-info has no kubeconfig"))?;
    let Some(signature) = data.get(&format!("jws-kubeconfig-{}", token.id())) else {
        return Err(Error::cluster(
            WHAT,
            format!(
                "the token {} is not one of the cluster, or it has expired: create one there with \
                 longshore token create",
                token.id()
            ),
        ));
    };
    if !is_signed(content, signature, token) {
        return Err(Error::cluster(
            WHAT,
            format!(
                "its address and CA are not signed by the token {}: the token is wrong, or this is another server",
                token.id()
            ),
        ));
    }
    let invalid = |reason: String| Error::cluster(WHAT, format!("its kubeconfig: {reason}"));
    let config = Kubeconfig::from_yaml(content).map_err(|error| invalid(error.to_string()))?;
    let cluster = config.clusters.into_iter().next().and_then(|named| named.cluster);
    let cluster = cluster.ok_or_else(|| invalid("it names no cluster".to_owned()))?;
    let url = cluster.server.unwrap_or_default();
    host_and_port(url.strip_prefix("https://").unwrap_or_default())
        .map_err(|_| invalid("its server is not https://HOST:PORT".to_owned()))?;
    let ca = cluster.certificate_authority_data.unwrap_or_default();
    let ca = STANDARD.decode(ca).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let ca = ca.ok_or_else(|| invalid("its CA is not PEM in base 64".to_owned()))?;
    let ca = pinned(&ca, hashes)?;
    Ok(Cluster { url, ca })
}

/// PURE: host (an address without brackets) and port of `HOST:PORT`.
pub(crate) fn host_and_port(text: &str) -> Result<(String, u16)> {
    let invalid = || Error::refused(format!("{:?} is not HOST:PORT", printable(text)));
    let (host, port) = text.trim_end_matches('/').rsplit_once(':').ok_or_else(invalid)?;
    let port: u16 = port.parse().map_err(|_| invalid())?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(invalid)?,
        None if host.contains(':') => return Err(invalid()),
        None => host,
    };
    ServerName::try_from(host).map_err(|_| invalid())?;
    if port == 0 { Err(invalid()) } else { Ok((host.to_owned(), port)) }
}

/// Learns about the cluster whose apiserver is at `server` (`HOST:PORT`).
///
/// # Errors
/// The server cannot be reached, or nothing vouches for it.
pub async fn discover(server: &str, token: &Token, hashes: &[String]) -> Result<Cluster> {
    let provider = Arc::new(default_provider());
    let blind = Trust::Nobody(NoVerifier(provider));
    let cluster = verified(&fetch(server, blind).await?, token, hashes)?;
    let roots = longshore_tls::roots_of(&cluster.ca)
        .map_err(|error| Error::cluster(WHAT, format!("its CA: {error}")))?;
    let again = verified(&fetch(server, Trust::Roots(roots)).await?, token, hashes)?;
    if again == cluster {
        Ok(cluster)
    } else {
        Err(Error::cluster(WHAT, format!("{server} says different things about it")))
    }
}

enum Trust {
    Nobody(NoVerifier),
    Roots(RootCertStore),
}

/// The data of the config map.
async fn fetch(server: &str, trust: Trust) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        data: BTreeMap<String, String>,
    }
    let failed = |reason: String| Error::cluster(WHAT, format!("{server}: {reason}"));
    let (status, body) = tokio::time::timeout(TIMEOUT, get(server, trust))
        .await
        .map_err(|_| failed(format!("no answer in {TIMEOUT:?}")))?
        .map_err(|error| failed(error.to_string()))?;
    match status {
        200 => {
            let answer: std::result::Result<Answer, _> = serde_json::from_slice(&body);
            answer
                .map(|answer| answer.data)
                .map_err(|_| failed("it is not an apiserver".to_owned()))
        }
        401 | 403 => {
            Err(failed("it does not show cluster-info to those who have not joined".to_owned()))
        }
        404 => Err(failed("it has no config map cluster-info in kube-public".to_owned())),
        other => Err(failed(format!("it answers with status {other}"))),
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn get(server: &str, trust: Trust) -> std::result::Result<(u16, Bytes), Failure> {
    let (host, port) = host_and_port(server)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    let config = match trust {
        Trust::Nobody(verifier) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth(),
        Trust::Roots(roots) => builder.with_root_certificates(roots).with_no_client_auth(),
    };
    let name = ServerName::try_from(host.clone())?;
    let connection = TcpStream::connect((host.as_str(), port)).await?;
    let connection = TlsConnector::from(Arc::new(config)).connect(name, connection).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(connection)).await?;
    let driver = tokio::spawn(connection);
    let request = Request::get(PATH)
        .header("host", server)
        .header("accept", "application/json")
        .body(Empty::<Bytes>::new())?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await?;
        Ok::<_, Failure>((status, body.to_bytes()))
    };
    let answer = answer.await;
    driver.abort();
    answer
}

#[cfg(test)]
mod tests {
    use longshore_tls::testing::Authority;
    use proptest::prelude::*;

    use super::*;

    fn token() -> Token {
        Token::parse("abcdef.0123456789abcdef").unwrap()
    }

    fn sign(content: &str, header: &str, secret: &str) -> String {
        let header = URL_SAFE_NO_PAD.encode(header);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        format!("{header}..{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
    }

    const HEADER: &str = r#"{"alg":"HS256","kid":"abcdef"}"#;

    fn kubeconfig(server: &str, ca: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: {server}\n    \
             certificate-authority-data: {}\n",
            STANDARD.encode(ca)
        )
    }

    fn info(content: &str, signature: &str) -> BTreeMap<String, String> {
        [("kubeconfig", content), ("jws-kubeconfig-abcdef", signature)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn discovery_takes_what_token_and_hash_vouch_for_and_nothing_else() {
        let ca = std::fs::read_to_string(Authority::default().path()).unwrap();
        let other = std::fs::read_to_string(Authority::default().path()).unwrap();
        let (hash, wrong) = (hash_of(&ca).unwrap(), hash_of(&other).unwrap());
        let content = kubeconfig("https://198.18.1.2:6443", &ca);
        let good = info(&content, &sign(&content, HEADER, token().secret()));
        let cluster = verified(&good, &token(), &[wrong.clone(), hash.clone()]).unwrap();
        assert_eq!(cluster, Cluster { url: "https://198.18.1.2:6443".into(), ca: ca.clone() });
        // Of a bundle only what a hash vouches for is the cluster's CA, wherever it stands.
        for bundle in [format!("{ca}{other}"), format!("{other}{ca}")] {
            let content = kubeconfig("https://198.18.1.2:6443", &bundle);
            let data = info(&content, &sign(&content, HEADER, token().secret()));
            let cluster = verified(&data, &token(), std::slice::from_ref(&hash)).unwrap();
            assert_eq!(hash_of(&cluster.ca).unwrap(), hash);
            assert_eq!(cluster.ca.matches("BEGIN CERTIFICATE").count(), 1);
        }
        let fails = |data: &BTreeMap<String, String>, hashes: &[String], part: &str| {
            let error = verified(data, &token(), hashes).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        };
        let hashes = [hash.clone()];
        fails(&good, &[wrong], &hash);
        fails(&good, &[], "this is another cluster");
        fails(&BTreeMap::new(), &hashes, "no kubeconfig");
        let mut unsigned = good.clone();
        unsigned.remove("jws-kubeconfig-abcdef");
        fails(&unsigned, &hashes, "expired");
        for (header, secret) in [
            (HEADER, "0123456789abcdee"),
            (r#"{"alg":"none","kid":"abcdef"}"#, "0123456789abcdef"),
            (r#"{"alg":"HS256","kid":"abcdee"}"#, "0123456789abcdef"),
            ("{}", "0123456789abcdef"),
        ] {
            fails(&info(&content, &sign(&content, header, secret)), &hashes, "not signed");
        }
        let replaced = kubeconfig("https://198.18.1.3:6443", &ca);
        fails(&info(&replaced, &sign(&content, HEADER, token().secret())), &hashes, "not signed");
        for content in [
            "".to_owned(),
            "{}".to_owned(),
            "- a".to_owned(),
            kubeconfig("http://198.18.1.2:6443", &ca),
            kubeconfig("https://198.18.1.2", &ca),
            kubeconfig("https://a:1", "no certificate"),
        ] {
            let data = info(&content, &sign(&content, HEADER, token().secret()));
            assert!(verified(&data, &token(), &hashes).is_err(), "{content}");
        }
    }

    #[test]
    fn discovery_hashes_are_those_of_kubeadm() {
        let ca = std::fs::read_to_string(Authority::default().path()).unwrap();
        let hash = hash_of(&ca).unwrap();
        assert_eq!(parse_hash(&hash.to_ascii_lowercase()).unwrap(), hash);
        let upper = format!("sha256:{}", hash[7..].to_ascii_uppercase());
        assert_eq!(parse_hash(&upper).unwrap(), hash);
        for text in [
            "",
            "sha256:",
            "sha256:00",
            &hash[7..],
            &format!("{hash}0"),
            &format!("md5:{}", &hash[7..]),
        ] {
            assert!(parse_hash(text).is_err(), "{text}");
        }
        assert!(hash_of("").is_err());
    }

    #[test]
    fn discovery_addresses() {
        for (text, host, port) in [
            ("a.b:1", "a.b", 1),
            ("198.18.1.2:6443", "198.18.1.2", 6443),
            ("[::1]:6443", "::1", 6443),
        ] {
            assert_eq!(host_and_port(text).unwrap(), (host.to_owned(), port));
        }
        for text in
            ["", "a", "a:", ":1", "a:0", "a:65536", "::1:6443", "[::1:6443", "a b:1", "https://a:1"]
        {
            assert!(host_and_port(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn discovery_survives_any_answer(content in ".{0,200}", signature in ".{0,100}") {
            let _ = verified(&info(&content, &signature), &token(), &[]);
            prop_assert!(!is_signed(&content, &signature, &token()));
        }
    }
}
