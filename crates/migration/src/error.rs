//! Why a volume cannot be described as one of a driver.

/// The text is upstream's where upstream refuses it, and fit for a pod's event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The source does not say which volume it is.
    #[error("{kind} names no volume: {field} is empty")]
    NoVolume {
        /// The field of the volume that holds the source.
        kind: &'static str,
        /// The field of the source that is empty.
        field: &'static str,
    },
    /// A URL that leads to no volume of AWS.
    #[error(
        "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({0})"
    )]
    AwsVolume(String),
    /// A disk of Azure that is a blob in a storage account.
    #[error("kind({0}) is not supported in csi migration")]
    AzureDiskKind(String),
    /// The namespace of the secret of a share is not given.
    #[error("could not find a secret namespace in PersistentVolumeSource or ClaimRef")]
    NoSecretNamespace,
    /// A zone of GCE whose name does not say where it is.
    #[error(
        "failed to get region from zones: zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {0}"
    )]
    Zone(String),
    /// Zones of several regions.
    #[error("failed to get region from zones: multiple or no regions gotten from zones, got: {0}")]
    Regions(String),
}
