//! What streaming sessions do: exec, attach and port-forward.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::query_parameters::{ResizeContainerTTYOptionsBuilder, ResizeExecOptionsBuilder};
use longshore_cri_streaming::{BoxError, Io, Output, PortStream, Runtime, Sizes};
use nix::sched::{CloneFlags, setns};
use tokio::io::{Sink, sink};
use tokio_util::either::Either;

use crate::exec::{Streams, join};
use crate::labels::Kind;
use crate::runtime::DockerRuntime;
use crate::{Error, Result, network};

/// How long a port of a pod may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(30);

/// Sessions over the containers of an engine.
#[derive(Debug)]
pub(crate) struct Sessions(pub(crate) Arc<DockerRuntime>);

#[tonic::async_trait]
impl Runtime for Sessions {
    async fn exec(
        &self,
        container_id: String,
        command: Vec<String>,
        io: Io,
    ) -> std::result::Result<i32, BoxError> {
        let Io { stdin, stdout, stderr, tty, sizes } = io;
        let streams = Streams {
            stdin: stdin.is_some(),
            stdout: stdout.is_some(),
            stderr: stderr.is_some(),
            tty,
        };
        let exec = self.0.create_exec(&container_id, command, streams).await?;
        let hijacked = self.0.start_exec(&exec, tty).await?;
        let (mut stdout, mut stderr) = (writer(stdout), writer(stderr));
        let run = join(hijacked, tty, stdin, &mut stdout, &mut stderr);
        tokio::select! {
            joined = run => joined?,
            never = self.resize(Terminal::Exec(&exec), tty, sizes) => never,
        }
        Ok(self.0.exit_code(&exec).await?)
    }

    async fn attach(&self, container_id: String, io: Io) -> std::result::Result<(), BoxError> {
        let Io { stdin, stdout, stderr, sizes, .. } = io;
        let container = self.0.inspect(&container_id, Kind::Container).await?;
        let id = container.id.unwrap_or(container_id);
        let tty = container.config.and_then(|config| config.tty) == Some(true);
        let call = format!(
            "/containers/{id}/attach?stream=1&stdin={}&stdout={}&stderr={}",
            u8::from(stdin.is_some()),
            u8::from(stdout.is_some()),
            u8::from(stderr.is_some())
        );
        let hijacked = self.0.engine.hijack(&call, None).await?;
        let (mut stdout, mut stderr) = (writer(stdout), writer(stderr));
        let run = join(hijacked, tty, stdin, &mut stdout, &mut stderr);
        tokio::select! {
            joined = run => Ok(joined?),
            never = self.resize(Terminal::Container(&id), tty, sizes) => never,
        }
    }

    async fn port_forward(
        &self,
        sandbox_id: String,
        port: u16,
        mut stream: PortStream,
    ) -> std::result::Result<(), BoxError> {
        let sandbox = self.0.inspect(&sandbox_id, Kind::Sandbox).await?;
        let netns = network::namespace(&sandbox);
        let netns = netns
            .ok_or_else(|| Error::Precondition(format!("sandbox {sandbox_id} is not running")))?;
        let mut connection = connect(netns, port).await?;
        tokio::io::copy_bidirectional(&mut stream, &mut connection).await?;
        Ok(())
    }
}

/// Whose terminal is resized.
enum Terminal<'a> {
    Exec(&'a str),
    Container(&'a str),
}

impl Sessions {
    /// Gives a terminal the sizes of the client's, for as long as there are any.
    async fn resize<T>(&self, terminal: Terminal<'_>, tty: bool, mut sizes: Sizes) -> T {
        while let Some(size) = sizes.next().await.filter(|_| tty) {
            let (height, width) = (i32::from(size.height), i32::from(size.width));
            if height == 0 || width == 0 {
                continue;
            }
            let resized = match terminal {
                Terminal::Exec(id) => {
                    let options = ResizeExecOptionsBuilder::default().h(height).w(width).build();
                    self.0.engine.resize_exec(id, options).await
                }
                Terminal::Container(id) => {
                    let options =
                        ResizeContainerTTYOptionsBuilder::default().h(height).w(width).build();
                    self.0.engine.resize_container_tty(id, options).await
                }
            };
            if let Err(error) = resized {
                tracing::debug!("terminal is not resized: {error}");
            }
        }
        std::future::pending().await
    }
}

/// Where output goes that nobody takes.
fn writer(output: Option<Output>) -> Either<Output, Sink> {
    output.map_or_else(|| Either::Right(sink()), Either::Left)
}

/// Connects to a port on the loopback address of a network namespace.
async fn connect(netns: PathBuf, port: u16) -> Result<tokio::net::TcpStream> {
    let (done, connected) = tokio::sync::oneshot::channel();
    // A thread of its own, which ends: its network is another one for good.
    let thread = std::thread::Builder::new().name("port-forward".to_owned());
    let failed =
        |error: std::io::Error| Error::Internal(format!("connect to port {port}: {error}"));
    thread
        .spawn(move || {
            let _ = done.send(connect_inside(&netns, port));
        })
        .map_err(failed)?;
    let stream = connected.await.map_err(std::io::Error::other).and_then(|stream| stream);
    stream.and_then(tokio::net::TcpStream::from_std).map_err(failed)
}

fn connect_inside(netns: &PathBuf, port: u16) -> std::io::Result<TcpStream> {
    setns(std::fs::File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
    let connect = |address| TcpStream::connect_timeout(&address, CONNECT);
    let stream = match connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) {
        Ok(stream) => stream,
        Err(error) => connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).map_err(|_| error)?,
    };
    stream.set_nonblocking(true)?;
    Ok(stream)
}
