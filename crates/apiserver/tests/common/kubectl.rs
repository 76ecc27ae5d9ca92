//! The real kubectl (1.32 or later) against the real binary.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Daemon;

pub struct Kubectl {
    pub daemon: Daemon,
}

impl Kubectl {
    /// `None`, said aloud, where there is no kubectl that this apiserver is made for.
    pub fn new(flags: &[&str]) -> Option<Kubectl> {
        let version = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output();
        let version: Value =
            version.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok())?;
        let text = version["clientVersion"]["minor"].as_str().unwrap_or_default();
        let minor: u32 = text.trim_end_matches('+').parse().unwrap_or(0);
        if minor < 32 {
            return None;
        }
        let kubectl = Kubectl { daemon: Daemon::start(flags) };
        // as a controller does
        kubectl.ok("create serviceaccount default");
        Some(kubectl)
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("kubectl");
        command.env("KUBECONFIG", self.daemon.kubeconfig()).env("HOME", self.daemon.dir.path());
        command.args(line.split_whitespace());
        command
    }

    fn run(&self, line: &str, input: &str) -> (bool, String, String) {
        let mut child = self
            .command(line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }

    /// Must succeed; standard output.
    pub fn ok(&self, line: &str) -> String {
        self.ok_with(line, "")
    }

    pub fn ok_with(&self, line: &str, input: &str) -> String {
        let (success, output, error) = self.run(line, input);
        assert!(success, "kubectl {line}: {error}\n{}", self.daemon.log());
        output
    }

    /// Must fail; standard error.
    pub fn fails(&self, line: &str, input: &str) -> String {
        let (success, output, error) = self.run(line, input);
        assert!(!success, "kubectl {line}: {output}");
        error
    }
}

/// The test's kubectl, or an early and visible end of the test.
macro_rules! kubectl {
    ($($flag:literal),*) => {
        match $crate::common::kubectl::Kubectl::new(&[$($flag),*]) {
            Some(kubectl) => kubectl,
            None => {
                eprintln!("SKIPPED: no kubectl of at least 1.32 in PATH");
                return;
            }
        }
    };
}

pub(crate) use kubectl;
