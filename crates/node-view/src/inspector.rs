//! Takes snapshots: asks all sources, and puts together what they say.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use kube::Client;
use longshore_cri::Runtime;

use crate::cluster::{Cluster, Scope};
use crate::health;
use crate::processes::{Process, Processes};
use crate::runtime::Containers;
use crate::snapshot::{PodSample, Snapshot};

const NO_RUNTIME: &str = "there is no container runtime to ask";

/// Takes snapshots of one node, from the sources that it has.
pub struct Inspector {
    cluster: Option<Cluster>,
    containers: Option<Containers>,
    health: Option<SocketAddr>,
    processes: Processes,
    /// Why there are not more sources.
    notes: Vec<String>,
    /// The apiserver's pods and the runtime's, as they were last known.
    pods: [Vec<PodSample>; 2],
    last: Snapshot,
}

impl Inspector {
    /// A node of that name, without any source.
    pub fn new(node: &str) -> Self {
        let mut last = Snapshot::default();
        node.clone_into(&mut last.node.name);
        Self {
            cluster: None,
            containers: None,
            health: None,
            processes: Processes::default(),
            notes: Vec::new(),
            pods: Default::default(),
            last,
        }
    }

    /// Asks an apiserver for the node, its pods and events.
    #[must_use]
    pub fn with_cluster(mut self, client: &Client) -> Self {
        self.cluster = Some(Cluster::new(client, &self.last.node.name, Scope::Node));
        self
    }

    /// The same with all pods of the cluster, those without a node too.
    #[must_use]
    pub fn with_whole_cluster(mut self, client: &Client) -> Self {
        self.cluster = Some(Cluster::new(client, &self.last.node.name, Scope::Cluster));
        self
    }

    /// Asks a container runtime for pods, containers and what they use.
    #[must_use]
    pub fn with_runtime(mut self, endpoint: &str) -> Self {
        match Containers::new(endpoint) {
            Ok(containers) => self.containers = Some(containers),
            Err(why) => self.notes.push(format!("the container runtime at {endpoint}: {why}")),
        }
        self
    }

    /// The same by a connection that is there.
    #[must_use]
    pub fn with_shared_runtime(mut self, runtime: Runtime) -> Self {
        self.containers = Some(Containers::of(runtime));
        self
    }

    /// Asks the node for its health.
    #[must_use]
    pub fn with_health(mut self, address: SocketAddr) -> Self {
        self.health = Some(address);
        self
    }

    /// Says in each snapshot that a source gives no answer, and why.
    #[must_use]
    pub fn without(mut self, source: impl Into<String>) -> Self {
        self.notes.push(source.into());
        self
    }

    /// Takes a snapshot.
    pub async fn sample(&mut self, processes: &[Process]) -> &Snapshot {
        self.last.errors.clone_from(&self.notes);
        let of_cluster = async {
            match &self.cluster {
                Some(cluster) => Some(cluster.query().await),
                None => None,
            }
        };
        let of_runtime = async {
            match &mut self.containers {
                Some(containers) => Some(containers.query().await),
                None => None,
            }
        };
        let of_health = async {
            match self.health {
                Some(address) => Some(health::query(address).await),
                None => None,
            }
        };
        let (cluster, runtime, health) = tokio::join!(of_cluster, of_runtime, of_health);
        if let Some(answer) = cluster {
            let errors = &mut self.last.errors;
            keep(answer.node, &mut self.last.node, "the apiserver, about the node", errors);
            keep(answer.pods, &mut self.pods[0], "the apiserver, about pods", errors);
            keep(answer.events, &mut self.last.events, "the apiserver, about events", errors);
        }
        if let Some(answer) = runtime {
            keep(answer, &mut self.pods[1], "the container runtime", &mut self.last.errors);
        }
        self.last.node.health = health;
        self.last.pods = merge(&self.pods[0], &self.pods[1]);
        self.last.processes = processes
            .iter()
            .filter_map(|process| self.processes.sample(&process.name, process.pid))
            .collect();
        &self.last
    }

    /// The end of a container's log.
    ///
    /// # Errors
    /// There is no runtime, or no log.
    pub async fn log(&self, id: &str) -> Result<Vec<String>, String> {
        match &self.containers {
            Some(containers) => containers.log(id).await,
            None => Err(NO_RUNTIME.to_owned()),
        }
    }

    /// The URL at which the runtime serves a shell in a container, once.
    pub(crate) async fn shell(&self, id: &str) -> Result<String, String> {
        match &self.containers {
            Some(containers) => containers.shell(id).await,
            None => Err(NO_RUNTIME.to_owned()),
        }
    }
}

/// Takes an answer, or notes why there is none.
fn keep<T>(answer: Result<T, String>, place: &mut T, source: &str, errors: &mut Vec<String>) {
    match answer {
        Ok(answer) => *place = answer,
        Err(why) => errors.push(format!("{source}: {why}")),
    }
}

/// The apiserver's pods with the containers that the runtime has, and what runs and is not the apiserver's: static
/// pods of a node without one, and what a node has not removed yet.
fn merge(of_cluster: &[PodSample], of_runtime: &[PodSample]) -> Vec<PodSample> {
    let mut pods: BTreeMap<&str, PodSample> =
        of_cluster.iter().map(|pod| (pod.name.as_str(), pod.clone())).collect();
    for running in of_runtime {
        match pods.get_mut(running.name.as_str()) {
            Some(pod) => pod.containers.clone_from(&running.containers),
            None if of_cluster.is_empty() || running.status == "Running" => {
                pods.insert(&running.name, running.clone());
            }
            None => {}
        }
    }
    pods.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ContainerSample;

    fn pod(name: &str, status: &str, containers: &[&str]) -> PodSample {
        let container = |name: &&str| ContainerSample {
            name: (*name).to_owned(),
            ..ContainerSample::default()
        };
        PodSample {
            name: name.into(),
            status: status.into(),
            containers: containers.iter().map(container).collect(),
            ..PodSample::default()
        }
    }

    #[test]
    fn node_view_pods_of_both_sources_are_put_together() {
        let names = |pods: &[PodSample]| -> Vec<String> {
            let text =
                |pod: &PodSample| format!("{} {} {}", pod.name, pod.status, pod.containers.len());
            pods.iter().map(text).collect()
        };
        let of_cluster = [pod("n/b", "CrashLoopBackOff", &[]), pod("n/a", "Pending", &[])];
        let of_runtime = [
            pod("n/b", "Running", &["x", "y"]),
            pod("n/static", "Running", &["z"]),
            pod("n/ended", "Stopped", &[]),
        ];
        assert_eq!(
            names(&merge(&of_cluster, &of_runtime)),
            ["n/a Pending 0", "n/b CrashLoopBackOff 2", "n/static Running 1"]
        );
        assert_eq!(names(&merge(&[], &of_runtime)).len(), 3);
    }

    #[tokio::test]
    async fn node_view_without_sources_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = format!("unix://{}", dir.path().join("none.sock").display());
        let mut inspector = Inspector::new("n").with_runtime(&endpoint);
        let own = Process { name: "own".into(), pid: std::process::id() };
        let snapshot = inspector.sample(&[own]).await;
        assert_eq!(snapshot.node.name, "n");
        assert!(snapshot.errors[0].starts_with("the container runtime: "), "{snapshot:?}");
        assert_eq!(snapshot.processes.len(), 1);
        assert!(inspector.log("c").await.is_err());
        assert!(Inspector::new("n").log("c").await.unwrap_err().contains("no container runtime"));
    }
}
