//! Images that are on nodes already.

use crate::events::ClusterEvent;
use crate::framework::{Cycle, MAX_SCORE, NodeScore, Plugin, Points};
use crate::model::{Atom, NodeInfo, Pod};

const MIB: i64 = 1024 * 1024;
/// Images below this in all are as good as none.
const MIN_SIZE: i64 = 23 * MIB;
/// More than this a container is as good as this.
const MAX_SIZE: i64 = 1000 * MIB;

/// Prefers nodes that have the pod's images.
#[derive(Debug)]
pub(super) struct ImageLocality;

struct Present<'a> {
    /// Images with the part of all nodes that have them.
    images: Vec<(&'a Atom, f64)>,
    max: i64,
}

impl NodeScore for Present<'_> {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "saturates")]
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let mut sum = 0i64;
        for (name, part) in &self.images {
            if let Some((_, size)) = node.images.iter().find(|(own, _)| own == *name) {
                sum = sum.saturating_add((*size as f64 * part) as i64);
            }
        }
        let above = sum.clamp(MIN_SIZE, self.max).saturating_sub(MIN_SIZE);
        let range = self.max.saturating_sub(MIN_SIZE);
        above.saturating_mul(MAX_SCORE).checked_div(range).unwrap_or(0)
    }
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn points(&self) -> Points {
        Points::SCORE
    }

    #[allow(clippy::cast_precision_loss, reason = "numbers of nodes")]
    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let total = cycle.snapshot.nodes().len().max(1) as f64;
        let images: Vec<_> = cycle
            .pod
            .images
            .iter()
            .map(|image| (image, cycle.snapshot.nodes_with_image(image) as f64 / total))
            .filter(|(_, part)| *part > 0.0)
            .collect();
        if images.is_empty() {
            return None;
        }
        let containers = i64::try_from(cycle.pod.containers.max(1)).unwrap_or(i64::MAX);
        Some(Box::new(Present { images, max: MAX_SIZE.saturating_mul(containers) }))
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}
