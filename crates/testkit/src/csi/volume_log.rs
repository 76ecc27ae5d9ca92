//! The volumes of a driver on the node, and calls that violate the CSI specification.
use std::collections::{BTreeMap, BTreeSet};

use longshore_csi::v1::node_service_capability::rpc;
use longshore_csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};

/// Marks an ephemeral volume, which is never staged, if the node sends pod information.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// Volumes of a driver, and invalid calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeLog {
    /// The volumes that are staged, with their staging paths.
    pub staged: BTreeMap<String, String>,
    /// The volumes that are published, with their target paths.
    pub published: BTreeSet<(String, String)>,
    /// Calls out of order.
    pub out_of_order: Vec<String>,
}

impl VolumeLog {
    fn violation(&mut self, what: String) {
        self.out_of_order.push(what);
    }

    /// A concurrent call for the same volume.
    pub(super) fn overlaps(&mut self, method: &str, volume: &str, other: &str) {
        self.violation(format!("{method} of {volume} during {other}"));
    }

    pub(super) fn check_stage(&mut self, request: &NodeStageVolumeRequest) {
        let (volume, path) = (&request.volume_id, &request.staging_target_path);
        if let Some(other) = self.staged.get(volume).filter(|staged| *staged != path) {
            let error = format!("{volume} to be staged at {path}, while it is staged at {other}");
            self.violation(error);
        }
    }

    pub(super) fn check_publish(
        &mut self,
        request: &NodePublishVolumeRequest,
        capabilities: &[rpc::Type],
    ) {
        let (volume, path) = (&request.volume_id, &request.staging_target_path);
        let ephemeral = request.volume_context.get(EPHEMERAL).is_some_and(|value| value == "true");
        let stages = capabilities.contains(&rpc::Type::StageUnstageVolume) && !ephemeral;
        let staged = self.staged.get(volume).map(String::as_str);
        let expected = if stages { staged } else { Some("") };
        if expected != Some(path) {
            self.violation(format!("{volume} to be published from {path:?}, staged: {staged:?}"));
        }
    }

    pub(super) fn check_unstage(&mut self, volume: &str) {
        let targets = self.published.iter().filter(|(published, _)| published == volume);
        let targets: Vec<_> = targets.map(|(_, target)| target.clone()).collect();
        if !targets.is_empty() {
            self.violation(format!(
                "{volume} to be unstaged, while it is published at {targets:?}"
            ));
        }
    }
}
