//! Certificate signing requests (PKCS #10): reading them, what each signer of the cluster takes, and
//! issuing the certificate. No files and no API here: the apiserver validates with it, and the
//! controllers sign.
//!
//! Current limitations: keys on curves other than P-256 and P-384 and of RSA below 2048 bits are
//! refused, since their signatures cannot be checked.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod authority;
mod request;
mod signer;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

pub use authority::{Authority, AuthorityError, IssueError};
pub use request::{Request, RequestError, check_issued};
pub use signer::{Refusal, Signer};
