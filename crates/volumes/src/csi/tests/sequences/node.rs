//! A node on which a case is run.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, chown};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_csi::v1::node_service_capability::rpc::Type;
use longshore_testkit::csi::CsiOptions;
use longshore_testkit::fakecri::Fault;
use longshore_testkit::wait_until;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::super::super::paths::attachment_name;
use super::super::world::{DRIVER, World, pod, until};
use super::kinds::all_volumes;
use super::state;
use super::{Action, CallFault, Case, Failure, Kind, PODS, Work};
use crate::PodMounts;

const GROUP: u32 = 77;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of operations while a driver hangs.
const HANG_TIMEOUT: Duration = Duration::from_millis(40);

pub(super) struct Node {
    pub(super) world: World,
    /// The runtime of the daemon.
    daemon: Option<Runtime>,
    /// Whether the driver stages volumes.
    pub(super) stages: bool,
    pods: Vec<Pod>,
    /// The volumes of each pod.
    pub(super) kinds: Vec<Vec<Kind>>,
    pub(super) wanted: BTreeSet<usize>,
    busy: Vec<File>,
    hangs: bool,
    dead: bool,
    withdrawn: bool,
}

impl Drop for Node {
    fn drop(&mut self) {
        for (device, _) in state::loops(&self.world) {
            let _ = std::process::Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

impl Node {
    pub(super) async fn start(stages: bool) -> Self {
        let capabilities = stages.then_some(Type::StageUnstageVolume);
        let world = World::start(CsiOptions::new(DRIVER).with(capabilities), Value::Null).await;
        let mut node = Self {
            world,
            daemon: None,
            stages,
            pods: Vec::new(),
            kinds: Vec::new(),
            wanted: BTreeSet::new(),
            busy: Vec::new(),
            hangs: false,
            dead: false,
            withdrawn: false,
        };
        node.restart().await;
        node
    }

    /// Runs a case to its end.
    pub(super) async fn run(&mut self, case: &Case) {
        self.prepare(case);
        for action in &case.actions {
            self.run_action(*action).await;
            self.check_invariants();
        }
        self.repair().await;
        self.settle().await;
        self.check_unchanged(case.requires_republish).await;
        self.kill().await;
        self.restart().await;
        self.check_unchanged(case.requires_republish).await;
        // Teardown must not need any API objects.
        self.delete_volumes();
        self.wanted.clear();
        self.settle().await;
        self.check_invariants();
    }

    fn prepare(&mut self, case: &Case) {
        let pods = PODS.into_iter().zip(&case.pods);
        let pods = pods.map(|(uid, kinds)| {
            let volumes: Vec<Value> = kinds.iter().map(|kind| kind.in_pod()).collect();
            pod(uid, json!(volumes), json!({"fsGroup": GROUP}))
        });
        self.pods = pods.collect();
        self.kinds = case.pods.clone();
        self.world.set_policy(json!({
            "attachRequired": case.attach_required, "requiresRepublish": case.requires_republish,
            "podInfoOnMount": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        }));
        for (uid, kind) in all_volumes() {
            let dir = self.source(uid, kind);
            fs::create_dir_all(&dir).unwrap();
            chown(&dir, Some(0), Some(0)).unwrap();
            fs::write(dir.join("file"), "kept").unwrap();
        }
        self.make_volumes();
    }

    /// The directory with the content of a volume.
    fn source(&self, uid: &str, kind: Kind) -> std::path::PathBuf {
        match kind.handle(uid) {
            Some(handle) => self.world.driver.volume(&handle),
            None => self.world.root.join("directories").join(kind.name()),
        }
    }

    fn make_volumes(&self) {
        for (uid, kind) in all_volumes().filter(|(_, kind)| *kind != Kind::Inline) {
            let path = self.source(uid, kind);
            let fields = match kind {
                Kind::Raw => json!({"volumeMode": "Block"}),
                Kind::Local => json!({"csi": null, "local": {"path": path}}),
                Kind::HostPath => json!({"csi": null, "hostPath": {"path": path}}),
                _ => json!({"csi": {"volumeHandle": kind.handle(uid)}}),
            };
            let name = kind.volume(uid);
            self.world.volume(&name, fields);
            if kind == Kind::Generic {
                let path = format!("/api/v1/namespaces/ns/persistentvolumeclaims/{name}");
                let mut claim = self.world.api.get(&path).unwrap();
                claim["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "v1", "kind": "Pod", "name": format!("pod-{uid}"), "uid": uid,
                    "controller": true,
                }]);
                self.world.api.put(&path, claim);
            }
        }
        self.attach(json!({"attached": true}));
    }

    fn delete_volumes(&self) {
        for (uid, kind) in all_volumes() {
            let name = kind.volume(uid);
            self.world.api.remove(&format!("/api/v1/persistentvolumes/{name}"));
            let claim = format!("/api/v1/namespaces/ns/persistentvolumeclaims/{name}");
            self.world.api.remove(&claim);
        }
    }

    /// Sets the status of the attachments of all volumes.
    fn attach(&self, status: Value) {
        for handle in all_volumes().filter_map(|(uid, kind)| kind.handle(uid)) {
            let name = attachment_name(&handle, DRIVER, "n1");
            let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
            let source = json!({"persistentVolumeName": "any"});
            let spec = json!({"attacher": DRIVER, "nodeName": "n1", "source": source});
            self.world.api.put(&path, json!({"spec": spec, "status": status}));
        }
    }

    async fn run_action(&mut self, action: Action) {
        match action {
            Action::Do(work) => {
                let patience = if self.hangs { HANG_TIMEOUT } else { TIMEOUT };
                let mut done = self.begin(work);
                if timeout(patience, &mut done).await.is_err() {
                    assert!(self.hangs, "{work:?} does not end");
                    done.abort();
                }
            }
            Action::Abandon(work, after) => {
                let begun = self.begin(work);
                sleep(Duration::from_millis(after)).await;
                begun.abort();
            }
            Action::Kill(work, after) => {
                self.begin(work);
                sleep(Duration::from_millis(after)).await;
                self.kill().await;
                self.restart().await;
            }
            Action::Vanish(pod) => {
                self.kill().await;
                self.wanted.remove(&pod);
                self.restart().await;
            }
            Action::Break(failure) => self.inject(failure).await,
            Action::Mend => self.repair().await,
        }
    }

    /// Starts an operation in the daemon.
    fn begin(&mut self, work: Work) -> JoinHandle<Result<PodMounts, String>> {
        let volumes = self.world.volumes.clone();
        let daemon = self.daemon.as_ref().unwrap();
        match work {
            Work::Start(pod) => {
                self.wanted.insert(pod);
                let pod = self.pods[pod].clone();
                daemon.spawn(async move { volumes.mount(&pod).await.map_err(|e| e.to_string()) })
            }
            Work::Unmount(pod) | Work::Remove(pod) => {
                self.wanted.remove(&pod);
                daemon.spawn(async move {
                    let done = match work {
                        Work::Unmount(_) => volumes.unmount(PODS[pod]).await,
                        _ => volumes.remove_pod(PODS[pod]).await,
                    };
                    done.map(|()| PodMounts::new()).map_err(|error| error.to_string())
                })
            }
        }
    }

    /// Kills the daemon.
    async fn kill(&mut self) {
        let daemon = self.daemon.take().unwrap();
        let ended = move || daemon.shutdown_timeout(TIMEOUT);
        tokio::task::spawn_blocking(ended).await.unwrap();
        until("the driver hears of it", || self.world.driver.under_way() == 0).await;
    }

    async fn restart(&mut self) {
        let mut builder = Builder::new_multi_thread();
        let daemon = builder.worker_threads(2).enable_all().build().unwrap();
        self.world.restart_in(&daemon);
        self.daemon = Some(daemon);
        if !self.dead && !self.withdrawn {
            self.world.wait_registered(true).await;
        }
    }

    async fn inject(&mut self, failure: Failure) {
        match failure {
            Failure::Call(method, call_fault, once) => {
                let message = |code| (code, "as you asked".to_owned());
                let fault = match call_fault {
                    CallFault::Before(code) => Fault::Error(code, message(code).1),
                    CallFault::After(code) => Fault::ErrorReply(code, message(code).1),
                    CallFault::Hang => Fault::Hang,
                    CallFault::HangReply => Fault::HangReply,
                };
                self.hangs |= matches!(call_fault, CallFault::Hang | CallFault::HangReply);
                match once {
                    true => self.world.driver.inject_times(method, fault, 1),
                    false => self.world.driver.inject(method, fault),
                }
            }
            Failure::Withdrawn if self.withdrawn => {}
            Failure::Withdrawn => {
                self.withdrawn = true;
                self.world.driver.withdraw().unwrap();
                self.world.wait_registered(false).await;
            }
            Failure::Dead => {
                self.dead = true;
                self.world.driver.die();
            }
            Failure::Deleted => self.delete_volumes(),
            Failure::Detached => {
                self.attach(json!({"attached": false, "attachError": {"message": "no slot"}}));
            }
            Failure::Busy(pod) => {
                let path = format!("/node/pods/{}/volumes/", PODS[pod]);
                self.occupy(|point| point.contains(&path));
            }
            Failure::BusyStaged => self.occupy(|point| point.ends_with("/globalmount")),
            Failure::Missing => {
                let path = self.source("", Kind::Local);
                let _ = fs::rename(&path, path.with_extension("away"));
            }
        }
    }

    /// Opens files in matching mounts, so that they cannot be unmounted.
    fn occupy(&mut self, is_meant: impl Fn(&str) -> bool) {
        let points = self.world.root.mounts();
        let points = points.iter().filter(|point| is_meant(&point.display().to_string()));
        self.busy.extend(points.filter_map(|point| File::open(point.join("file")).ok()));
    }

    async fn repair(&mut self) {
        self.world.driver.release_all();
        if self.dead {
            until("its calls have ended", || self.world.driver.under_way() == 0).await;
            self.world.driver.resume().unwrap();
        }
        if self.dead || self.withdrawn {
            let message = self.world.driver.statuses().len();
            self.world.driver.announce().unwrap();
            until("the driver is taken", || self.world.driver.statuses().len() > message).await;
        }
        (self.dead, self.withdrawn, self.hangs) = (false, false, false);
        self.busy.clear();
        let path = self.source("", Kind::Local);
        let _ = fs::rename(path.with_extension("away"), &path);
        self.make_volumes();
    }

    /// Retries until the desired state is reached.
    async fn settle(&mut self) {
        wait_until(TIMEOUT, "workers have done all", async || self.work().await).await.unwrap();
        wait_until(TIMEOUT, "nothing is left over", async || state::compare(self)).await.unwrap();
    }

    async fn work(&mut self) -> Result<(), String> {
        for pod in (0..PODS.len()).filter(|pod| !self.wanted.contains(pod)).collect::<Vec<_>>() {
            self.begin(Work::Remove(pod)).await.unwrap()?;
        }
        for pod in self.wanted.clone() {
            let mounts = self.begin(Work::Start(pod)).await.unwrap()?;
            self.check_contents(pod, &mounts);
        }
        Ok(())
    }

    fn check_contents(&self, pod: usize, mounts: &PodMounts) {
        for kind in &self.kinds[pod] {
            let mounted = &mounts[kind.name()];
            if let Some(device) = &mounted.device {
                assert!(fs::metadata(device).unwrap().file_type().is_block_device(), "{kind:?}");
                continue;
            }
            let file = fs::read_to_string(mounted.path.join("file"));
            assert_eq!(file.unwrap(), "kept", "{kind:?}");
            let written = fs::write(mounted.path.join("written"), "");
            assert_eq!(written.is_err(), *kind == Kind::ReadOnly, "{kind:?}: {written:?}");
            let is_groups = fs::metadata(&mounted.path).unwrap().gid() == GROUP;
            assert_eq!(is_groups, kind.is_given_to_group(), "{kind:?}");
        }
    }

    /// Checks that existing mounts are kept without calls, unless republishing is on.
    async fn check_unchanged(&mut self, requires_republish: bool) {
        let calls = self.world.calls();
        self.work().await.unwrap();
        state::compare(self).unwrap();
        if !requires_republish {
            assert_eq!(self.world.calls(), calls);
        }
    }

    fn check_invariants(&self) {
        assert_eq!(self.world.driver.volume_log().out_of_order, Vec::<String>::new());
        for (uid, kind) in all_volumes() {
            let dir = self.source(uid, kind);
            let away = dir.with_extension("away");
            let dir = if away.exists() { away } else { dir };
            let file = fs::read_to_string(dir.join("file"));
            assert_eq!(file.ok().as_deref(), Some("kept"), "data of {kind:?}");
        }
    }
}
