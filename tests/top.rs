//! What people see of a node: the page of `--dashboard`, and `longshore top` with a shell in a container.

use crate::common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::Arc;

use common::{FOREVER, TIMEOUT, container, manifest};
use longshore_testkit::{Host, Node, NodeOptions, program, wait_until};
use nix::pty::{Winsize, openpty};
use parking_lot::Mutex;
use serde_json::{Value, json};

const PAGE: &str = "http://127.0.0.1:10247";

/// What the page has at that path.
fn page(host: &Host, path: &str) -> Result<Value, String> {
    let url = format!("{PAGE}{path}");
    let body = host.run("curl", ["--silent", "--show-error", "--fail", &url]);
    let body = body.map_err(|error| error.to_string())?;
    serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))
}

/// The containers of the first pod that the page shows.
fn containers(snapshot: &Value) -> Vec<Value> {
    snapshot["pods"][0]["containers"].as_array().cloned().unwrap_or_default()
}

/// A person at a terminal.
struct Person {
    keys: File,
    screen: Arc<Mutex<String>>,
    child: std::process::Child,
}

impl Person {
    fn start(mut command: std::process::Command) -> Self {
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut shown, written) = (File::from(pty.master.try_clone().unwrap()), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = shown.read(&mut bytes)
                && count > 0
            {
                written.lock().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { keys: File::from(pty.master), screen, child }
    }

    /// Types, when something is on the screen that was not there at the last keys.
    async fn types(&mut self, keys: &str, after: &str) {
        let screen = self.screen.clone();
        wait_until(TIMEOUT, &format!("{after:?} is on the screen"), async || {
            let screen = screen.lock();
            if screen.contains(after) { Ok(()) } else { Err(screen.clone()) }
        })
        .await
        .unwrap();
        self.screen.lock().clear();
        self.keys.write_all(keys.as_bytes()).unwrap();
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn top_and_dashboard_show_pods_and_a_shell_in_them() {
    let host = Host::start().unwrap();
    let options = NodeOptions { args: vec!["--dashboard".to_owned()], ..NodeOptions::default() };
    let node = Node::standalone(&host, options).unwrap();
    let file = node.manifests().join("web.yaml");
    let script = format!("echo said by the pod; {FOREVER}");
    fs::write(&file, manifest("web", "Always", json!([container("c", &script)]))).unwrap();
    let id = wait_until(TIMEOUT, "the page shows the container", async || {
        let snapshot = page(&host, "/snapshot.json")?;
        match containers(&snapshot).first() {
            Some(one) if one["state"] == "Running" => Ok(one["id"].as_str().unwrap().to_owned()),
            _ => Err(snapshot.to_string()),
        }
    })
    .await
    .unwrap();
    let snapshot = page(&host, "/snapshot.json").unwrap();
    assert_eq!(snapshot["pods"][0]["name"], format!("default/web-{}", host.name()));
    assert_eq!(snapshot["node"]["health"], "ok", "{snapshot}");
    wait_until(TIMEOUT, "the page has the log", async || {
        let log = page(&host, &format!("/log.json?container={id}"))?;
        if log["lines"].to_string().contains("said by the pod") {
            Ok(())
        } else {
            Err(log.to_string())
        }
    })
    .await
    .unwrap();
    assert!(page(&host, "/log.json?container=other").is_err());

    let mut top = host.command(program("longshore-host").unwrap());
    top.args(["top", "--healthz-port=0", "--root"]).arg(host.dir().join("none"));
    top.arg(format!("--container-runtime-endpoint=unix://{}", host.socket().display()));
    let mut person = Person::start(top);
    person.types("\x1b[B", "default/web-").await;
    // The containers of the pod that is selected.
    person.types("s", "CONTAINER").await;
    // The terminal shows what is typed, too: the result is another text. The size comes by a way of its own.
    let fits = "until [ \"$(stty size)\" = '40 120' ]; do sleep 1; done; echo fits $((21 * 2))\n";
    person.types(fits, "leads back").await;
    person.types("exit 3\n", "fits 42").await;
    person.types("q", "q: quit").await;
    let status = person.child.wait().unwrap();
    assert!(status.success(), "{status}: {}", person.screen.lock());

    fs::remove_file(&file).unwrap();
    wait_until(TIMEOUT, "no container is left", async || {
        match host.ctr(["containers", "ls", "-q"]).unwrap() {
            none if none.trim().is_empty() => Ok(()),
            some => Err(some),
        }
    })
    .await
    .unwrap();
    drop(node);
    host.assert_clean();
}
