//! Warns of pods that cannot use a volume on the same node, since their SELinux labels or their ways to
//! label it differ. It is off unless it is named, since it takes all nodes to have SELinux.

mod conflicts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, PersistentVolume, PersistentVolumeClaim, Pod, SELinuxOptions, SecurityContext,
    Volume, VolumeMount,
};
use k8s_openapi::api::storage::v1::CSIDriver;
use longshore_informer::{
    Event, Informer, Store, WorkQueue, key_of, object_key, run_workers, split_key,
};
use longshore_metrics::{Kind, Labels, Text};
use parking_lot::Mutex;

use self::conflicts::{Conflict, Labelling, Volumes};
use super::attachdetach::csi_volume::{CsiVolume, disk_name, migrated};
use super::event::{Events, VolumeEvent};
use super::objects::{
    BY_CLAIM, claim_name, claim_of, claim_uid, index_pods, is_made_by, volume_name, volume_spec,
    volumes_of,
};
use crate::Context;
use crate::workload::{Error, is_finished, namespace_of, uid_of};
use crate::writes::unless_stopped;

const RECURSIVE: &str = "Recursive";

/// A volume that may be mounted with a label.
#[derive(Debug, PartialEq, Eq)]
struct Mountable {
    unique_name: String,
    /// The CSI driver, if it has one.
    driver: Option<String>,
}

/// User, role, type and level, as far as they are given; what is not is for the node to say.
fn file_label(options: &SELinuxOptions) -> String {
    let parts = [&options.user, &options.role, &options.type_, &options.level];
    let label = parts.map(|part| part.as_deref().unwrap_or_default()).join(":");
    if label == ":::" { String::new() } else { label }
}

/// The security context and the mounts of a container.
type Mounts<'a> = (Option<&'a SecurityContext>, Option<&'a Vec<VolumeMount>>);

fn mounts_of(container: &Container) -> Mounts<'_> {
    (container.security_context.as_ref(), container.volume_mounts.as_ref())
}

/// The labels with which containers mount each volume of the pod.
fn labels_of(pod: &Pod) -> BTreeMap<String, BTreeSet<String>> {
    let Some(spec) = &pod.spec else { return BTreeMap::new() };
    let of_pod = spec.security_context.as_ref();
    let of_pod = of_pod.and_then(|context| context.se_linux_options.as_ref());
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers).map(mounts_of);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral
        .map(|container| (container.security_context.as_ref(), container.volume_mounts.as_ref()));
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (context, mounts) in containers.chain(ephemeral) {
        let own = context.and_then(|context| context.se_linux_options.as_ref());
        let label = own.or(of_pod).map(file_label);
        for mount in mounts.into_iter().flatten() {
            labels.entry(mount.name.clone()).or_default().extend(label.clone());
        }
    }
    labels
}

/// How a pod wants a volume to be labelled: only what can be mounted with a label is.
fn labelling(pod: &Pod, label: Option<&String>, is_mountable: bool) -> Labelling {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.se_linux_change_policy.as_deref());
    let label = label.filter(|_| is_mountable && policy != Some(RECURSIVE));
    match label.filter(|label| !label.is_empty()) {
        None => Labelling { label: String::new(), policy: RECURSIVE.to_owned() },
        Some(label) => {
            Labelling { label: label.clone(), policy: policy.unwrap_or("MountOption").to_owned() }
        }
    }
}

/// What is decided from.
#[derive(Clone, Copy)]
struct State<'a> {
    volumes: &'a Store<PersistentVolume>,
    claims: &'a Store<PersistentVolumeClaim>,
    drivers: &'a Store<CSIDriver>,
}

impl State<'_> {
    /// The volume, if pods may share it and it may be mounted with a label.
    fn mountable(self, pod: &Pod, volume: &Volume) -> Option<Mountable> {
        if let Some(name) = claim_name(pod, volume) {
            let claim = self.claims.get(&object_key(namespace_of(pod), &name))?;
            if volume.ephemeral.is_some() && !is_made_by(&claim, pod) {
                return None;
            }
            let volume = self.volumes.get(volume_name(&claim))?;
            return (claim_uid(&volume) == uid_of(&*claim)).then(|| Self::of(&volume))?;
        }
        if let Some(disk) = &volume.iscsi {
            let unique_name = disk_name(&disk.target_portal, &disk.iqn, disk.lun);
            return Some(Mountable { unique_name, driver: None });
        }
        Self::of(&migrated(pod, volume)?)
    }

    fn of(volume: &PersistentVolume) -> Option<Mountable> {
        if let Some(csi) = CsiVolume::of(volume) {
            let unique_name = csi.unique_name();
            return Some(Mountable { unique_name, driver: Some(csi.driver) });
        }
        let spec = volume_spec(volume);
        let disk = spec.iscsi.as_ref();
        let disk = disk.map(|disk| disk_name(&disk.target_portal, &disk.iqn, disk.lun));
        let fibre = || {
            let fc = spec.fc.as_ref()?;
            let names = [&fc.target_wwns, &fc.wwids].into_iter().flatten().flatten();
            let names = names.cloned().collect::<Vec<_>>().join("+");
            Some(format!("kubernetes.io/fc/{names}:{}", fc.lun.unwrap_or_default()))
        };
        Some(Mountable { unique_name: disk.or_else(fibre)?, driver: None })
    }

    /// Whether the volume is mounted with a label where that is asked for: drivers say so of themselves.
    fn is_mounted_with_label(self, volume: &Mountable) -> bool {
        let Some(driver) = &volume.driver else { return true };
        let driver = self.drivers.get(driver);
        driver.is_some_and(|driver| driver.spec.se_linux_mount == Some(true))
    }

    /// Notes the volumes of a pod; returns new conflicts, and the names of its volumes that have more than
    /// one label.
    fn note(self, volumes: &mut Volumes, pod: &Pod) -> (Vec<Conflict>, Vec<String>) {
        let (mut conflicts, mut ambiguous) = (Vec::new(), Vec::new());
        let key = key_of(pod);
        let labels = labels_of(pod);
        for volume in volumes_of(pod) {
            let Some(labels) = labels.get(&volume.name) else { continue };
            if labels.len() > 1 {
                ambiguous.push(volume.name.clone());
                continue;
            }
            let Some(mountable) = self.mountable(pod, volume) else { continue };
            let with_label = self.is_mounted_with_label(&mountable);
            let labelling = labelling(pod, labels.first(), with_label);
            let driver = mountable.driver.as_deref();
            conflicts.extend(volumes.add(&mountable.unique_name, driver, &key, labelling));
        }
        (conflicts, ambiguous)
    }
}

fn write(text: &mut Text, conflicts: &BTreeSet<Conflict>) {
    let (name, help) = (
        "selinux_warning_controller_selinux_volume_conflict",
        "[ALPHA] Conflict between two Pods using the same volume",
    );
    let mut samples = text.family(name, help, Kind::Gauge);
    for conflict in conflicts {
        let ((namespace, name), (other, other_name)) =
            (split_key(&conflict.pod), split_key(&conflict.other_pod));
        let labels = Labels::new(&[
            ("property", conflict.property),
            ("pod1_namespace", namespace),
            ("pod1_name", name),
            ("pod1_value", &conflict.value),
            ("pod2_namespace", other),
            ("pod2_name", other_name),
            ("pod2_value", &conflict.other_value),
        ]);
        samples.add(&labels, 1.0);
    }
}

struct Controller {
    pods: Informer<Pod>,
    volumes: Informer<PersistentVolume>,
    claims: Informer<PersistentVolumeClaim>,
    drivers: Informer<CSIDriver>,
    queue: WorkQueue<String>,
    events: Events,
    used: Arc<Mutex<Volumes>>,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let controller = Controller {
        pods: context.informers.get(),
        volumes: context.informers.get(),
        claims: context.informers.get(),
        drivers: context.informers.get(),
        queue: WorkQueue::new("selinux_warning", &context.queues),
        events: Events::new(context.recorder("selinux_warning")),
        used: Arc::default(),
    };
    context.metrics.selinux_conflicts.set({
        let used = controller.used.clone();
        move |text| write(text, &used.lock().conflicts())
    });
    index_pods(controller.pods.store());
    controller.subscribe();
    let all = async {
        controller.pods.synced().await;
        controller.volumes.synced().await;
        controller.claims.synced().await;
        controller.drivers.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let name = "selinux-warning-controller";
    run_workers(name, &controller.queue, 1, &context.stop, |key| controller.sync(key)).await;
}

impl Controller {
    fn subscribe(&self) {
        self.pods.subscribe({
            let queue = self.queue.clone();
            move |event: &Event<Pod>| {
                let is_same = matches!(event, Event::Updated { old, new }
                    if is_finished(old) || !is_finished(new));
                if !is_same {
                    queue.add(key_of(&**event.latest()));
                }
            }
        });
        let users = |claim: &str, queue: &WorkQueue<String>, pods: &Informer<Pod>| {
            pods.store().by_index(BY_CLAIM, claim).iter().for_each(|pod| queue.add(key_of(&**pod)));
        };
        self.claims.subscribe({
            let (queue, pods) = (self.queue.clone(), self.pods.clone());
            move |event: &Event<PersistentVolumeClaim>| {
                let claim = event.latest();
                let is_same = event.old().is_some_and(|old| volume_name(old) == volume_name(claim));
                if !is_same && !volume_name(claim).is_empty() {
                    users(&key_of(&**claim), &queue, &pods);
                }
            }
        });
        self.volumes.subscribe({
            let (queue, pods) = (self.queue.clone(), self.pods.clone());
            move |event: &Event<PersistentVolume>| {
                let volume = event.latest();
                let is_same = event.old().is_some_and(|old| claim_uid(old) == claim_uid(volume));
                if let Some(claim) = claim_of(volume).filter(|_| !is_same) {
                    users(&claim, &queue, &pods);
                }
            }
        });
        self.drivers.subscribe({
            let (queue, used) = (self.queue.clone(), self.used.clone());
            move |event: &Event<CSIDriver>| {
                let driver = event.latest();
                let mounts = |driver: &CSIDriver| driver.spec.se_linux_mount == Some(true);
                let is_same =
                    matches!(event, Event::Updated { old, new } if mounts(old) == mounts(new));
                if !is_same {
                    let pods = used.lock().pods_of(&key_of(&**driver));
                    pods.into_iter().for_each(|pod| queue.add(pod));
                }
            }
        });
    }

    async fn sync(&self, key: String) -> Result<(), Error> {
        let pod = self.pods.store().get(&key).filter(|pod| !is_finished(pod));
        let Some(pod) = pod else {
            self.used.lock().remove_pod(&key);
            return Ok(());
        };
        let state = State {
            volumes: self.volumes.store(),
            claims: self.claims.store(),
            drivers: self.drivers.store(),
        };
        let (conflicts, ambiguous) = state.note(&mut self.used.lock(), &pod);
        for volume in ambiguous {
            let why = format!(
                "Volume {volume:?} is mounted twice with different SELinux labels inside this pod"
            );
            self.events.record(&*pod, VolumeEvent::warning("MultipleSELinuxLabels", why));
        }
        for conflict in conflicts {
            if let Some(pod) = self.pods.store().get(&conflict.pod) {
                let event = VolumeEvent::normal(conflict.reason(), conflict.message());
                self.events.record(&*pod, event);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(context: Value, containers: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u"},
            "spec": {
                "securityContext": context,
                "containers": containers,
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
            },
        }))
        .unwrap()
    }

    fn stores(
        mounts: Value,
    ) -> (Store<PersistentVolume>, Store<PersistentVolumeClaim>, Store<CSIDriver>) {
        let volume = serde_json::from_value(json!({
            "metadata": {"name": "v"},
            "spec": {
                "csi": {"driver": "d.io", "volumeHandle": "h"},
                "claimRef": {"namespace": "ns", "name": "c", "uid": "uid-c"},
            },
        }));
        let claim = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "c", "uid": "uid-c"},
            "spec": {"volumeName": "v"},
        }));
        let driver = serde_json::from_value(json!({
            "metadata": {"name": "d.io"}, "spec": {"seLinuxMount": mounts},
        }));
        (
            [volume.unwrap()].into_iter().collect(),
            [claim.unwrap()].into_iter().collect(),
            [driver.unwrap()].into_iter().collect(),
        )
    }

    #[test]
    fn selinux_labelling_is_that_of_containers_pod_and_driver() {
        let level = |level: &str| json!({"seLinuxOptions": {"level": level}});
        let with_policy = |mut context: Value, policy: &str| {
            context["seLinuxChangePolicy"] = policy.into();
            context
        };
        let mounts = json!([{"name": "data", "mountPath": "/d"}]);
        let plain = || json!([{"name": "c", "volumeMounts": mounts}]);
        let own = |context: Value| json!([{"name": "c", "volumeMounts": mounts, "securityContext": context}]);
        for (what, context, containers, mounts, expected) in [
            ("none", json!({}), plain(), true, ("", RECURSIVE)),
            ("of the pod", level("s0:c1"), plain(), true, (":::s0:c1", "MountOption")),
            (
                "of the container",
                level("s0:c1"),
                own(level("s0:c2")),
                true,
                (":::s0:c2", "MountOption"),
            ),
            ("driver without", level("s0:c1"), plain(), false, ("", RECURSIVE)),
            ("policy", with_policy(level("s0:c1"), RECURSIVE), plain(), true, ("", RECURSIVE)),
            ("empty", json!({"seLinuxOptions": {}}), plain(), true, ("", RECURSIVE)),
        ] {
            let (volumes, claims, drivers) = stores(mounts.into());
            let state = State { volumes: &volumes, claims: &claims, drivers: &drivers };
            let pod = pod(context, containers);
            let volume = &volumes_of(&pod)[0];
            let mountable = state.mountable(&pod, volume).unwrap();
            assert_eq!(mountable.unique_name, "kubernetes.io/csi/d.io^h");
            let with_label = state.is_mounted_with_label(&mountable);
            let found = labelling(&pod, labels_of(&pod)["data"].first(), with_label);
            assert_eq!((found.label.as_str(), found.policy.as_str()), expected, "{what}");
        }
    }

    #[test]
    fn selinux_warnings_name_volumes_with_two_labels() {
        let (volumes, claims, drivers) = stores(true.into());
        let state = State { volumes: &volumes, claims: &claims, drivers: &drivers };
        let container = |name: &str, level: &str| {
            json!({"name": name, "volumeMounts": [{"name": "data", "mountPath": "/d"}],
                "securityContext": {"seLinuxOptions": {"level": level}}})
        };
        let mut used = Volumes::default();
        let two = pod(json!({}), json!([container("a", "s0:c1"), container("b", "s0:c2")]));
        assert_eq!(state.note(&mut used, &two), (vec![], vec!["data".to_owned()]));
        let mut first = pod(json!({}), json!([container("a", "s0:c1")]));
        assert_eq!(state.note(&mut used, &first), (vec![], vec![]));
        first.metadata.name = Some("q".into());
        assert!(state.note(&mut used, &first).0.is_empty(), "the same label");
        let other = pod(json!({}), json!([container("a", "s0:c9")]));
        let (conflicts, _) = state.note(&mut used, &other);
        assert_eq!(conflicts.len(), 2);
        let mut text = Text::new();
        write(&mut text, &used.conflicts());
        assert!(text.finish().contains(
            "{property=\"SELinuxLabel\",pod1_namespace=\"ns\",pod1_name=\"p\",\
             pod1_value=\":::s0:c9\",pod2_namespace=\"ns\",pod2_name=\"q\",pod2_value=\":::s0:c1\"} 1"
        ));
    }
}
