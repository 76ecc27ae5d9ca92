//! The server with real clients on loopback: kube-rs and WebSockets, and SPDY by crate streams.

mod clients;
mod commands;
mod hostile;
mod ports;
mod terminals;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore_cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use longshore_streams::Streams;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A runtime whose commands are names of what it does.
#[derive(Default)]
struct Scripted {
    /// Sessions that are under way.
    sessions: AtomicUsize,
    /// Bytes that `yes` could write.
    written: AtomicUsize,
}

/// Counts a session until it ends, however it does.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Runtime for Scripted {
    async fn exec(&self, id: String, command: Vec<String>, io: Io) -> Result<i32, BoxError> {
        let _counted = Counted::new(&self.sessions);
        let Io { stdin, stdout, stderr, tty, mut sizes } = io;
        let (mut stdin, mut stdout) = (stdin, stdout);
        let argument = || command.get(1).and_then(|text| text.parse().ok()).unwrap_or(0);
        match command.first().map(String::as_str) {
            Some("cat") => _ = copy(stdin.as_mut().unwrap(), stdout.as_mut().unwrap()).await?,
            Some("exit") => return Ok(argument()),
            Some("both") => {
                stdout.unwrap().write_all(b"out").await?;
                stderr.unwrap().write_all(b"err").await?;
                return Ok(3);
            }
            Some("sizes") => {
                assert!(tty);
                let mut stdout = stdout.unwrap();
                for _ in 0..argument() {
                    let size = sizes.next().await.unwrap();
                    let text = format!("{}x{}\n", size.width, size.height);
                    stdout.write_all(text.as_bytes()).await?;
                }
            }
            Some("yes") => loop {
                let count = stdout.as_mut().unwrap().write(&[b'y'; 1024]).await?;
                self.written.fetch_add(count, Ordering::SeqCst);
            },
            Some("sleep") => std::future::pending().await,
            Some("panic") => panic!("of the runtime"),
            _ => return Err(format!("container {id} is not running").into()),
        }
        Ok(0)
    }

    async fn attach(&self, id: String, io: Io) -> Result<(), BoxError> {
        let _counted = Counted::new(&self.sessions);
        let mut stdout = io.stdout.unwrap();
        stdout.write_all(format!("attached to {id}\n").as_bytes()).await?;
        copy(&mut io.stdin.unwrap(), &mut stdout).await?;
        Ok(())
    }

    async fn port_forward(
        &self,
        id: String,
        port: u16,
        mut stream: PortStream,
    ) -> Result<(), BoxError> {
        let _counted = Counted::new(&self.sessions);
        match port {
            80 => {
                let mut received = Vec::new();
                stream.read_to_end(&mut received).await?;
                stream.write_all(format!("{port} of {id}: ").as_bytes()).await?;
                stream.write_all(&received).await?;
                stream.shutdown().await?;
            }
            81 => {
                let mut line = [0; 5];
                stream.read_exact(&mut line).await?;
                stream.write_all(&line).await?;
            }
            82 => std::future::pending().await,
            _ => return Err("connection refused".into()),
        }
        Ok(())
    }
}

/// A server on loopback.
struct Running {
    server: Arc<Server>,
    runtime: Arc<Scripted>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    async fn start_with(options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (runtime, stop) = (Arc::new(Scripted::default()), CancellationToken::new());
        let server = Server::new(listener.local_addr().unwrap(), runtime.clone(), options);
        let task = tokio::spawn(server.clone().serve(listener, stop.clone()));
        Self { server, runtime, stop, task }
    }

    fn exec(&self, command: &[&str], streams: Streams) -> String {
        let Streams { stdin, stdout, stderr, tty } = streams;
        let cmd = command.iter().map(|word| (*word).to_owned()).collect();
        let container_id = "c1".to_owned();
        let request = ExecRequest { container_id, cmd, tty, stdin, stdout, stderr };
        self.server.exec(request).unwrap().url
    }

    fn attach(&self) -> String {
        let container_id = "c1".to_owned();
        let request =
            AttachRequest { container_id, stdin: true, stdout: true, ..Default::default() };
        self.server.attach(request).unwrap().url
    }

    fn port_forward(&self, port: &[i32]) -> String {
        let request = PortForwardRequest { pod_sandbox_id: "s1".to_owned(), port: port.to_vec() };
        self.server.port_forward(request).unwrap().url
    }

    /// Waits until that many sessions are under way.
    async fn until_sessions(&self, count: usize) {
        until(|| self.runtime.sessions.load(Ordering::SeqCst) == count).await;
    }

    /// Ends the server, and everything with it.
    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
        assert_eq!(self.runtime.sessions.load(Ordering::SeqCst), 0);
    }
}

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

const IN_OUT: Streams = Streams { stdin: true, stdout: true, stderr: false, tty: false };
const OUT: Streams = Streams { stdin: false, ..IN_OUT };
const OUT_ERR: Streams = Streams { stderr: true, ..OUT };
const TTY: Streams = Streams { tty: true, ..IN_OUT };

#[tokio::test]
async fn requests_are_checked() {
    let running = Running::start().await;
    let exec = |container_id: &str, [stdin, stdout, stderr, tty]: [bool; 4]| {
        let container_id = container_id.to_owned();
        let request = ExecRequest { container_id, cmd: vec![], tty, stdin, stdout, stderr };
        running.server.exec(request).map(|response| response.url)
    };
    assert_eq!(exec("", [true; 4]), Err(Error::Missing("container_id")));
    assert_eq!(exec("c", [true, true, true, true]), Err(Error::TtyWithStderr));
    assert_eq!(exec("c", [false; 4]), Err(Error::NoStream));
    let url = exec("c", [true, true, false, true]).unwrap();
    assert!(url.starts_with("http://127.0.0.1:") && url.contains("/exec/"), "{url}");
    let forward = |id: &str, port| {
        let request = PortForwardRequest { pod_sandbox_id: id.to_owned(), port: vec![port] };
        running.server.port_forward(request).map(|_| ())
    };
    assert_eq!(forward("", 1), Err(Error::Missing("pod_sandbox_id")));
    for port in [0, -1, 65536, i32::MIN, i32::MAX] {
        assert_eq!(forward("s", port), Err(Error::Port(port)));
    }
    assert_eq!(forward("s", 65535), Ok(()));
    let limit = (0..2000).find_map(|_| exec("c", [true, true, true, false]).err());
    assert_eq!(limit, Some(Error::TooMany));
    assert_eq!(tonic::Status::from(Error::TooMany).code(), tonic::Code::ResourceExhausted);
    running.end().await;
}
