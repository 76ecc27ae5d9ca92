//! Which certificate is shown to a client that asks for a name: `--tls-sni-cert-key`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use longshore_tls::names_of;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

/// A pair of files, and the names that it is shown for: `FILE,FILE[:NAME,…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SniCertificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Domains, also such as `*.example.com`, and addresses; empty: the names in the certificate.
    pub names: Vec<String>,
}

/// Why a text names no such pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSniCertificate {
    /// There are not two files.
    #[error("expected comma separated certificate and key file paths")]
    Files,
    /// There is a colon, and no name after it.
    #[error("empty names list is not allowed")]
    Names,
}

impl FromStr for SniCertificate {
    type Err = InvalidSniCertificate;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (files, names) = match text.split_once(':') {
            Some((_, names)) if names.trim().is_empty() => {
                return Err(InvalidSniCertificate::Names);
            }
            Some((files, names)) => {
                (files, names.split(',').map(|name| name.trim().to_owned()).collect())
            }
            None => (text, Vec::new()),
        };
        match files.split(',').map(str::trim).collect::<Vec<_>>()[..] {
            [certificate, key] => {
                Ok(Self { certificate: certificate.into(), key: key.into(), names })
            }
            _ => Err(InvalidSniCertificate::Files),
        }
    }
}

/// Names that a certificate without explicit ones is shown for: those of domains in it.
pub(super) fn certificate_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let is_domain = |name: &str| name.parse::<IpAddr>().is_err() && !name.is_empty();
    names_of(certificate).into_iter().filter(|name| is_domain(name)).collect()
}

/// Certificates by the names that clients ask for.
#[derive(Debug, Default)]
pub(super) struct NamedCertificates(HashMap<String, Arc<CertifiedKey>>);

impl NamedCertificates {
    /// Of certificates with their explicit names and those that are in them. Explicit names come first,
    /// then earlier certificates.
    pub(super) fn new(all: Vec<(&[String], Vec<String>, Arc<CertifiedKey>)>) -> Self {
        let mut known = HashMap::new();
        let mut add = |names: &[String], certificate: &Arc<CertifiedKey>| {
            for name in names {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                known.entry(name).or_insert_with(|| Arc::clone(certificate));
            }
        };
        all.iter().for_each(|(explicit, _, certificate)| add(explicit, certificate));
        let implicit = all.iter().filter(|(explicit, ..)| explicit.is_empty());
        implicit.for_each(|(_, own, certificate)| add(own, certificate));
        Self(known)
    }

    /// The certificate for a name: that of the name itself, or of a wildcard in place of its first labels.
    pub(super) fn of(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if let Some(exact) = self.0.get(&name) {
            return Some(exact);
        }
        let labels: Vec<&str> = name.split('.').collect();
        (1..=labels.len()).find_map(|count| {
            let stars = std::iter::repeat_n("*", count);
            let rest = labels.iter().skip(count).copied();
            self.0.get(&stars.chain(rest).collect::<Vec<_>>().join("."))
        })
    }

    /// The certificates of addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (IpAddr, &Arc<CertifiedKey>)> {
        let address = |name: &str| name.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        self.0.iter().filter_map(move |(name, certificate)| Some((address(name)?, certificate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sni_certificates_are_files_with_names() {
        let read = |text: &str| text.parse::<SniCertificate>();
        let found = read("a.crt, a.key: *.foo.com,foo.com").unwrap();
        assert_eq!(found.certificate.to_str(), Some("a.crt"));
        assert_eq!((found.key.to_str(), found.names.len()), (Some("a.key"), 2));
        assert_eq!(found.names, ["*.foo.com", "foo.com"]);
        assert!(read("a,b").unwrap().names.is_empty());
        assert_eq!(read("a,b:::1").unwrap().names, ["::1"]);
        for text in ["", "a", "a,b,c", "a:n"] {
            assert_eq!(read(text), Err(InvalidSniCertificate::Files), "{text}");
        }
        assert_eq!(read("a,b:"), Err(InvalidSniCertificate::Names));
    }
}
