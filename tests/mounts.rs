//! Volume mounts in containers of a real containerd: propagation, recursive read-only mounts,
//! sub-paths, and attacks on these.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, phase, script};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, PostParams};
use longshore_testkit::wait_until;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

/// A directory of the host that has mounts of its own, until it is dropped.
struct Tree(PathBuf);

impl Tree {
    /// A file system in memory at that directory, whose mounts are propagated.
    fn shared(path: PathBuf) -> Self {
        fs::create_dir_all(&path).unwrap();
        let none = None::<&str>;
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), none).expect("a tmpfs");
        mount(none, &path, none, MsFlags::MS_SHARED, none).expect("shared");
        Self(path)
    }

    /// Another one below.
    fn add(&self, name: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), None::<&str>)
            .expect("a tmpfs");
        fs::write(path.join("mark"), name).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        let mut below: Vec<_> = points.filter(|point| point.starts_with(&self.0)).collect();
        below.reverse();
        for point in below {
            let _ = umount2(&point, MntFlags::MNT_DETACH);
        }
    }
}

/// A pod with a directory of the host at `/v`, mounted with these fields.
fn with_host_path(text: &str, path: &Path, fields: Value) -> Value {
    let mut spec = script(text);
    spec["volumes"] = json!([{"name": "v", "hostPath": {"path": path}}]);
    let mut mount = json!({"name": "v", "mountPath": "/v"});
    fields.as_object().unwrap().iter().for_each(|(key, value)| mount[key] = value.clone());
    spec["containers"][0]["volumeMounts"] = json!([mount]);
    spec
}

fn exec(cluster: &Cluster, pod: &str, line: &str) -> Result<String, String> {
    let args = ["exec", pod, "-c", "c", "--", "sh", "-c", line];
    cluster.apiserver.kubectl().run(args).map_err(|error| error.to_string())
}

#[tokio::test]
async fn mount_propagation_follows_the_spec() {
    let cluster = Cluster::start().await;
    let tree = Tree::shared(cluster.host.dir().join("tree"));
    let mut both = with_host_path(FOREVER, &tree.0, json!({"mountPropagation": "Bidirectional"}));
    both["containers"][0]["securityContext"] = json!({"privileged": true});
    cluster.create("both", both.clone()).await;
    let mode = |mode: &str| json!({"mountPropagation": mode});
    cluster.create("hears", with_host_path(FOREVER, &tree.0, mode("HostToContainer"))).await;
    cluster.create("none", with_host_path(FOREVER, &tree.0, mode("None"))).await;
    for name in ["both", "hears", "none"] {
        cluster.until_ready(name).await;
    }
    tree.add("host");
    exec(
        &cluster,
        "both",
        "mkdir /v/pod && mount -t tmpfs pod /v/pod && echo -n pod > /v/pod/mark",
    )
    .expect("mounted in a pod");
    assert_eq!(fs::read_to_string(tree.0.join("pod/mark")).unwrap(), "pod", "on the host");
    for (pod, sees) in [("both", ["host", "pod"]), ("hears", ["host", "pod"]), ("none", ["", ""])] {
        let seen = ["host", "pod"].map(|name| {
            exec(&cluster, pod, &format!("cat /v/{name}/mark 2>/dev/null || true")).unwrap()
        });
        assert_eq!(seen, sees, "{pod}");
    }

    // Only a privileged container may propagate mounts to the host.
    both["containers"][0]["securityContext"] = json!({});
    both["nodeName"] = json!(cluster.host.name());
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "humble"}, "spec": both})).unwrap();
    let refused = cluster.pods().create(&PostParams::default(), &pod).await.unwrap_err();
    let why = "Bidirectional mount propagation is available only to privileged containers";
    assert!(refused.to_string().contains(why), "{refused}");
    for name in ["both", "hears", "none"] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
    }
    drop(tree);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn mount_recursive_read_only() {
    let cluster = Cluster::start().await;
    let tree = Tree::shared(cluster.host.dir().join("tree"));
    tree.add("below");
    wait_until(TIMEOUT, "the node is Ready", async || cluster.node_ready().await).await.unwrap();
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let status = nodes.get(&cluster.host.name()).await.unwrap().status.unwrap();
    let can = status.runtime_handlers.unwrap_or_default().iter().any(|handler| {
        let features = handler.features.as_ref();
        handler.name.as_deref().unwrap_or_default().is_empty()
            && features.is_some_and(|features| features.recursive_read_only_mounts == Some(true))
    });
    // Where it is known that the runtime can.
    let version = status.node_info.map(|info| info.container_runtime_version).unwrap_or_default();
    println!("recursive read-only: {can}, {version}");
    assert!(can || !version.starts_with("containerd://2"), "{version}");
    let mode = |mode: &str| json!({"readOnly": true, "recursiveReadOnly": mode});
    for (name, fields, root, below) in [
        ("plain", json!({}), true, true),
        ("read-only", json!({"readOnly": true}), false, true),
        ("disabled", mode("Disabled"), false, true),
        ("if-possible", mode("IfPossible"), false, !can),
    ] {
        cluster.create(name, with_host_path(FOREVER, &tree.0, fields)).await;
        cluster.until_ready(name).await;
        let writes = |path: &str| exec(&cluster, name, &format!("touch {path}")).is_ok();
        assert_eq!((writes("/v/x"), writes("/v/below/x")), (root, below), "{name}");
    }
    cluster.create("enabled", with_host_path(FOREVER, &tree.0, mode("Enabled"))).await;
    if can {
        cluster.until_ready("enabled").await;
        assert!(exec(&cluster, "enabled", "touch /v/below/x").is_err());
    } else {
        let why = "requested recursive read-only mode, but it is not supported by the runtime";
        cluster.until_event("Failed", why).await;
    }
    for name in ["plain", "read-only", "disabled", "if-possible", "enabled"] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
    }
    drop(tree);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn mount_sub_paths() {
    let cluster = Cluster::start().await;
    let dir = cluster.host.dir().join("data");
    fs::create_dir_all(dir.join("dir")).unwrap();
    fs::write(dir.join("dir/file"), "inside").unwrap();
    let sub = |path: &str| json!({"subPath": path});
    for (name, fields, line, expected) in [
        ("directory", sub("dir"), "cat /v/file", "inside"),
        ("file", sub("dir/file"), "cat /v", "inside"),
        ("new", sub("a/b"), "touch /v/made; ls /v", "made\n"),
        (
            "read-only",
            json!({"subPath": "dir", "readOnly": true}),
            "touch /v/x 2>&1; true",
            "touch: /v/x: Read-only file system\n",
        ),
        ("expanded", json!({"subPathExpr": "$(WHO)/x"}), "touch /v/made; ls /v", "made\n"),
    ] {
        let mut spec = with_host_path(FOREVER, &dir, fields);
        spec["containers"][0]["env"] =
            json!([{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
        cluster.create(name, spec).await;
        cluster.until_ready(name).await;
        assert_eq!(exec(&cluster, name, line).unwrap(), expected, "{name}");
    }
    assert!(dir.join("a/b/made").exists() && dir.join("expanded/x/made").exists());

    // What only its variables make of it is for the node to judge.
    for (name, value, why) in [
        ("absolute", "/etc", "error SubPath `/etc` must not be an absolute path"),
        (
            "backwards",
            "a/../../etc",
            "unable to provision SubPath `a/../../etc`: must not contain '..'",
        ),
    ] {
        let mut spec = with_host_path(FOREVER, &dir, json!({"subPathExpr": "$(WHERE)"}));
        spec["containers"][0]["env"] = json!([{"name": "WHERE", "value": value}]);
        cluster.create(name, spec).await;
        cluster.until_event("Failed", why).await;
    }
    // A link out of the volume is refused, and the pod does not learn where it leads.
    std::os::unix::fs::symlink("/etc", dir.join("out")).unwrap();
    cluster.create("out", with_host_path(FOREVER, &dir, sub("out"))).await;
    let why = "failed to prepare subPath for volumeMount \"v\" of container \"c\"";
    cluster.until_event("Failed", why).await;
    for name in
        ["directory", "file", "new", "read-only", "expanded", "absolute", "backwards", "out"]
    {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
    }
    cluster.host.assert_clean();
}

/// CVE-2021-25741 and CVE-2017-1002101: while containers start, their sub-path is exchanged with a
/// link to the host all the time.
#[tokio::test(flavor = "multi_thread")]
async fn mount_sub_path_race_never_shows_the_host() {
    let cluster = Cluster::start().await;
    let (dir, host) = (cluster.host.dir().join("data"), cluster.host.dir().join("host"));
    for path in [dir.join("x"), host.clone()] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(dir.join("x/mark"), "inside").unwrap();
    fs::write(host.join("canary"), "secret").unwrap();
    std::os::unix::fs::symlink(&host, dir.join("y")).unwrap();
    let done = AtomicBool::default();
    let names: Vec<_> = (0..20).map(|number| format!("victim-{number}")).collect();
    let exchange = || {
        let (x, y) = (dir.join("x"), dir.join("y"));
        while !done.load(Ordering::Relaxed) {
            renameat2(AT_FDCWD, &x, AT_FDCWD, &y, RenameFlags::RENAME_EXCHANGE).unwrap();
            std::thread::sleep(Duration::from_micros(50));
        }
    };
    let victims = async {
        let command = "cat /v/canary 2>/dev/null && exit 3; cat /v/mark";
        for name in &names {
            let mut spec = with_host_path(command, &dir, json!({"subPath": "x"}));
            spec["restartPolicy"] = json!("Never");
            cluster.create(name, spec).await;
        }
        // Some are refused again and again; they start when their sub-path holds still.
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    let exchanging = std::thread::scope(|scope| {
        let exchanging = scope.spawn(exchange);
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| runtime.block_on(victims));
        done.store(true, Ordering::Relaxed);
        exchanging.join()
    });
    exchanging.unwrap();
    if dir.join("y").is_dir() && !dir.join("y").is_symlink() {
        fs::rename(dir.join("x"), dir.join("link")).unwrap();
        fs::rename(dir.join("y"), dir.join("x")).unwrap();
    }
    for name in &names {
        wait_until(TIMEOUT, name, async || match phase(&cluster.pod(name).await) {
            "Succeeded" => Ok(()),
            other => Err(other.to_owned()),
        })
        .await
        .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(cluster.apiserver.kubectl().run(["logs", name.as_str()]).unwrap(), "inside");
    }
    assert_eq!(fs::read_to_string(host.join("canary")).unwrap(), "secret");
    cluster.host.assert_clean();
}
