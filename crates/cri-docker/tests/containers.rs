//! Containers: their lives, limits, commands, statistics and events.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use longshore_cri::v1::*;
use longshore_testkit::BUSYBOX;
use tonic::Code;

use crate::common::{Bed, code, container, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_container_lives_and_ends() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let mut events =
        bed.runtime.get_container_events(GetEventsRequest::default()).await?.into_inner();
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;

    let id = bed
        .create(
            &pod,
            container("c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done"),
            &config,
        )
        .await?;
    assert_eq!(bed.status(&id).await?.state(), ContainerState::ContainerCreated);
    bed.runtime.start_container(StartContainerRequest { container_id: id.clone() }).await?;
    assert_eq!(bed.status(&id).await?.state(), ContainerState::ContainerRunning);
    bed.runtime.start_container(StartContainerRequest { container_id: id.clone() }).await?;

    // Commands: streams, exit codes, time.
    let answer = bed.exec(&id, "echo out; echo err >&2; exit 3").await?;
    assert_eq!(
        (&answer.stdout[..], &answer.stderr[..], answer.exit_code),
        (&b"out\n"[..], &b"err\n"[..], 3)
    );
    let cmd = ["sleep", "4321"].map(str::to_owned).to_vec();
    let request = ExecSyncRequest { container_id: id.clone(), cmd, timeout: 1 };
    let error = bed.runtime.exec_sync(request).await.err().context("it ended")?;
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    until("the command is gone", async || {
        let found =
            bed.exec(&id, "ps | grep '[s]leep 4321' || true").await.map_err(|e| e.to_string())?;
        if found.stdout.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await?;

    // Limits, in place.
    let linux = LinuxContainerResources {
        cpu_shares: 512,
        memory_limit_in_bytes: 96 << 20,
        ..LinuxContainerResources::default()
    };
    let request = UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(linux),
        ..UpdateContainerResourcesRequest::default()
    };
    bed.runtime.update_container_resources(request).await?;
    let now =
        bed.status(&id).await?.resources.and_then(|resources| resources.linux).context("limits")?;
    assert_eq!((now.cpu_shares, now.memory_limit_in_bytes), (512, 96 << 20));

    let stats =
        bed.runtime.container_stats(ContainerStatsRequest { container_id: id.clone() }).await?;
    let stats = stats.into_inner().stats.context("statistics")?;
    ensure!(
        stats
            .memory
            .as_ref()
            .and_then(|memory| memory.working_set_bytes)
            .is_some_and(|bytes| bytes.value > 0),
        "{stats:?}"
    );
    let request = PodSandboxStatsRequest { pod_sandbox_id: pod.clone() };
    let stats =
        bed.runtime.pod_sandbox_stats(request).await?.into_inner().stats.context("statistics")?;
    let network = stats.linux.and_then(|linux| linux.network).context("network")?;
    assert_eq!(network.default_interface.map(|interface| interface.name), Some("eth0".to_owned()));

    // Its end.
    let request = StopContainerRequest { container_id: id.clone(), timeout: 30 };
    bed.runtime.stop_container(request.clone()).await?;
    let status = bed.exited(&id).await?;
    assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"));
    bed.runtime.stop_container(request).await?;
    let error =
        bed.runtime.start_container(StartContainerRequest { container_id: id.clone() }).await;
    assert_eq!(error.err().context("started again")?.code(), Code::FailedPrecondition);
    bed.runtime.remove_container(RemoveContainerRequest { container_id: id.clone() }).await?;
    bed.runtime.remove_container(RemoveContainerRequest { container_id: id.clone() }).await?;

    let mut seen = Vec::new();
    while seen.last() != Some(&ContainerEventType::ContainerDeletedEvent) {
        let event = tokio::time::timeout(Duration::from_secs(60), events.next())
            .await?
            .context("ended")??;
        if event.container_id == id {
            ensure!(event.pod_sandbox_status.is_some(), "{event:?}");
            seen.push(event.container_event_type());
        }
    }
    use ContainerEventType::*;
    assert_eq!(
        seen,
        [
            ContainerCreatedEvent,
            ContainerStartedEvent,
            ContainerStoppedEvent,
            ContainerDeletedEvent
        ]
    );
    bed.remove_pod(&pod).await?;
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_says_why() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let missing = ContainerConfig { command: vec!["/no/such".into()], ..container("c", "") };
    let id = bed.create(&pod, missing, &config).await?;
    let error =
        bed.runtime.start_container(StartContainerRequest { container_id: id.clone() }).await;
    let error = error.err().context("started")?;
    ensure!(error.message().contains("/no/such"), "{error}");
    let status = bed.status(&id).await?;
    assert_eq!(
        (status.state(), status.reason.as_str()),
        (ContainerState::ContainerExited, "ContainerCannotRun")
    );

    let digest =
        format!("{}@sha256:{}", BUSYBOX.split(':').next().unwrap_or_default(), "0".repeat(64));
    let image = ImageSpec { image: digest, ..ImageSpec::default() };
    let absent = ContainerConfig { image: Some(image), ..container("absent", "") };
    let error = bed.create(&pod, absent, &config).await.err().context("created")?;
    assert_eq!(code(&error), Some(Code::NotFound), "{error}");

    // The name is free for another attempt after a crash between creation and answer.
    let first = bed.create(&pod, container("again", "sleep 1000"), &config).await?;
    let second = bed.create(&pod, container("again", "sleep 1000"), &config).await?;
    ensure!(first != second && !bed.engine_containers()?.contains(&first));
    bed.runtime.start_container(StartContainerRequest { container_id: second }).await?;
    let error =
        bed.create(&pod, container("again", "sleep 1000"), &config).await.err().context("twice")?;
    assert_eq!(code(&error), Some(Code::AlreadyExists), "{error}");
    bed.remove_pod(&pod).await?;
    assert_eq!(bed.engine_containers()?, Vec::<String>::new());
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_start_or_remove_is_noticed() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let start = async |bed: &mut Bed, id: &str| {
        let request = StartContainerRequest { container_id: id.to_owned() };
        bed.runtime.start_container(request).await.err().map(|error| error.code())
    };
    let engine = |bed: &Bed, method, path: &str| bed.docker.request(method, path, &[]);

    // Once at once, and once when the event about it has arrived.
    for pause in [Duration::ZERO, Duration::from_millis(500)] {
        let id = bed.create(&pod, container("c", "sleep 1000"), &config).await?;
        engine(&bed, "DELETE", &format!("/containers/{id}"))?;
        tokio::time::sleep(pause).await;
        assert_eq!(start(&mut bed, &id).await, Some(Code::NotFound));

        let id = bed.create(&pod, container("c", "sleep 1000"), &config).await?;
        engine(&bed, "POST", &format!("/containers/{id}/start"))?;
        tokio::time::sleep(pause).await;
        assert_eq!(start(&mut bed, &id).await, None);
        bed.runtime.remove_container(RemoveContainerRequest { container_id: id }).await?;
    }
    let id = bed.create(&pod, container("c", "true"), &config).await?;
    engine(&bed, "POST", &format!("/containers/{id}/start"))?;
    bed.exited(&id).await?;
    assert_eq!(start(&mut bed, &id).await, Some(Code::FailedPrecondition));

    engine(&bed, "DELETE", &format!("/containers/{pod}?force=true"))?;
    let error = bed.create(&pod, container("d", "true"), &config).await.err().context("created")?;
    assert_eq!(code(&error), Some(Code::NotFound), "{error}");
    bed.remove_pod(&pod).await?;
    bed.end().await
}

/// A mount of an image, as a node asks for it.
fn image(container_path: &str, sub_path: &str) -> Mount {
    Mount {
        container_path: container_path.into(),
        readonly: true,
        image: Some(ImageSpec { image: BUSYBOX.into(), ..ImageSpec::default() }),
        image_sub_path: sub_path.into(),
        ..Mount::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_volumes_where_the_engine_can() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let with_image = |name: &str, mount| ContainerConfig {
        mounts: vec![mount],
        ..container(name, "sleep 1000")
    };
    if bed.docker.api()? < 48 {
        let created = bed.create(&pod, with_image("c", image("/image", "")), &config).await;
        let error = created.err().context("created")?;
        assert_eq!(code(&error), Some(Code::Unimplemented), "{error}");
    } else {
        for (name, path, program) in [("all", "", "bin/busybox"), ("part", "bin", "busybox")] {
            let id = bed.run(&pod, with_image(name, image("/image", path)), &config).await?;
            let answer = bed.exec(&id, &format!("ls /image/{program}")).await?;
            assert_eq!(answer.exit_code, 0, "{name}: {answer:?}");
            let answer = bed.exec(&id, "touch /image/file").await?;
            let said = String::from_utf8_lossy(&answer.stderr);
            ensure!(answer.exit_code != 0 && said.contains("Read-only"), "{name}: {answer:?}");
            let mounts = bed.status(&id).await?.mounts;
            ensure!(mounts.iter().any(|mount| mount.container_path == "/image"), "{mounts:?}");
            ensure!(mounts.iter().all(|mount| mount.readonly), "{mounts:?}");
        }

        let absent = bed.run(&pod, with_image("absent", image("/image", "no/such")), &config).await;
        let error = absent.err().context("a folder that the image has not")?;
        ensure!(error.to_string().contains("no/such"), "{error}");
        let outside = bed.run(&pod, with_image("outside", image("/image", "../..")), &config).await;
        ensure!(outside.is_err(), "a folder outside of the image");
    }
    bed.remove_pod(&pod).await?;
    assert_eq!(bed.engine_containers()?, Vec::<String>::new());
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn cdi_devices_are_added_where_the_engine_can() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let specification = serde_json::json!({
        "cdiVersion": "0.5.0",
        "kind": "longshore.dev/test",
        "devices": [{"name": "one", "containerEdits": {
            "env": ["DEVICE=one"],
            "deviceNodes": [{"path": "/dev/one", "hostPath": "/dev/null"}],
        }}],
    });
    std::fs::create_dir_all(bed.docker.cdi_dir())?;
    std::fs::write(bed.docker.cdi_dir().join("test.json"), specification.to_string())?;
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let with_device = |name: &str, device: &str| ContainerConfig {
        cdi_devices: vec![CdiDevice { name: format!("longshore.dev/test={device}") }],
        ..container(name, "sleep 1000")
    };
    if bed.docker.api()? < 44 {
        let created = bed.create(&pod, with_device("c", "one"), &config).await;
        let error = created.err().context("created")?;
        assert_eq!(code(&error), Some(Code::Unimplemented), "{error}");
    } else {
        let id = bed.run(&pod, with_device("c", "one"), &config).await?;
        let answer = bed
            .exec(
                &id,
                "grep -q DEVICE=one /proc/1/environ && echo x >/dev/one && stat -c %F /dev/one",
            )
            .await?;
        assert_eq!(answer.stdout[..], b"character special file\n"[..], "{answer:?}");
        let absent = bed.run(&pod, with_device("absent", "two"), &config).await;
        let error = absent.err().context("a device that is not there")?;
        ensure!(error.to_string().contains("longshore.dev/test=two"), "{error}");
    }
    bed.remove_pod(&pod).await?;
    assert_eq!(bed.engine_containers()?, Vec::<String>::new());
    bed.end().await
}
