//! Questions over TCP: one connection has one question at a time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::{connections, panics};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::debug;

use crate::handler::{Handler, Step};
use crate::message::Transport;

/// How long a connection may be without a whole question, and how long a response may take to leave.
const IDLE: Duration = Duration::from_secs(10);
/// Connections at once.
const MAX_CONNECTIONS: usize = 1024;
/// The longest question.
const MAX_QUERY: usize = 4096;
/// The pause after a connection that could not be accepted: files are short.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens at an address.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    connections::listen(address)
}

/// Answers the connections of a listener until dropped.
pub(crate) async fn serve(listener: TcpListener, handler: Handler) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, source) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // One too many is closed at once.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let handler = handler.clone();
        tokio::spawn(panics::contain(async move {
            let _permit = permit;
            if let Err(error) = converse(stream, source, handler).await {
                debug!(%error, %source, "connection");
            }
        }));
    }
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
