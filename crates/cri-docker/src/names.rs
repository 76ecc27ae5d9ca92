//! Names of the engine's containers: `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT`, where a sandbox's container
//! is called `POD`. The engine gives no name twice, which makes creation happen once.

use longshore_cri::v1::{ContainerMetadata, PodSandboxMetadata};

use crate::labels::SANDBOX_NAME;
use crate::{Error, Result};

const PREFIX: &str = "k8s";
const DELIMITER: char = '_';

/// The name of a sandbox.
///
/// # Errors
/// When a part is empty or would be read as two.
pub(crate) fn of_sandbox(sandbox: &PodSandboxMetadata) -> Result<String> {
    join(SANDBOX_NAME, sandbox, sandbox.attempt)
}

/// The name of a container.
///
/// # Errors
/// As for a sandbox.
pub(crate) fn of_container(
    sandbox: &PodSandboxMetadata,
    container: &ContainerMetadata,
) -> Result<String> {
    join(&container.name, sandbox, container.attempt)
}

fn join(container: &str, sandbox: &PodSandboxMetadata, attempt: u32) -> Result<String> {
    let PodSandboxMetadata { name, namespace, uid, .. } = sandbox;
    for (what, part) in
        [("container name", container), ("pod name", name), ("namespace", namespace), ("uid", uid)]
    {
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        if part.is_empty() || !part.chars().all(valid) {
            return Err(Error::Invalid(format!("invalid {what} {part:?}")));
        }
    }
    Ok(format!("{PREFIX}_{container}_{name}_{namespace}_{uid}_{attempt}"))
}

/// A name in its parts; one more, cri-dockerd's random suffix against conflicts, is passed over.
fn parts(name: &str) -> Option<[&str; 5]> {
    let mut parts = name.strip_prefix('/').unwrap_or(name).split(DELIMITER);
    if parts.next() != Some(PREFIX) {
        return None;
    }
    let all = [parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    (parts.count() <= 1).then_some(all)
}

/// What a sandbox is by its name.
pub(crate) fn parse_sandbox(name: &str) -> Option<PodSandboxMetadata> {
    let [_, pod, namespace, uid, attempt] = parts(name)?;
    Some(PodSandboxMetadata {
        name: pod.to_owned(),
        namespace: namespace.to_owned(),
        uid: uid.to_owned(),
        attempt: attempt.parse().ok()?,
    })
}

/// What a container is by its name.
pub(crate) fn parse_container(name: &str) -> Option<ContainerMetadata> {
    let [container, .., attempt] = parts(name)?;
    Some(ContainerMetadata { name: container.to_owned(), attempt: attempt.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodSandboxMetadata {
        PodSandboxMetadata {
            name: "web-0".into(),
            uid: "1b3c".into(),
            namespace: "prod".into(),
            attempt: 3,
        }
    }

    #[test]
    fn names_are_those_of_cri_dockerd_and_come_back() {
        let name = of_sandbox(&pod()).unwrap();
        assert_eq!(name, "k8s_POD_web-0_prod_1b3c_3");
        assert_eq!(parse_sandbox(&name), Some(pod()));
        assert_eq!(parse_sandbox(&format!("/{name}_0badcafe")), Some(pod()));
        let container = ContainerMetadata { name: "app".into(), attempt: 7 };
        let name = of_container(&pod(), &container).unwrap();
        assert_eq!(name, "k8s_app_web-0_prod_1b3c_7");
        assert_eq!(parse_container(&name), Some(container));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in
            ["", "web", "k8s_POD_a_b_c", "k8s_POD_a_b_c_x", "k9s_POD_a_b_c_0", "k8s_a_b_c_d_0_e_f"]
        {
            assert_eq!(parse_sandbox(name), None, "{name}");
        }
        for broken in ["", "a_b", "a/b", "ä"] {
            let pod = PodSandboxMetadata { name: broken.into(), ..pod() };
            assert!(of_sandbox(&pod).is_err(), "{broken}");
        }
    }
}
