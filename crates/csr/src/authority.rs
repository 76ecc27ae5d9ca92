//! A certificate authority, and the certificates that it issues for requests. They are put together
//! here and not by `rcgen`, since a subject may have several organizations, which `rcgen` cannot
//! write: it is taken over as it came.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use longshore_tls::pem;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};
use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, DERWriterSeq, Tag};

use crate::Request;

/// For machines whose clocks are a little behind.
const BACKDATE: Duration = Duration::from_secs(300);
/// Certificates for less than this get their whole time, in spite of the earlier beginning.
const SHORT: Duration = Duration::from_secs(8 * 3600);
const SERIAL_BYTES: usize = 16;

/// Signatures that a CA's key may make: object identifier, and whether a NULL is beside it.
const ALGORITHMS: [(SignatureScheme, &[u64], bool); 4] = [
    (SignatureScheme::ECDSA_NISTP256_SHA256, &[1, 2, 840, 10045, 4, 3, 2], false),
    (SignatureScheme::ECDSA_NISTP384_SHA384, &[1, 2, 840, 10045, 4, 3, 3], false),
    (SignatureScheme::RSA_PKCS1_SHA256, &[1, 2, 840, 113_549, 1, 1, 11], true),
    (SignatureScheme::ED25519, &[1, 3, 101, 112], false),
];

/// Bits of the key usage, the first byte in the upper half.
const KEY_USAGES: [(&str, u16); 10] = [
    ("signing", 0x8000),
    ("digital signature", 0x8000),
    ("content commitment", 0x4000),
    ("key encipherment", 0x2000),
    ("data encipherment", 0x1000),
    ("key agreement", 0x0800),
    ("cert sign", 0x0400),
    ("crl sign", 0x0200),
    ("encipher only", 0x0100),
    ("decipher only", 0x0080),
];
/// Purposes.
const PURPOSES: [(&str, &[u64]); 13] = [
    ("any", &[2, 5, 29, 37, 0]),
    ("server auth", &[1, 3, 6, 1, 5, 5, 7, 3, 1]),
    ("client auth", &[1, 3, 6, 1, 5, 5, 7, 3, 2]),
    ("code signing", &[1, 3, 6, 1, 5, 5, 7, 3, 3]),
    ("email protection", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("s/mime", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("ipsec end system", &[1, 3, 6, 1, 5, 5, 7, 3, 5]),
    ("ipsec tunnel", &[1, 3, 6, 1, 5, 5, 7, 3, 6]),
    ("ipsec user", &[1, 3, 6, 1, 5, 5, 7, 3, 7]),
    ("timestamping", &[1, 3, 6, 1, 5, 5, 7, 3, 8]),
    ("ocsp signing", &[1, 3, 6, 1, 5, 5, 7, 3, 9]),
    ("microsoft sgc", &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3]),
    ("netscape sgc", &[2, 16, 840, 1, 113_730, 4, 1]),
];

/// Why a pair of certificate and key is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
    /// It may not sign certificates.
    #[error("the certificate is not that of a CA")]
    NoCa,
    /// The key cannot be read, or is of a kind that cannot sign.
    #[error("the private key cannot be used: {0}")]
    Key(String),
    /// They do not belong together.
    #[error("the private key is not that of the certificate")]
    Mismatch,
}

/// Why a certificate was not issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The key does not sign.
    #[error("sign a certificate for {0:?}: {1}")]
    Sign(String, rustls::Error),
    /// There are no random numbers.
    #[error("make a serial number: {0}")]
    Serial(getrandom::Error),
    /// The authority's certificate has ended.
    #[error("the certificate of the CA has expired")]
    Expired,
}

/// A CA with its key.
pub struct Authority {
    certificate: CertificateDer<'static>,
    key: Arc<dyn SigningKey>,
    algorithm: (SignatureScheme, &'static [u64], bool),
}

impl Authority {
    /// Reads the first certificate and the key of PEM texts: PKCS #8, or an RSA or EC key in its
    /// older form.
    ///
    /// # Errors
    /// They cannot be used, or do not belong together.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Authority, AuthorityError> {
        let unreadable =
            |error: &dyn std::fmt::Display| AuthorityError::Certificate(error.to_string());
        let der =
            CertificateDer::from_pem_slice(certificate).map_err(|error| unreadable(&error))?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| unreadable(&error))?;
        if !parsed.is_ca() {
            return Err(AuthorityError::NoCa);
        }
        let unusable = |error: &dyn std::fmt::Display| AuthorityError::Key(error.to_string());
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| unusable(&error))?;
        let key = any_supported_type(&key).map_err(|error| unusable(&error))?;
        let algorithm = ALGORITHMS
            .into_iter()
            .find(|(scheme, ..)| key.choose_scheme(&[*scheme]).is_some())
            .ok_or_else(|| unusable(&"unsupported kind of key"))?;
        match key.public_key() {
            Some(public) if public.as_ref() == parsed.public_key().raw => {}
            _ => return Err(AuthorityError::Mismatch),
        }
        Ok(Authority { certificate: der, key, algorithm })
    }

    /// Its certificate in DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Issues a certificate for a request, in PEM: for `life` and at most as long as the CA's own.
    /// `usages` are those that the request's signer has checked.
    ///
    /// # Errors
    /// The CA's certificate has ended, or its key does not sign.
    pub fn issue(
        &self,
        wanted: &Request,
        usages: &[&str],
        life: Duration,
    ) -> Result<String, IssueError> {
        let failed = |error| IssueError::Sign(wanted.common_name.clone(), error);
        let (_, ca) = X509Certificate::from_der(&self.certificate)
            .map_err(|error| failed(rustls::Error::General(error.to_string())))?;
        let (scheme, oid, has_null) = self.algorithm;
        let identifier = |writer: DERWriter<'_>| algorithm_identifier(writer, oid, has_null);
        let now = SystemTime::now();
        let ca_until = u64::try_from(ca.validity().not_after.timestamp()).unwrap_or(0);
        let (from, until) = validity(now, life, ca_until);
        if until <= from {
            return Err(IssueError::Expired);
        }
        let mut serial = [0; SERIAL_BYTES];
        getrandom::fill(&mut serial).map_err(IssueError::Serial)?;
        serial[0] &= 0x7f;
        let tbs = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_tagged(Tag::context(0), |writer| writer.write_u8(2));
                writer.next().write_bigint_bytes(&serial, true);
                identifier(writer.next());
                writer.next().write_der(ca.subject().as_raw());
                writer.next().write_sequence(|writer| {
                    writer.next().write_der(&time(from));
                    writer.next().write_der(&time(until));
                });
                writer.next().write_der(&wanted.subject);
                writer.next().write_der(&wanted.public_key);
                writer.next().write_tagged(Tag::context(3), |writer| {
                    writer.write_sequence(|writer| extensions(writer, wanted, usages, &ca));
                });
            });
        });
        let signer = self.key.choose_scheme(&[scheme]);
        let signer = signer.ok_or_else(|| failed(rustls::Error::General("no signature".into())))?;
        let signature = signer.sign(&tbs).map_err(failed)?;
        let der = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_der(&tbs);
                identifier(writer.next());
                writer.next().write_bitvec_bytes(&signature, signature.len() * 8);
            });
        });
        let mut pem = String::new();
        pem::append(&mut pem, "CERTIFICATE", &der);
        Ok(pem)
    }
}

fn algorithm_identifier(writer: DERWriter<'_>, oid: &[u64], has_null: bool) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&ObjectIdentifier::from_slice(oid));
        if has_null {
            writer.next().write_null();
        }
    });
}

/// The validity in seconds; at most that of the CA.
fn validity(now: SystemTime, life: Duration, ca_until: u64) -> (u64, u64) {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let backdate = if life < SHORT { 0 } else { BACKDATE.as_secs() };
    let until = now.saturating_add(life.as_secs()).saturating_sub(backdate);
    (now.saturating_sub(BACKDATE.as_secs()), until.min(ca_until))
}

/// A time in DER: with two digits of the year until 2049, with four from then on.
fn time(seconds: u64) -> Vec<u8> {
    const UTC_TIME: u8 = 23;
    const GENERALIZED_TIME: u8 = 24;
    const YEAR_2050: u64 = 2_524_608_000;
    let time = Timestamp::from_second(i64::try_from(seconds).unwrap_or(i64::MAX))
        .unwrap_or(Timestamp::MAX);
    let (tag, text) = match seconds < YEAR_2050 {
        true => (UTC_TIME, time.strftime("%y%m%d%H%M%SZ").to_string()),
        false => (GENERALIZED_TIME, time.strftime("%Y%m%d%H%M%SZ").to_string()),
    };
    [&[tag, text.len() as u8], text.as_bytes()].concat()
}

fn extensions(
    writer: &mut DERWriterSeq<'_>,
    wanted: &Request,
    usages: &[&str],
    ca: &X509Certificate<'_>,
) {
    let bits = KEY_USAGES.iter().filter(|(usage, _)| usages.contains(usage));
    let bits = bits.fold(0_u16, |all, (_, bit)| all | bit);
    if bits != 0 {
        extension(writer.next(), &[2, 5, 29, 15], true, |writer| {
            let length = 16 - bits.trailing_zeros() as usize;
            writer.write_bitvec_bytes(&bits.to_be_bytes()[..length.div_ceil(8)], length);
        });
    }
    let mut purposes: Vec<&[u64]> = Vec::new();
    for (_, purpose) in PURPOSES.iter().filter(|(usage, _)| usages.contains(usage)) {
        if !purposes.contains(purpose) {
            purposes.push(purpose);
        }
    }
    if !purposes.is_empty() {
        extension(writer.next(), &[2, 5, 29, 37], false, |writer| {
            writer.write_sequence(|writer| {
                for purpose in purposes {
                    writer.next().write_oid(&ObjectIdentifier::from_slice(purpose));
                }
            });
        });
    }
    // No CA.
    extension(writer.next(), &[2, 5, 29, 19], true, |writer| writer.write_sequence(|_| ()));
    let key_id = ca.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    });
    if let Some(id) = key_id {
        extension(writer.next(), &[2, 5, 29, 35], false, |writer| {
            writer.write_sequence(|writer| context(writer, 0, id));
        });
    }
    let addresses: Vec<Vec<u8>> = wanted
        .addresses
        .iter()
        .map(|address| match address {
            std::net::IpAddr::V4(address) => address.octets().to_vec(),
            std::net::IpAddr::V6(address) => address.octets().to_vec(),
        })
        .collect();
    let names: Vec<(u64, &[u8])> = (wanted.dns_names.iter().map(|name| (2, name.as_bytes())))
        .chain(wanted.emails.iter().map(|name| (1, name.as_bytes())))
        .chain(addresses.iter().map(|address| (7, address.as_slice())))
        .chain(wanted.uris.iter().map(|name| (6, name.as_bytes())))
        .collect();
    if !names.is_empty() {
        extension(writer.next(), &[2, 5, 29, 17], false, |writer| {
            writer.write_sequence(|writer| {
                for (tag, name) in names {
                    context(writer, tag, name);
                }
            });
        });
    }
}

/// Bytes under a tag whose meaning the context gives.
fn context(writer: &mut DERWriterSeq<'_>, tag: u64, bytes: &[u8]) {
    writer.next().write_tagged_implicit(Tag::context(tag), |writer| writer.write_bytes(bytes));
}

fn extension(
    writer: DERWriter<'_>,
    oid: &[u64],
    is_critical: bool,
    value: impl FnOnce(DERWriter<'_>),
) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&ObjectIdentifier::from_slice(oid));
        if is_critical {
            writer.next().write_bool(true);
        }
        writer.next().write_bytes(&yasna::construct_der(value));
    });
}
