//! What processes may do: security contexts of CRI → options of the engine. Pure, but for seccomp profiles,
//! which are read from their files.

use std::path::{Path, PathBuf};

use bollard::models::HostConfig;
use longshore_base::{files, panics};
use longshore_cri::v1::security_profile::ProfileType;
use longshore_cri::v1::{
    Capability, LinuxContainerSecurityContext, LinuxSandboxSecurityContext, SeLinuxOption,
    SecurityProfile, SupplementalGroupsPolicy, UserNamespace,
};
use longshore_cri::v1::{Int64Value, NamespaceMode};

use crate::{Error, Result};

/// No seccomp profile is larger.
const MAX_PROFILE: u64 = 4 << 20;
const UNCONFINED: &str = "unconfined";
/// Before the name of a loaded AppArmor profile.
const LOCALHOST: &str = "localhost/";

/// Puts a sandbox's security context into its host configuration.
///
/// # Errors
/// When the engine cannot do what is asked for.
pub(crate) fn apply_to_sandbox(
    context: &LinuxSandboxSecurityContext,
    host: &mut HostConfig,
) -> Result<()> {
    refuse_strict(context.supplemental_groups_policy())?;
    host.privileged = Some(context.privileged);
    host.readonly_rootfs = Some(context.readonly_rootfs);
    host.group_add = groups(&context.supplemental_groups);
    let options = host.security_opt.get_or_insert_default();
    options.extend(selinux(context.selinux_options.as_ref()));
    options.extend(apparmor(context.apparmor.as_ref(), "")?);
    Ok(())
}

/// Puts a container's security context into its host configuration; the seccomp profile apart.
///
/// # Errors
/// When the engine cannot do what is asked for.
pub(crate) fn apply_to_container(
    context: &LinuxContainerSecurityContext,
    host: &mut HostConfig,
) -> Result<()> {
    refuse_strict(context.supplemental_groups_policy())?;
    host.privileged = Some(context.privileged);
    host.readonly_rootfs = Some(context.readonly_rootfs);
    host.group_add = groups(&context.supplemental_groups);
    if let Some(Capability { add_capabilities, drop_capabilities, .. }) = &context.capabilities {
        host.cap_add = Some(add_capabilities.clone());
        host.cap_drop = Some(drop_capabilities.clone());
    }
    if !context.privileged {
        // Said also when there are none: the engine has paths of its own otherwise.
        host.masked_paths = Some(context.masked_paths.clone());
        host.readonly_paths = Some(context.readonly_paths.clone());
    }
    #[allow(deprecated, reason = "older kubelets say it there")]
    let deprecated = &context.apparmor_profile;
    let options = host.security_opt.get_or_insert_default();
    options.extend(selinux(context.selinux_options.as_ref()));
    options.extend(apparmor(context.apparmor.as_ref(), deprecated)?);
    if context.no_new_privs {
        options.push("no-new-privileges".to_owned());
    }
    Ok(())
}

/// The engine merges groups of the image's `/etc/group`, always.
fn refuse_strict(policy: SupplementalGroupsPolicy) -> Result<()> {
    match policy {
        SupplementalGroupsPolicy::Merge => Ok(()),
        SupplementalGroupsPolicy::Strict => Err(Error::Unsupported(
            "the Docker Engine does not support the supplemental groups policy Strict".into(),
        )),
    }
}

/// The engine's mode of user namespaces.
///
/// # Errors
/// When a pod is to have one of its own: the engine has one for all containers, or none.
pub(crate) fn user_namespace(options: Option<&UserNamespace>) -> Result<Option<String>> {
    match options.map(UserNamespace::mode) {
        None => Ok(None),
        Some(NamespaceMode::Node) => Ok(Some("host".to_owned())),
        Some(mode) => Err(Error::Unsupported(format!(
            "the Docker Engine does not support user namespaces of pods ({})",
            mode.as_str_name()
        ))),
    }
}

fn groups(groups: &[i64]) -> Option<Vec<String>> {
    (!groups.is_empty()).then(|| groups.iter().map(ToString::to_string).collect())
}

/// `USER:GROUP` of a container. Empty is the image's.
///
/// # Errors
/// When there is a group without a user: the engine would take root.
pub(crate) fn user(
    uid: Option<&Int64Value>,
    name: &str,
    gid: Option<&Int64Value>,
) -> Result<Option<String>> {
    let user = match (uid, name) {
        (Some(uid), "") => uid.value.to_string(),
        (_, name) => name.to_owned(),
    };
    match (user.is_empty(), gid) {
        (true, None) => Ok(None),
        (false, None) => Ok(Some(user)),
        (false, Some(gid)) => Ok(Some(format!("{user}:{}", gid.value))),
        (true, Some(_)) => {
            Err(Error::Invalid("runAsGroup is specified without a runAsUser".to_owned()))
        }
    }
}

fn selinux(options: Option<&SeLinuxOption>) -> Vec<String> {
    let Some(options) = options else { return Vec::new() };
    let parts = [
        ("user", &options.user),
        ("role", &options.role),
        ("type", &options.r#type),
        ("level", &options.level),
    ];
    let given = parts.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(key, value)| format!("label={key}:{value}")).collect()
}

/// Without an option the engine's default profile holds.
fn apparmor(profile: Option<&SecurityProfile>, deprecated: &str) -> Result<Option<String>> {
    let option = |name: &str| Some(format!("apparmor={name}"));
    if let Some(profile) = profile {
        return match profile.profile_type() {
            ProfileType::RuntimeDefault => Ok(None),
            ProfileType::Unconfined => Ok(option(UNCONFINED)),
            ProfileType::Localhost => match profile.localhost_ref.as_str() {
                "" => Err(Error::Invalid("the AppArmor profile has no name".to_owned())),
                name => Ok(option(name.strip_prefix(LOCALHOST).unwrap_or(name))),
            },
        };
    }
    match deprecated {
        "" | "runtime/default" => Ok(None),
        UNCONFINED => Ok(option(UNCONFINED)),
        name => match name.strip_prefix(LOCALHOST) {
            Some(name) if !name.is_empty() => Ok(option(name)),
            _ => Err(Error::Invalid(format!("invalid AppArmor profile name {name:?}"))),
        },
    }
}

/// The option of a seccomp profile; without one the engine's default profile holds. No profile at all is
/// none, as other runtimes have it.
///
/// # Errors
/// When the profile is none, or its file cannot be read.
pub(crate) async fn seccomp(context: &LinuxContainerSecurityContext) -> Result<Option<String>> {
    #[allow(deprecated, reason = "older kubelets say it there")]
    let deprecated = context.seccomp_profile_path.as_str();
    let unconfined = || Some(format!("seccomp={UNCONFINED}"));
    let path = match &context.seccomp {
        Some(profile) => match profile.profile_type() {
            ProfileType::RuntimeDefault => return Ok(None),
            ProfileType::Unconfined => return Ok(unconfined()),
            ProfileType::Localhost => profile.localhost_ref.as_str(),
        },
        None => match deprecated {
            "" | UNCONFINED => return Ok(unconfined()),
            "runtime/default" | "docker/default" => return Ok(None),
            path => path.strip_prefix(LOCALHOST).unwrap_or(path),
        },
    };
    if !Path::new(path).is_absolute() {
        return Err(Error::Invalid(format!(
            "the path of the seccomp profile is not absolute: {path:?}"
        )));
    }
    let file = PathBuf::from(path);
    let text = panics::try_blocking(move || files::read_at_most(&file, MAX_PROFILE)).await;
    let text = text.map_err(|error| Error::file("load seccomp profile", path, error))?;
    let profile: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|error| Error::Invalid(format!("seccomp profile {path:?}: {error}")))?;
    Ok(Some(format!("seccomp={profile}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(profile_type: ProfileType, localhost_ref: &str) -> Option<SecurityProfile> {
        Some(SecurityProfile {
            profile_type: profile_type.into(),
            localhost_ref: localhost_ref.into(),
        })
    }

    #[test]
    fn contexts_of_containers_become_options() {
        let context = LinuxContainerSecurityContext {
            capabilities: Some(Capability {
                add_capabilities: vec!["NET_ADMIN".into()],
                drop_capabilities: vec!["ALL".into()],
                add_ambient_capabilities: Vec::new(),
            }),
            selinux_options: Some(SeLinuxOption {
                level: "s0:c1,c2".into(),
                r#type: "t".into(),
                ..SeLinuxOption::default()
            }),
            apparmor: profile(ProfileType::Localhost, "localhost/strict"),
            readonly_rootfs: true,
            supplemental_groups: vec![5, 6],
            no_new_privs: true,
            masked_paths: vec!["/proc/kcore".into()],
            ..LinuxContainerSecurityContext::default()
        };
        let mut host = HostConfig::default();
        apply_to_container(&context, &mut host).unwrap();
        let expected = HostConfig {
            privileged: Some(false),
            readonly_rootfs: Some(true),
            group_add: Some(vec!["5".into(), "6".into()]),
            cap_add: Some(vec!["NET_ADMIN".into()]),
            cap_drop: Some(vec!["ALL".into()]),
            masked_paths: Some(vec!["/proc/kcore".into()]),
            readonly_paths: Some(Vec::new()),
            security_opt: Some(vec![
                "label=type:t".into(),
                "label=level:s0:c1,c2".into(),
                "apparmor=strict".into(),
                "no-new-privileges".into(),
            ]),
            ..HostConfig::default()
        };
        assert_eq!(host, expected);

        let privileged = LinuxContainerSecurityContext { privileged: true, ..context };
        let mut host = HostConfig::default();
        apply_to_container(&privileged, &mut host).unwrap();
        assert_eq!(
            (host.privileged, host.masked_paths, host.readonly_paths),
            (Some(true), None, None)
        );
    }

    #[test]
    fn users_need_no_image() {
        let id = |value| Some(Int64Value { value });
        let cases = [
            ((None, "", None), Ok(None)),
            ((id(1), "", None), Ok(Some("1"))),
            ((id(0), "", id(2)), Ok(Some("0:2"))),
            ((None, "web", id(2)), Ok(Some("web:2"))),
            ((id(1), "web", None), Ok(Some("web"))),
            ((None, "", id(2)), Err(())),
        ];
        for ((uid, name, gid), expected) in cases {
            let found = user(uid.as_ref(), name, gid.as_ref()).map_err(|_| ());
            assert_eq!(
                found,
                expected.map(|user| user.map(str::to_owned)),
                "{uid:?} {name} {gid:?}"
            );
        }
    }

    #[test]
    fn apparmor_profiles_have_two_forms() {
        let cases = [
            (profile(ProfileType::RuntimeDefault, ""), "localhost/x", Some(None)),
            (profile(ProfileType::Unconfined, ""), "", Some(Some("apparmor=unconfined"))),
            (profile(ProfileType::Localhost, "a"), "", Some(Some("apparmor=a"))),
            (profile(ProfileType::Localhost, ""), "", None),
            (None, "", Some(None)),
            (None, "runtime/default", Some(None)),
            (None, "unconfined", Some(Some("apparmor=unconfined"))),
            (None, "localhost/a", Some(Some("apparmor=a"))),
            (None, "localhost/", None),
            (None, "other", None),
        ];
        for (profile, deprecated, expected) in cases {
            let found = apparmor(profile.as_ref(), deprecated).ok();
            let expected = expected.map(|option| option.map(str::to_owned));
            assert_eq!(found, expected, "{profile:?} {deprecated}");
        }
    }

    #[tokio::test]
    async fn seccomp_profiles_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        std::fs::write(&path, "{ \"defaultAction\":\n \"SCMP_ACT_ALLOW\" }").unwrap();
        let path = path.to_str().unwrap();
        let broken = folder.path().join("broken.json");
        std::fs::write(&broken, "{").unwrap();
        let read = format!("seccomp={}", r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#);
        let cases = [
            (None, "", Some(Some("seccomp=unconfined"))),
            (None, "runtime/default", Some(None)),
            (profile(ProfileType::RuntimeDefault, ""), "", Some(None)),
            (profile(ProfileType::Unconfined, ""), "", Some(Some("seccomp=unconfined"))),
            (profile(ProfileType::Localhost, path), "", Some(Some(read.as_str()))),
            (None, &format!("localhost/{path}"), Some(Some(read.as_str()))),
            (profile(ProfileType::Localhost, "p.json"), "", None),
            (profile(ProfileType::Localhost, "/no/such"), "", None),
            (profile(ProfileType::Localhost, broken.to_str().unwrap()), "", None),
        ];
        for (seccomp_profile, deprecated, expected) in cases {
            #[allow(deprecated)]
            let context = LinuxContainerSecurityContext {
                seccomp: seccomp_profile,
                seccomp_profile_path: deprecated.into(),
                ..LinuxContainerSecurityContext::default()
            };
            let found = seccomp(&context).await.ok();
            assert_eq!(found, expected.map(|option| option.map(str::to_owned)), "{context:?}");
        }
    }

    #[test]
    fn what_the_engine_cannot_is_refused() {
        let strict = SupplementalGroupsPolicy::Strict.into();
        let context = LinuxContainerSecurityContext {
            supplemental_groups_policy: strict,
            ..LinuxContainerSecurityContext::default()
        };
        let error = apply_to_container(&context, &mut HostConfig::default()).unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unimplemented);
        let of_pod = UserNamespace { mode: NamespaceMode::Pod.into(), ..UserNamespace::default() };
        assert!(user_namespace(Some(&of_pod)).is_err());
        let node = UserNamespace { mode: NamespaceMode::Node.into(), ..UserNamespace::default() };
        assert_eq!(user_namespace(Some(&node)).unwrap(), Some("host".to_owned()));
        assert_eq!(user_namespace(None).unwrap(), None);
    }
}
