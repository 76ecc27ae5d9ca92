//! What the cluster knows of the node's CSI drivers: the CSINode object, and an annotation and
//! labels of the Node. One writer for all drivers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Error as KubeError};
use longshore_client::{Item, object, optional};
use longshore_csi::v1::NodeGetInfoResponse;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::error::Error;

/// The node's names at its drivers, as a JSON object by the driver's name.
pub(super) const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// The plugins of old whose volumes are left to CSI drivers, as every node has it since 1.31.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// How often one thing is tried: others write these objects too.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

/// The writer of these objects.
pub struct CsiNode {
    name: String,
    client: Option<Client>,
    /// Changes are made one after the other.
    turn: Mutex<()>,
}

/// What is to become of a driver's entry.
#[derive(Clone, Copy)]
enum Change<'a> {
    Install(&'a NodeGetInfoResponse),
    Update(&'a NodeGetInfoResponse),
    Uninstall,
}

impl CsiNode {
    /// The objects of the node of that name. Without a client, nothing is told to anybody.
    pub fn new(name: &str, client: Option<Client>) -> Self {
        Self { name: name.to_owned(), client, turn: Mutex::new(()) }
    }

    /// Sees to it that the CSINode is there, for as long as it takes, and tells `trouble` what is in
    /// the way; `None`: nothing. A node is ready only then, as its pods may be counted by volumes.
    pub async fn initialize(name: String, client: Client, trouble: watch::Sender<Option<String>>) {
        let node = Self::new(&name, Some(client.clone()));
        let mut pause = FIRST_PAUSE;
        while let Err(error) = node.initialized(&client).await {
            debug!("the CSINode is not there yet: {error}");
            trouble.send_replace(Some(format!("failed to initialize CSINode: {error}")));
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
        trouble.send_replace(None);
    }

    /// The way to the cluster, if there is one.
    pub(super) fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Tells the cluster that a driver runs here, and what it has said of the node.
    pub(super) async fn install(
        &self,
        driver: &str,
        told: &NodeGetInfoResponse,
    ) -> Result<(), Error> {
        self.change(driver, Change::Install(told)).await
    }

    /// Tells the cluster how many volumes a driver takes now.
    pub(super) async fn update(
        &self,
        driver: &str,
        told: &NodeGetInfoResponse,
    ) -> Result<(), Error> {
        self.change(driver, Change::Update(told)).await
    }

    /// Tells the cluster that a driver does not run here any more. Labels stay: they are of the
    /// place, not of the driver.
    pub(super) async fn uninstall(&self, driver: &str) -> Result<(), Error> {
        self.change(driver, Change::Uninstall).await
    }

    /// Makes a change, in a few tries if it must be.
    async fn change(&self, driver: &str, change: Change<'_>) -> Result<(), Error> {
        let Some(client) = &self.client else { return Ok(()) };
        let _turn = self.turn.lock().await;
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match self.try_change(client, driver, change).await {
                Err(Error::Api { action, reason }) => debug!("failed to {action}: {reason}"),
                done => return done,
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2);
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
            Change::Install(told) => self.try_install(client, driver, told).await,
            Change::Update(told) => self.try_update(client, driver, told).await,
            Change::Uninstall => self.try_uninstall(client, driver).await,
        }
    }

    async fn try_install(
        &self,
        client: &Client,
        driver: &str,
        told: &NodeGetInfoResponse,
    ) -> Result<(), Error> {
        let topology = told.accessible_topology.clone().unwrap_or_default().segments;
        let nodes = Api::<Item<Node>>::all(client.clone());
        let node = object(nodes.get(&self.name)).await.map_err(asking_node)?;
        let labels = new_labels(node.metadata.labels.as_ref(), &topology)?;
        let ids = with_id(node.metadata.annotations.as_ref(), driver, Some(&told.node_id))?;
        self.patch_node(&nodes, ids, labels).await?;
        self.try_update(client, driver, told).await
    }

    async fn try_update(
        &self,
        client: &Client,
        driver: &str,
        told: &NodeGetInfoResponse,
    ) -> Result<(), Error> {
        let topology = told.accessible_topology.clone().unwrap_or_default().segments;
        let Some(known) = self.initialized(client).await? else { return Ok(()) };
        self.replace(client, known, Some(entry(driver, told, &topology)), driver).await
    }

    async fn try_uninstall(&self, client: &Client, driver: &str) -> Result<(), Error> {
        let csi_nodes = Api::<Item<CSINode>>::all(client.clone());
        if let Some(known) =
            optional(csi_nodes.get_opt(&self.name)).await.map_err(asking_csi_node)?
        {
            self.replace(client, known, None, driver).await?;
        }
        let nodes = Api::<Item<Node>>::all(client.clone());
        let Some(node) = optional(nodes.get_opt(&self.name)).await.map_err(asking_node)? else {
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

    /// The CSINode of this node, made or put right if need be; `None` where the cluster knows no
    /// such objects.
    async fn initialized(&self, client: &Client) -> Result<Option<CSINode>, Error> {
        let nodes = Api::<Item<Node>>::all(client.clone());
        let node = object(nodes.get(&self.name)).await.map_err(asking_node)?;
        let uid = node.metadata.uid.unwrap_or_default();
        let csi_nodes = Api::<Item<CSINode>>::all(client.clone());
        let known = optional(csi_nodes.get_opt(&self.name)).await.map_err(asking_csi_node)?;
        let foreign = known.as_ref().filter(|known| !is_of(known, &self.name, &uid));
        if foreign.is_some() {
            // That of an earlier node of the name, whose drivers are not ours.
            let gone = csi_nodes.delete(&self.name, &DeleteParams::default()).await;
            gone.map_err(|error| Error::api("delete the CSINode of an earlier node", &error))?;
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
                csi_nodes.create(&PostParams::default(), &fresh(&self.name, &uid).into()),
            )
            .await
            {
                // Not of the name, which is new: the kind is unknown.
                Err(KubeError::Api(status)) if status.code == 404 => {
                    warn!("the cluster keeps no CSINodes: nobody hears of this node's CSI drivers");
                    Ok(None)
                }
                made => made.map(Some).map_err(|error| Error::api("create the CSINode", &error)),
            },
        }
    }

    /// Puts an entry in the place of that of a driver; `None`: takes it away.
    async fn replace(
        &self,
        client: &Client,
        mut known: CSINode,
        entry: Option<CSINodeDriver>,
        driver: &str,
    ) -> Result<(), Error> {
        let Some(drivers) = with_entry(&known.spec.drivers, entry, driver) else { return Ok(()) };
        known.spec.drivers = drivers;
        // With the version that was read: what others have written meanwhile is not lost.
        let csi_nodes = Api::<Item<CSINode>>::all(client.clone());
        let replaced = csi_nodes.replace(&self.name, &PostParams::default(), &known.into()).await;
        replaced
            .map(drop)
            .map_err(|error| Error::api("update the CSINode with CSI driver node info", &error))
    }
}

fn asking_node(error: KubeError) -> Error {
    Error::api("get the Node", &error)
}

fn asking_csi_node(error: KubeError) -> Error {
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

fn fresh(name: &str, uid: &str) -> CSINode {
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

/// What a CSINode has of a driver.
pub(super) fn entry(
    driver: &str,
    told: &NodeGetInfoResponse,
    topology: &BTreeMap<String, String>,
) -> CSINodeDriver {
    let most = i32::try_from(told.max_volumes_per_node.min(i32::MAX.into())).unwrap_or_default();
    CSINodeDriver {
        name: driver.to_owned(),
        node_id: told.node_id.clone(),
        topology_keys: Some(topology.keys().cloned().collect()),
        allocatable: (most > 0).then_some(VolumeNodeResources { count: Some(most) }),
    }
}

/// The drivers with another entry for one of them; `None`: nothing differs.
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

/// The annotation of the Node with another name for a driver; JSON null: without it. `None`:
/// nothing differs.
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

/// The labels of a driver's topology that the Node lacks.
pub(super) fn new_labels(
    labels: Option<&BTreeMap<String, String>>,
    topology: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut new = BTreeMap::new();
    for (key, told) in topology {
        match labels.and_then(|labels| labels.get(key)) {
            Some(known) if known == told => {}
            Some(known) => {
                let (key, told, known) = (key.clone(), told.clone(), known.clone());
                return Err(Error::Topology { key, told, known });
            }
            None => {
                new.insert(key.clone(), told.clone());
            }
        }
    }
    Ok(new)
}
