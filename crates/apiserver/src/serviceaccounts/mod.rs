//! Service accounts: the defaults of each namespace, admission of pods, issue of tokens and their
//! validation. Used by `routes` (TokenRequest), `auth` and `operations` (creation of pods).
//!
//! Current limitations: secrets of type `kubernetes.io/service-account-token` are not filled in.

mod admission;
mod controller;
mod request;
#[cfg(test)]
mod tests;
mod token_validation;

pub(crate) use admission::{admit_create, admit_ephemeral_containers};
pub(crate) use controller::run;

/// The account of a pod that names none.
pub(crate) const DEFAULT: &str = "default";
/// The config map that holds the CA of this server's certificate, in each namespace.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
/// The expiration of the tokens that pods get by default (seconds): an odd number, which
/// distinguishes them from explicitly requested ones.
const PODS_TOKEN_EXPIRATION: i64 = 3607;
