//! Pure: netlink requests to the kernel, and its replies. Attributes are written by hand: the crates
//! for netfilter and for network devices have no way to write one that nests others unless they know
//! it, and know nothing of conntrack's filter or of the statistics of all devices at once.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

use std::io;

use netlink_packet_core::{
    Emitable, NLA_HEADER_SIZE, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, Nla,
    NlasIterator,
};

/// Flags of requests, which mark where their replies end.
pub use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP};

/// The buffer size for replies: the most that the kernel sends in one datagram.
pub const BUFFER: usize = 32 << 10;
/// The header of a message.
const HEADER: usize = 16;

/// An attribute of a request: its type and its payload.
#[derive(Debug)]
pub enum Attribute {
    /// Bytes.
    Bytes(u16, Vec<u8>),
    /// Attributes.
    Nest(u16, Vec<Self>),
}

impl Attribute {
    /// With the terminating zero that the kernel expects.
    pub fn text(kind: u16, text: &str) -> Self {
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

/// The family-specific header before the attributes.
pub type Subheader<const N: usize> = [u8; N];

/// A request of that type, with the sequence number of its replies.
pub fn request<const N: usize>(
    kind: u16,
    flags: u16,
    sequence: u32,
    subheader: Subheader<N>,
    attributes: &[Attribute],
) -> Vec<u8> {
    let length = HEADER + N + attributes.buffer_len();
    let mut bytes = vec![0; length];
    let mut header = NetlinkBuffer::new(&mut bytes);
    header.set_length(length as u32);
    header.set_message_type(kind);
    header.set_flags(NLM_F_REQUEST | flags);
    header.set_sequence_number(sequence);
    bytes[HEADER..HEADER + N].copy_from_slice(&subheader);
    attributes.emit(&mut bytes[HEADER + N..]);
    bytes
}

/// Passes on the replies with that sequence number in one datagram: subheaders of `N` bytes and
/// attributes. Returns whether the last one was among them; the kernel's errors are errors with their
/// errno.
pub fn replies<const N: usize>(
    mut bytes: &[u8],
    sequence: u32,
    each: &mut impl FnMut(&Subheader<N>, &[u8]),
) -> io::Result<bool> {
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
            NLMSG_DONE | NLMSG_ERROR => return ack_result(payload).map(|()| true),
            _ => {
                let (subheader, attributes) =
                    payload.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
                each(subheader, attributes);
            }
        }
    }
    Ok(false)
}

/// The result in an ack: 0 or a negative errno.
fn ack_result(payload: &[u8]) -> io::Result<()> {
    match payload.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        Some(code) if code < 0 => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        Some(_) => Ok(()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The attributes of a reply or of a nested attribute, up to the first invalid one.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(|it| {
        let it = it.ok()?;
        let (kind, length) = (it.kind(), it.length());
        Some((kind, it.into_inner().get(NLA_HEADER_SIZE..length.into())?))
    })
}

/// The payload of the first attribute of that type.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(it, _)| *it == kind).map(|(_, value)| value)
}

#[cfg(test)]
mod tests;
