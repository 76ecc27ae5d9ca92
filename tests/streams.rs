//! exec, attach and port-forward with kubectl on a real containerd, over WebSocket and SPDY, through
//! the apiserver and the node.

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, container, script};
use longshore_testkit::{BUSYBOX, wait_until};
use nix::pty::{Winsize, openpty};
use nix::sys::socket::{setsockopt, sockopt::Linger};
use serde_json::json;

/// Makes kubectl not use WebSockets.
const WEBSOCKETS: [&str; 2] =
    ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"];
const PROTOCOLS: [&str; 2] = ["true", "false"];
const MUCH: usize = 3 << 20;
const LITTLE: usize = 16 << 10;

struct Kubectl<'a> {
    cluster: &'a Cluster,
    websockets: &'a str,
}

impl Kubectl<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.apiserver.kubectl().command();
        command.args(args);
        command.envs(WEBSOCKETS.map(|name| (name, self.websockets)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it to its end with that input.
    fn run(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(args).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(input));
            child.wait_with_output().unwrap()
        })
    }

    fn exec(&self, line: &str) -> Output {
        self.run(&["exec", "web", "-c", "c", "--", "sh", "-c", line], b"")
    }
}

/// A child that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// A pod with a shell, a container that echoes, and a web server with a large file.
async fn cluster() -> Cluster {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    let mut echo = container("echo", "while read line; do echo got $line; done");
    echo["stdin"] = json!(true);
    let serve =
        "dd if=/dev/zero of=/tmp/much bs=1M count=3 2>/dev/null; exec httpd -f -p 8080 -h /tmp";
    let serve = container("serve", serve);
    spec["containers"].as_array_mut().unwrap().extend([echo, serve]);
    cluster.create("web", spec).await;
    cluster.until_ready("web").await;
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_and_attach_in_containers() {
    let mut cluster = cluster().await;
    let much: Vec<u8> = (0..MUCH).map(|i| (i * 31 % 251) as u8).collect();
    for websockets in PROTOCOLS {
        let kubectl = Kubectl { cluster: &cluster, websockets };
        let output = kubectl.exec("echo out; echo err >&2; exit 3");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(output.stdout, b"out\n");
        // The client opens its channels one after the other, and reports an empty message that was
        // there before its channel.
        let mut said =
            text(&output.stderr).lines().filter(|line| !line.contains("Unknown stream id"));
        assert_eq!(said.next(), Some("err"), "{output:?}");

        let input = kubectl.run(&["exec", "-i", "web", "-c", "c", "--", "cat"], &much);
        assert!(input.status.success(), "{}", text(&input.stderr));
        assert!(input.stdout == much, "{} of {MUCH} bytes came back", input.stdout.len());

        // input that nobody reads is no reason not to end; of more than a pipe takes containerd 1.6
        // itself waits for a reader
        let echo = ["exec", "-i", "web", "-c", "c", "--", "echo", "done"];
        let unread = kubectl.run(&echo, &much[..LITTLE]);
        assert_eq!((unread.status.code(), text(&unread.stdout)), (Some(0), "done\n"));

        let absent = kubectl.run(&["exec", "web", "-c", "c", "--", "no-such-program"], b"");
        assert!(!absent.status.success());
        assert!(text(&absent.stderr).contains("executable file not found"), "{absent:?}");
        let absent = kubectl.run(&["exec", "web", "-c", "none", "--", "true"], b"");
        assert!(text(&absent.stderr).contains("container none is not valid"), "{absent:?}");

        terminal(&kubectl);
        attach(&kubectl);
    }
    abandon(&mut cluster).await;
    run_handler(&cluster);
}

/// A terminal has its client's size.
fn terminal(kubectl: &Kubectl<'_>) {
    let size = Winsize { ws_row: 40, ws_col: 123, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(Some(&size), None).unwrap();
    let line = r#"until [ "$(stty size)" = "40 123" ]; do sleep 0.05; done; tty; exit 4"#;
    let mut command = kubectl.command(&["exec", "-it", "web", "-c", "c", "--", "sh", "-c", line]);
    let slave = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    command.stdin(slave(&pty.slave)).stdout(slave(&pty.slave)).stderr(slave(&pty.slave));
    let mut child = Running(command.spawn().unwrap());
    drop((pty.slave, command));
    let mut said = Vec::new();
    // the master of a terminal that nobody holds any more gives an error at its end
    let _ = fs::File::from(pty.master).read_to_end(&mut said);
    assert!(text(&said).contains("/dev/pts/"), "{}", text(&said));
    assert_eq!(child.0.wait().unwrap().code(), Some(4));
}

/// Input goes to the container's own process, and its output comes back.
fn attach(kubectl: &Kubectl<'_>) {
    let command = ["attach", "-i", "web", "-c", "echo"];
    let mut child = Running(kubectl.command(&command).spawn().unwrap());
    let mut stdin = child.0.stdin.take().unwrap();
    stdin.write_all(b"hello\n").unwrap();
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let found = lines.any(|line| line.unwrap() == "got hello");
    assert!(found, "the output ended before the answer");
}

/// A client that is killed leaves nothing behind.
async fn abandon(cluster: &mut Cluster) {
    let pids = [cluster.node.daemon().pid(), cluster.apiserver.daemon().pid()];
    let before = pids.map(open_files);
    for websockets in PROTOCOLS {
        let kubectl = Kubectl { cluster, websockets };
        let line = "touch /tmp/began; cat >/dev/null; touch /tmp/left";
        let command = ["exec", "-i", "web", "-c", "c", "--", "sh", "-c", line];
        let mut child = Running(kubectl.command(&command).spawn().unwrap());
        wait_until(TIMEOUT, "the command runs", async || {
            let output = kubectl.exec("rm /tmp/began");
            output.status.success().then_some(()).ok_or_else(|| "not yet".to_owned())
        })
        .await
        .unwrap();
        child.0.kill().unwrap();
        wait_until(TIMEOUT, "the command ends", async || {
            let output = kubectl.exec("rm /tmp/left");
            output.status.success().then_some(()).ok_or_else(|| "not yet".to_owned())
        })
        .await
        .unwrap();
    }
    wait_until(TIMEOUT, "connections are closed", async || {
        let now = pids.map(open_files);
        let few = now.iter().zip(before).all(|(now, before)| *now <= before);
        few.then_some(()).ok_or_else(|| format!("{now:?}, before {before:?}"))
    })
    .await
    .unwrap();
}

/// `/run` gives output at once.
fn run_handler(cluster: &Cluster) {
    let pki = cluster.apiserver.client_ca();
    let file = |name: &str| pki.with_file_name(name);
    let post = |path: &str| {
        let mut command = Command::new("curl");
        command.args(["-sk", "--noproxy", "*", "-X", "POST", "-w", " %{http_code}", "--cert"]);
        command.arg(file("client-kubernetes-admin.crt")).arg("--key");
        command.arg(file("client-kubernetes-admin.key"));
        command.arg(format!("https://{}:10250{path}", cluster.host.node_ip()));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(post("/run/default/web/c?cmd=echo%20hello"), "hello\n 200");
    assert_eq!(post("/run/default/web/c?cmd=false"), "command 'false' exited with 1:  500");
    assert_eq!(post("/exec/default/web/c?command=ls&output=1"), "Upgrade request required 500");
}

/// `cp` both ways, and a debugger beside the container.
#[tokio::test(flavor = "multi_thread")]
async fn cp_and_debug_in_pods() {
    let cluster = cluster().await;
    let folder = tempfile::tempdir().unwrap();
    let much: Vec<u8> = (0..MUCH).map(|i| (i * 31 % 251) as u8).collect();
    fs::write(folder.path().join("there"), &much).unwrap();
    let local = |name: &str| folder.path().join(name).display().to_string();
    for websockets in PROTOCOLS {
        let kubectl = Kubectl { cluster: &cluster, websockets };
        for copy in [[&local("there"), "web:/tmp/copied"], ["web:/tmp/copied", &local("back")]] {
            let output = kubectl.run(&["cp", "-c", "c", copy[0], copy[1]], b"");
            assert!(output.status.success(), "{copy:?}: {}", text(&output.stderr));
        }
        assert!(fs::read(local("back")).unwrap() == much);
        let image = format!("--image={BUSYBOX}");
        let name = format!("debugger-{websockets}");
        let container = format!("--container={name}");
        let debug = [
            "debug",
            "-i",
            "web",
            &image,
            &container,
            "--target=c",
            "--image-pull-policy=Never",
            "--",
            "sh",
            "-c",
            // one that ends at once may end before its output is fetched
            "while read line; do echo got $line; done",
        ];
        let mut child = Running(kubectl.command(&debug).spawn().unwrap());
        let mut stdin = child.0.stdin.take().unwrap();
        stdin.write_all(b"it\n").unwrap();
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        if !lines.any(|line| line.unwrap().contains("got it")) {
            let mut why = String::new();
            child.0.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("the debugger said nothing: {why}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn port_forward_to_pods() {
    let mut cluster = cluster().await;
    wait_until(TIMEOUT, "the web server listens", async || {
        let kubectl = Kubectl { cluster: &cluster, websockets: "true" };
        let output = kubectl.exec("wget -qO /dev/null http://127.0.0.1:8080/much");
        output.status.success().then_some(()).ok_or_else(|| text(&output.stderr).to_owned())
    })
    .await
    .unwrap();
    let before = [cluster.node.daemon().pid()].map(open_files);
    for websockets in PROTOCOLS {
        let kubectl = Kubectl { cluster: &cluster, websockets };
        let mut child =
            Running(kubectl.command(&["port-forward", "pod/web", ":8080"]).spawn().unwrap());
        let mut line = String::new();
        // kubectl goes on to write there
        let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.split_whitespace().nth(2).expect(&line).to_owned();
        assert_eq!(get(&address), MUCH);
        let many: Vec<_> = (0..4)
            .map(|_| address.clone())
            .map(|address| std::thread::spawn(move || get(&address)))
            .collect();
        for one in many {
            assert_eq!(one.join().unwrap(), MUCH);
        }
        // a connection that is broken off does not take the others with it
        let mut broken = TcpStream::connect(&address).unwrap();
        broken.write_all(b"GET /much HTTP/1.0\r\n\r\n").unwrap();
        broken.read_exact(&mut [0; 1000]).unwrap();
        setsockopt(&broken, Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
        drop(broken);
        assert_eq!(get(&address), MUCH);
    }
    wait_until(TIMEOUT, "connections are closed", async || {
        let now = [cluster.node.daemon().pid()].map(open_files);
        (now <= before).then_some(()).ok_or_else(|| format!("{now:?}, before {before:?}"))
    })
    .await
    .unwrap();
}

/// How many bytes of the large file come.
fn get(address: &str) -> usize {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /much HTTP/1.0\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the answer ends in its head");
    }
    // not to the connection's end, for which containerd takes a second
    let mut body = Vec::new();
    lines.take(MUCH as u64).read_to_end(&mut body).unwrap()
}
