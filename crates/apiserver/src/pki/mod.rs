//! The cluster's certificates: two CAs, and what they sign. Made at the first start, used again
//! at the next one, recreated when expired or when their names no longer match.
//! The binary asks for identities; the port and `kubelet` read them.
//!
//! Certificates with which nodes serve have a CA of their own, which nothing but this server's calls
//! to nodes trusts: whatever a node gets signed, it cannot pass for the apiserver with it. Controllers
//! sign with both CAs, whose files they are given.
//!
//! Current limitations: one CA for clients and for this server; no revocation, no rotation while
//! running.

mod certificate;
mod files;
mod kubeconfig;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_tls::{certificates, private_key};
use rcgen::{Issuer, KeyPair};
use rustls::crypto::{CryptoProvider, ring};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use certificate::{Certificate, Profile};
pub use files::write_atomically;
pub use kubeconfig::Kubeconfig;

/// Why certificates could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What was tried, such as "read".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file holds no usable key or certificate.
    #[error("{path}: {reason}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file holds nothing usable.
    #[error(transparent)]
    File(#[from] longshore_tls::Error),
    /// A certificate could not be made.
    #[error("make a certificate for {name:?}: {source}")]
    Make {
        /// The common name.
        name: String,
        /// What the maker said.
        source: rcgen::Error,
    },
}

const KUBELET_SERVING_CA: &str = "kubelet-serving-ca";
const FRONT_PROXY_CA: &str = "front-proxy-ca";

/// The result of a call to this module.
pub type Result<T> = std::result::Result<T, Error>;

/// A certificate and its key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key, readable by its owner alone.
    pub key: PathBuf,
}

/// The chain and the key of an identity.
pub(crate) fn load(
    identity: &Identity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    Ok((certificates(&identity.certificate)?, private_key(&identity.key)?))
}

/// The cryptography used everywhere in this crate.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A CA with its key.
struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Reads `STEM.crt` and `STEM.key`; makes them when they are absent or expired.
    fn open(dir: &Path, stem: &str, name: &str) -> Result<Authority> {
        let (certificate, key) = (dir.join(format!("{stem}.crt")), dir.join(format!("{stem}.key")));
        let existing = match Certificate::load(&certificate)? {
            Some(ca) if ca.is_current() => Some((ca, files::load_key(&key)?)),
            _ => None,
        };
        let (ca, signing_key) = match existing {
            Some((ca, Some(signing_key))) if ca.belongs_to(&signing_key) => (ca, signing_key),
            // A valid CA that cannot be used here is not ours: it is not replaced.
            Some(_) => {
                return Err(Error::Invalid {
                    path: key,
                    reason: format!("is absent or not the key of {}", certificate.display()),
                });
            }
            None => {
                let signing_key = generate(name)?;
                let pem = certificate::self_signed(name, &signing_key)?;
                files::write_atomically(&key, signing_key.serialize_pem().as_bytes(), 0o600)?;
                files::write_atomically(&certificate, pem.as_bytes(), 0o644)?;
                tracing::info!(path = %certificate.display(), "made a certificate authority");
                (Certificate::parse(&certificate, &pem)?, signing_key)
            }
        };
        let issuer = Issuer::from_ca_cert_der(&ca.der().into(), signing_key)
            .map_err(|source| Error::Make { name: name.into(), source })?;
        Ok(Authority { certificate: ca, issuer })
    }

    /// Whether an identity can be used as it is.
    fn is_usable(&self, identity: &Identity, profile: &Profile<'_>) -> Result<bool> {
        let (Some(certificate), Some(key)) =
            (Certificate::load(&identity.certificate)?, files::load_key(&identity.key)?)
        else {
            return Ok(false);
        };
        Ok(certificate.is_current()
            && certificate.belongs_to(&key)
            && certificate.is_signed_by(&self.certificate)
            && certificate.fits(profile))
    }
}

/// A directory of certificates and the CAs that sign them.
pub struct Pki {
    dir: PathBuf,
    cluster: Authority,
}

impl Pki {
    /// Opens the directory; makes the CAs (`ca.crt`, `ca.key`, `kubelet-serving-ca.crt`,
    /// `kubelet-serving-ca.key`) and the service-account signing key (`sa.key`, `sa.pub`) when they
    /// are absent or expired.
    pub fn open(dir: &Path) -> Result<Pki> {
        files::create_private_dir(dir)?;
        let _guard = lock(dir)?;
        let cluster = Authority::open(dir, "ca", "kubernetes")?;
        Authority::open(dir, KUBELET_SERVING_CA, "kubelet-serving-ca")?;
        let pki = Pki { dir: dir.to_owned(), cluster };
        pki.make_signing_key()?;
        Ok(pki)
    }

    /// The certificate of the CA of the nodes' serving certificates; its key is beside it.
    pub fn kubelet_serving_ca_file(&self) -> PathBuf {
        self.dir.join(format!("{KUBELET_SERVING_CA}.crt"))
    }

    /// The CA's certificate; its key is beside it.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The CA's certificate in PEM.
    pub fn ca_pem(&self) -> &str {
        self.cluster.certificate.pem()
    }

    /// The serving identity (`apiserver.crt`, `apiserver.key`), good for these DNS names and addresses.
    pub fn serving(&self, names: &[String]) -> Result<Identity> {
        self.identity("apiserver", &Profile::serving("kube-apiserver", names))
    }

    /// A client identity under a file stem: common name (user) and organization (group).
    pub fn client(&self, stem: &str, user: &str, group: Option<&str>) -> Result<Identity> {
        self.identity(stem, &Profile::client(user, group))
    }

    /// The CA of front proxies (`front-proxy-ca.crt`, made with its key when it is absent or expired), and the
    /// client identity of this server as one of them (`front-proxy-client.crt`).
    pub fn front_proxy(&self, name: &str) -> Result<(PathBuf, Identity)> {
        let authority = {
            let _guard = lock(&self.dir)?;
            Authority::open(&self.dir, FRONT_PROXY_CA, "front-proxy-ca")?
        };
        let identity = self.identity_of(&authority, name, &Profile::client(name, None))?;
        Ok((self.dir.join(format!("{FRONT_PROXY_CA}.crt")), identity))
    }

    fn identity(&self, stem: &str, profile: &Profile<'_>) -> Result<Identity> {
        self.identity_of(&self.cluster, stem, profile)
    }

    fn identity_of(
        &self,
        authority: &Authority,
        stem: &str,
        profile: &Profile<'_>,
    ) -> Result<Identity> {
        let _guard = lock(&self.dir)?;
        let identity = Identity {
            certificate: self.dir.join(format!("{stem}.crt")),
            key: self.dir.join(format!("{stem}.key")),
        };
        if authority.is_usable(&identity, profile)? {
            return Ok(identity);
        }
        let key = generate(profile.user)?;
        let pem = certificate::signed(profile, &key, &authority.issuer)?;
        files::write_atomically(&identity.key, key.serialize_pem().as_bytes(), 0o600)?;
        files::write_atomically(&identity.certificate, pem.as_bytes(), 0o644)?;
        tracing::info!(path = %identity.certificate.display(), user = profile.user, "made a certificate");
        Ok(identity)
    }

    /// The key that signs tokens of service accounts.
    pub fn signing_key_file(&self) -> PathBuf {
        self.dir.join("sa.key")
    }

    /// An existing key of any form stays as it is.
    fn make_signing_key(&self) -> Result<()> {
        let path = self.signing_key_file();
        if path.exists() {
            return Ok(());
        }
        let key = generate("service accounts")?;
        let public = key.public_key_pem();
        files::write_atomically(&self.dir.join("sa.pub"), public.as_bytes(), 0o644)?;
        files::write_atomically(&path, key.serialize_pem().as_bytes(), 0o600)
    }
}

/// The certificates of a PEM file, as text; at least one.
pub(crate) fn read_authority(path: &Path) -> Result<String> {
    longshore_tls::certificates(path)?;
    let absent = || Error::Invalid { path: path.to_owned(), reason: "is gone".into() };
    files::read_optional(path)?.ok_or_else(absent)
}

/// The certificates of two texts of PEM, each once: of the first those that have not expired.
pub(crate) fn joined_authorities(known: &str, own: &str) -> String {
    let now = jiff::Timestamp::now().as_second();
    let mut seen = Vec::new();
    let mut joined = String::new();
    let known = pem_certificates(known).map(|text| (text, true));
    for (text, may_expire) in known.chain(pem_certificates(own).map(|text| (text, false))) {
        let Ok(der) = CertificateDer::from_pem_slice(text.as_bytes()) else { continue };
        let is_over = X509Certificate::from_der(&der)
            .is_ok_and(|(_, certificate)| certificate.validity().not_after.timestamp() < now);
        if (may_expire && is_over) || seen.contains(&der) {
            continue;
        }
        seen.push(der);
        joined.push_str(&text);
    }
    joined
}

/// The texts of the certificates in a text.
fn pem_certificates(text: &str) -> impl Iterator<Item = String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    text.split(END).filter_map(|part| {
        part.find(BEGIN).and_then(|at| part.get(at..)).map(|part| format!("{part}{END}\n"))
    })
}

fn generate(name: &str) -> Result<KeyPair> {
    KeyPair::generate().map_err(|source| Error::Make { name: name.into(), source })
}

/// Two processes on one directory must not mix a key of the one with a certificate of the other.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(".lock");
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|source| Error::Io { action: "lock", path, source })
}
