//! A node whose volumes are those of pods alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::Volumes;
use crate::plugins::Drivers;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_client::objects::fake::FakeApi;
use longshore_client::objects::{Changed, Detection, Objects};
use longshore_metrics::Registry;
use serde_json::{Value, json};

use super::Root;

/// A node of which the API is scripted.
pub(super) struct Node {
    pub(super) root: Root,
    pub(super) api: FakeApi,
    pub(super) objects: Objects,
    pub(super) volumes: Volumes,
}

impl Node {
    pub(super) async fn start() -> Self {
        let (root, api) = (Root::new(), FakeApi::start().await);
        let objects = Objects::new(Some(api.client()), Detection::Watch);
        let volumes = volumes(&root, &objects);
        Self { root, api, objects, volumes }
    }

    pub(super) fn secret(&self, version: u64, data: Value) {
        self.api.put("secrets", "s", version, json!({"data": data}));
    }

    /// What changed, as the pod's worker hears of it.
    pub(super) async fn changed(&self, pod: &Pod) -> Changed {
        let changes = self.objects.register(pod);
        tokio::time::timeout(Duration::from_secs(10), changes.next()).await.unwrap()
    }

    pub(super) async fn mount(&self, pod: &Pod) -> Result<BTreeMap<String, PathBuf>, String> {
        self.objects.register(pod);
        let mounts = self.volumes.mount(pod).await.map_err(|error| error.to_string())?;
        Ok(mounts.into_iter().map(|(name, mounted)| (name, mounted.path)).collect())
    }

    pub(super) async fn finish(self) {
        self.volumes.remove_pod("uid-1").await.unwrap();
        assert_eq!(self.root.mounts(), Vec::<PathBuf>::new());
        assert_eq!(fs::read_dir(self.root.join("pods")).unwrap().count(), 0);
    }
}

pub(super) fn volumes(root: &Root, objects: &Objects) -> Volumes {
    let allocatable = BTreeMap::from([
        ("memory".to_owned(), Quantity("512Mi".to_owned())),
        ("cpu".to_owned(), Quantity("2".to_owned())),
    ]);
    let registry = Registry::default();
    let parts = crate::Parts {
        root: root.path().to_owned(),
        objects: objects.clone(),
        allocatable,
        pod_events: PodEventRecorder::new(Recorder::start(None, "n1").0),
        drivers: Drivers::new("n1", &registry),
        node: None,
        claim_poll_interval: Duration::from_secs(60),
        plugin_dir: "/nowhere".into(),
        node_name: "n1".to_owned(),
        projects: None,
    };
    Volumes::new(parts, &registry)
}
