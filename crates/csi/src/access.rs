//! Converts access modes of Kubernetes to those of CSI.

use crate::Capabilities;
use crate::v1::VolumeCapability;
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::volume_capability::{AccessMode, AccessType};

/// The CSI mode for the access mode of a persistent volume, such as `ReadWriteOnce`, depending on
/// the capability SINGLE_NODE_MULTI_WRITER.
#[must_use]
pub fn access_mode(kubernetes: &str, capabilities: Capabilities) -> Mode {
    match (kubernetes, capabilities.single_node_multi_writer) {
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

/// The capability of that type and mode.
#[must_use]
pub fn capability(access: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(access),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_mode_single_node_multi_writer() {
        let plain = Capabilities::default();
        let able = Capabilities { single_node_multi_writer: true, ..plain };
        for (mode, for_plain, for_able) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            ("Other", Mode::Unknown, Mode::Unknown),
        ] {
            assert_eq!(access_mode(mode, plain), for_plain, "{mode}");
            assert_eq!(access_mode(mode, able), for_able, "{mode}");
        }
    }
}
