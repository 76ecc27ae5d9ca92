//! How the certificates of webhooks and aggregated servers are verified.

use std::sync::Arc;

use longshore_tls::NoVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::pki::{Identity, load, provider};

/// Where systems have the certificates that they trust, in the order in which Go looks.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The environment variable that names a file in their place, as for Go's programs.
const SYSTEM_ROOTS_VARIABLE: &str = "SSL_CERT_FILE";

/// A configuration that trusts the certificates of a bundle (PEM), or those of the system, or (`insecure`)
/// any. With an identity, it shows that to the server.
pub(crate) fn client(
    ca_bundle: Option<&[u8]>,
    insecure: bool,
    identity: Option<&Identity>,
) -> Result<ClientConfig, String> {
    let identity = identity.map(load).transpose().map_err(|error| error.to_string())?;
    client_with(ca_bundle, insecure, identity)
}

/// The same with an identity that is read.
pub(crate) fn client_with(
    ca_bundle: Option<&[u8]>,
    insecure: bool,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, String> {
    let verifier: Arc<dyn ServerCertVerifier> = match insecure {
        true => Arc::new(NoVerifier(provider())),
        false => Arc::new(verifier(ca_bundle)?),
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some((chain, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())
}

fn verifier(ca_bundle: Option<&[u8]>) -> Result<Verifier, String> {
    let certificates = match ca_bundle {
        Some(bundle) => CertificateDer::pem_slice_iter(bundle)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("unable to load root certificates: {error}"))?,
        None => {
            let own = std::env::var(SYSTEM_ROOTS_VARIABLE).ok().filter(|path| !path.is_empty());
            let of_system = SYSTEM_ROOTS.map(str::to_owned);
            let paths = own.map_or_else(|| of_system.to_vec(), |path| vec![path]);
            let mut found = paths.iter().map(|path| longshore_tls::certificates(path.as_ref()));
            found.find_map(Result::ok).unwrap_or_default()
        }
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().cloned());
    if roots.is_empty() {
        return Err("unable to load root certificates: there is none".to_owned());
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| error.to_string())?;
    Ok(Verifier { inner, certificates })
}

/// As webpki verifies, but also takes a certificate that is itself in the bundle: webhooks often have one
/// that they signed themselves, which Go accepts.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.certificates.iter().any(|known| known.as_ref() == end_entity.as_ref()) {
            return self.inner.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            );
        }
        check_time(end_entity, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn check_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let bad = Error::InvalidCertificate(CertificateError::BadEncoding);
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return Err(bad) };
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = parsed.validity();
    if now > validity.not_after.timestamp() {
        return Err(Error::InvalidCertificate(CertificateError::Expired));
    }
    if now < validity.not_before.timestamp() {
        return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
    }
    Ok(())
}
