//! A PKCS #10 request, read and verified.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

/// Why a request cannot be taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is not PEM of a request.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotPem,
    /// It is not DER of a request.
    #[error("the request cannot be read: {0}")]
    Unreadable(String),
    /// Its key has not signed it.
    #[error("the signature of the request does not match its key: {0}")]
    Signature(String),
    /// It names more than one user.
    #[error("the subject of the request has more than one common name")]
    CommonNames,
}

/// A parsed request. Its signature proves possession of the key.
#[derive(Debug)]
pub struct Request {
    /// The user, empty when there is none.
    pub common_name: String,
    /// The groups.
    pub organizations: Vec<String>,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<IpAddr>,
    /// E-mail addresses.
    pub emails: Vec<String>,
    /// URIs.
    pub uris: Vec<String>,
    /// The whole subject, in DER.
    pub subject: Vec<u8>,
    /// The SubjectPublicKeyInfo, in DER.
    pub public_key: Vec<u8>,
}

impl Request {
    /// Reads `spec.request` as JSON has it: PEM in base64.
    ///
    /// # Errors
    /// As for [`Request::from_pem`].
    pub fn parse(base64: &str) -> Result<Request, RequestError> {
        Request::from_pem(&STANDARD.decode(base64).map_err(|_| RequestError::NotPem)?)
    }

    /// Reads PEM.
    ///
    /// # Errors
    /// It is no request, or its signature is not that of its key.
    pub fn from_pem(pem: &[u8]) -> Result<Request, RequestError> {
        let der =
            CertificateSigningRequestDer::from_pem_slice(pem).map_err(|_| RequestError::NotPem)?;
        let unreadable = |why: &dyn std::fmt::Display| RequestError::Unreadable(why.to_string());
        let (rest, request) =
            X509CertificationRequest::from_der(&der).map_err(|error| unreadable(&error))?;
        if !rest.is_empty() {
            return Err(unreadable(&"something follows it"));
        }
        request.verify_signature().map_err(|error| RequestError::Signature(error.to_string()))?;
        let info = &request.certification_request_info;
        let texts = |names: &mut dyn Iterator<Item = &AttributeTypeAndValue<'_>>| {
            names
                .map(|name| name.as_str().map(str::to_owned).map_err(|error| unreadable(&error)))
                .collect::<Result<Vec<String>, RequestError>>()
        };
        // Readers of certificates do not agree on which of several names is the user.
        let mut names = texts(&mut info.subject.iter_common_name())?;
        if names.len() > 1 {
            return Err(RequestError::CommonNames);
        }
        let mut read = Request {
            common_name: names.pop().unwrap_or_default(),
            organizations: texts(&mut info.subject.iter_organization())?,
            dns_names: Vec::new(),
            addresses: Vec::new(),
            emails: Vec::new(),
            uris: Vec::new(),
            subject: info.subject.as_raw().to_vec(),
            public_key: info.subject_pki.raw.to_vec(),
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                for name in &names.general_names {
                    read.add(name)?;
                }
            }
        }
        Ok(read)
    }

    fn add(&mut self, name: &GeneralName<'_>) -> Result<(), RequestError> {
        match name {
            GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
            GeneralName::RFC822Name(name) => self.emails.push((*name).to_owned()),
            GeneralName::URI(name) => self.uris.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => self.addresses.push(address(bytes)?),
            // Other kinds of names mean nothing to Kubernetes and get into no certificate.
            _ => {}
        }
        Ok(())
    }
}

fn address(bytes: &[u8]) -> Result<IpAddr, RequestError> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address.map_err(|_| RequestError::Unreadable(format!("an address of {} bytes", bytes.len())))
}

/// Checks `status.certificate`: PEM certificates in base64, or nothing.
///
/// # Errors
/// What is wrong with it.
pub fn check_issued(base64: &str) -> Result<(), String> {
    if base64.is_empty() {
        return Ok(());
    }
    let pem = STANDARD.decode(base64).map_err(|error| error.to_string())?;
    let mut count = 0;
    for der in CertificateDer::pem_slice_iter(&pem) {
        let der = der.map_err(|error| error.to_string())?;
        X509Certificate::from_der(&der).map_err(|error| error.to_string())?;
        count += 1_usize;
    }
    match count {
        0 => Err("must contain at least one CERTIFICATE PEM block".into()),
        _ => Ok(()),
    }
}
