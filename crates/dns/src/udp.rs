//! Datagrams: one socket for each thread of the runtime, each with the same port. A reply leaves from
//! the address that the query was sent to, also where the socket is bound to all addresses.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use longshore_base::panics;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tracing::debug;

use crate::handler::{Handler, Step};
use crate::message::Transport;

/// The longest query that is read.
const BUFFER: usize = 4096;
/// What the kernel holds of queries that wait, in bytes.
const WAITING: usize = 1 << 20;

/// The pause after a datagram that could not be received.
const PAUSE: Duration = Duration::from_millis(5);

/// The local address that a datagram was sent to, with the interface that it came in by.
#[derive(Debug, Clone, Copy)]
enum Local {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

/// Binds a socket; others of this process may have the same address.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket =
        Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        // With all addresses of IPv4 too, where it is bound to all.
        socket.set_only_v6(!address.ip().is_unspecified())?;
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    }
    // the kernel gives what its limits allow
    let _ = socket.set_recv_buffer_size(WAITING);
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

/// Answers the datagrams of a socket until dropped.
pub(crate) async fn serve(socket: UdpSocket, mut handler: Handler) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; BUFFER];
    let mut control = nix::cmsg_space!(in6_pktinfo, in_pktinfo);
    loop {
        let received = socket
            .async_io(Interest::READABLE, || {
                receive(socket.as_fd().as_raw_fd(), &mut buffer, &mut control)
            })
            .await;
        let (length, source, local) = match received {
            Ok(Some(received)) => received,
            Ok(None) => continue,
            Err(error) => {
                // Such as the refusal of a client to take a reply.
                debug!(%error, "receive a datagram");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let packet = buffer.get(..length).unwrap_or_default();
        let step = panics::contain_sync(|| handler.handle(packet, source, Transport::Udp));
        match step {
            Ok(Step::Reply(bytes)) => send(&socket, &bytes, source, local).await,
            Ok(Step::Wait(waiting)) => {
                // As many as the forwarder admits.
                let socket = Arc::clone(&socket);
                tokio::spawn(panics::contain(async move {
                    let bytes = waiting.reply().await;
                    send(&socket, &bytes, source, local).await;
                }));
            }
            Ok(Step::Ignore) => {}
            Err(_) => handler.panicked(),
        }
    }
}

/// `None`: the sender has no address.
fn receive(
    socket: RawFd,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<Option<(usize, SocketAddr, Option<Local>)>> {
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(socket, &mut parts, Some(control), MsgFlags::empty())?;
    let local = message.cmsgs().ok().and_then(|mut all| {
        all.find_map(|one| match one {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(Local::V4(info)),
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(Local::V6(info)),
            _ => None,
        })
    });
    let source = message.address.as_ref().and_then(|address| {
        let v4 = address.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
    });
    // Nothing can be sent to port 0.
    let source = source.filter(|source| source.port() != 0);
    Ok(source.map(|source| (message.bytes, source, local)))
}

async fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddr, local: Option<Local>) {
    let sent = socket
        .async_io(Interest::WRITABLE, || transmit(socket.as_raw_fd(), bytes, to, local))
        .await;
    if let Err(error) = sent {
        debug!(%error, %to, "send a datagram");
    }
}

fn transmit(socket: RawFd, bytes: &[u8], to: SocketAddr, local: Option<Local>) -> io::Result<()> {
    let parts = [IoSlice::new(bytes)];
    let to = SockaddrStorage::from(to);
    let flags = MsgFlags::empty();
    match local {
        Some(Local::V4(info)) => {
            let from = in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: info.ipi_addr,
                ipi_addr: in_addr { s_addr: 0 },
            };
            sendmsg(socket, &parts, &[ControlMessage::Ipv4PacketInfo(&from)], flags, Some(&to))?;
        }
        Some(Local::V6(info)) => {
            // The address alone says little where it is of one link.
            let is_of_link = is_link_local(&info.ipi6_addr);
            let from = in6_pktinfo {
                ipi6_addr: info.ipi6_addr,
                ipi6_ifindex: if is_of_link { info.ipi6_ifindex } else { 0 },
            };
            sendmsg(socket, &parts, &[ControlMessage::Ipv6PacketInfo(&from)], flags, Some(&to))?;
        }
        None => {
            sendmsg(socket, &parts, &[], flags, Some(&to))?;
        }
    }
    Ok(())
}

fn is_link_local(address: &in6_addr) -> bool {
    let address = IpAddr::V6(Ipv6Addr::from(address.s6_addr));
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
