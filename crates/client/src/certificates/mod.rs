//! The node's own certificates: the one it shows to the apiserver and the one it serves with. Each
//! is a pair in a [`Store`] that a [`CertificateManager`] requests from the cluster (a CertificateSigningRequest),
//! and again before it expires.
//!
//! The node gives the keepers a task each; clients follow the client's pair by
//! [`crate::Identity`], the server's port reads the pair of its store.
//!
//! Current limitations: no lifetime is requested (`expirationSeconds`), as upstream's
//! kubelet does not either.

mod client;
mod manager;
mod metrics;
mod pair;
mod request;
mod rotation;
mod serving;
mod store;
#[cfg(test)]
mod tests;

pub use self::client::{BootstrapError, ClientCertificate};
pub use self::manager::CertificateManager;
pub use self::metrics::CertificateMetrics;
pub use self::serving::{keep as keep_serving, pair_path as serving_pair_path};
pub use self::store::{Store, StoreError};

/// The groups of a node, and the beginning of its user's name.
const GROUP: &str = "system:nodes";
const USER_PREFIX: &str = "system:node:";
