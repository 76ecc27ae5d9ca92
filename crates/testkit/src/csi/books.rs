//! A driver's own account of its volumes on the node, and of what nobody may ask of it.
use std::collections::{BTreeMap, BTreeSet};

use longshore_csi::v1::node_service_capability::rpc;
use longshore_csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};

/// Tells a volume that lives as long as its pod, which is never staged, if the node tells of pods.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// What a driver has on the node, and what it was asked for out of order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Books {
    /// The volumes that are staged, with their staging paths.
    pub staged: BTreeMap<String, String>,
    /// The volumes that are published, with their target paths.
    pub published: BTreeSet<(String, String)>,
    /// The calls that broke the order in which CSI has them made.
    pub out_of_order: Vec<String>,
}

impl Books {
    fn complain(&mut self, what: String) {
        self.out_of_order.push(what);
    }

    /// A call came while another was under way for the same volume.
    pub(super) fn overlaps(&mut self, method: &str, volume: &str, other: &str) {
        self.complain(format!("{method} of {volume} during {other}"));
    }

    pub(super) fn asked_to_stage(&mut self, request: &NodeStageVolumeRequest) {
        let (volume, path) = (&request.volume_id, &request.staging_target_path);
        if let Some(other) = self.staged.get(volume).filter(|staged| *staged != path) {
            let told = format!("{volume} to be staged at {path}, while it is staged at {other}");
            self.complain(told);
        }
    }

    pub(super) fn asked_to_publish(
        &mut self,
        request: &NodePublishVolumeRequest,
        capabilities: &[rpc::Type],
    ) {
        let (volume, path) = (&request.volume_id, &request.staging_target_path);
        let ephemeral = request.volume_context.get(EPHEMERAL).is_some_and(|told| told == "true");
        let stages = capabilities.contains(&rpc::Type::StageUnstageVolume) && !ephemeral;
        let staged = self.staged.get(volume).map(String::as_str);
        let expected = if stages { staged } else { Some("") };
        if expected != Some(path) {
            self.complain(format!("{volume} to be published from {path:?}, staged: {staged:?}"));
        }
    }

    pub(super) fn asked_to_unstage(&mut self, volume: &str) {
        let targets = self.published.iter().filter(|(published, _)| published == volume);
        let targets: Vec<_> = targets.map(|(_, target)| target.clone()).collect();
        if !targets.is_empty() {
            self.complain(format!("{volume} to be unstaged, while it is published at {targets:?}"));
        }
    }
}
