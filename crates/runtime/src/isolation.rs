//! Isolation of a pod from the node, and of its containers from each other: the runtime handler and
//! the namespaces.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use longshore_cri::v1;
use longshore_pod::spec::{self, ContainerKind};

use super::{Error, PodRuntime};

/// The isolation of a pod.
pub(super) struct Isolation {
    /// The runtime handler; empty for the default.
    pub handler: String,
    /// The namespaces of the sandbox and of its containers.
    pub namespaces: v1::NamespaceOption,
}

impl PodRuntime {
    /// The isolation of a pod, whose directory exists. An error if the pod requests something that
    /// is not supported.
    pub(super) async fn isolation(&self, pod: &Pod) -> Result<Isolation, Error> {
        let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
        let handler = match pod_spec.runtime_class_name.as_deref().unwrap_or_default() {
            "" => String::new(),
            class => self.objects.runtime_class(class).await?.handler.clone(),
        };
        let mut namespaces = namespaces(pod_spec);
        namespaces.userns_options = Some(if spec::has_user_namespace(pod_spec) {
            self.require_user_namespaces(&handler).await?;
            self.user_namespaces.of_pod(spec::uid(pod))?
        } else {
            v1::UserNamespace {
                mode: v1::NamespaceMode::Node.into(),
                ..v1::UserNamespace::default()
            }
        });
        Ok(Isolation { handler, namespaces })
    }

    /// The namespaces of a container: its pod's, or the target's for an ephemeral container.
    pub(super) fn container_namespaces(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        container: &Container,
        mut namespaces: v1::NamespaceOption,
    ) -> Result<v1::NamespaceOption, Error> {
        let ephemeral = pod.spec.as_ref().map(spec::ephemeral_containers).unwrap_or_default();
        let target = ephemeral
            .iter()
            .find(|own| kind == ContainerKind::Ephemeral && own.name == container.name)
            .and_then(|own| own.target_container_name.as_deref())
            .filter(|target| !target.is_empty());
        if let Some(target) = target {
            let observed = self.observer.pod(spec::uid(pod)).unwrap_or_default();
            let run = observed.newest(target).ok_or_else(|| Error::NoTarget(target.to_owned()))?;
            if namespaces.pid() == v1::NamespaceMode::Container {
                namespaces.set_pid(v1::NamespaceMode::Target);
                namespaces.target_id.clone_from(&run.id);
            }
        }
        Ok(namespaces)
    }

    async fn require_user_namespaces(&self, handler: &str) -> Result<(), Error> {
        let unsupported =
            |unknown| Error::NoUserNamespaces { handler: handler.to_owned(), unknown };
        let handlers = self.cri.status(false).await?.runtime_handlers;
        let found = handlers.iter().find(|known| known.name == handler);
        match found.map(|known| known.features.unwrap_or_default().user_namespaces) {
            Some(true) => Ok(()),
            Some(false) => Err(unsupported(false)),
            // Runtimes without support for user namespaces report no handlers at all.
            None => Err(unsupported(!handlers.is_empty())),
        }
    }

    /// Whether the handler supports recursive read-only mounts.
    pub(super) async fn supports_recursive_read_only(&self, handler: &str) -> Result<bool, Error> {
        let handlers = self.cri.status(false).await?.runtime_handlers;
        let found = handlers.iter().find(|known| known.name == handler);
        Ok(found.is_some_and(|known| known.features.unwrap_or_default().recursive_read_only_mounts))
    }
}

/// The namespaces that the pod shares with the node or among its containers, except users.
pub(super) fn namespaces(pod_spec: &PodSpec) -> v1::NamespaceOption {
    let node_if = |shared: Option<bool>| match shared.unwrap_or(false) {
        true => v1::NamespaceMode::Node,
        false => v1::NamespaceMode::Pod,
    };
    let pid = match (pod_spec.host_pid, pod_spec.share_process_namespace) {
        (Some(true), _) => v1::NamespaceMode::Node,
        (_, Some(true)) => v1::NamespaceMode::Pod,
        _ => v1::NamespaceMode::Container,
    };
    v1::NamespaceOption {
        network: node_if(pod_spec.host_network).into(),
        pid: pid.into(),
        ipc: node_if(pod_spec.host_ipc).into(),
        ..v1::NamespaceOption::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use longshore_cri::v1::NamespaceMode::{self, Container, Node, Pod};

    use super::namespaces;

    #[test]
    fn namespaces_shared_by_the_pod() {
        type Case = (&'static str, fn(&mut PodSpec), [NamespaceMode; 3]);
        let cases: [Case; 6] = [
            ("none", |_| {}, [Pod, Container, Pod]),
            ("network", |spec| spec.host_network = Some(true), [Node, Container, Pod]),
            ("ipc", |spec| spec.host_ipc = Some(true), [Pod, Container, Node]),
            ("pid", |spec| spec.host_pid = Some(true), [Pod, Node, Pod]),
            ("shared", |spec| spec.share_process_namespace = Some(true), [Pod, Pod, Pod]),
            ("unshared", |spec| spec.share_process_namespace = Some(false), [Pod, Container, Pod]),
        ];
        for (name, set, expected) in cases {
            let mut spec = PodSpec::default();
            set(&mut spec);
            let found = namespaces(&spec);
            assert_eq!([found.network(), found.pid(), found.ipc()], expected, "{name}");
        }
    }
}
