//! Names of cipher suites and key exchanges: those of Go's TLS, as upstream. Names in certificates.

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

/// Go's names, sorted.
static SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Whether the suite is known, supported here or not.
pub fn is_known_suite(name: &str) -> bool {
    SUITES.binary_search(&name).is_ok()
}

/// P-256, P-384, P-521, X25519 and their hybrids with ML-KEM, by protocol number.
static CURVES: [i32; 7] = [23, 24, 25, 29, 4587, 4588, 4589];

/// Whether the key exchange is known, supported here or not.
pub fn is_known_curve(id: i32) -> bool {
    CURVES.contains(&id)
}

/// The common name of a certificate's subject, if it has one, and the domains that the certificate is for.
pub fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternatives = parsed.subject_alternative_name().ok().flatten();
    let domains = alternatives.iter().flat_map(|names| &names.value.general_names);
    let domains = domains.filter_map(|name| match name {
        GeneralName::DNSName(domain) => Some(*domain),
        _ => None,
    });
    common.take(1).chain(domains).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cipher_names_are_sorted() {
        assert!(SUITES.is_sorted());
        assert!(
            is_known_suite("TLS_AES_128_GCM_SHA256") && !is_known_suite("TLS_NULL_WITH_NULL_NULL")
        );
    }
}
