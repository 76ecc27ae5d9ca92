//! Certificate signing requests (PKCS #10): reading them, what each signer of the cluster takes, and
//! issuing the certificate. No files and no API here: the apiserver validates with it, and the
//! controllers sign.
//!
//! Current limitations: in CertificateSigningRequests, keys on curves other than P-256 and P-384 and of RSA below
//! 2048 bits are refused, since their signatures cannot be checked. Signatures with SHA-512 of keys on these two
//! curves are refused everywhere.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod authority;
mod keys;
mod pod;
mod request;
mod signer;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

pub use authority::{Authority, AuthorityError, IssueError};
pub use keys::{Curve, KeyFault, PublicKey};
pub use pod::{PodCertificate, PodRequest, is_mail_address};
pub use request::{Request, RequestError, check_issued};
pub use signer::{Refusal, Signer};
