//! Whatever was wanted, whatever failed and however often the daemon ended meanwhile: once nothing
//! is in the way, what is mounted is what is wanted, and nothing else is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use super::world::{Disk, World, pod_with};

const PODS: [&str; 3] = ["u0", "u1", "u2"];

#[derive(Clone, Copy, Debug)]
enum Action {
    /// The pod is wanted, and its worker waits for its volumes.
    Start(usize),
    /// The same, but its worker gives up waiting after so many milliseconds.
    Abandon(usize, u64),
    /// The pod is not wanted any more.
    End(usize),
    /// The daemon ends, and another one begins.
    Restart,
    Fault(Fault, bool),
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A directory that a volume is made from is away.
    Missing,
    /// The system's tool for mounts fails.
    Tool,
    /// Somebody works in a volume of that pod, so that it cannot be unmounted.
    Busy(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let pod = 0..PODS.len();
    let fault =
        prop_oneof![Just(Fault::Missing), Just(Fault::Tool), pod.clone().prop_map(Fault::Busy)];
    let action = prop_oneof![
        4 => pod.clone().prop_map(Action::Start),
        2 => (pod.clone(), 0u64..40).prop_map(|(pod, after)| Action::Abandon(pod, after)),
        3 => pod.prop_map(Action::End),
        2 => Just(Action::Restart),
        2 => (fault, any::<bool>()).prop_map(|(fault, on)| Action::Fault(fault, on)),
    ];
    prop::collection::vec(action, 1..14)
}

struct Node {
    world: World,
    _disks: [Disk; 2],
    wanted: BTreeSet<usize>,
    busy: BTreeMap<usize, File>,
}

impl Node {
    async fn start() -> Self {
        let world = World::start().await;
        let disks = ["disk-b", "disk-c"].map(|name| Disk::new(&world.root.join(name)));
        let [file_system, raw] = &disks;
        world.root.write("data/file", "x");
        world.root.write("export/file", "x");
        world.claim("a", json!({"local": {"path": world.root.join("data")}}));
        world.claim("b", json!({"local": {"path": file_system.device}}));
        world.claim("c", json!({"volumeMode": "Block", "local": {"path": raw.device}}));
        world.tool("mount.nfs", "exit 0");
        world.tool(
            "mount",
            "here=\"${0%/bin/mount}\"\n[ -e \"$here/broken\" ] && exit 32\n\
             for last; do :; done\n\
             case \"$*\" in *nfs*) exec /bin/mount --bind \"$here/export\" \"$last\" ;; esac\n\
             exec /bin/mount \"$@\"",
        );
        Self { world, _disks: disks, wanted: BTreeSet::new(), busy: BTreeMap::new() }
    }

    fn pod(index: usize) -> Pod {
        let mut pod = pod_with(PODS[index], &["a", "b", "c"], json!({"fsGroup": 77}));
        let nfs = json!({"name": "n", "nfs": {"server": "s", "path": "/x"}});
        let volumes = pod.spec.as_mut().unwrap().volumes.as_mut().unwrap();
        volumes.push(serde_json::from_value(nfs).unwrap());
        pod
    }

    async fn play(&mut self, action: Action) {
        match action {
            Action::Start(pod) => {
                self.wanted.insert(pod);
                let _ = self.world.mount(&Self::pod(pod)).await;
            }
            Action::Abandon(pod, after) => {
                self.wanted.insert(pod);
                let (pod, after) = (Self::pod(pod), Duration::from_millis(after));
                let _ = tokio::time::timeout(after, self.world.mount(&pod)).await;
            }
            Action::End(pod) => {
                self.wanted.remove(&pod);
                let _ = self.world.volumes.remove_pod(PODS[pod]).await;
            }
            Action::Restart => {
                // What a daemon has begun ends with it; here it cannot, so it is waited for.
                self.settle().await;
                self.world.restart();
            }
            Action::Fault(fault, on) => self.fault(fault, on),
        }
    }

    async fn settle(&self) {
        for uid in PODS {
            drop(self.world.volumes.lock(uid).write_owned().await);
        }
    }

    fn fault(&mut self, fault: Fault, on: bool) {
        let (data, away) = (self.world.root.join("data"), self.world.root.join("away"));
        let broken = self.world.root.join("broken");
        let _ = match (fault, on) {
            (Fault::Missing, true) => fs::rename(data, away),
            (Fault::Missing, false) => fs::rename(away, data),
            (Fault::Tool, true) => fs::write(broken, ""),
            (Fault::Tool, false) => fs::remove_file(broken),
            (Fault::Busy(pod), true) => {
                let volume = format!("pods/{}/volumes/kubernetes.io~local-volume/pv-b", PODS[pod]);
                let opened = File::open(self.world.node(&volume));
                opened.map(|file| drop(self.busy.insert(pod, file)))
            }
            (Fault::Busy(pod), false) => {
                self.busy.remove(&pod);
                Ok(())
            }
        };
    }

    /// As a pool of workers does it: pods that are wanted are mounted, directories of others go.
    async fn converge(&mut self) {
        for pod in 0..PODS.len() {
            self.fault(Fault::Busy(pod), false);
        }
        self.fault(Fault::Missing, false);
        self.fault(Fault::Tool, false);
        for uid in self.world.volumes.pods_on_disk().await.unwrap() {
            if !self.wanted.iter().any(|pod| PODS[*pod] == uid) {
                self.world.remove(&uid).await;
            }
        }
        for pod in &self.wanted {
            let mounts = self.world.mount(&Self::pod(*pod)).await.unwrap();
            assert_eq!(fs::read_to_string(mounts["a"].path.join("file")).unwrap(), "x");
            assert_eq!(fs::read_to_string(mounts["n"].path.join("file")).unwrap(), "x");
        }
    }

    fn check(&self) {
        let mut mounted = BTreeSet::new();
        let mut users = BTreeMap::<String, BTreeSet<String>>::new();
        for uid in self.wanted.iter().map(|pod| PODS[*pod]) {
            let volumes = format!("pods/{uid}/volumes");
            mounted.extend([
                format!("{volumes}/kubernetes.io~local-volume/pv-a"),
                format!("{volumes}/kubernetes.io~local-volume/pv-b"),
                format!("{volumes}/kubernetes.io~nfs/n"),
                format!("plugins/kubernetes.io~local-volume/volumeDevices/pv-c/{uid}"),
                "plugins/kubernetes.io/local-volume/mounts/pv-b".to_owned(),
            ]);
            for volume in ["pv-a", "pv-b", "pv-c"] {
                let device = format!("kubernetes.io/local-volume/{volume}");
                users.entry(device).or_default().insert(uid.to_owned());
            }
        }
        assert_eq!(self.world.mounted(), mounted);
        assert_eq!(self.world.users(), users);
    }
}

#[test]
fn volume_sequences_converge_as_root() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let node = std::cell::RefCell::new(runtime.block_on(Node::start()));
    let mut runner = TestRunner::new(Config { cases: 32, ..Config::default() });
    let outcome = runner.run(&actions(), |actions| {
        let node = &mut *node.borrow_mut();
        runtime.block_on(async {
            for action in actions {
                node.play(action).await;
            }
            node.converge().await;
            node.check();
            node.world.restart();
            node.check();
            node.wanted.clear();
            node.converge().await;
            node.world.assert_clean();
        });
        Ok(())
    });
    outcome.unwrap();
}
