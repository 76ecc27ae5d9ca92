//! Memory of init containers that have ended, which later containers of their pod take over.

use std::collections::BTreeMap;

use super::Block;
use crate::mask::NumaMask;
use crate::request::{ContainerRequest, Kind, PodRequest};

/// What the containers of the pod that is being let in may take over, by nodes and resource.
#[derive(Clone, Debug, Default)]
pub(super) struct Reusable {
    uid: String,
    amounts: BTreeMap<(NumaMask, String), u64>,
}

impl Reusable {
    /// How much of a resource the pod may take over on these nodes.
    pub(super) fn of(&self, uid: &str, nodes: NumaMask, resource: &str) -> u64 {
        match self.uid == uid {
            true => self.amounts.get(&(nodes, resource.to_owned())).copied().unwrap_or(0),
            false => 0,
        }
    }

    /// The pod has nothing any more.
    pub(super) fn forget(&mut self, uid: &str) {
        if self.uid == uid {
            *self = Self::default();
        }
    }

    /// A container of the pod has these blocks: an init container leaves them, others use up.
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

/// The blocks of init containers shrink by what a later container takes over, so that all blocks
/// of the pod sum up to what it has.
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
