//! Connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use longshore_base::panics;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::Shared;

/// How long endpoints may take to answer, one after the other.
const CONNECT_TIMEOUTS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// The pause when no connection can be accepted: this process is out of files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

pub(super) fn bind(address: SocketAddr) -> io::Result<(SocketAddr, TcpListener)> {
    let socket = std::net::TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok((socket.local_addr()?, TcpListener::from_std(socket)?))
}

/// Takes connections, until dropped; those taken go on.
pub(super) async fn relay(listener: TcpListener, shared: Shared) {
    loop {
        // Further connections wait in the kernel's backlog. The semaphore is never closed.
        let Ok(permit) = shared.sessions.clone().acquire_owned().await else { return };
        let (client, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(service = &*shared.name, %error, "cannot accept connections");
                sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let mut shared = shared.clone();
        tokio::spawn(panics::contain(async move {
            let mut alive = shared.alive.clone();
            tokio::select! {
                () = carry(client, address, &mut shared) => {}
                // Only ever an error: its sender is gone.
                _ = alive.changed() => {}
            }
            drop(permit);
        }));
    }
}

async fn carry(mut client: TcpStream, address: SocketAddr, shared: &mut Shared) {
    let Some(mut endpoint) = connect(address, shared).await else {
        // A reset: a normal end would look like an empty response.
        let _ = client.set_zero_linger();
        return;
    };
    // Each direction has its own end.
    if let Err(error) = copy_bidirectional(&mut client, &mut endpoint).await {
        debug!(service = &*shared.name, %address, %error, "connection broken");
        // The other side is to know too.
        let _ = (client.set_zero_linger(), endpoint.set_zero_linger());
    }
}

/// The first endpoint that answers.
async fn connect(client: SocketAddr, shared: &Shared) -> Option<TcpStream> {
    for (attempt, connect_timeout) in CONNECT_TIMEOUTS.into_iter().enumerate() {
        let endpoint = shared.pick(client.ip(), attempt > 0)?;
        let error = match timeout(connect_timeout, TcpStream::connect(endpoint)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        warn!(service = &*shared.name, %endpoint, %error, "endpoint is not reachable");
    }
    None
}
