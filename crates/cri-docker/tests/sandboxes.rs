//! Sandboxes: network, name resolution, lists, removal, and what is somebody else's.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longshore_cri::v1::*;
use tonic::Code;

use crate::common::{Bed, container};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_its_network_and_leaves_nothing() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let stranger = stranger(&bed)?;
    let config = PodSandboxConfig {
        dns_config: Some(DnsConfig {
            servers: vec!["10.9.8.7".into()],
            searches: vec!["a.b".into()],
            options: vec!["ndots:5".into()],
        }),
        ..bed.pod("web")
    };
    let pod = bed.run_pod(&config).await?;
    let request = PodSandboxStatusRequest { pod_sandbox_id: pod.clone(), verbose: true };
    let status =
        bed.runtime.pod_sandbox_status(request).await?.into_inner().status.context("status")?;
    let ip = status.network.clone().unwrap_or_default().ip;
    ensure!(ip.parse::<std::net::Ipv4Addr>().is_ok(), "{status:?}");
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    assert_eq!(status.labels, config.labels);
    assert_eq!(status.metadata, config.metadata);

    let one = bed.run(&pod, container("one", "exec sleep 1000"), &config).await?;
    let seen = bed
        .exec(&one, "ip -4 addr show eth0; ip link show lo; hostname; cat /etc/resolv.conf")
        .await?;
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    for expected in
        [&ip, "LOOPBACK,UP", "web", "nameserver 10.9.8.7", "search a.b", "options ndots:5"]
    {
        ensure!(seen.contains(expected), "{expected} is missing in {seen}");
    }
    // Containers of one pod share the loopback.
    let two = bed
        .run(
            &pod,
            container(
                "two",
                "mkdir /w && echo reached >/w/x && exec httpd -f -p 127.0.0.1:99 -h /w",
            ),
            &config,
        )
        .await?;
    crate::common::until("the port is open", async || {
        let reached = bed
            .exec(&one, "wget -q -O - http://127.0.0.1:99/x")
            .await
            .map_err(|e| e.to_string())?;
        if reached.stdout.starts_with(b"reached") { Ok(()) } else { Err(format!("{reached:?}")) }
    })
    .await?;

    // Filters, and what is not ours.
    let listed =
        bed.runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await?.into_inner().items;
    assert_eq!(listed.iter().map(|pod| pod.id.as_str()).collect::<Vec<_>>(), [&pod]);
    let filter = ContainerFilter { pod_sandbox_id: pod.clone(), ..ContainerFilter::default() };
    let request = ListContainersRequest { filter: Some(filter) };
    let mut ids: Vec<_> = bed
        .runtime
        .list_containers(request)
        .await?
        .into_inner()
        .containers
        .into_iter()
        .map(|c| c.id)
        .collect();
    ids.sort();
    let mut expected = vec![one.clone(), two];
    expected.sort();
    assert_eq!(ids, expected);
    for id in [&stranger, &pod] {
        let request = ContainerStatusRequest { container_id: id.clone(), verbose: false };
        let error =
            bed.runtime.container_status(request).await.err().context("a stranger's status")?;
        assert_eq!(error.code(), Code::NotFound, "{error}");
    }
    bed.runtime
        .stop_container(StopContainerRequest { container_id: stranger.clone(), timeout: 0 })
        .await?;
    bed.runtime.remove_container(RemoveContainerRequest { container_id: stranger.clone() }).await?;
    bed.remove_pod(&stranger).await?;

    bed.remove_pod(&pod).await?;
    bed.remove_pod(&pod).await?;
    assert_eq!(bed.engine_containers()?, std::slice::from_ref(&stranger));
    assert_eq!(bed.kept(), Vec::<std::path::PathBuf>::new());
    let (status, answer) =
        bed.docker.request("GET", &format!("/containers/{stranger}/json"), &[])?;
    ensure!(status == 200 && answer["State"]["Running"] == true, "{answer}");
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_network_fails_is_undone() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let [conf, _] = bed.host.cni_dirs()?;
    let file = std::fs::read_dir(conf)?.flatten().next().context("no configuration")?.path();
    let good = std::fs::read_to_string(&file)?;
    // The first plugin attaches, and the second fails.
    let mut broken: serde_json::Value = serde_json::from_str(&good)?;
    broken["plugins"][1] = serde_json::json!({"type": "bandwidth", "ingressRate": "no number"});
    std::fs::write(&file, broken.to_string())?;
    let config = bed.pod("web");
    let error = bed.run_pod(&config).await.err().context("it was run")?.to_string();
    ensure!(error.contains("bandwidth"), "{error}");
    assert_eq!(bed.engine_containers()?, Vec::<String>::new());

    // The plugin does not detach either, with this configuration.
    std::fs::write(&file, good)?;
    let listed = bed.sandboxes().await?;
    let [left] = &listed[..] else { anyhow::bail!("{listed:?}") };
    bed.remove_pod(&left.id).await?;
    assert_eq!((bed.sandboxes().await?, bed.kept()), (Vec::new(), Vec::new()));

    let pod = bed.run_pod(&config).await?;
    // Removed behind our back: the pod is still there to be taken down, and its address is given back.
    let (status, answer) =
        bed.docker.request("DELETE", &format!("/containers/{pod}?force=true"), &[])?;
    ensure!(status == 204, "{status} {answer}");
    let listed = bed.sandboxes().await?;
    let [left] = &listed[..] else { anyhow::bail!("{listed:?}") };
    assert_eq!((left.id.as_str(), left.state()), (pod.as_str(), PodSandboxState::SandboxNotready));
    assert_eq!(left.metadata, config.metadata);
    bed.remove_pod(&pod).await?;
    assert_eq!(bed.kept(), Vec::<std::path::PathBuf>::new());
    bed.end().await
}

/// A plugin that refuses to attach, and to detach until the file `allowed` is there.
const STUBBORN: &str = r#"#!/bin/sh
cat >/dev/null
echo "$CNI_COMMAND" >>"$(dirname "$0")/calls"
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}' && exit ;;
DEL) [ ! -e "$(dirname "$0")/allowed" ] || exit 0 ;;
esac
echo '{"cniVersion":"0.4.0","code":100,"msg":"stubborn on '"$CNI_COMMAND"'"}'
exit 1
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_cannot_be_detached_is_kept_until_it_can() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let [conf, _] = bed.host.cni_dirs()?;
    let file = std::fs::read_dir(conf)?.flatten().next().context("no configuration")?.path();
    let mut network: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    network["plugins"][1] = serde_json::json!({"type": "stubborn"});
    std::fs::write(&file, network.to_string())?;
    std::fs::create_dir_all(bed.plugins())?;
    let plugin = bed.plugins().join("stubborn");
    std::fs::write(&plugin, STUBBORN)?;
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755))?;

    // What has the machine's network is not taken off it.
    let mut machine = bed.pod("machine");
    let linux = machine.linux.get_or_insert_default();
    linux.sysctls = [("kernel.shm_rmid_forced".to_owned(), "no number".to_owned())].into();
    let options =
        NamespaceOption { network: NamespaceMode::Node.into(), ..NamespaceOption::default() };
    linux.security_context.get_or_insert_default().namespace_options = Some(options);
    let error = bed.run_pod(&machine).await.err().context("it was run")?.to_string();
    ensure!(error.contains("shm_rmid_forced"), "{error}");
    assert_eq!((bed.engine_containers()?, bed.kept()), (Vec::new(), Vec::new()));
    ensure!(!bed.plugins().join("calls").exists(), "a plugin was called");

    let config = bed.pod("web");
    let error = bed.run_pod(&config).await.err().context("it was run")?.to_string();
    ensure!(error.contains("stubborn on ADD"), "{error}");
    let listed = bed.sandboxes().await?;
    let [left] = &listed[..] else { anyhow::bail!("{listed:?}") };
    assert_eq!(
        (left.state(), &left.metadata),
        (PodSandboxState::SandboxNotready, &config.metadata)
    );
    // It is tried again with each call, however often that fails.
    for _ in 0..2 {
        let error = bed.remove_pod(&left.id).await.err().context("it was detached")?.to_string();
        ensure!(error.contains("stubborn on DEL"), "{error}");
        let request = RemovePodSandboxRequest { pod_sandbox_id: left.id.clone() };
        let removed = bed.runtime.remove_pod_sandbox(request).await;
        ensure!(removed.is_err(), "it was removed");
        assert_eq!(bed.sandboxes().await?, listed);
    }
    let calls = std::fs::read_to_string(bed.plugins().join("calls"))?;
    assert_eq!(calls.lines().filter(|call| *call == "DEL").count(), 5, "{calls}");

    std::fs::write(bed.plugins().join("allowed"), "")?;
    bed.remove_pod(&left.id).await?;
    assert_eq!(bed.sandboxes().await?, []);
    assert_eq!((bed.engine_containers()?, bed.kept()), (Vec::new(), Vec::new()));
    assert_eq!(bed.addresses_in_use()?, Vec::<String>::new());
    bed.end().await
}

/// The image of sandboxes is known for a while, but somebody may remove it.
#[tokio::test(flavor = "multi_thread")]
async fn the_image_of_sandboxes_may_go_and_come_back() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    for name in ["one", "two"] {
        let pod = bed.run_pod(&bed.pod(name)).await?;
        bed.remove_pod(&pod).await?;
    }
    let (status, answer) =
        bed.docker.request("DELETE", &format!("/images/{}", longshore_testkit::PAUSE), &[])?;
    ensure!(status == 200, "{status} {answer}");
    // There is no registry that it could be pulled from, which takes the engine a while to find out.
    let config = bed.pod("three");
    let run = tokio::time::timeout(Duration::from_secs(3), bed.run_pod(&config)).await;
    ensure!(!matches!(run, Ok(Ok(_))), "it was run");
    bed.docker.load(&longshore_testkit::Image::pause()?)?;
    let pod = bed.run_pod(&bed.pod("four")).await?;
    bed.remove_pod(&pod).await?;
    bed.end().await
}

/// A container that somebody else runs.
fn stranger(bed: &Bed) -> Result<String> {
    let body = serde_json::json!({"Image": longshore_testkit::BUSYBOX, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}});
    let (status, answer) = bed.docker.request(
        "POST",
        "/containers/create?name=deadbeef",
        body.to_string().as_bytes(),
    )?;
    ensure!(status == 201, "{status} {answer}");
    let id = answer["Id"].as_str().context("no ID")?.to_owned();
    let (status, answer) = bed.docker.request("POST", &format!("/containers/{id}/start"), &[])?;
    ensure!(status == 204, "{status} {answer}");
    Ok(id)
}
