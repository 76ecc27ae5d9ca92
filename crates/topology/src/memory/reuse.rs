//! Reuse of memory of init containers by later containers of their pod.

use std::collections::BTreeMap;

use super::Block;
use crate::mask::NumaMask;
use crate::request::{ContainerRequest, Kind, PodRequest};

/// Reusable memory of the pod that is being admitted, by nodes and resource.
#[derive(Clone, Debug, Default)]
pub(super) struct Reusable {
    uid: String,
    amounts: BTreeMap<(NumaMask, String), u64>,
}

impl Reusable {
    /// Reusable amount of a resource on these nodes.
    pub(super) fn of(&self, uid: &str, nodes: NumaMask, resource: &str) -> u64 {
        match self.uid == uid {
            true => self.amounts.get(&(nodes, resource.to_owned())).copied().unwrap_or(0),
            false => 0,
        }
    }

    /// The pod was removed.
    pub(super) fn forget(&mut self, uid: &str) {
        if self.uid == uid {
            *self = Self::default();
        }
    }

    /// A container got these blocks: init containers leave them for reuse, others use them up.
    pub(super) fn note(&mut self, uid: &str, kind: Kind, blocks: &[Block]) {
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), amounts: BTreeMap::new() };
        }
        for block in blocks {
            let nodes: NumaMask = block.nodes.iter().copied().collect();
            let amount = self.amounts.entry((nodes, block.resource.clone())).or_default();
            *amount = match kind {
                Kind::Init => block.size.max(*amount),
                Kind::Sidecar | Kind::Main => amount.saturating_sub(block.size),
            };
        }
    }
}

/// Shrinks the blocks of init containers by the reused amount, so that the blocks of the pod add up to
/// its memory.
pub(super) fn take_over(
    containers: &mut BTreeMap<String, Vec<Block>>,
    pod: &PodRequest,
    container: &ContainerRequest,
    blocks: &[Block],
) {
    for block in blocks {
        let mut left = block.size;
        let before = pod.containers.iter().take_while(|other| other.name != container.name);
        for init in before.filter(|other| other.kind == Kind::Init) {
            for old in containers.get_mut(&init.name).into_iter().flatten() {
                if old.resource == block.resource && same_nodes(old, block) {
                    let taken = left.min(old.size);
                    old.size = old.size.saturating_sub(taken);
                    left = left.saturating_sub(taken);
                }
            }
        }
    }
}

fn same_nodes(one: &Block, other: &Block) -> bool {
    let mask = |block: &Block| block.nodes.iter().copied().collect::<NumaMask>();
    mask(one) == mask(other)
}
