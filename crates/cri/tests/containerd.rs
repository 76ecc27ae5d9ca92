//! The client against a real containerd.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, pin_mut};
use longshore_cri::v1::ImageSpec;
use longshore_cri::{Options, Runtime};
use tempfile::TempDir;

/// A containerd with its own root, state and socket; killed by its pid.
struct Containerd {
    dir: PathBuf,
    process: Child,
}

impl Containerd {
    fn start(dir: &Path) -> Result<Self> {
        let path = |name: &str| dir.join(name).display().to_string();
        let config = format!(
            r#"
version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  conf_dir = "{cni}"
"#,
            root = path("root"),
            state = path("state"),
            socket = path("c.sock"),
            opt = path("opt"),
            cni = path("cni"),
        );
        fs::write(dir.join("config.toml"), config)?;
        let log = File::create(dir.join("log"))?;
        let process = Command::new("containerd")
            .arg("--config")
            .arg(dir.join("config.toml"))
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("containerd")?;
        Ok(Self { dir: dir.to_owned(), process })
    }

    /// Waits until its CRI plugin is ready.
    async fn ready(&mut self, runtime: &Runtime) -> Result<()> {
        for _ in 0..300 {
            match runtime.negotiate().await {
                Ok(_) => return Ok(()),
                Err(e) => ensure!(e.is_unavailable() || self.starting(&e), "{e}"),
            }
            if let Some(status) = self.process.try_wait()? {
                let log = fs::read_to_string(self.dir.join("log"))?;
                anyhow::bail!("containerd {status}: {log}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("containerd is not ready after 30 s")
    }

    /// The socket exists before the CRI plugin has read its state.
    fn starting(&self, error: &longshore_cri::Error) -> bool {
        error.to_string().contains("not initialized")
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test]
async fn client_works_with_containerd() -> Result<()> {
    let dir = TempDir::new()?;
    let mut containerd = Containerd::start(dir.path())?;
    let runtime = Runtime::new(Options::new(dir.path().join("c.sock").display().to_string()))?;
    containerd.ready(&runtime).await?;

    let version = runtime.version().await?;
    assert_eq!(version.runtime_name, "containerd");
    assert_eq!(version.runtime_api_version, "v1");

    let status = runtime.status(false).await?.status.context("status")?;
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .map(|c| (c.r#type.as_str(), c.status))
        .filter(|(name, _)| matches!(*name, "RuntimeReady" | "NetworkReady"))
        .collect();
    assert_eq!(conditions, [("RuntimeReady", true), ("NetworkReady", false)]);

    assert!(runtime.list_pod_sandboxes(None).await?.is_empty());
    assert!(runtime.list_containers(None).await?.is_empty());
    assert!(runtime.list_images(None).await?.is_empty());
    assert!(runtime.list_container_stats(None).await?.is_empty());
    assert!(runtime.list_pod_sandbox_stats(None).await?.is_empty());
    let fs = runtime.image_fs_info().await?.image_filesystems;
    let mountpoint = &fs[0].fs_id.as_ref().context("fs_id")?.mountpoint;
    assert!(Path::new(mountpoint).starts_with(dir.path()), "{mountpoint}");
    let absent = ImageSpec { image: "registry.example/absent:1".into(), ..Default::default() };
    assert_eq!(runtime.image_status(absent.clone()).await?, None);
    runtime.remove_image(absent).await?;

    for error in [
        runtime.pod_sandbox_status("absent").await.unwrap_err(),
        runtime.container_status("absent").await.unwrap_err(),
        runtime.start_container("absent").await.unwrap_err(),
        runtime.container_stats("absent").await.unwrap_err(),
        runtime.exec_sync("absent", vec!["true".into()], None).await.unwrap_err(),
    ] {
        assert!(error.is_not_found(), "{error:?}");
    }
    runtime.remove_pod_sandbox("absent").await?;
    runtime.remove_container("absent").await?;

    // versions after 1.6 treat an unknown id as stopped
    for result in [
        runtime.stop_pod_sandbox("absent").await,
        runtime.stop_container("absent", Duration::ZERO).await,
    ] {
        assert!(result.as_ref().err().is_none_or(longshore_cri::Error::is_not_found), "{result:?}");
    }

    // containerd 1.6 implements neither
    match runtime.runtime_config().await {
        Ok(config) => assert!(config.linux.is_some()),
        Err(e) => assert!(e.is_unimplemented(), "{e}"),
    }
    let events = runtime.container_events();
    pin_mut!(events);
    match tokio::time::timeout(Duration::from_secs(1), events.next()).await {
        Err(_still_open) => {}
        Ok(first) => {
            let error = first.context("first item")?.unwrap_err();
            assert!(error.is_unimplemented(), "{error}");
        }
    }

    // killed, and restarted: the same client works
    containerd.kill();
    let error = runtime.version().await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let mut containerd = Containerd::start(dir.path())?;
    containerd.ready(&runtime).await?;
    assert!(runtime.list_containers(None).await?.is_empty());

    containerd.kill();
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    assert!(!mounts.contains(dir.path().to_str().context("path")?));
    Ok(())
}
