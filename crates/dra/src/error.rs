//! Why the claims of a pod are not prepared or not unprepared.

use std::fmt::Write;

/// Characters of a driver's own words in errors, which become messages of events.
const LONGEST_WORDS: usize = 512;

/// An error about the claims of a pod. Messages are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The claims of a pod are not prepared.
    #[error("prepare dynamic resources: {0}")]
    Prepare(Box<Error>),
    /// The claims of a pod are not unprepared.
    #[error("unprepare dynamic resources: {0}")]
    Unprepare(Box<Error>),
    /// A claim is not generated from its template yet.
    #[error("pod \"{pod}\": ResourceClaim not created yet")]
    NotCreated {
        /// Namespace and name of the pod.
        pod: String,
    },
    /// An entry of the pod names neither a claim nor a template.
    #[error("pod \"{pod}\", spec.resourceClaim {entry:?}: none of the supported fields are set")]
    Unsupported {
        /// Namespace and name of the pod.
        pod: String,
        /// The entry.
        entry: String,
    },
    /// A claim could not be read from the apiserver.
    #[error("fetch ResourceClaim {claim}: {reason}")]
    Fetch {
        /// The claim.
        claim: String,
        /// The server's message, or the local error.
        reason: String,
    },
    /// A claim with the name of the generated one belongs to something else.
    #[error("ResourceClaim {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner {
        /// Namespace and name of the claim.
        claim: String,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// A claim is not reserved for the pod.
    #[error("pod {pod} ({pod_uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved {
        /// The pod.
        pod: String,
        /// Its UID.
        pod_uid: String,
        /// The claim.
        claim: String,
        /// Its UID.
        claim_uid: String,
    },
    /// A claim is not allocated.
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    /// No driver of that name is registered.
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    /// The allocation of a claim names no driver.
    #[error("DRA driver name is empty")]
    NoDriver,
    /// A claim of that name that was deleted is still prepared.
    #[error(
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim {
        /// The claim.
        claim: String,
        /// The UID of the one that was deleted.
        uid: String,
    },
    /// The checkpoint cannot be written.
    #[error("checkpoint ResourceClaim state: {path}: {reason}")]
    Checkpoint {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
    /// The checkpoint cannot be read.
    #[error(
        "could not initialize checkpoint manager, please drain node and remove DRA state file {path}, err: {reason}"
    )]
    Restore {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
    /// A call to a driver failed.
    #[error("{call}: {text} (DRA driver {driver})")]
    Call {
        /// The call.
        call: &'static str,
        /// The failure, in the format of gRPC's Go library.
        text: String,
        /// The driver.
        driver: String,
    },
    /// A driver has reported a failure of a claim.
    #[error("{call} failed for ResourceClaim {claim}: {text} (DRA driver {driver})")]
    Claim {
        /// The call.
        call: &'static str,
        /// The claim.
        claim: String,
        /// The driver's message.
        text: String,
        /// The driver.
        driver: String,
    },
    /// A driver has answered for a claim that it was not asked for.
    #[error("{call} returned result for unknown claim UID {uid} (DRA driver {driver})")]
    UnknownClaim {
        /// The call.
        call: &'static str,
        /// The UID in the answer.
        uid: String,
        /// The driver.
        driver: String,
    },
    /// A driver has not answered for all claims.
    #[error("{call} skipped {count} ResourceClaims (DRA driver {driver})")]
    Skipped {
        /// The call.
        call: &'static str,
        /// The number of claims without an answer.
        count: usize,
        /// The driver.
        driver: String,
    },
    /// A driver has answered with a CDI device that no runtime accepts.
    #[error(
        "NodePrepareResources returned invalid CDI device {device:?} for ResourceClaim {claim} (DRA driver {driver})"
    )]
    CdiDevice {
        /// The device.
        device: String,
        /// The claim.
        claim: String,
        /// The driver.
        driver: String,
    },
    /// A claim of a container is not prepared.
    #[error(
        "internal error: unable to get claim info for ResourceClaim {claim} in namespace {namespace}"
    )]
    NotPrepared {
        /// The claim.
        claim: String,
        /// Its namespace.
        namespace: String,
    },
}

/// The words of a driver, of which only the beginning may get into a message.
pub(crate) fn words(text: &str) -> String {
    let mut beginning: String = text.chars().take(LONGEST_WORDS).collect();
    let left = text.len().saturating_sub(beginning.len());
    if left > 0 {
        let _ = write!(beginning, "... ({left} more bytes)");
    }
    beginning
}
