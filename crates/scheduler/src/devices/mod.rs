//! PURE: devices of a node for the claims of a pod (structured parameters of dynamic resource
//! allocation).
//!
//! [`Allocator::allocate`] goes through claims, their requests and the devices of the node depth first, and
//! takes the first solution. What a candidate conflicts with is computed from what the search has chosen so
//! far, so that going back is dropping the last choice.
//!
//! Current limitations: attributes that are lists are not compared.

mod capacity;
mod constraint;
pub(crate) mod extended;
mod pool;
mod request;
mod result;
mod search;
mod selector;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use k8s_openapi::api::resource::v1::AllocationResult;

use self::pool::Slices;
use self::search::Search;
use crate::model::{Atom, DeviceClass, Node, ResourceClaim, ResourceSlice, UsedDevices};

/// The most devices of a claim.
const MAX_RESULTS: usize = 32;
/// The most steps of a search; the time that upstream allows for a node is ten seconds.
const MAX_STEPS: usize = 100_000;

/// Why claims cannot be allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// They cannot on this node.
    #[error("{0}")]
    OnNode(String),
    /// A claim or a class is wrong, so that no node can serve it.
    #[error("{0}")]
    Claim(String),
    /// The search takes too long.
    #[error("timed out trying to allocate devices")]
    TooLong,
}

/// Finds devices for claims.
pub struct Allocator<'a> {
    slices: Slices<'a>,
    classes: &'a HashMap<Atom, DeviceClass>,
    used: &'a UsedDevices,
    max_steps: usize,
}

impl<'a> Allocator<'a> {
    /// An allocator of what these slices have and nobody uses.
    pub fn new(
        slices: impl Iterator<Item = &'a ResourceSlice>,
        classes: &'a HashMap<Atom, DeviceClass>,
        used: &'a UsedDevices,
    ) -> Self {
        Self { slices: Slices::new(slices), classes, used, max_steps: MAX_STEPS }
    }

    /// Devices for all of the claims on a node, in their order; `None`: the node does not have them.
    ///
    /// # Errors
    /// A claim, a class or a pool of devices is wrong, or the search takes too long.
    pub fn allocate(
        &self,
        node: &Node,
        claims: &[&ResourceClaim],
    ) -> Result<Option<Vec<AllocationResult>>, AllocationError> {
        let pools = self.slices.pools(node);
        Search::new(node, &pools, self, claims)?.run()
    }
}
