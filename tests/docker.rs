//! A node on a Docker Engine, over which it serves CRI in its own process, and `longshore cri-docker`.

use crate::common;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{FOREVER, TIMEOUT, container, get_json, manifest};
use longshore_cri::{Options, Runtime};
use longshore_testkit::{Docker, DockerOptions, Host, Node, NodeOptions, wait_until};
use serde_json::{Value, json};

/// The one pod of the node, once it is ready.
async fn ready_pod(host: &Host) -> Value {
    wait_until(TIMEOUT, "the pod is ready", async || {
        let pods = get_json(host.node_ip(), "/pods").await?;
        let conditions = pods["items"][0]["status"]["conditions"].as_array().cloned();
        let is_ready =
            conditions.iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
        if is_ready { Ok(pods["items"][0].clone()) } else { Err(pods.to_string()) }
    })
    .await
    .unwrap()
}

/// The names of the engine's running containers.
fn running(docker: &Docker) -> Vec<String> {
    let (status, answer) = docker.request("GET", "/containers/json", &[]).unwrap();
    assert_eq!(status, 200, "{answer}");
    let all = answer.as_array().unwrap().iter();
    let mut names: Vec<_> = all.map(|one| one["Names"][0].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_node_serves_cri_over_docker_itself() {
    if !Docker::is_installed() {
        println!("skipped: no dockerd on this machine");
        return;
    }
    let (host, mut docker) = Docker::with_host(DockerOptions::default()).unwrap();
    let mut options = docker.node_options(&host).unwrap();
    options.config.insert("readOnlyPort".to_owned(), json!(10255));
    let mut node = Node::standalone(&host, options).unwrap();
    let mut probed = container("c", &format!("echo begun; {FOREVER}"));
    probed["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let file = node.manifests().join("web.yaml");
    fs::write(&file, manifest("web", "Always", json!([probed]))).unwrap();

    let pod = ready_pod(&host).await;
    let ip = pod["status"]["podIP"].as_str().unwrap_or_default();
    assert!(ip.parse::<std::net::Ipv4Addr>().is_ok(), "{pod}");
    assert!(
        pod["status"]["containerStatuses"][0]["containerID"]
            .as_str()
            .is_some_and(|id| id.starts_with("docker://"))
    );
    let names = running(&docker);
    let [sandbox, of_pod] = [0, 1].map(|number| names.get(number).cloned().unwrap_or_default());
    assert!(sandbox.starts_with("/k8s_POD_web-") && of_pod.starts_with("/k8s_c_web-"), "{names:?}");
    wait_until(TIMEOUT, "the log has the container's line", async || {
        let folders = fs::read_dir(node.pod_logs()).map_err(|error| error.to_string())?;
        let logs = folders.flatten().map(|folder| folder.path().join("c/0.log"));
        let texts: Vec<_> = logs.filter_map(|log| fs::read_to_string(log).ok()).collect();
        if texts.concat().contains("stdout F begun") { Ok(()) } else { Err(format!("{texts:?}")) }
    })
    .await
    .unwrap();

    // Its containers outlive it, and it finds them again.
    node.daemon().terminate(TIMEOUT).unwrap();
    assert_eq!(running(&docker), names);
    node.restart(&host).unwrap();
    let again = ready_pod(&host).await;
    for field in ["containerID", "restartCount"] {
        let of = |pod: &Value| pod["status"]["containerStatuses"][0][field].clone();
        assert_eq!(of(&again), of(&pod));
    }

    fs::remove_file(&file).unwrap();
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    wait_until(TIMEOUT, "nothing of the pod is left", async || {
        match docker.pod_leftovers(&host, uid).map_err(|error| error.to_string())? {
            left if left.is_empty() => Ok(()),
            left => Err(left.join(", ")),
        }
    })
    .await
    .unwrap();
    node.daemon().terminate(TIMEOUT).unwrap();
    docker.stop().unwrap();
    host.assert_clean();
}

#[tokio::test]
async fn a_node_refuses_what_is_no_endpoint_of_docker() {
    let host = Host::bare().unwrap();
    for (endpoint, why) in [
        ("docker://run/docker.sock", "the path of the socket is not absolute"),
        ("docker://tcp://10.0.0.1:2375", "the engine is spoken to over its Unix socket"),
    ] {
        let config = json!({"containerRuntimeEndpoint": endpoint}).as_object().cloned().unwrap();
        let options = NodeOptions { config, ..NodeOptions::default() };
        let mut node = Node::standalone(&host, options).unwrap();
        let status = node.daemon().wait(TIMEOUT).unwrap();
        let said = node.daemon().log();
        assert!(status.code() == Some(1) && said.contains("invalid Docker endpoint"), "{said}");
        assert!(said.contains(why), "{said}");
    }
    host.assert_clean();
}

/// The daemon with the socket that systemd would pass.
#[tokio::test]
async fn cri_docker_serves_at_a_socket_that_it_is_passed() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, engine) = (folder.path().join("cri.sock"), folder.path().join("docker.sock"));
    let listener = UnixListener::bind(&socket).unwrap();
    let activate = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&0 </dev/null";
    let mut command = Command::new("sh");
    command
        .args(["-c", activate, "sh"])
        .arg(longshore_testkit::program("longshore").unwrap())
        .arg("cri-docker")
        .arg(format!("--docker-endpoint=unix://{}", engine.display()))
        .arg(format!("--listen=unix://{}", Path::new("/nonexistent/cri.sock").display()))
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let runtime = Runtime::new(Options::new(socket.display().to_string())).unwrap();
    let error = tokio::time::timeout(TIMEOUT, runtime.version()).await.unwrap().unwrap_err();
    let (text, passed_on) = (error.to_string(), socket.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    // It answers, that it has no engine.
    assert!(text.contains("failed to get docker version"), "{text}");
    assert!(passed_on);
}
