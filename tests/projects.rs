//! Project quotas of the file system of the node. Ignored where `make test` runs, whose kernels may lack quotas.

use crate::common;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use common::{FOREVER, TIMEOUT, container, get_json, manifest};
use longshore_machine::projects::{self, ProjectFiles};
use longshore_testkit::{Disk, Host, Node, NodeOptions, wait_until};
use serde_json::{Value, json};

const MI: u64 = 1 << 20;

/// The lines of `/etc/projects` that are about a file below a folder.
fn lines(root: &Path) -> Vec<String> {
    let text = fs::read_to_string("/etc/projects").unwrap_or_default();
    let root = root.display().to_string();
    text.lines().filter(|line| line.contains(&root)).map(str::to_owned).collect()
}

/// A file of 2 MiB that is deleted and still takes its space, as long as it is held.
fn deleted_file(volume: &Path) -> File {
    let path = volume.join("deep/file");
    fs::create_dir(path.parent().unwrap()).unwrap();
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![1; 2 << 20]).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(&path).unwrap();
    file
}

#[tokio::test]
#[ignore = "needs a kernel with quotas, and writes to /etc/projects: `make vm-test` runs it"]
async fn project_quota_counts_the_empty_dirs_of_pods_in_user_namespaces() {
    let host = Host::start().unwrap();
    let root = host.dir().join("node/root");
    let _disk = Disk::mount_with_project_quotas(&host, 64 * MI, root.clone()).unwrap();
    let mut options = NodeOptions::default();
    let gate = "LocalStorageCapacityIsolationFSQuotaMonitoring";
    options.config.insert("featureGates".to_owned(), json!({gate: true}));
    options.config.insert("readOnlyPort".to_owned(), json!(10255));
    let mut node = Node::standalone(&host, options).unwrap();
    for (name, host_users) in [("inside", Some(false)), ("outside", None)] {
        let mut mounts = container("c", FOREVER);
        mounts["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        let whole = manifest(name, "Always", json!([mounts]));
        let mut whole: Value = serde_json::from_str(&whole).unwrap();
        whole["metadata"]["uid"] = json!(name);
        whole["spec"]["hostUsers"] = json!(host_users);
        whole["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        fs::write(node.manifests().join(format!("{name}.json")), whole.to_string()).unwrap();
    }
    let volume = |pod: &str| root.join("pods").join(pod).join("volumes/kubernetes.io~empty-dir/v");
    for pod in ["inside", "outside"] {
        wait_until(TIMEOUT, "the volume", async || {
            let ready = root.join("pods").join(pod).join("plugins/kubernetes.io~empty-dir/v/ready");
            if ready.exists() { Ok(()) } else { Err(pod) }
        })
        .await
        .unwrap();
    }
    assert_eq!(projects::counted(&volume("outside")).unwrap(), None);
    let empty = projects::counted(&volume("inside")).unwrap().expect("a project");
    assert_eq!(lines(&root), [format!("1048577:{}", volume("inside").display())]);

    let held = deleted_file(&volume("inside"));
    let full = projects::counted(&volume("inside")).unwrap().expect("a project");
    assert!((2 * MI..3 * MI).contains(&(full.bytes - empty.bytes)), "{empty:?} {full:?}");
    assert_eq!(full.inodes - empty.inodes, 2);
    drop(held);

    // The runtime of the guest has no user namespaces, so that only the other pod runs: it gets a project by hand.
    let files = ProjectFiles::new(Path::new("/etc"), &root);
    let outside = File::open(volume("outside")).unwrap();
    assert!(projects::assign(&outside, &volume("outside"), &files).unwrap());
    let held = deleted_file(&volume("outside"));
    wait_until(TIMEOUT, "the volume in the summary", async || {
        let summary = get_json(host.node_ip(), "/stats/summary").await?;
        let volumes = summary.pointer("/pods/0/volume").and_then(Value::as_array);
        let volume = volumes.into_iter().flatten().find(|volume| volume["name"] == "v");
        let used = volume.and_then(|volume| volume["usedBytes"].as_u64()).unwrap_or_default();
        if (2 * MI..3 * MI).contains(&used) { Ok(()) } else { Err(format!("{summary}")) }
    })
    .await
    .unwrap();
    drop((held, outside));

    for file in fs::read_dir(node.manifests()).unwrap().flatten() {
        fs::remove_file(file.path()).unwrap();
    }
    wait_until(TIMEOUT, "the project to go", async || {
        let left = lines(&root);
        if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
    })
    .await
    .unwrap();
    node.daemon().terminate(TIMEOUT).unwrap();
}
