//! A certificate with its key, as one PEM text, and what can be read off it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use longshore_tls::subject_of;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// What a certificate says, as far as a node asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaf {
    /// The common name: the user.
    pub(super) name: String,
    /// The organizations: the user's groups.
    pub(super) groups: BTreeSet<String>,
    /// The DNS names that it is valid for.
    pub(super) dns: BTreeSet<String>,
    /// The IP addresses that it is valid for.
    pub(super) ips: BTreeSet<IpAddr>,
    /// From when it is good.
    pub(super) from: Timestamp,
    /// Until when it is good.
    pub(super) until: Timestamp,
    /// The certificate itself, and in a pair those that vouch for it, to compare them with others.
    chain: Vec<Vec<u8>>,
}

impl Leaf {
    /// Whether it has ended.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        now > self.until
    }
}

/// Reads the first certificate of a PEM text, whose holder the rest only vouches for.
pub(super) fn leaf(pem: &[u8]) -> Result<Leaf, String> {
    let first = CertificateDer::pem_slice_iter(pem).next();
    let der = first.ok_or("there is no certificate in it")?.map_err(|error| error.to_string())?;
    read(&der)
}

/// Reads a PEM text that has a certificate and its key; the error says what is wrong.
pub(super) fn pair(pem: &[u8]) -> Result<Leaf, String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("its key: {error}"))?;
    let mut read = leaf(pem)?;
    read.chain = chain.iter().map(|certificate| certificate.to_vec()).collect();
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|error| format!("the key is not that of the certificate: {error}"))?;
    Ok(read)
}

fn read(der: &CertificateDer<'_>) -> Result<Leaf, String> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| format!("no certificate: {error}"))?;
    let (name, groups) = subject_of(&certificate);
    let mut leaf = Leaf {
        name: name.unwrap_or_default(),
        groups: groups.into_iter().collect(),
        dns: BTreeSet::new(),
        ips: BTreeSet::new(),
        from: at(certificate.validity().not_before.timestamp())?,
        until: at(certificate.validity().not_after.timestamp())?,
        chain: vec![der.to_vec()],
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::DNSName(dns) => {
                leaf.dns.insert((*dns).to_owned());
            }
            GeneralName::IPAddress(bytes) => leaf.ips.extend(address(bytes)),
            _ => {}
        }
    }
    Ok(leaf)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn at(seconds: i64) -> Result<Timestamp, String> {
    Timestamp::from_second(seconds).map_err(|error| format!("its validity: {error}"))
}
