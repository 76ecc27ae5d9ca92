//! A network of its own for each test: the test's thread leaves the machine's namespaces, and
//! whatever it runs is born into the new ones. They vanish with the thread.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Runs the test in a network namespace with loopback only, and with a `/run` of its own, where the
/// xtables lock is.
pub(crate) fn in_netns(test: impl AsyncFnOnce()) {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("needs root");
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none).unwrap();
    sh("ip link set lo up");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test());
}

/// Runs a shell script; what it prints.
pub(crate) fn sh(script: &str) -> String {
    let output = Command::new("sh")
        .args(["-ec", script])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until it holds, for a minute at most.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
