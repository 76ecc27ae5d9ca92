//! What PodCertificateRequests carry: a PKCS #10 request in DER that proves a key, and the certificate that was
//! issued for it.

use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{
    OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ECDSA_WITH_SHA512,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::keys::{Curve, PublicKey, is_of_p521};

/// A request for a certificate of a pod. What it says beside its key does not matter.
#[derive(Debug)]
pub struct PodRequest {
    /// The key.
    pub public_key: PublicKey,
    /// Whether the key has signed the request.
    pub is_signed: bool,
}

impl PodRequest {
    /// Reads `spec.stubPKCS10Request`; `None`: it is no request.
    #[must_use]
    pub fn from_der(der: &[u8]) -> Option<PodRequest> {
        let (rest, request) = X509CertificationRequest::from_der(der).ok()?;
        let public_key = PublicKey::of(&request.certification_request_info.subject_pki)?;
        let is_signed = match &public_key {
            PublicKey::Ecdsa(Curve::P521, point) => is_signed_on_p521(&request, point),
            _ => request.verify_signature().is_ok(),
        };
        rest.is_empty().then_some(PodRequest { public_key, is_signed })
    }
}

fn is_signed_on_p521(request: &X509CertificationRequest<'_>, point: &[u8]) -> bool {
    let message = request.certification_request_info.raw;
    let algorithm = &request.signature_algorithm.algorithm;
    let digest = match () {
        () if *algorithm == OID_SIG_ECDSA_WITH_SHA256 => Sha256::digest(message).to_vec(),
        () if *algorithm == OID_SIG_ECDSA_WITH_SHA384 => Sha384::digest(message).to_vec(),
        () if *algorithm == OID_SIG_ECDSA_WITH_SHA512 => Sha512::digest(message).to_vec(),
        () => return false,
    };
    is_of_p521(point, &digest, &request.signature_value.data)
}

/// The certificate of a pod.
#[derive(Debug, PartialEq, Eq)]
pub struct PodCertificate {
    /// Its key; `None`: it is of an unknown algorithm.
    pub public_key: Option<PublicKey>,
    /// The begin of its validity, in seconds since 1970.
    pub not_before: i64,
    /// The end of its validity, in seconds since 1970.
    pub not_after: i64,
    /// Its DNS names.
    pub dns_names: Vec<String>,
    /// Its e-mail addresses.
    pub emails: Vec<String>,
}

impl PodCertificate {
    /// Reads DER; `None`: it is no certificate.
    #[must_use]
    pub fn from_der(der: &[u8]) -> Option<PodCertificate> {
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let mut read = PodCertificate {
            public_key: PublicKey::of(certificate.public_key()),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            dns_names: Vec::new(),
            emails: Vec::new(),
        };
        for extension in certificate.extensions() {
            let parsed = extension.parsed_extension();
            if let ParsedExtension::ParseError { .. } = parsed {
                return None;
            }
            if let ParsedExtension::SubjectAlternativeName(names) = parsed {
                for name in &names.general_names {
                    match name {
                        GeneralName::DNSName(name) => read.dns_names.push((*name).to_owned()),
                        GeneralName::RFC822Name(name) => read.emails.push((*name).to_owned()),
                        _ => {}
                    }
                }
            }
        }
        Some(read)
    }
}

/// Whether the text is an e-mail address, alone or after a name: `a@example.com`, `A <a@example.com>`.
#[must_use]
pub fn is_mail_address(text: &str) -> bool {
    let text = text.trim();
    let address = match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((name, address)) if !name.contains(['<', '>']) => address,
        Some(_) => return false,
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let is_quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let is_literal = domain.len() > 2 && domain.starts_with('[') && domain.ends_with(']');
    (is_quoted || is_dot_atom(local)) && (is_literal || is_dot_atom(domain))
}

fn is_dot_atom(text: &str) -> bool {
    let is_part =
        |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    text.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_part))
}
