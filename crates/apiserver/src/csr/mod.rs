//! Certificate signing requests, those of pods and trust bundles as data of the API.

mod bundle;

pub(crate) use longshore_csr::{
    Curve, KeyFault, PodCertificate, PodRequest, PublicKey, Request, Signer, check_issued,
    is_mail_address,
};

pub(crate) use self::bundle::trust_anchors;

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
