//! The test host itself: up, a pod on it, and removed completely, whatever became of its owner.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longshore_cri::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, LinuxPodSandboxConfig, PodSandboxConfig,
    PodSandboxMetadata,
};
use longshore_cri::{Options, Runtime};
use longshore_testkit::{BUSYBOX, Host, sweep_abandoned, wait_until};

/// A pod that serves its hostname on port 80. Gives the sandbox's id and its address.
async fn run_pod(host: &Host, runtime: &Runtime) -> Result<(String, String)> {
    let sandbox = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "web".into(),
            uid: "0001".into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        hostname: "web".into(),
        log_directory: host.log_dir().join("pods").display().to_string(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/kubepods/pod0001", host.cgroup_root()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let id = runtime.run_pod_sandbox(sandbox.clone(), "").await?;
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "httpd".into(), attempt: 0 }),
        image: Some(ImageSpec { image: BUSYBOX.into(), ..Default::default() }),
        command: ["sh", "-c", "hostname >/tmp/index.html && exec httpd -f -h /tmp"]
            .map(String::from)
            .into(),
        log_path: "httpd.log".into(),
        ..Default::default()
    };
    let container = runtime.create_container(&id, container, sandbox).await?;
    runtime.start_container(&container).await?;
    let status = runtime.pod_sandbox_status(&id).await?.sandbox;
    Ok((id, status.network.context("no network")?.ip))
}

/// The sockets outside of the host's directory that a process listens on.
fn shim_sockets(pid: u32) -> Result<Vec<String>> {
    let open: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))?
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok()?.into_os_string().into_string().ok())
        .collect();
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/unix"))?;
    let listed = sockets.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (inode, path) = (fields.get(6)?, fields.get(7)?);
        let is_ours = open.contains(&format!("socket:[{inode}]")) && path.starts_with("/run");
        is_ours.then(|| (*path).to_owned())
    });
    Ok(listed.collect())
}

fn http_get(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect((address, 80))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[tokio::test]
async fn host_removal_removes_running_pods() -> Result<()> {
    let mut host = Host::start()?;
    let runtime = Runtime::new(Options::new(host.socket().display().to_string()))?;
    let (_, address) = run_pod(&host, &runtime).await?;

    // The machine reaches the pod, and the pod is where it should be.
    let answer = wait_until(Duration::from_secs(10), "the pod to serve", async || {
        let answer = http_get(&address)?;
        ensure!(answer.contains("200 OK"), "{answer}");
        Ok(answer)
    })
    .await?;
    assert!(answer.ends_with("web\n"), "{answer}");
    let named = |name: &str| {
        let is_it = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| comm.trim_end() == name)
        };
        host.processes().into_iter().find(is_it)
    };
    let shim = named("containerd-shim").context("no shim")?;
    for name in ["containerd", "pause", "httpd"] {
        ensure!(named(name).is_some(), "{name} is not among the host's processes");
    }

    // Pods outlive their containerd, which comes back to them.
    host.containerd()?.kill()?;
    assert!(http_get(&address)?.contains("200 OK"));
    host.start_containerd()?;
    let pods = wait_until(Duration::from_secs(10), "CRI to be back", async || {
        runtime.list_pod_sandboxes(None).await
    })
    .await?;
    assert_eq!(pods.len(), 1);
    assert!(host.processes().contains(&shim));

    let (dir, sockets) = (host.dir(), shim_sockets(shim)?);
    ensure!(!sockets.is_empty(), "the shim listens nowhere");
    host.assert_clean();
    assert!(!dir.exists());
    for socket in sockets {
        assert!(!Path::new(&socket).exists(), "{socket}");
    }
    Ok(())
}

#[tokio::test]
async fn hosts_are_isolated() -> Result<()> {
    let (one, two) = (Host::start()?, Host::start()?);
    assert_ne!(one.name(), two.name());
    let runtime = Runtime::new(Options::new(one.socket().display().to_string()))?;
    let (id, _) = run_pod(&one, &runtime).await?;
    let other = Runtime::new(Options::new(two.socket().display().to_string()))?;
    assert!(other.list_pod_sandboxes(None).await?.is_empty());
    two.assert_clean();
    runtime.stop_pod_sandbox(&id).await?;
    runtime.remove_pod_sandbox(&id).await?;
    one.assert_clean();
    Ok(())
}

#[test]
fn host_is_removed_on_panic() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let outcome = std::thread::spawn(move || {
        let host = Host::bare().unwrap();
        sender.send(host.dir()).unwrap();
        let _sleeper = host.spawn("sleep", sleep(&host)).unwrap();
        panic!("as a failing test does");
    })
    .join();
    assert!(outcome.is_err());
    assert!(!receiver.recv().unwrap().exists());
}

fn sleep(host: &Host) -> Command {
    let mut sleep = host.command("sleep");
    sleep.arg("1000");
    sleep
}

/// Not a test: what `host_of_killed_owner_is_swept` kills.
#[test]
#[ignore = "runs for ever"]
fn owner() {
    let mut host = Host::bare().unwrap();
    host.open_egress();
    let sleeper = host.spawn("sleep", sleep(&host)).unwrap();
    // Until then it is the shell that enters the host.
    while fs::read_to_string(format!("/proc/{}/comm", sleeper.pid())).unwrap() != "sleep\n" {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("\nowner {} {}", host.dir().display(), sleeper.pid());
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn host_of_killed_owner_is_swept() {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.into_iter().find(|line| line.starts_with("owner ")).unwrap();
    let [_, dir, pid] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    // Empty for a zombie that its new parent has not reaped yet.
    let chain = format!("LONGSHORE-{}", dir.rsplit('/').next().unwrap());
    let rules = || {
        let saved = Command::new("iptables-save").output().unwrap().stdout;
        let saved = String::from_utf8(saved).unwrap();
        saved.lines().filter(|line| line.split(' ').any(|word| word == chain)).count()
    };
    let command_line = || fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();

    sweep_abandoned().unwrap();
    assert!(Path::new(dir).exists(), "a living owner's host was swept");
    assert_eq!(rules(), 7, "two jumps and what they lead to");
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_eq!(command_line(), "sleep\x001000\0");

    // Another test's host may be quicker, which is as good.
    sweep_abandoned().unwrap();
    assert!(!Path::new(dir).exists());
    assert_eq!(command_line(), "");
    assert_eq!(rules(), 0);
}
