//! The SELinux label that a volume is mounted with, so that its files need not be relabelled
//! recursively. Only for ReadWriteOncePod volumes.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::{Pod, SELinuxOptions};

const ENFORCE: &str = "/sys/fs/selinux/enforce";
const CONFIG: &str = "/etc/selinux/config";
const ONE_POD: &str = "ReadWriteOncePod";

/// Whether the access mode is ReadWriteOncePod.
pub(super) fn is_for_one_pod(access_modes: &[String]) -> bool {
    access_modes.iter().any(|mode| mode == ONE_POD)
}

/// The label of the pod's files; `None` without SELinux or without options in the pod.
pub(super) fn label(pod: &Pod) -> Option<String> {
    if !Path::new(ENFORCE).exists() {
        return None;
    }
    file_label(options(pod)?, &default_label()?)
}

/// The options of the pod, or of all of its containers if they agree.
pub(super) fn options(pod: &Pod) -> Option<&SELinuxOptions> {
    let pod_spec = pod.spec.as_ref()?;
    let context = pod_spec.security_context.as_ref();
    let policy = context.and_then(|context| context.se_linux_change_policy.as_deref());
    if policy == Some("Recursive") {
        return None;
    }
    let of_pod = context.and_then(|context| context.se_linux_options.as_ref());
    let containers = pod_spec.containers.iter();
    let mut asked = containers.map(|container| {
        let own = container.security_context.as_ref();
        own.and_then(|context| context.se_linux_options.as_ref()).or(of_pod)
    });
    let first = asked.next()?;
    asked.all(|other| other == first).then_some(first).flatten()
}

/// The policy's label of containers' files.
fn default_label() -> Option<String> {
    let config = fs::read_to_string(CONFIG).ok()?;
    let policy = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE="))?;
    let path = format!("/etc/selinux/{}/contexts/lxc_contexts", policy.trim());
    let contexts = fs::read_to_string(path).ok()?;
    let file = contexts.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "file").then(|| value.trim().trim_matches('"').to_owned())
    })?;
    Some(file)
}

/// A label `user:role:type:level`, with the requested user and level instead of the policy's. The
/// requested role and type are those of processes.
pub(super) fn file_label(options: &SELinuxOptions, default: &str) -> Option<String> {
    let level = options.level.as_deref().filter(|level| !level.is_empty())?;
    let mut parts = default.splitn(4, ':');
    let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
    let user = options.user.as_deref().filter(|user| !user.is_empty()).unwrap_or(user);
    Some(format!("{user}:{role}:{kind}:{level}"))
}
