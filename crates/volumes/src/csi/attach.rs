//! Attachment of a volume to the node, by its VolumeAttachment, and its users on the node.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::Api;
use longshore_base::retry::Delays;
use longshore_base::time;
use longshore_client::{Item, optional};
use longshore_csi::Code;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::paths::{BlockVolumePaths, VolumePaths, attachment_name};
use super::request::Volume;
use crate::devices::DeviceGuard;
use crate::error::csi::Error;
use crate::layout;
use crate::state::csi::{Csi, within};
use crate::task::Task;

/// Poll intervals. Nodes may not watch attachments; but their own object, which is watched, has the
/// attached volumes, too.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

const ONE_POD: &str = "ReadWriteOncePod";

/// Makes the pod a user of the volume: from then on the volume is in the node's `volumesInUse`.
pub(super) async fn mark_in_use(
    task: &Task<'_>,
    volume: &Volume<'_>,
) -> Result<(), crate::error::Error> {
    let held = task.devices().hold(&volume.device).await;
    if task.persistent.access_modes == [ONE_POD] && is_used_by_others(task, &held).await? {
        return Err(Error::InUse.into());
    }
    held.add_user_attachable(task.uid(), volume.policy.attach_required());
    Ok(())
}

/// Whether the volume is published to another pod.
async fn is_used_by_others(
    task: &Task<'_>,
    held: &DeviceGuard,
) -> Result<bool, crate::error::Error> {
    let (root, name) = (task.node.root.clone(), task.persistent.dir_name());
    let other_users = held.other_users(task.uid());
    crate::host::blocking(move || {
        let published = BlockVolumePaths::new(&root, &name).published;
        Ok(other_users.iter().filter(|uid| layout::component("pod UID", uid).is_ok()).any(|uid| {
            VolumePaths::of_pod(&root, uid, &name).dir.exists() || published.join(uid).exists()
        }))
    })
    .await
}

impl Csi {
    /// Waits until a volume is attached to this node; returns the publish context.
    pub(super) async fn attached(
        &self,
        task: &Task<'_>,
        volume: &Volume<'_>,
    ) -> Result<BTreeMap<String, String>, Error> {
        let (driver, handle) = (volume.driver.name(), &volume.handle);
        let name = attachment_name(handle, driver, self.node_name());
        let client = self.client(|| format!("get VolumeAttachment {name}"))?;
        let api = Api::<Item<VolumeAttachment>>::all(client.clone());
        let deadline = time::after(self.attach_timeout);
        let mut delays = Delays::growing(FIRST_PAUSE, LONGEST_PAUSE, 1.5);
        let mut pause = delays.next_delay();
        let (mut node_status_seen, mut limit) = (false, None);
        loop {
            let reason = match timeout_at(deadline, within(optional(api.get_opt(&name)))).await {
                Ok(Ok(Some(attachment))) => match attachment_state(&attachment) {
                    AttachmentState::Attached(context) => return Ok(context),
                    AttachmentState::Failed { reason, exhausted } => {
                        if !exhausted || !volume.policy.updates_allocatable() {
                            return Err(Error::Attachment(reason));
                        }
                        if limit.is_none() {
                            self.notify_exhausted(driver);
                        }
                        limit = Some(reason.clone());
                        Some(reason)
                    }
                    AttachmentState::NotAttached => Some("it is not attached yet".to_owned()),
                },
                Ok(Ok(None)) => Some(format!("there is no VolumeAttachment {name}")),
                Ok(Err(reason)) => Some(reason),
                Err(_) => None,
            };
            let next = time::after(pause).min(deadline);
            tokio::select! {
                () = sleep_until(next) => {}
                _ = task.devices().attached(&volume.device), if !node_status_seen => {
                    node_status_seen = true;
                    continue;
                }
            }
            if Instant::now() >= deadline {
                let (driver, volume) = (driver.to_owned(), handle.clone());
                return Err(match limit {
                    Some(reason) => Error::AttachLimit(reason),
                    None => Error::NotAttached { driver, volume, reason },
                });
            }
            pause = delays.next_delay();
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum AttachmentState {
    /// With the attachment metadata.
    Attached(BTreeMap<String, String>),
    NotAttached,
    Failed {
        reason: String,
        /// Whether the attach limit of the node is reached.
        exhausted: bool,
    },
}

/// The state of a VolumeAttachment.
pub(super) fn attachment_state(attachment: &VolumeAttachment) -> AttachmentState {
    if attachment.metadata.deletion_timestamp.is_some() {
        let reason = "volume attachment is being deleted".to_owned();
        return AttachmentState::Failed { reason, exhausted: false };
    }
    let Some(status) = &attachment.status else { return AttachmentState::NotAttached };
    if status.attached {
        return AttachmentState::Attached(status.attachment_metadata.clone().unwrap_or_default());
    }
    match &status.attach_error {
        Some(error) => AttachmentState::Failed {
            reason: error.message.clone().unwrap_or_default(),
            exhausted: error.error_code == Some(Code::ResourceExhausted as i32),
        },
        None => AttachmentState::NotAttached,
    }
}
