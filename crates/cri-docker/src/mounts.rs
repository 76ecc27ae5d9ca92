//! Mounts of containers: CRI → the engine, and back. Pure.

use bollard::models::{
    Mount as DockerMount, MountBindOptions, MountBindOptionsPropagationEnum as Propagation,
    MountImageOptions, MountPoint, MountType,
};
use longshore_cri::v1::{Mount, MountPropagation};

use crate::{Error, Result};

/// The first API that makes read-only mounts recursive, and can be told not to.
const WITH_RECURSIVE_READ_ONLY: u32 = 44;
/// The first API that mounts images.
const WITH_IMAGES: u32 = 48;

/// A mount as the engine takes it.
///
/// # Errors
/// When the engine, which speaks the API 1.`api`, cannot do it.
pub(crate) fn convert(mount: &Mount, api: u32) -> Result<DockerMount> {
    if !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty() {
        return Err(unsupported(mount, "mounts with mapped IDs"));
    }
    if mount.image.is_some() {
        return image(mount, api);
    }
    if mount.host_path.is_empty() {
        return Err(Error::Invalid(format!(
            "the mount at {:?} has no host path",
            mount.container_path
        )));
    }
    let recursive = recursive_read_only(mount, api)?;
    // Unsaid is private, or slave where the source holds the engine's own folder.
    let propagation = match mount.propagation() {
        MountPropagation::PropagationPrivate => None,
        MountPropagation::PropagationHostToContainer => Some(Propagation::RSLAVE),
        MountPropagation::PropagationBidirectional => Some(Propagation::RSHARED),
    };
    let knows = api >= WITH_RECURSIVE_READ_ONLY && mount.readonly;
    let options = MountBindOptions {
        propagation,
        read_only_non_recursive: (knows && !recursive).then_some(true),
        read_only_force_recursive: (knows && recursive).then_some(true),
        ..MountBindOptions::default()
    };
    Ok(DockerMount {
        typ: Some(MountType::BIND),
        source: Some(mount.host_path.clone()),
        target: Some(mount.container_path.clone()),
        read_only: Some(mount.readonly),
        bind_options: (options != MountBindOptions::default()).then_some(options),
        ..DockerMount::default()
    })
}

/// Whether a mount is to be read-only with all that is mounted below it.
fn recursive_read_only(mount: &Mount, api: u32) -> Result<bool> {
    if !mount.recursive_read_only {
        return Ok(false);
    }
    let conflict = |what| {
        Error::Invalid(format!(
            "recursive read-only mount of {:?} conflicts with {what}",
            mount.host_path
        ))
    };
    if !mount.readonly {
        return Err(conflict("a writable mount"));
    }
    if mount.propagation() != MountPropagation::PropagationPrivate {
        return Err(conflict(mount.propagation().as_str_name()));
    }
    if api < WITH_RECURSIVE_READ_ONLY {
        return Err(unsupported(mount, "recursive read-only mounts"));
    }
    Ok(true)
}

/// A mount of an image.
fn image(mount: &Mount, api: u32) -> Result<DockerMount> {
    if api < WITH_IMAGES {
        return Err(unsupported(mount, "mounts of images"));
    }
    let image = mount.image.as_ref().map(|image| match image.image_ref.as_str() {
        "" => image.image.clone(),
        exact => exact.to_owned(),
    });
    Ok(DockerMount {
        typ: Some(MountType::IMAGE),
        source: image,
        target: Some(mount.container_path.clone()),
        image_options: (!mount.image_sub_path.is_empty())
            .then(|| MountImageOptions { subpath: Some(mount.image_sub_path.clone()) }),
        ..DockerMount::default()
    })
}

fn unsupported(mount: &Mount, what: &str) -> Error {
    Error::Unsupported(format!(
        "this Docker Engine does not support {what} (at {:?})",
        mount.container_path
    ))
}

/// A mount as CRI has it.
pub(crate) fn current(point: &MountPoint) -> Mount {
    let propagation = match point.propagation.as_deref() {
        Some("rshared" | "shared") => MountPropagation::PropagationBidirectional,
        Some("rslave" | "slave") => MountPropagation::PropagationHostToContainer,
        _ => MountPropagation::PropagationPrivate,
    };
    Mount {
        host_path: point.source.clone().unwrap_or_default(),
        container_path: point.destination.clone().unwrap_or_default(),
        readonly: point.rw == Some(false),
        propagation: propagation.into(),
        ..Mount::default()
    }
}

#[cfg(test)]
mod tests {
    use longshore_cri::v1::{IdMapping, ImageSpec};
    use tonic::Code;

    use super::*;

    fn mount() -> Mount {
        Mount { host_path: "/h".into(), container_path: "/c".into(), ..Mount::default() }
    }

    #[test]
    fn read_only_is_recursive_only_when_it_is_asked_for() {
        let read_only = Mount { readonly: true, ..mount() };
        let options = |mount: &Mount, api| convert(mount, api).unwrap().bind_options;
        assert_eq!(options(&mount(), 41), None);
        assert_eq!(options(&mount(), 44), None);
        assert_eq!(options(&read_only, 41), None);
        let plain = options(&read_only, 44).unwrap();
        assert_eq!(
            (plain.read_only_non_recursive, plain.read_only_force_recursive),
            (Some(true), None)
        );
        let recursive = Mount { recursive_read_only: true, ..read_only };
        let forced = options(&recursive, 44).unwrap();
        assert_eq!(
            (forced.read_only_non_recursive, forced.read_only_force_recursive),
            (None, Some(true))
        );
        assert_eq!(convert(&recursive, 41).unwrap_err().code(), Code::Unimplemented);
        let writable = Mount { readonly: false, ..recursive.clone() };
        assert_eq!(convert(&writable, 44).unwrap_err().code(), Code::InvalidArgument);
        let shared = MountPropagation::PropagationBidirectional.into();
        let shared = Mount { propagation: shared, ..recursive };
        assert_eq!(convert(&shared, 44).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn propagation_is_kept() {
        let cases = [
            (MountPropagation::PropagationPrivate, None),
            (MountPropagation::PropagationHostToContainer, Some(Propagation::RSLAVE)),
            (MountPropagation::PropagationBidirectional, Some(Propagation::RSHARED)),
        ];
        for (propagation, expected) in cases {
            let mount = Mount { propagation: propagation.into(), ..mount() };
            let found = convert(&mount, 41).unwrap().bind_options.and_then(|o| o.propagation);
            assert_eq!(found, expected);
            let point = MountPoint {
                propagation: expected.map(|p| p.to_string()),
                source: Some("/h".into()),
                destination: Some("/c".into()),
                rw: Some(true),
                ..MountPoint::default()
            };
            assert_eq!(current(&point), mount);
        }
    }

    #[test]
    fn images_are_mounted_where_the_engine_can() {
        let image = ImageSpec { image: "a:1".into(), ..ImageSpec::default() };
        let mount = Mount {
            image: Some(image),
            image_sub_path: "d".into(),
            host_path: String::new(),
            ..mount()
        };
        let converted = convert(&mount, 48).unwrap();
        assert_eq!((converted.typ, converted.source), (Some(MountType::IMAGE), Some("a:1".into())));
        assert_eq!(convert(&mount, 47).unwrap_err().code(), Code::Unimplemented);
        let mapped = Mount { uid_mappings: vec![IdMapping::default()], ..super::tests::mount() };
        assert_eq!(convert(&mapped, 48).unwrap_err().code(), Code::Unimplemented);
        let nowhere = Mount { host_path: String::new(), ..super::tests::mount() };
        assert_eq!(convert(&nowhere, 48).unwrap_err().code(), Code::InvalidArgument);
    }
}
