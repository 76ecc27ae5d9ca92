//! A question to netfilter over netlink and the kernel's answers, for `conntrack`, for
//! `accounting` and for the look-out of `apply`. Attributes go as they are: netlink-packet-netfilter has no way to write one
//! that nests others unless it knows it, and conntrack's filter it does not.

use std::io;

use netlink_packet_core::{
    Emitable, NLA_HEADER_SIZE, NLM_F_ACK, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    Nla, NlasIterator,
};
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use crate::Family;

/// `NETLINK_NETFILTER`.
const NETFILTER: isize = 12;
/// The most that the kernel gives in one go.
const BUFFER: usize = 32 << 10;
/// Sizes of the headers of a message, netlink's and netfilter's.
const HEADER: usize = 16;
const SUBHEADER: usize = 4;

/// Subsystems of netfilter: the upper half of a message's type.
pub(crate) const CONNTRACK: u16 = 1 << 8;
pub(crate) const ACCOUNTING: u16 = 7 << 8;
pub(crate) const NFTABLES: u16 = 10 << 8;

/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

/// An attribute of a question: its kind and what it holds.
#[derive(Debug)]
pub(crate) enum Attribute {
    Bytes(u16, Vec<u8>),
    Nest(u16, Vec<Self>),
}

impl Attribute {
    /// With the zero at the end that the kernel wants.
    pub(crate) fn text(kind: u16, text: &str) -> Self {
        Self::Bytes(kind, text.bytes().chain([0]).collect())
    }
}

impl Nla for Attribute {
    fn value_len(&self) -> usize {
        match self {
            Self::Bytes(_, bytes) => bytes.len(),
            Self::Nest(_, inner) => inner.as_slice().buffer_len(),
        }
    }

    fn kind(&self) -> u16 {
        let (Self::Bytes(kind, _) | Self::Nest(kind, _)) = self;
        *kind
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        match self {
            Self::Bytes(_, bytes) => buffer.copy_from_slice(bytes),
            Self::Nest(_, inner) => inner.as_slice().emit(buffer),
        }
    }

    fn is_nested(&self) -> bool {
        matches!(self, Self::Nest(..))
    }
}

/// The attributes of an answer, or in an attribute of it, up to the first that is none.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(|it| {
        let it = it.ok()?;
        let (kind, length) = (it.kind(), it.length());
        Some((kind, it.into_inner().get(NLA_HEADER_SIZE..length.into())?))
    })
}

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
    /// see the attributes of each answer. The kernel's refusal is an error with its number.
    pub(crate) async fn ask(
        &mut self,
        family: Family,
        message: u16,
        flags: u16,
        question: &[Attribute],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = self.message(Some(family), message, flags, 0, question);
        self.socket.send(&bytes).await?;
        self.answers(&mut each).await
    }

    /// Have nftables make one change, which it takes in a transaction alone. The kernel's refusal
    /// is an error with its number.
    pub(crate) async fn change(
        &mut self,
        family: Family,
        message: u16,
        change: &[Attribute],
    ) -> io::Result<()> {
        // All with one number: who may not change anything is told so of the first.
        self.sequence = self.sequence.wrapping_add(1);
        let subsystem = NFTABLES >> 8;
        let bytes = [
            self.message(None, BATCH_BEGIN, 0, subsystem, &[]),
            self.message(Some(family), message, NLM_F_ACK, 0, change),
            self.message(None, BATCH_END, 0, subsystem, &[]),
        ]
        .concat();
        self.socket.send(&bytes).await?;
        self.answers(&mut |_| ()).await
    }

    /// A message with the number of now.
    fn message(
        &self,
        family: Option<Family>,
        message: u16,
        flags: u16,
        resource: u16,
        attributes: &[Attribute],
    ) -> Vec<u8> {
        let length = HEADER + SUBHEADER + attributes.buffer_len();
        let mut bytes = vec![0; length];
        let mut header = NetlinkBuffer::new(&mut bytes);
        header.set_length(length as u32);
        header.set_message_type(message);
        header.set_flags(NLM_F_REQUEST | flags);
        header.set_sequence_number(self.sequence);
        bytes[HEADER] = match family {
            None => 0,
            Some(Family::V4) => 2,
            Some(Family::V6) => 10,
        };
        bytes[HEADER + 2..HEADER + SUBHEADER].copy_from_slice(&resource.to_be_bytes());
        attributes.emit(&mut bytes[HEADER + SUBHEADER..]);
        bytes
    }

    /// Sees the answers to what has the number of now.
    async fn answers(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<()> {
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer).await?;
            if read(&self.buffer, self.sequence, each)? {
                return Ok(());
            }
        }
    }
}

/// Passes the answers in one datagram on; whether it held the last one.
fn read(mut bytes: &[u8], sequence: u32, each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    while !bytes.is_empty() {
        let message = NetlinkBuffer::new_checked(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        let length = (message.length() as usize).next_multiple_of(4);
        bytes = bytes.get(length..).unwrap_or_default();
        if message.sequence_number() != sequence {
            continue;
        }
        let payload = message.payload();
        match message.message_type() {
            NLMSG_DONE | NLMSG_ERROR => return verdict(payload).map(|()| true),
            _ => each(payload.get(SUBHEADER..).unwrap_or_default()),
        }
    }
    Ok(false)
}

/// How it went: 0, or an error number below it.
fn verdict(payload: &[u8]) -> io::Result<()> {
    match payload.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        Some(code) if code < 0 => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        Some(_) => Ok(()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
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
