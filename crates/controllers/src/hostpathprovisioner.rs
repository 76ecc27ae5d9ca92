//! Makes volumes of directories on nodes for claims of classes that name this provisioner, with
//! `--enable-hostpath-provisioner`. For clusters of one machine, and tests.
//!
//! The node makes the directory when the volume is first used. Where pods wait for a node before the
//! volume is made, the volume is bound to that node.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};
use longshore_base::trees;
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use serde_json::json;

use crate::Context;
use crate::workload::Error;
use crate::writes::{is_conflict, reference, unless_replaced, unless_stopped};

/// The provisioner, as storage classes name it.
pub const PROVISIONER: &str = "longshore.dev/host-path";
/// Where the volumes are, unless the class has the parameter `path`.
const DIRECTORY: &str = "/tmp/hostpath_pv";
const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// What is synced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Claim(String),
    Volume(String),
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Claim(key) | Key::Volume(key) => f.write_str(key),
        }
    }
}

fn annotation<'a>(
    annotations: Option<&'a std::collections::BTreeMap<String, String>>,
    name: &str,
) -> Option<&'a str> {
    annotations.and_then(|annotations| annotations.get(name)).map(String::as_str)
}

/// PURE: the volume of a claim; `None`: the claim does not ask for one here, or has one.
fn plan(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
) -> Result<Option<PersistentVolume>, String> {
    let metadata = &claim.metadata;
    let spec = claim.spec.clone().unwrap_or_default();
    let is_bound = spec.volume_name.as_ref().is_some_and(|name| !name.is_empty());
    let is_asked = annotation(metadata.annotations.as_ref(), ASKED) == Some(PROVISIONER);
    if !is_asked || is_bound || metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let Some(class) = class else { return Ok(None) };
    if spec.selector.is_some() {
        return Err("claim Selector is not supported".into());
    }
    let storage = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let Some(storage) = storage.and_then(|requests| requests.get("storage")) else {
        return Err("the claim requests no storage".into());
    };
    let uid = metadata.uid.clone().unwrap_or_default();
    let parameter = class.parameters.as_ref().and_then(|parameters| parameters.get("path"));
    let directory = parameter.map_or(DIRECTORY, String::as_str).trim_end_matches('/');
    if !directory.starts_with('/') || Path::new(directory).components().any(is_above) {
        return Err(format!("{directory}: parameter path is not an absolute path"));
    }
    let name = format!("pvc-{uid}");
    let node = annotation(metadata.annotations.as_ref(), SELECTED_NODE);
    let affinity = node.map(|node| {
        json!({"required": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]}]}]}})
    });
    let volume = json!({
        "metadata": {
            "name": name,
            "annotations": {
                PROVISIONED_BY: PROVISIONER,
                "kubernetes.io/createdby": "hostpath-dynamic-provisioner",
            },
        },
        "spec": {
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "accessModes": spec.access_modes,
            "volumeMode": spec.volume_mode.as_deref().unwrap_or("Filesystem"),
            "mountOptions": class.mount_options,
            "storageClassName": class.metadata.name,
            "capacity": {"storage": storage},
            "hostPath": {"path": format!("{directory}/{name}"), "type": "DirectoryOrCreate"},
            "nodeAffinity": affinity,
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata.namespace,
                "name": metadata.name,
                "uid": uid,
            },
        },
    });
    serde_json::from_value(volume).map(Some).map_err(|error| error.to_string())
}

fn is_above(component: std::path::Component<'_>) -> bool {
    component == std::path::Component::ParentDir
}

/// PURE: the directory to be deleted, of a volume that was made here and is not needed any more.
fn disposable(volume: &PersistentVolume) -> Option<PathBuf> {
    let metadata = &volume.metadata;
    let spec = volume.spec.as_ref()?;
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_ours = annotation(metadata.annotations.as_ref(), PROVISIONED_BY) == Some(PROVISIONER);
    let is_deleted = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    if !is_ours || !is_deleted || phase != Some("Released") {
        return None;
    }
    let path = PathBuf::from(&spec.host_path.as_ref()?.path);
    // Anybody who may write volumes could name another directory.
    let name = metadata.name.as_deref()?;
    let is_own = name.starts_with("pvc-")
        && path.is_absolute()
        && path.file_name().and_then(|own| own.to_str()) == Some(name)
        && !path.components().any(is_above);
    is_own.then_some(path)
}

/// Removes the directory, if it is on this machine.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::canonicalize(path) {
        Ok(real) if real == path => trees::remove(&real),
        Ok(_) => Err(io::Error::other("there are symbolic links in the path")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

struct Controller {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    recorder: Recorder,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    if !context.settings.cluster.enable_hostpath_provisioner {
        return;
    }
    let queue: WorkQueue<Key> = WorkQueue::new("hostpath_provisioner", &context.queues);
    let controller = Controller {
        client: context.client.clone(),
        claims: context.informers.get(),
        volumes: context.informers.get(),
        classes: context.informers.get(),
        recorder: context.recorder("persistentvolume-controller"),
    };
    controller.claims.subscribe({
        let queue = queue.clone();
        move |event: &Event<PersistentVolumeClaim>| {
            queue.add(Key::Claim(key_of(&**event.latest())));
        }
    });
    controller.volumes.subscribe({
        let queue = queue.clone();
        move |event: &Event<PersistentVolume>| queue.add(Key::Volume(key_of(&**event.latest())))
    });
    controller.classes.subscribe({
        let (queue, claims) = (queue.clone(), controller.claims.clone());
        move |event: &Event<StorageClass>| {
            if let Event::Added(_) = event {
                for claim in claims.store().list() {
                    queue.add(Key::Claim(key_of(&*claim)));
                }
            }
        }
    });
    let all = async {
        controller.claims.synced().await;
        controller.volumes.synced().await;
        controller.classes.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    run_workers("hostpath-provisioner", &queue, 1, &context.stop, |key| controller.sync(key)).await;
}

impl Controller {
    async fn sync(&self, key: Key) -> Result<(), Error> {
        match key {
            Key::Claim(key) => self.provision(&key).await,
            Key::Volume(name) => self.dispose(&name).await,
        }
    }

    async fn provision(&self, key: &str) -> Result<(), Error> {
        let Some(claim) = self.claims.store().get(key) else { return Ok(()) };
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        let class = class.and_then(|name| self.classes.store().get(name));
        let volume = match plan(&claim, class.as_deref()) {
            Ok(Some(volume)) => volume,
            Ok(None) => return Ok(()),
            Err(why) => {
                let name = class.and_then(|class| class.metadata.name.clone()).unwrap_or_default();
                let message =
                    format!("failed to provision volume with StorageClass {name:?}: {why}");
                let about = reference(&*claim);
                self.recorder.event(about, EventType::Warning, "ProvisioningFailed", &message);
                return Ok(());
            }
        };
        let name = volume.metadata.name.clone().unwrap_or_default();
        if self.volumes.store().get(&name).is_some() {
            return Ok(());
        }
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), &volume).await {
            // It was made before.
            Err(error) if is_conflict(&error) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => {
                let message = format!("Successfully provisioned volume {name}");
                let about = reference(&*claim);
                self.recorder.event(about, EventType::Normal, "ProvisioningSucceeded", &message);
                Ok(())
            }
        }
    }

    async fn dispose(&self, name: &str) -> Result<(), Error> {
        let Some(volume) = self.volumes.store().get(name) else { return Ok(()) };
        let Some(path) = disposable(&volume) else { return Ok(()) };
        let removed = tokio::task::spawn_blocking(move || {
            remove(&path).map_err(|error| format!("delete {}: {error}", path.display()))
        });
        if let Err(why) = removed.await.map_err(|error| error.to_string()).flatten() {
            let about = reference(&*volume);
            self.recorder.event(about, EventType::Warning, "VolumeFailedDelete", &why);
            return Err(Error::Invalid(why));
        }
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: volume.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        unless_replaced(api.delete(name, &params).await)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use k8s_openapi::api::storage::v1::StorageClass;
    use serde_json::{Value, json};

    use super::{PROVISIONER, disposable, plan, remove};

    fn claim(annotations: Value, more: Value) -> PersistentVolumeClaim {
        let mut spec = json!({
            "storageClassName": "standard",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "data", "uid": "u1", "annotations": annotations},
            "spec": spec,
        }))
        .unwrap()
    }

    fn class(parameters: Value) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": "standard"}, "provisioner": PROVISIONER, "parameters": parameters,
        }))
        .unwrap()
    }

    #[test]
    fn hostpath_provisioner_makes_a_volume_for_its_claims() {
        let asked = json!({"volume.kubernetes.io/storage-provisioner": PROVISIONER,
            "volume.kubernetes.io/selected-node": "n1"});
        let standard = class(Value::Null);
        let made = plan(&claim(asked.clone(), json!({})), Some(&standard)).unwrap().unwrap();
        let made = serde_json::to_value(made).unwrap();
        assert_eq!(made["metadata"]["name"], "pvc-u1");
        assert_eq!(
            made["spec"]["hostPath"],
            json!({"path": "/tmp/hostpath_pv/pvc-u1", "type": "DirectoryOrCreate"})
        );
        assert_eq!(made["spec"]["persistentVolumeReclaimPolicy"], "Delete");
        assert_eq!(made["spec"]["claimRef"]["uid"], "u1");
        let terms = &made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchFields"][0]["values"], json!(["n1"]));
        let nothing = |claim: &PersistentVolumeClaim| plan(claim, Some(&standard)) == Ok(None);
        assert!(nothing(&claim(json!({}), json!({}))));
        assert!(nothing(&claim(asked.clone(), json!({"volumeName": "v"}))));
        assert_eq!(plan(&claim(asked.clone(), json!({})), None), Ok(None));
        for bad in [json!({"path": "../x"}), json!({"path": "/a/../b"})] {
            assert!(plan(&claim(asked.clone(), json!({})), Some(&class(bad))).is_err());
        }
        assert!(plan(&claim(asked, json!({"selector": {}})), Some(&standard)).is_err());
    }

    #[test]
    fn hostpath_provisioner_deletes_its_own_directories_alone() {
        let volume = |name: &str, path: &str, phase: &str, by: &str| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": by}},
                "spec": {"hostPath": {"path": path}, "persistentVolumeReclaimPolicy": "Delete"},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let path = "/data/pvc-u1";
        let found = disposable(&volume("pvc-u1", path, "Released", PROVISIONER));
        assert_eq!(found, Some(PathBuf::from(path)));
        for (name, path, phase, by) in [
            ("pvc-u1", path, "Bound", PROVISIONER),
            ("pvc-u1", path, "Released", "other"),
            ("pvc-u1", "/etc", "Released", PROVISIONER),
            ("etc", "/etc", "Released", PROVISIONER),
            ("pvc-u1", "/data/../pvc-u1", "Released", PROVISIONER),
            ("pvc-u1", "pvc-u1", "Released", PROVISIONER),
        ] {
            assert_eq!(disposable(&volume(name, path, phase, by)), None, "{name} {path} {phase}");
        }
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (real, link) = (dir.join("real"), dir.join("link"));
        std::fs::create_dir_all(real.join("deep")).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(remove(&link.join("deep")).is_err());
        assert!(real.join("deep").exists());
        remove(&real).unwrap();
        assert!(!real.exists());
        remove(&real).unwrap();
    }
}
