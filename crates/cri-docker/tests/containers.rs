//! Containers: their lives, limits, commands, statistics and events.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use longshore_cri::v1::*;
use tonic::Code;

use crate::common::{Bed, container, until};

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

    let digest = format!(
        "{}@sha256:{}",
        longshore_testkit::BUSYBOX.split(':').next().unwrap_or_default(),
        "0".repeat(64)
    );
    let image = ImageSpec { image: digest, ..ImageSpec::default() };
    let absent = ContainerConfig { image: Some(image), ..container("absent", "") };
    let error = bed.create(&pod, absent, &config).await.err().context("created")?;
    let code = error.downcast_ref::<tonic::Status>().map(tonic::Status::code);
    assert_eq!(code, Some(Code::NotFound), "{error}");

    // The name is free for another attempt after a crash between creation and answer.
    let first = bed.create(&pod, container("again", "sleep 1000"), &config).await?;
    let second = bed.create(&pod, container("again", "sleep 1000"), &config).await?;
    ensure!(first != second && !bed.engine_containers()?.contains(&first));
    bed.runtime.start_container(StartContainerRequest { container_id: second }).await?;
    let error =
        bed.create(&pod, container("again", "sleep 1000"), &config).await.err().context("twice")?;
    let code = error.downcast_ref::<tonic::Status>().map(tonic::Status::code);
    assert_eq!(code, Some(Code::AlreadyExists), "{error}");
    bed.remove_pod(&pod).await?;
    assert_eq!(bed.engine_containers()?, Vec::<String>::new());
    bed.end().await
}
