//! The engine stopped, killed and started again; slow; disks that are full.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longshore_cri::v1::*;
use longshore_testkit::{Disk, DockerOptions, Image, Registry};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::common::{Bed, code, container, until};

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

/// Takes all the space of a folder's disk, by a file.
fn fill(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("filler");
    let mut file = File::create(&path)?;
    for size in [1 << 20, 1 << 10, 1] {
        let piece = vec![b'x'; size];
        while file.write(&piece).is_ok() {}
    }
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_space_leaves_nothing_of_what_it_cannot_run() -> Result<()> {
    const DISK: u64 = 96 << 20;
    let options = DockerOptions { disk: Some(DISK), ..DockerOptions::default() };
    let Some(mut bed) = Bed::with(options).await? else { return Ok(()) };
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let id = bed.run(&pod, container("c", "exec sleep 1000"), &config).await?;

    // An image that is larger than the disk, which does not compress.
    let registry = Registry::start(&bed.host, 5003)?;
    let large: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(DISK as usize).collect();
    let large = Image::busybox_builder("longshore.local/large:1")?.file("large", 0o644, large);
    let reference = registry.push(&large.build()?, "large:1").await?;
    let images = bed.engine_images()?;
    let spec = ImageSpec { image: reference, ..ImageSpec::default() };
    let request = PullImageRequest { image: Some(spec), ..PullImageRequest::default() };
    let error = bed.images()?.pull_image(request).await.err().context("pulled")?;
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert_eq!(bed.engine_images()?, images);
    drop(registry);

    let before = (bed.engine_containers()?, bed.kept(), bed.addresses_in_use()?);
    let filler = fill(&bed.docker.data_root())?;
    let late = bed.pod("late");
    let error = bed.run_pod(&late).await.err().context("a sandbox was run")?;
    assert_eq!(code(&error), Some(Code::ResourceExhausted), "{error}");
    let error = bed.create(&pod, container("d", "true"), &config).await;
    let error = error.err().context("a container was created")?;
    assert_eq!(code(&error), Some(Code::ResourceExhausted), "{error}");
    assert_eq!((bed.engine_containers()?, bed.kept(), bed.addresses_in_use()?), before);
    // What runs is not concerned, and can be taken down.
    assert_eq!(bed.exec(&id, "echo still").await?.stdout, b"still\n"[..]);
    assert_eq!(bed.status(&id).await?.state(), ContainerState::ContainerRunning);
    bed.remove_pod(&pod).await?;

    fs::remove_file(filler)?;
    let pod = bed.run_pod(&late).await?;
    bed.remove_pod(&pod).await?;
    assert_eq!((bed.engine_containers()?, bed.kept()), (Vec::new(), Vec::new()));
    assert_eq!(bed.addresses_in_use()?, Vec::<String>::new());
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_space_leaves_nothing_and_logs_go_on() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    // Checkpoints and logs are on this disk.
    let own = bed.host.dir().join("cri");
    let disk = Disk::mount(&bed.host, 8 << 20, own.clone())?;
    let mut config = bed.pod("web");
    config.log_directory = own.join("pods/web").to_string_lossy().into_owned();
    let pod = bed.run_pod(&config).await?;
    let script = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); sleep 0.01; done";
    let id = bed.run(&pod, container("c", script), &config).await?;
    let log = Path::new(&config.log_directory).join("c/0.log");
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    until(
        "lines are logged",
        async || {
            if lines().is_empty() { Err("none".to_owned()) } else { Ok(()) }
        },
    )
    .await?;

    let before = (bed.engine_containers()?, bed.kept(), bed.addresses_in_use()?);
    let filler = fill(&own)?;
    let late = bed.pod("late");
    let error = bed.run_pod(&late).await.err().context("a sandbox was run")?;
    assert_eq!(code(&error), Some(Code::ResourceExhausted), "{error}");
    assert_eq!((bed.engine_containers()?, bed.kept(), bed.addresses_in_use()?), before);
    bed.exited(&id).await?;
    fs::remove_file(filler)?;
    // All that was logged meanwhile is there once, in order.
    let wanted: Vec<_> = (0..400).map(|number| format!("line {number}")).collect();
    until("all lines are logged", async || {
        let text = lines();
        let seen: Vec<_> =
            text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default()).collect();
        if seen == wanted {
            Ok(())
        } else {
            Err(format!("{} lines, {:?}", seen.len(), seen.last()))
        }
    })
    .await?;
    let second = bed.run_pod(&late).await?;
    for pod in [pod, second] {
        bed.remove_pod(&pod).await?;
    }
    assert_eq!((bed.engine_containers()?, bed.kept()), (Vec::new(), Vec::new()));
    drop(disk);
    bed.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_does_not_answer_is_not_waited_for() -> Result<()> {
    let Some(mut bed) = Bed::start().await? else { return Ok(()) };
    bed.stop_service().await?;
    bed.request_timeout = Duration::from_secs(2);
    bed.start_service().await?;
    let config = bed.pod("web");
    let pod = bed.run_pod(&config).await?;
    let id = bed.run(&pod, container("c", "exec sleep 1000"), &config).await?;

    bed.docker.daemon()?.signal(Signal::SIGSTOP);
    let late = bed.pod("late");
    let error = bed.run_pod(&late).await.err().context("a sandbox was run")?;
    assert_eq!(code(&error), Some(Code::DeadlineExceeded), "{error}");
    let error = bed.status(&id).await.err().context("it has answered")?;
    assert_eq!(code(&error), Some(Code::DeadlineExceeded), "{error}");
    let status = bed.runtime.status(StatusRequest::default()).await?.into_inner().status;
    let conditions = status.unwrap_or_default().conditions;
    ensure!(conditions.iter().any(|c| c.r#type == "RuntimeReady" && !c.status), "{conditions:?}");
    bed.docker.daemon()?.signal(Signal::SIGCONT);

    // The engine does now what it was asked for before. The name is taken until that is taken down.
    until("the sandbox is run", async || {
        bed.run_pod(&late).await.map(drop).map_err(|error| error.to_string())
    })
    .await?;
    assert_eq!(bed.status(&id).await?.state(), ContainerState::ContainerRunning);
    let sandboxes = bed.sandboxes().await?;
    assert_eq!(sandboxes.len(), 2, "{sandboxes:?}");
    for sandbox in sandboxes {
        bed.remove_pod(&sandbox.id).await?;
    }
    assert_eq!((bed.engine_containers()?, bed.kept()), (Vec::new(), Vec::new()));
    assert_eq!(bed.addresses_in_use()?, Vec::<String>::new());
    bed.end().await
}
