//! Garbage collection on a real runtime: dead containers by policy, unused images by last use under
//! disk pressure.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::{Cluster, FOREVER, TIMEOUT, container, script, uid};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use longshore_cri::{Options, Runtime, v1};
use longshore_testkit::{BUSYBOX, Host, ImageBuilder, PAUSE, wait_until};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

impl Cluster {
    /// Start the node again with these fields in its configuration.
    fn reconfigure(&mut self, fields: Value) {
        let path = self.node.config();
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        fs::write(&path, config.to_string()).unwrap();
        self.node.restart(&self.host).expect("started again");
    }

    /// The names of the images that CRI has.
    fn images(&self) -> Vec<String> {
        let filter = "labels.\"io.cri-containerd.image\"==managed";
        let names = self.host.ctr(["images", "ls", "-q", filter]).unwrap();
        let names = names.lines().filter(|name| !name.starts_with("sha256:"));
        names.map(str::to_owned).collect()
    }

    /// When images were used last, by their id, as the node wrote it down.
    fn used(&self) -> BTreeMap<String, String> {
        let text = fs::read(self.node.root_dir().join("image_gc_state")).unwrap_or_default();
        let state: Value = serde_json::from_slice(&text).unwrap_or_default();
        let images = state["images"].as_array().cloned().unwrap_or_default();
        let used = images.iter().filter_map(|image| {
            Some((image["id"].as_str()?.to_owned(), image["lastUsed"].as_str()?.to_owned()))
        });
        used.collect()
    }

    /// Start the node again, until it has seen that an image is in use now.
    async fn see_used(&mut self, image: &str) {
        let before = self.used();
        self.node.restart(&self.host).expect("started again");
        wait_until(TIMEOUT, &format!("{image} is seen in use"), async || {
            let used = self.used();
            if used.get(image) > before.get(image) { Ok(()) } else { Err(format!("{used:?}")) }
        })
        .await
        .unwrap();
    }
}

/// An image of about 20 MiB, which takes twice as much once it is unpacked.
fn import(host: &Host, name: &str, byte: u8) -> String {
    let places = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    let busybox = places.into_iter().find(|path| path.exists()).expect("busybox");
    let reference = format!("longshore.local/{name}:1");
    let image = ImageBuilder::new(&reference)
        .directory("bin", 0o755)
        .file("bin/busybox", 0o755, fs::read(busybox).unwrap())
        .symlink("bin/sh", "busybox")
        .symlink("bin/sleep", "busybox")
        .file("ballast", 0o644, vec![byte; usize::try_from(18 * MIB).unwrap()])
        .build()
        .unwrap();
    host.import(&image).unwrap();
    reference
}

fn with_image(image: &str) -> Value {
    let mut spec = script(FOREVER);
    spec["containers"][0]["image"] = json!(image);
    spec
}

fn image_id(pod: &Pod) -> String {
    let status = pod.status.as_ref().unwrap();
    status.container_statuses.as_ref().unwrap()[0].image_id.clone()
}

/// Capacity and use of a file system.
fn disk(path: &Path) -> (u64, u64) {
    let stat = rustix::fs::statvfs(path).unwrap();
    (stat.f_blocks * stat.f_frsize, (stat.f_blocks - stat.f_bavail) * stat.f_frsize)
}

#[tokio::test]
async fn gc_removes_unused_images_least_recently_used_first() {
    let host = Host::with_disk(400 * MIB).expect("a host");
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| {
        let byte = name.as_bytes()[0];
        import(&host, name, byte)
    });
    let loops = || -> Vec<String> {
        let devices = fs::read_dir("/sys/block").unwrap().flatten();
        let files =
            devices.filter_map(|d| fs::read_to_string(d.path().join("loop/backing_file")).ok());
        files.collect()
    };
    let image_file = host.dir().join("containerd.img").display().to_string();
    assert!(loops().iter().any(|file| file.contains(&image_file)));
    // An age of zero stands for the default.
    let mut cluster = Cluster::on(host, json!({"imageMinimumGCAge": "1ms"})).await;
    // d is in use all the time; a was before b was; c never.
    cluster.create("keeps-d", with_image(&d)).await;
    let kept = cluster.until_ready("keeps-d").await;
    let mut ids = vec![image_id(&kept)];
    for (name, image) in [("uses-a", &a), ("uses-b", &b)] {
        cluster.create(name, with_image(image)).await;
        let pod = cluster.until_ready(name).await;
        cluster.see_used(&image_id(&pod)).await;
        ids.push(image_id(&pod));
        cluster.delete(name).await;
        cluster.until_gone(name).await;
        cluster.until_removed(&uid(&pod)).await;
    }
    // The sandboxes' own is among them where the runtime names it, and pinned elsewhere.
    let used = cluster.used();
    assert!(ids.iter().all(|id| used.contains_key(id)), "{ids:?} in {used:?}");
    let [of_d, of_a, of_b] = ids.try_into().unwrap();

    // Two of them have to go for that, whichever way the busybox image goes.
    let (capacity, in_use) = disk(cluster.host.containerd_dirs()[0]);
    let low = (in_use - 55 * MIB) * 100 / capacity;
    let high = in_use * 100 / capacity;
    cluster.reconfigure(
        json!({"imageGCHighThresholdPercent": high, "imageGCLowThresholdPercent": low}),
    );
    wait_until(TIMEOUT, "c and a are gone", async || {
        let images = cluster.images();
        if images.contains(&a) || images.contains(&c) { Err(images.join(" ")) } else { Ok(()) }
    })
    .await
    .unwrap();
    wait_until(TIMEOUT, "the state is written", async || {
        let used = cluster.used();
        let known = [&of_a, &of_b, &of_d].map(|id| used.contains_key(id));
        if known == [false, true, true] { Ok(()) } else { Err(format!("{used:?}")) }
    })
    .await
    .unwrap();
    let (_, after) = disk(cluster.host.containerd_dirs()[0]);
    assert!(after * 100 <= (low + 1) * capacity, "{after} of {capacity}, {low} %");
    let images = cluster.images();
    for kept in [&b, &d, &PAUSE.to_owned()] {
        assert!(images.contains(kept), "{kept} is missing in {images:?}");
    }

    // There is no such threshold: all that is unused goes, and the event says what else there is.
    cluster.reconfigure(json!({"imageGCHighThresholdPercent": 1, "imageGCLowThresholdPercent": 0}));
    let event = cluster.until_event("FreeDiskSpaceFailed", "Biggest users: ").await;
    let message = event.message.unwrap();
    assert!(message.contains("Insufficient free disk space on the node's image filesystem"));
    assert!(message.contains(&d) && !message.contains(&b), "{message}");
    let mut images = cluster.images();
    images.sort();
    assert_eq!(images, [d, PAUSE.to_owned()]);
    let pod = cluster.until_ready("keeps-d").await;
    assert_eq!(common::run_of(&pod), common::run_of(&kept), "it was not touched");
    cluster.host.assert_clean();
    let left = loops();
    assert!(!left.iter().any(|file| file.contains(&image_file)), "{left:?}");
}

fn runtime(cluster: &Cluster) -> Runtime {
    let endpoint = format!("unix://{}", cluster.host.socket().display());
    Runtime::new(Options::new(endpoint.as_str())).unwrap()
}

/// A container that never runs.
fn dead(attempt: u32, labels: BTreeMap<String, String>) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "extra".to_owned(), attempt }),
        image: Some(v1::ImageSpec { image: BUSYBOX.to_owned(), ..v1::ImageSpec::default() }),
        labels,
        linux: Some(v1::LinuxContainerConfig::default()),
        ..v1::ContainerConfig::default()
    }
}

/// Dead containers `extra` of a pod, as restarts would leave them; gives its sandbox's config.
async fn leave_dead(
    cluster: &Cluster,
    cri: &Runtime,
    pod_uid: &str,
    count: u32,
) -> v1::PodSandboxConfig {
    let sandboxes = cri.list_pod_sandboxes(None).await.unwrap();
    let sandbox = sandboxes.into_iter().find(|s| s.labels.values().any(|v| v == pod_uid)).unwrap();
    let identity = cri.pod_sandbox_status(&sandbox.id).await.unwrap().sandbox;
    let config = v1::PodSandboxConfig {
        metadata: identity.metadata,
        labels: identity.labels.clone(),
        log_directory: cluster.host.dir().display().to_string(),
        linux: Some(v1::LinuxPodSandboxConfig::default()),
        ..v1::PodSandboxConfig::default()
    };
    let mut labels = identity.labels;
    labels.insert("io.kubernetes.container.name".to_owned(), "extra".to_owned());
    let made = futures::stream::iter(0..count).map(|attempt| {
        cri.create_container(&sandbox.id, dead(attempt, labels.clone()), config.clone())
    });
    let made: Vec<_> = made.buffer_unordered(8).collect().await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    config
}

async fn count_of(cri: &Runtime, pod_uid: &str, name: &str) -> usize {
    let all = cri.list_containers(None).await.unwrap();
    let own = all.into_iter().filter(|container| {
        container.labels.get("io.kubernetes.pod.uid").is_some_and(|own| own == pod_uid)
            && container.metadata.as_ref().is_some_and(|metadata| metadata.name == name)
    });
    own.count()
}

#[tokio::test]
async fn gc_of_very_many_dead_containers() {
    // More than twice this makes the test the longest of all, and shows no more.
    const COUNT: u32 = 1_500;
    let mut cluster = Cluster::start().await;
    cluster.create("old", script(FOREVER)).await;
    let old = cluster.until_ready("old").await;
    let cri = runtime(&cluster);
    cluster.node.daemon().kill().expect("killed");
    leave_dead(&cluster, &cri, &uid(&old), COUNT).await;
    assert_eq!(count_of(&cri, &uid(&old), "extra").await, COUNT as usize);

    cluster.node.restart(&cluster.host).expect("started again");
    cluster.create("new", script(FOREVER)).await;
    cluster.until_ready("new").await;
    let left = count_of(&cri, &uid(&old), "extra").await;
    assert!(left > COUNT as usize / 2, "the new pod did not wait: {left} are left");
    wait_until(TIMEOUT * 10, "the newest is left", async || {
        match count_of(&cri, &uid(&old), "extra").await {
            1 => Ok(()),
            left => Err(format!("{left} are left")),
        }
    })
    .await
    .unwrap();
    assert_eq!(common::run_of(&cluster.until_ready("old").await), common::run_of(&old));
    cluster.host.assert_clean();
}

#[tokio::test]
async fn gc_of_dead_containers_and_logs_by_policy() {
    let mut cluster = Cluster::start_with(json!({
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "featureGates": {"KubeletCrashLoopBackOffMax": true},
    }))
    .await;
    let mut spec = script(&format!(
        "n=$(cat /d/n || echo 0); echo $((n+1)) >/d/n; echo run $n; [ $n -lt 4 ] && exit 1; {FOREVER}"
    ));
    spec["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "d", "mountPath": "/d"}]);
    cluster.create("crashes", spec).await;
    let mut spec = script("echo done");
    spec["restartPolicy"] = json!("Never");
    spec["initContainers"] = json!([container("init", "true")]);
    cluster.create("done", spec).await;
    cluster
        .until("crashes", "runs for the fifth time", |pod| match common::run_of(pod) {
            (4, _) if common::condition(pod, "Ready") == "True" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    let done = cluster
        .until("done", "Succeeded", |pod| match common::phase(pod) {
            "Succeeded" => Ok(()),
            phase => Err(phase.to_owned()),
        })
        .await;
    let crashes = uid(&cluster.pod("crashes").await);

    // What restarts leave, all at once; and what is not the node's at all.
    let cri = runtime(&cluster);
    cluster.node.daemon().kill().expect("killed");
    let config = leave_dead(&cluster, &cri, &crashes, 30).await;
    let foreign_config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "foreign".to_owned(),
            uid: "foreign".to_owned(),
            namespace: "foreign".to_owned(),
            attempt: 0,
        }),
        labels: BTreeMap::new(),
        // else the runtime makes a cgroup for all such pods of the machine, and leaves it
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/foreign", cluster.host.cgroup_root()),
            ..v1::LinuxPodSandboxConfig::default()
        }),
        ..config
    };
    let foreign = cri.run_pod_sandbox(foreign_config.clone(), "").await.unwrap();
    cri.create_container(&foreign, dead(0, BTreeMap::new()), foreign_config).await.unwrap();
    cri.stop_pod_sandbox(&foreign).await.unwrap();
    cluster.host.ctr(["containers", "create", BUSYBOX, "by-ctr"]).unwrap();
    // The logs of a pod that is long gone.
    let logs = cluster.node.pod_logs();
    let gone = logs.join("default_gone_00000000-dead-dead-dead-000000000000");
    fs::create_dir_all(gone.join("c")).unwrap();
    let link = Path::new("/var/log/containers")
        .join(format!("gone_default_c-{}.log", cluster.host.name()));
    symlink(gone.join("c/0.log"), &link).unwrap();

    cluster.node.restart(&cluster.host).expect("started again");
    wait_until(TIMEOUT, "a newest dead one and the running are left", async || {
        let left = (
            count_of(&cri, &crashes, "c").await,
            count_of(&cri, &crashes, "extra").await,
            gone.exists(),
        );
        if left == (2, 1, false) { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await
    .unwrap();
    wait_until(TIMEOUT, "the link is gone", async || match link.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) => Err("it is there"),
    })
    .await
    .unwrap();
    let own_logs = logs.join(format!("default_crashes_{crashes}")).join("c");
    let mut files: Vec<_> =
        fs::read_dir(own_logs).unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["3.log", "4.log"]);
    let previous = LogParams { previous: true, ..LogParams::default() };
    assert_eq!(cluster.pods().logs("crashes", &previous).await.unwrap(), "run 3\n");
    // What has ended keeps its containers while its object is there.
    for name in ["c", "init"] {
        assert_eq!(count_of(&cri, &uid(&done), name).await, 1);
    }
    assert_eq!(cluster.pods().logs("done", &LogParams::default()).await.unwrap(), "done\n");
    let pod = cluster.pod("crashes").await;
    assert_eq!(common::run_of(&pod).0, 4, "it was not touched");

    let all = cri.list_containers(None).await.unwrap();
    assert_eq!(all.iter().filter(|container| container.pod_sandbox_id == foreign).count(), 1);
    assert!(cluster.host.ctr(["containers", "ls", "-q"]).unwrap().lines().any(|id| id == "by-ctr"));
    cri.remove_pod_sandbox(&foreign).await.unwrap();
    cluster.host.ctr(["containers", "rm", "by-ctr"]).unwrap();
    cluster.host.assert_clean();
}
