//! The way of a volume to the node: whether it is attached, as its VolumeAttachment tells, and
//! who uses it there.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::Api;
use longshore_base::time;
use longshore_client::{Item, optional};
use longshore_csi::Code;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::super::devices::DeviceGuard;
use super::super::layout;
use super::super::persistent::Task;
use super::Csi;
use super::api::within;
use super::error::Error;
use super::paths::{BlockPlace, Place, attachment_name};
use super::request::Volume;

/// How long a volume may take to be attached before that is an error.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Pauses between looks. Nodes may not watch attachments; but their own object, which is watched,
/// says as well what is attached.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

const ONE_POD: &str = "ReadWriteOncePod";

/// Makes the pod a user of the volume: from then on the volume is told to be in use on the node.
pub(super) async fn enter(task: &Task<'_>, volume: &Volume<'_>) -> Result<(), super::super::Error> {
    let held = task.devices().hold(&volume.device).await;
    if task.persistent.access_modes == [ONE_POD] && is_used_by_others(task, &held).await? {
        return Err(Error::InUse.into());
    }
    held.enter_attached(task.uid(), volume.policy.attaches());
    Ok(())
}

/// Whether the volume is published to another pod. One whose start has failed so far holds nothing.
async fn is_used_by_others(
    task: &Task<'_>,
    held: &DeviceGuard,
) -> Result<bool, super::super::Error> {
    let (root, name) = (task.node.root.clone(), task.persistent.dir_name());
    let others = held.others(task.uid());
    super::super::blocking(move || {
        let published = BlockPlace::new(&root, &name).published;
        Ok(others.iter().filter(|uid| layout::component("pod UID", uid).is_ok()).any(|uid| {
            Place::of_pod(&root, uid, &name).dir.exists() || published.join(uid).exists()
        }))
    })
    .await
}

impl Csi {
    /// Waits until a volume is attached to this node; gives what the driver's controller has to
    /// tell to its part on the node.
    pub(super) async fn attached(
        &self,
        task: &Task<'_>,
        volume: &Volume<'_>,
    ) -> Result<BTreeMap<String, String>, Error> {
        let (driver, handle) = (volume.driver.name(), &volume.handle);
        let name = attachment_name(handle, driver, self.node_name());
        let client = self.client(|| format!("get VolumeAttachment {name}"))?;
        let api = Api::<Item<VolumeAttachment>>::all(client.clone());
        let deadline = time::after(self.attach_patience);
        let mut pause = FIRST_PAUSE;
        let (mut told, mut limit) = (false, None);
        loop {
            let reason = match timeout_at(deadline, within(optional(api.get_opt(&name)))).await {
                Ok(Ok(Some(attachment))) => match judge(&attachment) {
                    Judgement::Attached(context) => return Ok(context),
                    Judgement::Failed { reason, exhausted } => {
                        if !exhausted || !volume.policy.updates_allocatable() {
                            return Err(Error::Attachment(reason));
                        }
                        if limit.is_none() {
                            self.note_exhausted(driver);
                        }
                        limit = Some(reason.clone());
                        Some(reason)
                    }
                    Judgement::NotYet => Some("it is not attached yet".to_owned()),
                },
                Ok(Ok(None)) => Some(format!("there is no VolumeAttachment {name}")),
                Ok(Err(reason)) => Some(reason),
                Err(_) => None,
            };
            let next = time::after(pause).min(deadline);
            tokio::select! {
                () = sleep_until(next) => {}
                _ = task.devices().attached(&volume.device), if !told => {
                    told = true;
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
            pause = pause.mul_f64(1.5).min(LONGEST_PAUSE);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// With what its driver has told about it.
    Attached(BTreeMap<String, String>),
    NotYet,
    Failed {
        reason: String,
        /// Whether the node has no room for it.
        exhausted: bool,
    },
}

/// What an attachment says.
pub(super) fn judge(attachment: &VolumeAttachment) -> Judgement {
    if attachment.metadata.deletion_timestamp.is_some() {
        let reason = "volume attachment is being deleted".to_owned();
        return Judgement::Failed { reason, exhausted: false };
    }
    let Some(status) = &attachment.status else { return Judgement::NotYet };
    if status.attached {
        return Judgement::Attached(status.attachment_metadata.clone().unwrap_or_default());
    }
    match &status.attach_error {
        Some(error) => Judgement::Failed {
            reason: error.message.clone().unwrap_or_default(),
            exhausted: error.error_code == Some(Code::ResourceExhausted as i32),
        },
        None => Judgement::NotYet,
    }
}
