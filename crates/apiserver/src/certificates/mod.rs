//! Certificate signing requests: parsing, authorization of decisions, and the task that approves
//! nodes' requests by themselves and signs approved ones with the cluster's CA.
//!
//! Current limitations: keys on curves other than P-256 and P-384 and of RSA below 2048 bits are
//! refused, since their signatures cannot be checked.

mod access;
mod bundle;
mod checks;
mod request;
mod task;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

pub(crate) use self::access::{admit_attest, admit_create, admit_update, stamp};
pub(crate) use self::bundle::trust_anchors;
pub(crate) use self::checks::Signer;
pub(crate) use self::request::{Request, check_issued};
pub(crate) use self::task::{Settings, run};

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
