//! Publishes the node's CSI drivers in the CSINode object, and an annotation and labels of the
//! Node. One writer for all drivers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Error as KubeError};
use longshore_base::retry::Delays;
use longshore_client::{Item, object, optional};
use longshore_csi::v1::NodeGetInfoResponse;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::error::Error;

/// The node's IDs as a JSON object by driver name.
pub(super) const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// The in-tree plugins with CSI migration.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Number of attempts, as there are conflicts with other writers.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

/// Writes these objects.
pub struct CsiNode {
    name: String,
    client: Option<Client>,
    /// Serializes changes.
    write_lock: Mutex<()>,
}

/// A change of a driver's entry.
#[derive(Clone, Copy)]
enum Change<'a> {
    Install(&'a NodeGetInfoResponse),
    Update(&'a NodeGetInfoResponse),
    Uninstall,
}

impl CsiNode {
    /// The objects of the node of that name. Without a client, nothing is updated.
    pub fn new(name: &str, client: Option<Client>) -> Self {
        Self { name: name.to_owned(), client, write_lock: Mutex::new(()) }
    }

    /// Creates the CSINode, with retries; `readiness` is set to the last error, or `None`. The node
    /// is not ready before, as the scheduler needs its attach limits.
    pub async fn initialize(
        name: String,
        client: Client,
        readiness: watch::Sender<Option<String>>,
    ) {
        let node = Self::new(&name, Some(client.clone()));
        let mut delays = Delays::doubling(FIRST_PAUSE, LONGEST_PAUSE);
        while let Err(error) = node.get_or_create(&client).await {
            debug!("failed to initialize CSINode, will be retried: {error}");
            readiness.send_replace(Some(format!("failed to initialize CSINode: {error}")));
            sleep(delays.next_delay()).await;
        }
        readiness.send_replace(None);
    }

    /// The client, if there is an apiserver.
    pub(super) fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Publishes a driver and its node info.
    pub(super) async fn install(
        &self,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), Error> {
        self.change(driver, Change::Install(info)).await
    }

    /// Updates the entry of a driver.
    pub(super) async fn update(
        &self,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), Error> {
        self.change(driver, Change::Update(info)).await
    }

    /// Removes a driver. Topology labels are kept.
    pub(super) async fn uninstall(&self, driver: &str) -> Result<(), Error> {
        self.change(driver, Change::Uninstall).await
    }

    /// Makes a change, with retries.
    async fn change(&self, driver: &str, change: Change<'_>) -> Result<(), Error> {
        let Some(client) = &self.client else { return Ok(()) };
        let _turn = self.write_lock.lock().await;
        let mut delays = Delays::doubling(FIRST_PAUSE, LONGEST_PAUSE);
        for _ in 1..TRIES {
            match self.try_change(client, driver, change).await {
                Err(Error::Api { action, reason }) => debug!("failed to {action}: {reason}"),
                done => return done,
            }
            sleep(delays.next_delay()).await;
        }
        self.try_change(client, driver, change).await
    }

    async fn try_change(
        &self,
        client: &Client,
        driver: &str,
        change: Change<'_>,
    ) -> Result<(), Error> {
        match change {
            Change::Install(info) => self.try_install(client, driver, info).await,
            Change::Update(info) => self.try_update(client, driver, info).await,
            Change::Uninstall => self.try_uninstall(client, driver).await,
        }
    }

    async fn try_install(
        &self,
        client: &Client,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), Error> {
        let topology = info.accessible_topology.clone().unwrap_or_default().segments;
        let nodes = Api::<Item<Node>>::all(client.clone());
        let node = object(nodes.get(&self.name)).await.map_err(get_node_error)?;
        let labels = new_labels(node.metadata.labels.as_ref(), &topology)?;
        let ids = with_id(node.metadata.annotations.as_ref(), driver, Some(&info.node_id))?;
        self.patch_node(&nodes, ids, labels).await?;
        self.try_update(client, driver, info).await
    }

    async fn try_update(
        &self,
        client: &Client,
        driver: &str,
        info: &NodeGetInfoResponse,
    ) -> Result<(), Error> {
        let topology = info.accessible_topology.clone().unwrap_or_default().segments;
        let Some(known) = self.get_or_create(client).await? else { return Ok(()) };
        self.replace(client, known, Some(entry(driver, info, &topology)), driver).await
    }

    async fn try_uninstall(&self, client: &Client, driver: &str) -> Result<(), Error> {
        let csi_nodes = Api::<Item<CSINode>>::all(client.clone());
        if let Some(known) =
            optional(csi_nodes.get_opt(&self.name)).await.map_err(get_csi_node_error)?
        {
            self.replace(client, known, None, driver).await?;
        }
        let nodes = Api::<Item<Node>>::all(client.clone());
        let Some(node) = optional(nodes.get_opt(&self.name)).await.map_err(get_node_error)? else {
            return Ok(());
        };
        let ids = with_id(node.metadata.annotations.as_ref(), driver, None)?;
        self.patch_node(&nodes, ids, BTreeMap::new()).await
    }

    async fn patch_node(
        &self,
        nodes: &Api<Item<Node>>,
        ids: Option<Value>,
        labels: BTreeMap<String, String>,
    ) -> Result<(), Error> {
        if ids.is_none() && labels.is_empty() {
            return Ok(());
        }
        let annotations = ids.map_or_else(|| json!({}), |ids| json!({ NODE_IDS: ids }));
        let changes = json!({"metadata": {"annotations": annotations, "labels": labels}});
        let patch = Patch::Strategic(changes);
        nodes
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
            .map(drop)
            .map_err(|error| Error::api("update the Node with CSI driver node info", &error))
    }

    /// Gets the CSINode of this node, created or corrected if necessary; `None` if the API is not
    /// available.
    async fn get_or_create(&self, client: &Client) -> Result<Option<CSINode>, Error> {
        let nodes = Api::<Item<Node>>::all(client.clone());
        let node = object(nodes.get(&self.name)).await.map_err(get_node_error)?;
        let uid = node.metadata.uid.unwrap_or_default();
        let csi_nodes = Api::<Item<CSINode>>::all(client.clone());
        let known = optional(csi_nodes.get_opt(&self.name)).await.map_err(get_csi_node_error)?;
        let foreign = known.as_ref().filter(|known| !is_of(known, &self.name, &uid));
        if foreign.is_some() {
            // That of an earlier node of the same name.
            let teardown = csi_nodes.delete(&self.name, &DeleteParams::default()).await;
            teardown
                .map_err(|error| Error::api("delete the CSINode of an earlier node", &error))?;
        }
        match known {
            Some(known) if is_of(&known, &self.name, &uid) => {
                let migrated = migrated_plugins();
                if annotation(&known) == Some(&migrated) {
                    return Ok(Some(known));
                }
                let changes = json!({"metadata": {"annotations": {MIGRATED: migrated}}});
                let (patch, params) = (Patch::Merge(changes), PatchParams::default());
                let patched = object(csi_nodes.patch(&self.name, &params, &patch)).await;
                patched.map(Some).map_err(|error| Error::api("annotate the CSINode", &error))
            }
            _ => match object(
                csi_nodes.create(&PostParams::default(), &new_csi_node(&self.name, &uid).into()),
            )
            .await
            {
                // The API is not available.
                Err(KubeError::Api(status)) if status.code == 404 => {
                    warn!(
                        "the CSINode API is not available: CSI drivers of this node are not published"
                    );
                    Ok(None)
                }
                made => made.map(Some).map_err(|error| Error::api("create the CSINode", &error)),
            },
        }
    }

    /// Replaces the entry of a driver, or removes it.
    async fn replace(
        &self,
        client: &Client,
        mut known: CSINode,
        entry: Option<CSINodeDriver>,
        driver: &str,
    ) -> Result<(), Error> {
        let Some(drivers) = with_entry(&known.spec.drivers, entry, driver) else { return Ok(()) };
        known.spec.drivers = drivers;
        // With the resource version, to detect conflicts.
        let csi_nodes = Api::<Item<CSINode>>::all(client.clone());
        let replaced = csi_nodes.replace(&self.name, &PostParams::default(), &known.into()).await;
        replaced
            .map(drop)
            .map_err(|error| Error::api("update the CSINode with CSI driver node info", &error))
    }
}

fn get_node_error(error: KubeError) -> Error {
    Error::api("get the Node", &error)
}

fn get_csi_node_error(error: KubeError) -> Error {
    Error::api("get the CSINode", &error)
}

fn is_of(csi_node: &CSINode, name: &str, uid: &str) -> bool {
    let owners = csi_node.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.kind == "Node" && owner.name == name && owner.uid == uid)
}

fn migrated_plugins() -> String {
    longshore_migration::plugins().collect::<Vec<_>>().join(",")
}

fn annotation(csi_node: &CSINode) -> Option<&str> {
    csi_node.metadata.annotations.as_ref()?.get(MIGRATED).map(String::as_str)
}

fn new_csi_node(name: &str, uid: &str) -> CSINode {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    };
    CSINode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![owner]),
            annotations: Some([(MIGRATED.to_owned(), migrated_plugins())].into()),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    }
}

/// The entry of a driver.
pub(super) fn entry(
    driver: &str,
    info: &NodeGetInfoResponse,
    topology: &BTreeMap<String, String>,
) -> CSINodeDriver {
    let most = i32::try_from(info.max_volumes_per_node.min(i32::MAX.into())).unwrap_or_default();
    CSINodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: Some(topology.keys().cloned().collect()),
        allocatable: (most > 0).then_some(VolumeNodeResources { count: Some(most) }),
    }
}

/// The drivers with a replaced entry; `None` if unchanged.
pub(super) fn with_entry(
    known: &[CSINodeDriver],
    entry: Option<CSINodeDriver>,
    driver: &str,
) -> Option<Vec<CSINodeDriver>> {
    let keys = |entry: &CSINodeDriver| -> BTreeSet<String> {
        entry.topology_keys.iter().flatten().cloned().collect()
    };
    let is_same = |a: &CSINodeDriver, b: &CSINodeDriver| {
        a.node_id == b.node_id && a.allocatable == b.allocatable && keys(a) == keys(b)
    };
    let present = known.iter().find(|known| known.name == driver);
    let unchanged = match (present, &entry) {
        (None, None) => true,
        (Some(present), Some(entry)) => is_same(present, entry),
        _ => false,
    };
    let others = known.iter().filter(|known| known.name != driver).cloned();
    (!unchanged).then(|| others.chain(entry).collect())
}

/// The annotation of the Node with a replaced ID; JSON null removes it. `None` if unchanged.
pub(super) fn with_id(
    annotations: Option<&BTreeMap<String, String>>,
    driver: &str,
    id: Option<&str>,
) -> Result<Option<Value>, Error> {
    let known = annotations.and_then(|annotations| annotations.get(NODE_IDS));
    let known = known.map(String::as_str).filter(|value| !value.is_empty());
    let parse = |value: &str| {
        serde_json::from_str::<BTreeMap<String, String>>(value).map_err(|error| Error::Annotation {
            annotation: NODE_IDS,
            value: value.to_owned(),
            reason: error.to_string(),
        })
    };
    let mut ids = known.map(parse).transpose()?.unwrap_or_default();
    if ids.get(driver).map(String::as_str) == id {
        return Ok(None);
    }
    match id {
        Some(id) => ids.insert(driver.to_owned(), id.to_owned()),
        None => ids.remove(driver),
    };
    Ok(Some(if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) }))
}

/// Labels of a driver's topology that are missing on the Node.
pub(super) fn new_labels(
    labels: Option<&BTreeMap<String, String>>,
    topology: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut new = BTreeMap::new();
    for (key, reported) in topology {
        match labels.and_then(|labels| labels.get(key)) {
            Some(known) if known == reported => {}
            Some(known) => {
                let (key, reported, known) = (key.clone(), reported.clone(), known.clone());
                return Err(Error::Topology { key, reported, known });
            }
            None => {
                new.insert(key.clone(), reported.clone());
            }
        }
    }
    Ok(new)
}
