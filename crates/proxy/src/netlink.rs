//! Requests to netfilter over netlink and the kernel's replies, for `conntrack`, for
//! `accounting` and for the flush detection of `apply`.

use std::io;

use longshore_netlink::{Attribute, BUFFER, NLM_F_ACK, Subheader, replies, request};
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use crate::Family;

/// `NETLINK_NETFILTER`.
const NETFILTER: isize = 12;
/// Subsystems of netfilter: the upper half of a message's type.
pub(crate) const CONNTRACK: u16 = 1 << 8;
pub(crate) const ACCOUNTING: u16 = 7 << 8;
pub(crate) const NFTABLES: u16 = 10 << 8;

/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

/// A socket for requests. Replies to abandoned requests are skipped.
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

    /// Ask, with `NLM_F_DUMP` or `NLM_F_ACK` among the flags (they mark where replies end), and
    /// see the attributes of each answer. The kernel's refusal is an error with its number.
    pub(crate) async fn request(
        &mut self,
        family: Family,
        message: u16,
        flags: u16,
        request: &[Attribute],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = self.message(Some(family), message, flags, 0, request);
        self.socket.send(&bytes).await?;
        self.replies(&mut each).await
    }

    /// Have nftables make one change, which it takes in a transaction alone. The kernel's refusal
    /// is an error with its number.
    pub(crate) async fn change(
        &mut self,
        family: Family,
        message: u16,
        change: &[Attribute],
    ) -> io::Result<()> {
        // All with one sequence number: the error for lack of permission comes with the first.
        self.sequence = self.sequence.wrapping_add(1);
        let subsystem = NFTABLES >> 8;
        let bytes = [
            self.message(None, BATCH_BEGIN, 0, subsystem, &[]),
            self.message(Some(family), message, NLM_F_ACK, 0, change),
            self.message(None, BATCH_END, 0, subsystem, &[]),
        ]
        .concat();
        self.socket.send(&bytes).await?;
        self.replies(&mut |_| ()).await
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
        let family = match family {
            None => 0,
            Some(Family::V4) => 2,
            Some(Family::V6) => 10,
        };
        let [high, low] = resource.to_be_bytes();
        request(message, flags, self.sequence, [family, 0, high, low], attributes)
    }

    /// Reads the replies with the current sequence number.
    async fn replies(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<()> {
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer).await?;
            let mut each = |_: &Subheader<4>, attributes: &[u8]| each(attributes);
            if replies(&self.buffer, self.sequence, &mut each)? {
                return Ok(());
            }
        }
    }
}

/// A notification from a multicast group of netfilter that something changed, without what: who hears
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
