//! The security context of a container: its own settings override its pod's.

use std::path::{Component, Path};
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSpec, SeccompProfile, SecurityContext,
};
use longshore_cri::v1;

use longshore_pod::apparmor;

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
/// Including those that depend on the machine's CPUs.
static MASKED: LazyLock<Vec<String>> = LazyLock::new(|| {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = possible.trim().rsplit([',', '-']).next().and_then(|last| last.parse().ok());
    let throttles = (0..=last.unwrap_or(0u32))
        .map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle"));
    let throttles = throttles.filter(|path| std::path::Path::new(path).exists());
    MASKED_PATHS.map(str::to_owned).into_iter().chain(throttles).collect()
});
const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The user in an image's config, if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageUser {
    /// Its UID.
    pub uid: Option<i64>,
    /// Its name, if the image has no UID.
    pub name: String,
}

/// The security context of a container of an image with that user.
pub(super) fn context(
    settings: &Settings,
    pod: &Pod,
    pod_spec: &PodSpec,
    container: &Container,
    image_user: &ImageUser,
    namespaces: v1::NamespaceOption,
) -> Result<v1::LinuxContainerSecurityContext, Error> {
    let default = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&default);
    let pods = pod_spec.security_context.clone().unwrap_or_default();
    let run_as_user = own.run_as_user.or(pods.run_as_user);
    let non_root = own.run_as_non_root.or(pods.run_as_non_root).unwrap_or(false);
    if non_root {
        verify_non_root(pod, container, run_as_user, image_user)?;
    }
    let (run_as_user, run_as_username) = match (run_as_user.or(image_user.uid), &image_user.name) {
        (None, name) if !name.is_empty() => (None, name.clone()),
        // An image without user runs as root.
        (uid, _) => (Some(uid.unwrap_or(0)), String::new()),
    };
    let capabilities = own.capabilities.as_ref().map(|capabilities| v1::Capability {
        add_capabilities: capabilities.add.clone().unwrap_or_default(),
        drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
        ..v1::Capability::default()
    });
    let (masked_paths, readonly_paths) = match own.proc_mount.as_deref() {
        Some("Unmasked") => (Vec::new(), Vec::new()),
        _ => (MASKED.clone(), READONLY_PATHS.map(str::to_owned).to_vec()),
    };
    let seccomp = own.seccomp_profile.as_ref().or(pods.seccomp_profile.as_ref());
    let apparmor = apparmor::profile(pod, &container.name, container.security_context.as_ref());
    let apparmor = apparmor.as_ref().map(apparmor_profile).transpose()?;
    #[allow(deprecated)] // containerd before 1.7 reads the old field only
    let context = v1::LinuxContainerSecurityContext {
        capabilities,
        privileged: own.privileged.unwrap_or(false),
        namespace_options: Some(namespaces),
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
        masked_paths,
        readonly_paths,
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
        pod: longshore_pod::spec::describe(pod),
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
        // An image without user runs as root.
        (None, None) => {
            Err(refuse("container has runAsNonRoot and image will run as root".to_owned()))
        }
        (None, Some(uid)) if !(0..=i64::from(i32::MAX)).contains(&uid) => Err(refuse(format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({})): \
             must be between 0 and {}, inclusive",
            i32::MAX,
            i32::MAX
        ))),
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
            // An empty name must never mean "unconfined".
            let name = profile
                .and_then(|profile| profile.localhost_profile.as_deref())
                .unwrap_or_default();
            if name.is_empty() {
                return Err(Error::NoSeccompProfile);
            }
            let is_below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
            if !Path::new(name).components().all(is_below) {
                return Err(Error::Field {
                    field: "seccompProfile.localhostProfile",
                    value: name.to_owned(),
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

/// The profile, and its name in the form for older runtimes.
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
        ("Localhost", _) => Err(Error::NoAppArmorProfile),
        (other, _) => Err(Error::Field { field: "appArmorProfile", value: other.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use longshore_cri::v1::security_profile::ProfileType;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture;

    const ROOT: &str = "container has runAsNonRoot and image will run as root";

    /// The security context of a container with that context or pod context, for an image of that
    /// user.
    fn build(
        pods: Value,
        own: Value,
        image: &ImageUser,
    ) -> Result<v1::LinuxContainerSecurityContext, String> {
        let dir = std::path::Path::new("/root-dir");
        let containers = json!([{"name": "c", "securityContext": own}]);
        let pod = fixture::pod(json!({"securityContext": pods, "containers": containers}));
        let pod_spec = pod.spec.as_ref().unwrap();
        let container = &pod_spec.containers[0];
        let settings = fixture::settings(dir);
        let namespaces = v1::NamespaceOption::default();
        context(&settings, &pod, pod_spec, container, image, namespaces)
            .map_err(|error| error.to_string())
    }

    fn user(uid: Option<i64>, name: &str) -> ImageUser {
        ImageUser { uid, name: name.to_owned() }
    }

    #[test]
    fn run_as_non_root_is_enforced() {
        let none = || user(None, "");
        let breaks = "container's runAsUser breaks non-root policy";
        let named = "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root";
        for (pods, own, image, expected) in [
            (json!({}), json!({}), none(), Ok(0)),
            (json!({}), json!({"runAsNonRoot": false}), none(), Ok(0)),
            (json!({}), json!({"runAsNonRoot": true}), none(), Err(ROOT)),
            (json!({"runAsNonRoot": true}), json!({}), user(Some(0), ""), Err(ROOT)),
            (json!({"runAsNonRoot": true}), json!({}), user(Some(7), ""), Ok(7)),
            (json!({"runAsNonRoot": true}), json!({}), user(None, "app"), Err(named)),
            (json!({"runAsNonRoot": true}), json!({"runAsNonRoot": false}), none(), Ok(0)),
            (
                json!({"runAsNonRoot": true}),
                json!({"runAsUser": 0}),
                user(Some(7), ""),
                Err(breaks),
            ),
            (json!({"runAsNonRoot": true, "runAsUser": 5}), json!({}), none(), Ok(5)),
            (json!({"runAsUser": 5}), json!({"runAsUser": 6}), user(Some(7), ""), Ok(6)),
        ] {
            let found = build(pods.clone(), own.clone(), &image);
            let found = found.map(|context| context.run_as_user.unwrap().value);
            let expected =
                expected.map_err(|why| format!("{why} (pod: \"p_ns(uid)\", container: c)"));
            assert_eq!(found, expected, "{pods} {own} {image:?}");
        }
        let context = build(json!({}), json!({}), &user(None, "app")).unwrap();
        assert_eq!((context.run_as_user, context.run_as_username.as_str()), (None, "app"));
    }

    /// Also CVE-2023-2431: a localhost profile without a name.
    #[test]
    fn seccomp_profile_of_the_container_then_the_pod() {
        let profile = |kind: &str| json!({"seccompProfile": {"type": kind}});
        let file = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}});
        for (pods, own, expected) in [
            (json!({}), json!({}), (ProfileType::Unconfined, "")),
            (profile("RuntimeDefault"), json!({}), (ProfileType::RuntimeDefault, "")),
            (profile("RuntimeDefault"), profile("Unconfined"), (ProfileType::Unconfined, "")),
            (json!({}), file.clone(), (ProfileType::Localhost, "/root-dir/seccomp/a/b.json")),
        ] {
            let found = build(pods, own, &ImageUser::default()).unwrap().seccomp.unwrap();
            assert_eq!((found.profile_type(), found.localhost_ref.as_str()), expected);
        }
        for outside in ["/etc/shadow", "../../x", "a/../../x"] {
            let own = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": outside}});
            let refused = build(json!({}), own, &ImageUser::default()).unwrap_err();
            let expected = format!("unsupported seccompProfile.localhostProfile: {outside:?}");
            assert_eq!(refused, expected);
        }
        // an empty name meant no profile at all
        for nameless in ["", "a"] {
            let mut own = profile("Localhost");
            own["seccompProfile"]["localhostProfile"] = json!(nameless);
            let built = build(json!({}), own, &ImageUser::default());
            assert_eq!(built.is_err(), nameless.is_empty(), "{built:?}");
        }
        let nameless = build(json!({}), profile("Localhost"), &ImageUser::default());
        assert_eq!(
            nameless.unwrap_err(),
            "localhostProfile must be set if seccompProfile type is Localhost."
        );
    }

    #[test]
    fn security_context_fields_reach_the_runtime() {
        let pods = json!({
            "runAsGroup": 1, "fsGroup": 2, "supplementalGroups": [3],
            "supplementalGroupsPolicy": "Strict", "seLinuxOptions": {"level": "s0"},
        });
        let own = json!({
            "privileged": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "procMount": "Unmasked", "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
        });
        let context = build(pods, own, &ImageUser::default()).unwrap();
        assert!(context.privileged && context.readonly_rootfs && context.no_new_privs);
        assert!(context.masked_paths.is_empty() && context.readonly_paths.is_empty());
        assert_eq!(context.run_as_group.unwrap().value, 1);
        assert_eq!(context.supplemental_groups, [2, 3]);
        assert_eq!(context.supplemental_groups_policy, v1::SupplementalGroupsPolicy::Strict as i32);
        assert_eq!(context.selinux_options.unwrap().level, "s0");
        let capabilities = context.capabilities.unwrap();
        assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
        assert_eq!(capabilities.drop_capabilities, ["ALL"]);
        let plain = build(json!({}), json!({}), &ImageUser::default()).unwrap();
        assert!(plain.masked_paths.contains(&"/proc/kcore".to_owned()));
        assert!(plain.readonly_paths.contains(&"/proc/sys".to_owned()));
        assert!(!plain.privileged && !plain.no_new_privs);
    }
}
