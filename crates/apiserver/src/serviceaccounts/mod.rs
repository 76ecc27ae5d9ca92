//! Service accounts, the identities of programs: what each namespace has for them, what a pod gets
//! of its account, the tokens that prove one, and whether a token still does.
//! `routes` has tokens issued, `auth` has them judged, `operations` asks when a pod is made.
//!
//! Current limitations: secrets of type `kubernetes.io/service-account-token` are not filled in.

mod admission;
mod judge;
mod keeper;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use admission::{admit_create, admit_ephemeral_containers};
pub(crate) use keeper::run;

/// The account of a pod that names none.
pub(crate) const DEFAULT: &str = "default";
/// The config map that holds the CA of this server's certificate, in each namespace.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
/// What the tokens that pods get by themselves ask for (seconds): an odd number, by which they are
/// known from those that somebody asked for.
const PODS_TOKEN_EXPIRATION: i64 = 3607;
