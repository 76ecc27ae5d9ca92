//! The security context of a container: its own settings over its pod's.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSpec, SeccompProfile, SecurityContext,
};
use longshore_cri::v1;

use super::{Error, Settings, sandbox};

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The user that an image runs as, if it names one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageUser {
    /// Its number.
    pub uid: Option<i64>,
    /// Its name, where the image gives no number.
    pub name: String,
}

/// The security context of a container that runs an image with that user.
pub(super) fn context(
    settings: &Settings,
    pod: &Pod,
    pod_spec: &PodSpec,
    container: &Container,
    image_user: &ImageUser,
) -> Result<v1::LinuxContainerSecurityContext, Error> {
    let default = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&default);
    let pods = pod_spec.security_context.clone().unwrap_or_default();
    let run_as_user = own.run_as_user.or(pods.run_as_user);
    let non_root = own.run_as_non_root.or(pods.run_as_non_root).unwrap_or(false);
    if non_root {
        verify_non_root(pod, container, run_as_user, image_user)?;
    }
    let (run_as_user, run_as_username) = match run_as_user.or(image_user.uid) {
        Some(uid) => (Some(uid), String::new()),
        None => (None, image_user.name.clone()),
    };
    let capabilities = own.capabilities.as_ref().map(|capabilities| v1::Capability {
        add_capabilities: capabilities.add.clone().unwrap_or_default(),
        drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
        ..v1::Capability::default()
    });
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |paths: &[&str]| match unmasked {
        true => Vec::new(),
        false => paths.iter().map(|path| (*path).to_owned()).collect(),
    };
    let seccomp = own.seccomp_profile.as_ref().or(pods.seccomp_profile.as_ref());
    let apparmor = own.app_armor_profile.as_ref().or(pods.app_armor_profile.as_ref());
    let apparmor = apparmor.map(apparmor_profile).transpose()?;
    #[allow(deprecated)] // containerd before 1.7 reads the old field alone
    let context = v1::LinuxContainerSecurityContext {
        capabilities,
        privileged: own.privileged.unwrap_or(false),
        namespace_options: Some(sandbox::namespaces(pod_spec)),
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or(pods.se_linux_options.as_ref())
            .map(sandbox::selinux),
        run_as_user: run_as_user.map(|value| v1::Int64Value { value }),
        run_as_group: own.run_as_group.or(pods.run_as_group).map(|value| v1::Int64Value { value }),
        run_as_username,
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: sandbox::supplemental_groups(pod_spec),
        supplemental_groups_policy: sandbox::supplemental_groups_policy(pod_spec)?.into(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
        seccomp: Some(seccomp_profile(settings, seccomp)?),
        apparmor_profile: apparmor.as_ref().map(|(_, old)| old.clone()).unwrap_or_default(),
        apparmor: apparmor.map(|(profile, _)| profile),
        ..v1::LinuxContainerSecurityContext::default()
    };
    Ok(context)
}

fn verify_non_root(
    pod: &Pod,
    container: &Container,
    user: Option<i64>,
    image: &ImageUser,
) -> Result<(), Error> {
    let refuse = |why: String| Error::NonRoot {
        why,
        pod: super::describe(pod),
        container: container.name.clone(),
    };
    match (user, image.uid) {
        (Some(0), _) => Err(refuse("container's runAsUser breaks non-root policy".to_owned())),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => {
            Err(refuse("container has runAsNonRoot and image will run as root".to_owned()))
        }
        (None, None) if !image.name.is_empty() => Err(refuse(format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root",
            image.name
        ))),
        // An image that names no user runs as root.
        (None, None) => {
            Err(refuse("container has runAsNonRoot and image will run as root".to_owned()))
        }
        (None, Some(_)) => Ok(()),
    }
}

fn seccomp_profile(
    settings: &Settings,
    profile: Option<&SeccompProfile>,
) -> Result<v1::SecurityProfile, Error> {
    use v1::security_profile::ProfileType;
    let kind = profile.map(|profile| profile.type_.as_str());
    let (profile_type, localhost_ref) = match kind {
        Some("RuntimeDefault") => (ProfileType::RuntimeDefault, String::new()),
        Some("Localhost") => {
            // An empty name must never turn into "unconfined".
            let name = profile
                .and_then(|profile| profile.localhost_profile.as_deref())
                .unwrap_or_default();
            if name.is_empty() {
                return Err(Error::Field {
                    field: "seccompProfile.localhostProfile",
                    value: String::new(),
                });
            }
            (
                ProfileType::Localhost,
                settings.root_dir.join("seccomp").join(name).display().to_string(),
            )
        }
        None if settings.seccomp_default => (ProfileType::RuntimeDefault, String::new()),
        None | Some("Unconfined") => (ProfileType::Unconfined, String::new()),
        Some(other) => {
            return Err(Error::Field { field: "seccompProfile.type", value: other.to_owned() });
        }
    };
    Ok(v1::SecurityProfile { profile_type: profile_type.into(), localhost_ref })
}

/// The profile, and its name in the form that older runtimes read.
fn apparmor_profile(profile: &AppArmorProfile) -> Result<(v1::SecurityProfile, String), Error> {
    use v1::security_profile::ProfileType;
    let of = |kind: ProfileType, name: &str| v1::SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: name.to_owned(),
    };
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("RuntimeDefault", _) => {
            Ok((of(ProfileType::RuntimeDefault, ""), "runtime/default".to_owned()))
        }
        ("Unconfined", _) => Ok((of(ProfileType::Unconfined, ""), "unconfined".to_owned())),
        ("Localhost", Some(name)) if !name.is_empty() => {
            Ok((of(ProfileType::Localhost, name), format!("localhost/{name}")))
        }
        (other, _) => Err(Error::Field { field: "appArmorProfile", value: other.to_owned() }),
    }
}
