//! Requests to CSI drivers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, Pod, SecretReference,
};
use longshore_csi::v1::volume_capability::{AccessType, BlockVolume, MountVolume};
use longshore_csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability};
use longshore_csi::{Capabilities, Driver, access_mode, capability};
use longshore_pod::spec;

use super::api::SecretName;
use super::paths::{attachment_name, device_name, inline_handle};
use super::policy::{EPHEMERAL, GroupPolicy, PERSISTENT, Policy};
use super::vol_data::VolData;
use crate::error::{Error, csi as error};
use crate::selinux;
use crate::task::Task;

/// The default access mode, such as of ephemeral volumes.
const READ_WRITE_ONCE: &str = "ReadWriteOnce";

/// A volume of a registered driver.
pub(super) struct Volume<'a> {
    pub(super) driver: Driver,
    pub(super) capabilities: Capabilities,
    pub(super) policy: Policy,
    pub(super) handle: String,
    /// Its unique name among all volumes of the node.
    pub(super) device: String,
    pub(super) mode: &'static str,
    fs_type: &'a str,
    attributes: BTreeMap<String, String>,
    stage_secret: Option<SecretName>,
    publish_secret: Option<SecretName>,
    pub(super) expand_secret: Option<SecretName>,
    /// The SELinux label to mount it with.
    label: Option<String>,
}

impl<'a> Volume<'a> {
    pub(super) async fn persistent(
        task: &Task<'_>,
        source: &'a CSIPersistentVolumeSource,
    ) -> Result<Self, Error> {
        let secret = |field, reference: &Option<SecretReference>| {
            reference.as_ref().map(|reference| SecretName {
                field,
                namespace: reference.namespace.clone().unwrap_or_default(),
                name: reference.name.clone().unwrap_or_default(),
            })
        };
        let volume = Self {
            handle: source.volume_handle.clone(),
            device: device_name(&source.driver, &source.volume_handle),
            fs_type: source.fs_type.as_deref().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: secret("NodeStageSecretRef", &source.node_stage_secret_ref),
            publish_secret: secret("NodePublishSecretRef", &source.node_publish_secret_ref),
            expand_secret: secret("NodeExpandSecretRef", &source.node_expand_secret_ref),
            ..Self::of_driver(task, &source.driver, PERSISTENT).await?
        };
        let label = match volume.policy.se_linux_mount() && !task.persistent.block {
            true => {
                let names = names_in_pod(task);
                let wanted = selinux::Use {
                    pod: task.pod,
                    volume: &task.persistent.spec_name,
                    names: &names,
                    device: &volume.device,
                    driver: &source.driver,
                    access_modes: &task.persistent.access_modes,
                };
                let default = selinux::machine_label();
                task.node.csi.labelled.label(&wanted, default.as_deref())?
            }
            false => None,
        };
        Ok(Self { label, ..volume })
    }

    pub(super) async fn inline(
        task: &Task<'_>,
        source: &'a CSIVolumeSource,
    ) -> Result<Self, Error> {
        let secret = source.node_publish_secret_ref.as_ref().map(|secret| SecretName {
            field: "NodePublishSecretRef",
            namespace: spec::namespace(task.pod).to_owned(),
            name: secret.name.clone(),
        });
        let handle = inline_handle(task.uid(), &task.persistent.spec_name);
        Ok(Self {
            device: device_name(&source.driver, &handle),
            handle,
            fs_type: source.fs_type.as_deref().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            publish_secret: secret,
            ..Self::of_driver(task, &source.driver, EPHEMERAL).await?
        })
    }

    async fn of_driver(task: &Task<'_>, name: &str, mode: &'static str) -> Result<Self, Error> {
        let csi = &task.node.csi;
        let driver = csi.driver(name)?;
        let policy = csi.policy(name).await?;
        policy.check(mode, name)?;
        let capabilities = driver.capabilities().await.map_err(error::Error::from)?;
        Ok(Self {
            driver,
            capabilities,
            policy,
            handle: String::new(),
            device: String::new(),
            mode,
            fs_type: "",
            attributes: BTreeMap::new(),
            stage_secret: None,
            publish_secret: None,
            expand_secret: None,
            label: None,
        })
    }

    pub(super) fn is_inline(&self) -> bool {
        self.mode == EPHEMERAL
    }

    /// The metadata of the volume where it is published or mapped.
    pub(super) fn vol_data(&self, task: &Task<'_>) -> VolData {
        let (driver, node) = (self.driver.name(), task.node.csi.node_name());
        let attachment = attachment_name(&self.handle, driver, node);
        VolData::new(driver, &self.handle).on_node(&task.persistent.spec_name, node, &attachment)
    }

    /// The SELinux label that it is mounted with, if any.
    pub(super) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The volume capability.
    pub(super) fn capability(&self, task: &Task<'_>) -> VolumeCapability {
        let wanted = task.persistent.access_modes.first().map(String::as_str);
        let mode = access_mode(wanted.unwrap_or(READ_WRITE_ONCE), self.capabilities);
        if task.persistent.block {
            return capability(AccessType::Block(BlockVolume {}), mode);
        }
        let group = group(task.pod).filter(|_| self.capabilities.mount_group);
        let label = self.label.as_ref().map(|label| format!("context=\"{label}\""));
        let options = task.persistent.mount_options.iter().cloned();
        let mount = MountVolume {
            fs_type: self.fs_type.to_owned(),
            mount_flags: options.chain(label).collect(),
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        };
        capability(AccessType::Mount(mount), mode)
    }

    /// Whether the node applies fsGroup.
    pub(super) fn is_for_group(&self, task: &Task<'_>) -> bool {
        if self.capabilities.mount_group || task.persistent.read_only || group(task.pod).is_none() {
            return false;
        }
        let modes = &task.persistent.access_modes;
        let one_writer =
            || self.is_inline() || modes.iter().any(|mode| mode.starts_with(READ_WRITE_ONCE));
        match self.policy.group() {
            GroupPolicy::None => false,
            GroupPolicy::File => true,
            GroupPolicy::ReadWriteOnceWithFsType => !self.fs_type.is_empty() && one_writer(),
        }
    }

    /// The request to stage the volume.
    pub(super) async fn stage_request(
        &self,
        task: &Task<'_>,
        publish_context: BTreeMap<String, String>,
        staging_path: String,
    ) -> Result<NodeStageVolumeRequest, Error> {
        Ok(NodeStageVolumeRequest {
            volume_id: self.handle.clone(),
            publish_context,
            staging_target_path: staging_path,
            volume_capability: Some(self.capability(task)),
            secrets: task.node.csi.secret(self.stage_secret.as_ref()).await?,
            volume_context: self.attributes.clone(),
        })
    }

    /// The request to publish the volume.
    pub(super) async fn publish_request(
        &self,
        task: &Task<'_>,
        publish_context: BTreeMap<String, String>,
        staging_path: Option<String>,
        target_path: String,
    ) -> Result<NodePublishVolumeRequest, Error> {
        let mut secrets = task.node.csi.secret(self.publish_secret.as_ref()).await?;
        let mut volume_context = self.attributes.clone();
        volume_context.extend(self.pod_info(task.pod));
        // As upstream, no tokens for block volumes.
        if !task.persistent.block {
            let tokens = self.tokens(task).await?;
            match self.policy.tokens_are_secret() {
                true => secrets.extend(tokens),
                false => volume_context.extend(tokens),
            }
        }
        Ok(NodePublishVolumeRequest {
            volume_id: self.handle.clone(),
            publish_context,
            staging_target_path: staging_path.unwrap_or_default(),
            target_path,
            volume_capability: Some(self.capability(task)),
            readonly: task.persistent.read_only,
            secrets,
            volume_context,
        })
    }
}

/// The names that the volume of a claim has in its pod.
fn names_in_pod<'a>(task: &Task<'a>) -> Vec<&'a str> {
    let pod_name = spec::name(task.pod);
    let claim = task.persistent.claim.as_deref();
    let all = task.pod.spec.iter().flat_map(|own| own.volumes.iter().flatten());
    let own = all.filter(|volume| match &volume.persistent_volume_claim {
        Some(source) => claim == Some(source.claim_name.as_str()),
        // a generic ephemeral volume, whose claim is named after both, or one that was migrated
        None if volume.ephemeral.is_some() => {
            claim.and_then(|claim| claim.strip_prefix(pod_name)?.strip_prefix('-'))
                == Some(volume.name.as_str())
        }
        None => claim.is_none() && volume.name == task.persistent.spec_name,
    });
    own.map(|volume| volume.name.as_str()).collect()
}

/// The group that the pod's volumes belong to.
fn group(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.security_context.as_ref()?.fs_group
}
