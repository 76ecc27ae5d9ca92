//! Container checkpoints over the port of the node. The runtimes of Debian do not support them, so the
//! CRI proxy answers and writes the archive; all else is real.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::{Cluster, FOREVER, run_of, script};
use longshore_cri::Code;
use longshore_cri::v1::{CheckpointContainerRequest, CheckpointContainerResponse};
use longshore_testkit::Host;
use longshore_testkit::fakecri::{Fault, FaultProxy};
use serde_json::{Value, json};

const CHECKPOINT: &str = "CheckpointContainer";
/// As many as a node keeps.
const MOST: usize = 32;

/// Has checkpoints written, if not to their end; gives the requests for them.
fn stand_in(proxy: &FaultProxy, succeeds: bool) -> Receiver<CheckpointContainerRequest> {
    let (sender, requests) = channel();
    let write = move |request: CheckpointContainerRequest| {
        fs::write(&request.location, &request.container_id).unwrap();
        let _ = sender.send(request);
        match succeeds {
            true => Ok(CheckpointContainerResponse {}),
            false => Err((Code::Internal, "criu has failed".to_owned())),
        }
    };
    proxy.inject(CHECKPOINT, Fault::answer(write));
    requests
}

/// Asks the node through the apiserver: the archive, or why there is none.
fn checkpoint(cluster: &Cluster, user: &[&str], query: &str) -> Result<PathBuf, String> {
    let node = cluster.host.name();
    let path = format!("/api/v1/nodes/{node}/proxy/checkpoint/default/web/c{query}");
    let mut args = vec!["create", "--raw", &path, "-f", "/dev/null"];
    args.extend(user);
    let answer = cluster.apiserver.kubectl().run(args).map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let items = answer["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{answer}");
    Ok(items[0].as_str().unwrap().into())
}

fn archives(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, |entries| entries.flatten().count())
}

/// Also CVE-2025-0426: checkpoints take leave, and there is a bound to their number.
#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_of_container_is_made_and_bounded() {
    let host = Host::start().expect("a host");
    let (cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    cluster.create("web", script(FOREVER)).await;
    let (_, id) = run_of(&cluster.until_ready("web").await);
    let id = id.strip_prefix("containerd://").unwrap();
    let directory = cluster.node.root_dir().join("checkpoints");

    // the installed runtime's own word
    let refused = checkpoint(&cluster, &[], "").unwrap_err();
    assert!(refused.contains("checkpointing of default/web/c failed ("), "{refused}");
    assert_eq!(archives(&directory), 0);

    let requests = stand_in(&proxy, true);
    let archive = checkpoint(&cluster, &[], "").unwrap();
    let request = requests.try_recv().unwrap();
    assert_eq!((request.container_id.as_str(), request.timeout), (id, 120));
    assert_eq!(Path::new(&request.location), archive);
    assert_eq!(fs::read_to_string(&archive).unwrap(), id);
    assert_eq!(archive.parent(), Some(directory.as_path()));
    let name = archive.file_name().unwrap().to_str().unwrap();
    let time = name.strip_prefix("checkpoint-web_default-c-").and_then(|n| n.strip_suffix(".tar"));
    time.unwrap().parse::<k8s_openapi::jiff::Timestamp>().unwrap();
    let mode = fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "archives hold what containers have in memory");

    // archives have names by the second
    tokio::time::sleep(Duration::from_secs(1)).await;
    checkpoint(&cluster, &[], "?timeout=300").unwrap();
    assert_eq!(requests.try_recv().unwrap().timeout, 300);
    assert_eq!(archives(&directory), 2);

    // half an archive is of no use, those of before are
    let kept = archives(&directory);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let requests = stand_in(&proxy, false);
    let refused = checkpoint(&cluster, &[], "").unwrap_err();
    assert!(refused.contains("criu has failed"), "{refused}");
    assert!(!Path::new(&requests.try_recv().unwrap().location).exists());
    assert_eq!(archives(&directory), kept);

    // who may not is refused before the runtime hears of it, and so is one too many
    let calls = proxy.calls(CHECKPOINT);
    let refused = checkpoint(&cluster, &["--as=somebody"], "").unwrap_err();
    assert!(refused.contains("orbidden"), "{refused}");
    for number in kept..MOST {
        fs::write(directory.join(number.to_string()), "").unwrap();
    }
    let refused = checkpoint(&cluster, &[], "").unwrap_err();
    assert!(refused.contains("limit of 32 checkpoints"), "{refused}");
    assert_eq!((proxy.calls(CHECKPOINT), archives(&directory)), (calls, MOST));
    assert_eq!(fs::read_to_string(&archive).unwrap(), id);
    cluster.delete("web").await;
    cluster.until_gone("web").await;
}
