//! Certificate signing requests and trust bundles as data: parsing, and what each signer takes.
//!
//! Current limitations: keys on curves other than P-256 and P-384 and of RSA below 2048 bits are
//! refused, since their signatures cannot be checked.

mod bundle;
pub(crate) mod checks;
pub(crate) mod request;

pub(crate) use self::bundle::trust_anchors;
pub(crate) use self::checks::Signer;
pub(crate) use self::request::{Request, check_issued};

/// The request is approved.
pub(crate) const APPROVED: &str = "Approved";
/// The request is denied.
pub(crate) const DENIED: &str = "Denied";
/// The signer could not do it.
pub(crate) const FAILED: &str = "Failed";

/// All key usages.
pub(crate) const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
