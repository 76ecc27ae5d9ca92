//! A question to netfilter over netlink and the kernel's answers, for `conntrack` and for the
//! look-out of `apply`.

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use crate::Family;

/// `NETLINK_NETFILTER`.
const NETFILTER: isize = 12;
/// The most that the kernel gives in one go.
const BUFFER: usize = 32 << 10;

/// A socket for questions. When a question was given up, its answers are passed over.
pub(crate) struct Netfilter {
    socket: TokioSocket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Netfilter {
    /// In the network namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETFILTER)?;
        socket.socket_mut().bind_auto()?;
        socket.socket_ref().connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER), sequence: 0 })
    }

    /// Ask, with `NLM_F_DUMP` or `NLM_F_ACK` among the flags (they tell where answers end), and
    /// see each answer. The kernel's refusal is an error with its number.
    pub(crate) async fn ask(
        &mut self,
        family: Family,
        flags: u16,
        question: impl Into<NetfilterMessageInner>,
        mut each: impl FnMut(NetfilterMessageInner),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let family = match family {
            Family::V4 => NetfilterProtoFamily::IPv4,
            Family::V6 => NetfilterProtoFamily::IPv6,
        };
        let question = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), question);
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes).await?;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer).await?;
            if read(&self.buffer, self.sequence, &mut each)? {
                return Ok(());
            }
        }
    }
}

/// Passes the answers in one datagram on; whether it held the last one.
fn read(
    mut bytes: &[u8],
    sequence: u32,
    each: &mut impl FnMut(NetfilterMessageInner),
) -> io::Result<bool> {
    while !bytes.is_empty() {
        let message = NetlinkMessage::<NetfilterMessage>::deserialize(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        bytes = bytes.get(length..).unwrap_or_default();
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::InnerMessage(answer) => each(answer.inner),
            NetlinkPayload::Done(done) => return verdict(done.code).map(|()| true),
            NetlinkPayload::Error(error) => {
                return verdict(error.code.map_or(0, |code| code.get())).map(|()| true);
            }
            _ => {}
        }
    }
    Ok(false)
}

/// A code of the kernel: 0, or an error number below it.
fn verdict(code: i32) -> io::Result<()> {
    if code < 0 { Err(io::Error::from_raw_os_error(code.saturating_neg())) } else { Ok(()) }
}

/// Word from a multicast group of netfilter that something changed. What, is not told: who hears
/// of a change looks.
pub(crate) struct Changes(TokioSocket);

impl Changes {
    /// In the network namespace of the calling thread.
    pub(crate) fn of(group: u32) -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETFILTER)?;
        socket.socket_mut().bind_auto()?;
        // What does not fit into the socket's buffer is one more sign of what it is full of.
        socket.socket_ref().set_no_enobufs(true)?;
        socket.socket_ref().add_membership(group)?;
        Ok(Self(socket))
    }

    /// Waits for a change.
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        // Only that there is a message counts, so the kernel need not copy it.
        self.0.recv(&mut &mut [0; 4][..]).await
    }
}
