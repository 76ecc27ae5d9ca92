//! Datagrams. A client has a socket of its own to its endpoint, so that answers find back.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use longshore_base::panics;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::Shared;

/// The largest datagram. Buffers of it live on the stack, and only while bytes are moved.
const LARGEST: usize = 1 << 16;
/// Datagrams in one go: others want to run too.
const TURN: usize = 64;
/// Clients before those that are gone are swept out for the first time.
const SWEEP: usize = 64;

pub(super) fn bind(address: SocketAddr) -> io::Result<(SocketAddr, UdpSocket)> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok((socket.local_addr()?, UdpSocket::from_std(socket)?))
}

/// A client's way to its endpoint. Its task holds it: when that ends, the client is forgotten.
struct Session {
    endpoint: UdpSocket,
    /// The client has sent something since the last check.
    active: AtomicBool,
}

/// Clients by address.
#[derive(Default)]
struct Sessions {
    all: HashMap<SocketAddr, Weak<Session>>,
    sweep: usize,
}

/// Takes datagrams, until dropped; its clients go with it.
pub(super) async fn relay(listener: UdpSocket, shared: Shared, idle: Duration) {
    let listener = Arc::new(listener);
    let (mut sessions, here) = (Sessions::default(), watch::Sender::new(()));
    loop {
        if let Err(error) = listener.readable().await {
            warn!(service = &*shared.name, %error, "cannot receive datagrams");
            return;
        }
        hand_on(&listener, &mut sessions, |client, first| {
            let Some(permit) = shared.sessions.clone().try_acquire_owned().ok() else {
                return Err(io::ErrorKind::QuotaExceeded.into());
            };
            let endpoint = shared.pick(client.ip(), false).ok_or(io::ErrorKind::HostUnreachable)?;
            let session =
                Arc::new(Session { endpoint: connect(endpoint, first)?, active: true.into() });
            let (task, listener, mut here) = (session.clone(), listener.clone(), here.subscribe());
            tokio::spawn(panics::contain(async move {
                tokio::select! {
                    () = answer(&task, &listener, client, idle) => {}
                    // Only ever an error: the relay is gone.
                    _ = here.changed() => {}
                }
                drop(permit);
            }));
            Ok(session)
        })
        .unwrap_or_else(|error| debug!(service = &*shared.name, %error, "datagram dropped"));
        yield_now().await;
    }
}

/// A socket for one endpoint only (others' datagrams do not come in), and a first datagram: the
/// runtime does not know yet that the socket can be written to.
fn connect(endpoint: SocketAddr, first: &[u8]) -> io::Result<UdpSocket> {
    let any = match endpoint {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    // The kernel takes this at once: there is no handshake.
    socket.connect(endpoint)?;
    socket.set_nonblocking(true)?;
    socket.send(first)?;
    UdpSocket::from_std(socket)
}

/// Moves what clients have sent to their endpoints.
fn hand_on(
    listener: &UdpSocket,
    sessions: &mut Sessions,
    open: impl Fn(SocketAddr, &[u8]) -> io::Result<Arc<Session>>,
) -> io::Result<()> {
    let mut buffer = [0; LARGEST];
    for _ in 0..TURN {
        let (length, client) = match listener.try_recv_from(&mut buffer) {
            Ok(datagram) => datagram,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let datagram = &buffer[..length];
        if let Some(session) = sessions.all.get(&client).and_then(Weak::upgrade) {
            session.active.store(true, Ordering::Relaxed);
            // A full socket drops, as networks do. A refusal ends the session, in its task.
            let _ = session.endpoint.try_send(datagram);
            continue;
        }
        let session = open(client, datagram)?;
        if sessions.all.len() >= sessions.sweep {
            sessions.all.retain(|_, session| session.strong_count() > 0);
            sessions.sweep = SWEEP.max(sessions.all.len().saturating_mul(2));
        }
        sessions.all.insert(client, Arc::downgrade(&session));
    }
    Ok(())
}

/// Moves answers to the client, until both have been silent or the endpoint refuses: the client's
/// next datagram goes to another one then.
async fn answer(session: &Session, listener: &UdpSocket, client: SocketAddr, idle: Duration) {
    loop {
        match timeout(idle, session.endpoint.readable()).await {
            Ok(Ok(())) => {
                if let Err(error) = move_answers(session, listener, client) {
                    debug!(%client, %error, "session ended");
                    return;
                }
                yield_now().await;
            }
            Ok(Err(_)) => return,
            Err(_) if session.active.swap(false, Ordering::Relaxed) => {}
            Err(_) => return,
        }
    }
}

fn move_answers(session: &Session, listener: &UdpSocket, client: SocketAddr) -> io::Result<()> {
    let mut buffer = [0; LARGEST];
    for _ in 0..TURN {
        match session.endpoint.try_recv(&mut buffer) {
            Ok(length) => {
                let _ = listener.try_send_to(&buffer[..length], client);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
