//! The CSIDriver object of a driver, which is optional.

use k8s_openapi::api::storage::v1::{CSIDriverSpec, TokenRequest};

use crate::error::csi::Error;

pub(super) const PERSISTENT: &str = "Persistent";
pub(super) const EPHEMERAL: &str = "Ephemeral";

/// The settings of a CSIDriver.
#[derive(Debug, Clone, Default)]
pub(super) struct Policy(pub(super) Option<CSIDriverSpec>);

/// The fsGroupPolicy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupPolicy {
    /// fsGroup is not applied.
    None,
    /// fsGroup is always applied.
    File,
    /// fsGroup is applied to ReadWriteOnce volumes with a file system type.
    ReadWriteOnceWithFsType,
}

impl Policy {
    fn flag(&self, field: impl FnOnce(&CSIDriverSpec) -> Option<bool>) -> Option<bool> {
        self.0.as_ref().and_then(field)
    }

    /// Whether volumes need an attachment.
    pub(super) fn attach_required(&self) -> bool {
        self.flag(|spec| spec.attach_required) != Some(false)
    }

    /// Whether the volume context has pod info.
    pub(super) fn pod_info_on_mount(&self) -> bool {
        self.flag(|spec| spec.pod_info_on_mount) == Some(true)
    }

    /// Whether volumes are republished periodically.
    pub(super) fn requires_republish(&self) -> bool {
        self.flag(|spec| spec.requires_republish) == Some(true)
    }

    /// Whether the CSINode's allocatable count is updated periodically.
    pub(super) fn updates_allocatable(&self) -> bool {
        let period = self.0.as_ref().and_then(|spec| spec.node_allocatable_update_period_seconds);
        period.is_some_and(|seconds| seconds > 0)
    }

    /// Whether volumes may be mounted with an SELinux label.
    pub(super) fn se_linux_mount(&self) -> bool {
        self.flag(|spec| spec.se_linux_mount) == Some(true)
    }

    /// The service account tokens that the driver requests.
    pub(super) fn tokens(&self) -> &[TokenRequest] {
        self.0.as_ref().and_then(|spec| spec.token_requests.as_deref()).unwrap_or_default()
    }

    /// Whether they are passed in the secrets, rather than in the volume context.
    pub(super) fn tokens_are_secret(&self) -> bool {
        self.flag(|spec| spec.service_account_token_in_secrets) == Some(true)
    }

    pub(super) fn group(&self) -> GroupPolicy {
        match self.0.as_ref().and_then(|spec| spec.fs_group_policy.as_deref()) {
            Some("None") => GroupPolicy::None,
            Some("File") => GroupPolicy::File,
            _ => GroupPolicy::ReadWriteOnceWithFsType,
        }
    }

    /// Checks that the driver supports the lifecycle mode. Without a CSIDriver, only persistent
    /// volumes are supported.
    pub(super) fn check(&self, mode: &'static str, driver: &str) -> Result<(), Error> {
        let supported = self.0.as_ref().map(|spec| {
            let modes = spec.volume_lifecycle_modes.clone().filter(|modes| !modes.is_empty());
            modes.unwrap_or_else(|| vec![PERSISTENT.to_owned()])
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
