//! What the cluster says of a driver: its CSIDriver object, which need not be there.

use k8s_openapi::api::storage::v1::{CSIDriverSpec, TokenRequest};

use super::error::Error;

pub(super) const PERSISTENT: &str = "Persistent";
pub(super) const EPHEMERAL: &str = "Ephemeral";

/// What is asked of the node for a driver's volumes.
#[derive(Debug, Clone, Default)]
pub(super) struct Policy(pub(super) Option<CSIDriverSpec>);

/// Whose business the group of a volume's files is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupPolicy {
    /// Nobody's.
    None,
    /// The node's.
    File,
    /// The node's, where one node writes and the kind of file system is told.
    ReadWriteOnceWithFsType,
}

impl Policy {
    fn says(&self, field: impl FnOnce(&CSIDriverSpec) -> Option<bool>) -> Option<bool> {
        self.0.as_ref().and_then(field)
    }

    /// Whether a volume is attached to the node before it is used there.
    pub(super) fn attaches(&self) -> bool {
        self.says(|spec| spec.attach_required) != Some(false)
    }

    /// Whether the driver is told whose volume it is.
    pub(super) fn tells_pod(&self) -> bool {
        self.says(|spec| spec.pod_info_on_mount) == Some(true)
    }

    /// Whether volumes are published anew from time to time.
    pub(super) fn republishes(&self) -> bool {
        self.says(|spec| spec.requires_republish) == Some(true)
    }

    /// Whether the driver wants the cluster to know how many volumes it takes by now.
    pub(super) fn updates_allocatable(&self) -> bool {
        let period = self.0.as_ref().and_then(|spec| spec.node_allocatable_update_period_seconds);
        period.is_some_and(|seconds| seconds > 0)
    }

    /// Whether a file system may be mounted with a label.
    pub(super) fn mounts_labelled(&self) -> bool {
        self.says(|spec| spec.se_linux_mount) == Some(true)
    }

    /// The tokens of the pod that the driver is to have.
    pub(super) fn tokens(&self) -> &[TokenRequest] {
        self.0.as_ref().and_then(|spec| spec.token_requests.as_deref()).unwrap_or_default()
    }

    /// Whether they come with the secrets, rather than with the attributes, which drivers log.
    pub(super) fn tokens_are_secret(&self) -> bool {
        self.says(|spec| spec.service_account_token_in_secrets) == Some(true)
    }

    pub(super) fn group(&self) -> GroupPolicy {
        match self.0.as_ref().and_then(|spec| spec.fs_group_policy.as_deref()) {
            Some("None") => GroupPolicy::None,
            Some("File") => GroupPolicy::File,
            _ => GroupPolicy::ReadWriteOnceWithFsType,
        }
    }

    /// Whether the driver makes volumes of that life. Nothing is known of one without an object,
    /// which is enough for persistent volumes alone.
    pub(super) fn check(&self, mode: &'static str, driver: &str) -> Result<(), Error> {
        let supported = self.0.as_ref().map(|spec| {
            let told = spec.volume_lifecycle_modes.clone().filter(|modes| !modes.is_empty());
            told.unwrap_or_else(|| vec![PERSISTENT.to_owned()])
        });
        let fits = match &supported {
            Some(modes) => modes.iter().any(|supported| supported == mode),
            None => mode == PERSISTENT,
        };
        match fits {
            true => Ok(()),
            false => Err(Error::Mode { mode, driver: driver.to_owned(), supported }),
        }
    }
}
