//! The engine stopped, killed and started again.

use anyhow::{Context, Result, ensure};
use longshore_cri::v1::*;
use longshore_testkit::DockerOptions;
use tonic::Code;

use crate::common::{Bed, container, until};

#[tokio::test(flavor = "multi_thread")]
async fn containers_outlive_an_engine_with_live_restore() -> Result<()> {
    let Some(mut bed) =
        Bed::with(DockerOptions { live_restore: true, ..DockerOptions::default() }).await?
    else {
        return Ok(());
    };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let id = bed.run(&pod, container("c", "exec sleep 1000"), &config).await?;
    bed.docker.kill()?;
    let request = ContainerStatusRequest { container_id: id.clone(), verbose: false };
    let error = bed.runtime.container_status(request).await.err().context("no engine")?;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let status =
        bed.runtime.status(StatusRequest::default()).await?.into_inner().status.unwrap_or_default();
    ensure!(
        status.conditions.iter().any(|c| c.r#type == "RuntimeReady" && !c.status),
        "{status:?}"
    );

    bed.docker.start_again(&bed.host)?;
    until("the container is known again", async || {
        let status = bed.status(&id).await.map_err(|e| e.to_string())?;
        if status.state() == ContainerState::ContainerRunning {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await?;
    assert_eq!(bed.exec(&id, "echo still").await?.stdout, b"still\n"[..]);
    bed.remove_pod(&pod).await?;
    assert_eq!(bed.kept(), Vec::<std::path::PathBuf>::new());
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_an_engine_that_was_stopped_are_taken_down() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let id = bed.run(&pod, container("c", "exec sleep 1000"), &config).await?;
    bed.docker.stop()?;
    bed.docker.start_again(&bed.host)?;
    let status = bed.exited(&id).await?;
    ensure!(status.exit_code != 0, "{status:?}");
    bed.remove_pod(&pod).await?;
    assert_eq!((bed.engine_containers()?, bed.kept()), (Vec::new(), Vec::new()));
    bed.end().await
}
