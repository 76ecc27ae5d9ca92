//! Questions over TCP: one connection has one question at a time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::connections::{self, Connection, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::handler::{Handler, Step};
use crate::message::Transport;

/// How long a connection may be without a whole question, and how long a response may take to leave.
const IDLE: Duration = Duration::from_secs(10);
/// Connections at once: one more closes the oldest of the address that has the most.
pub(crate) const MAX_CONNECTIONS: usize = 1024;
/// The longest question.
const MAX_QUERY: usize = 4096;

/// Listens at an address.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    connections::listen(address)
}

/// Answers the connections of a listener until dropped.
pub(crate) async fn serve(listener: TcpListener, handler: Handler) {
    let work = |stream, source, connection| {
        let handler = handler.clone();
        async move {
            let _connection: Arc<Connection> = connection;
            converse(stream, source, handler).await.map_err(|error| error.to_string())
        }
    };
    let failed = |source, reason: &str| debug!(%source, reason, "connection");
    let never = CancellationToken::new();
    connections::serve(listener, Limits::anonymous(MAX_CONNECTIONS), never, work, failed).await;
}

async fn converse(
    mut stream: TcpStream,
    source: SocketAddr,
    mut handler: Handler,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let Some(query) = timeout(IDLE, read(&mut stream)).await?? else { return Ok(()) };
        let bytes = match handler.handle(&query, source, Transport::Tcp) {
            Step::Reply(bytes) => bytes,
            Step::Wait(waiting) => waiting.reply().await,
            Step::Ignore => return Ok(()),
        };
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes()[..], &bytes].concat();
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}

/// `None`: there is no more, or too much at once.
async fn read(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => usize::from(length),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > MAX_QUERY {
        return Ok(None);
    }
    let mut query = vec![0; length];
    stream.read_exact(&mut query).await?;
    Ok(Some(query))
}
