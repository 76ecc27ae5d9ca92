//! Making and judging single X.509 certificates.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_tls::subject_of;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{Error, Result, files};

const DAY: Duration = Duration::from_secs(24 * 3600);
const CA_LIFE: Duration = DAY.saturating_mul(3650);
const LEAF_LIFE: Duration = DAY.saturating_mul(365);
/// A certificate with less than this left is recreated at start, so that it does not expire while serving.
const RENEW_BEFORE: Duration = DAY.saturating_mul(30);
/// For machines whose clocks are a little behind.
const BACKDATE: Duration = Duration::from_secs(300);

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// TLS server.
    Server,
    /// TLS client.
    Client,
}

/// What is wanted of a certificate.
pub(super) struct Profile<'a> {
    pub(super) user: &'a str,
    group: Option<&'a str>,
    names: &'a [String],
    usage: Usage,
}

impl<'a> Profile<'a> {
    pub(super) fn serving(user: &'a str, names: &'a [String]) -> Self {
        Profile { user, group: None, names, usage: Usage::Server }
    }

    pub(super) fn client(user: &'a str, group: Option<&'a str>) -> Self {
        Profile { user, group, names: &[], usage: Usage::Client }
    }
}

pub(super) fn self_signed(name: &str, key: &KeyPair) -> Result<String> {
    let make = || {
        let mut params = CertificateParams::default();
        subject(&mut params, name, None);
        validity(&mut params, CA_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        params.self_signed(key).map(|certificate| certificate.pem())
    };
    make().map_err(|source| Error::Make { name: name.into(), source })
}

pub(super) fn signed(
    profile: &Profile<'_>,
    key: &KeyPair,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<String> {
    let make = || {
        let mut params = CertificateParams::new(profile.names)?;
        subject(&mut params, profile.user, profile.group);
        validity(&mut params, LEAF_LIFE);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match profile.usage {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.signed_by(key, issuer).map(|certificate| certificate.pem())
    };
    make().map_err(|source| Error::Make { name: profile.user.into(), source })
}

fn subject(params: &mut CertificateParams, name: &str, group: Option<&str>) {
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
}

fn validity(params: &mut CertificateParams, life: Duration) {
    let now = SystemTime::now();
    params.not_before = now.checked_sub(BACKDATE).unwrap_or(now).into();
    params.not_after = now.checked_add(life).unwrap_or(now).into();
}

/// A certificate that was read from a file; known to parse.
pub(super) struct Certificate {
    pem: String,
    der: Vec<u8>,
}

impl Certificate {
    pub(super) fn load(path: &Path) -> Result<Option<Self>> {
        files::read_optional(path)?.map(|pem| Self::parse(path, &pem)).transpose()
    }

    pub(super) fn parse(path: &Path, pem: &str) -> Result<Self> {
        let invalid = |reason: String| Error::Invalid { path: path.to_owned(), reason };
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| invalid(format!("is not a certificate: {error}")))?
            .to_vec();
        X509Certificate::from_der(&der)
            .map_err(|error| invalid(format!("is not a certificate: {error}")))?;
        Ok(Certificate { pem: pem.to_owned(), der })
    }

    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    pub(super) fn der(&self) -> &[u8] {
        &self.der
    }

    fn check(&self, test: impl FnOnce(&X509Certificate<'_>) -> bool) -> bool {
        X509Certificate::from_der(&self.der).is_ok_and(|(_, certificate)| test(&certificate))
    }

    pub(super) fn is_current(&self) -> bool {
        let since_epoch =
            |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        let now = SystemTime::now();
        self.check(|certificate| {
            let validity = certificate.validity();
            validity.not_before.timestamp() <= since_epoch(now)
                && validity.not_after.timestamp()
                    > since_epoch(now.checked_add(RENEW_BEFORE).unwrap_or(now))
        })
    }

    pub(super) fn belongs_to(&self, key: &KeyPair) -> bool {
        self.check(|certificate| certificate.public_key().raw == key.subject_public_key_info())
    }

    pub(super) fn is_signed_by(&self, ca: &Certificate) -> bool {
        let Ok((_, ca)) = X509Certificate::from_der(&ca.der) else {
            return false;
        };
        self.check(|certificate| {
            certificate.issuer() == ca.subject()
                && certificate.verify_signature(Some(ca.public_key())).is_ok()
        })
    }

    pub(super) fn fits(&self, profile: &Profile<'_>) -> bool {
        self.check(|certificate| {
            let (user, groups) = subject_of(certificate);
            let has_usage =
                certificate.extended_key_usage().ok().flatten().is_some_and(|usage| match profile
                    .usage
                {
                    Usage::Server => usage.value.server_auth,
                    Usage::Client => usage.value.client_auth,
                });
            user.as_deref() == Some(profile.user)
                && groups.iter().map(String::as_str).eq(profile.group)
                && has_usage
                && profile.names.iter().all(|name| covers(certificate, name))
        })
    }
}

fn covers(certificate: &X509Certificate<'_>, name: &str) -> bool {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return false;
    };
    names.value.general_names.iter().any(|general| match (general, name.parse::<IpAddr>()) {
        (GeneralName::IPAddress(bytes), Ok(IpAddr::V4(ip))) => *bytes == ip.octets(),
        (GeneralName::IPAddress(bytes), Ok(IpAddr::V6(ip))) => *bytes == ip.octets(),
        (GeneralName::DNSName(dns), Err(_)) => *dns == name,
        _ => false,
    })
}
