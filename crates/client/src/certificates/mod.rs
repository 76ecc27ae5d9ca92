//! The node's own certificates: the one it shows to the apiserver and the one it serves with. Each
//! is a pair in a [`Store`] that a [`Keeper`] asks the cluster for (a CertificateSigningRequest),
//! and asks again before it ends.
//!
//! The node gives the keepers a task each; clients follow the client's pair by
//! [`crate::Identity`], the server's port reads the pair of its store.
//!
//! Current limitations: a signer is not asked for a lifetime (`expirationSeconds`), as upstream's
//! kubelet does not either.

mod client;
mod due;
mod keeper;
mod metrics;
mod pair;
mod request;
mod serving;
mod store;
#[cfg(test)]
mod tests;

pub use self::client::{BootstrapError, ClientCertificate};
pub use self::keeper::Keeper;
pub use self::metrics::CertificateMetrics;
pub use self::serving::{keep as keep_serving, pair_path as serving_pair_path};
pub use self::store::{Store, StoreError};

/// The groups of a node, and the beginning of its user's name.
const GROUP: &str = "system:nodes";
const USER_PREFIX: &str = "system:node:";
