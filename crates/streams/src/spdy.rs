//! Frames of SPDY/3.1, and the part of it that a client of streams needs: it opens them, sends and
//! receives data.
//!
//! Streaming servers have no flow control windows, so neither does this client. Header blocks are
//! sent as a zlib stream of stored blocks, which every decoder can read, and received ones are
//! skipped: a reply is all that matters.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::Error;

/// Maximum size of data that is passed on or sent at once.
pub(crate) const PIECE: usize = 32 << 10;
/// Limit of control frames; those of streaming servers and their clients are far smaller.
pub(crate) const MAX_CONTROL: usize = 64 << 10;

const CONTROL: u32 = 1 << 31;
const VERSION: u32 = 3 << 16;
pub(crate) const SYN_STREAM: u32 = 1;
pub(crate) const SYN_REPLY: u32 = 2;
pub(crate) const RST_STREAM: u32 = 3;
pub(crate) const SETTINGS: u32 = 4;
pub(crate) const PING: u32 = 6;
pub(crate) const GOAWAY: u32 = 7;
pub(crate) const HEADERS: u32 = 8;
pub(crate) const WINDOW_UPDATE: u32 = 9;
const FIN: u32 = 1;

/// A frame of either side; one with data may be a part of that which was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Data(Data),
    Control(Control),
}

/// Data of a stream, at most [`PIECE`] bytes; after the last of a stream, there is no more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) stream: u32,
    pub(crate) bytes: Bytes,
    pub(crate) last: bool,
}

/// A control frame of version 3.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) body: Bytes,
}

impl Control {
    /// As it is sent.
    pub(crate) fn encoded(&self) -> Bytes {
        let mut frame = BytesMut::new();
        frame.put_u32(CONTROL | VERSION | self.kind);
        frame.put_u32(self.flags << 24 | self.body.len() as u32);
        frame.put_slice(&self.body);
        frame.freeze()
    }
}

/// A frame of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The stream is accepted.
    Reply { stream: u32 },
    /// Data.
    Data(Data),
    /// The stream is reset.
    Reset { stream: u32 },
    /// Must be sent back.
    Ping { id: u32 },
}

/// Reads frames.
pub(crate) struct Reader<R> {
    io: R,
    /// The rest of a data frame: its stream, its size, and whether it is the last.
    data: Option<(u32, usize, bool)>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, data: None }
    }

    /// What the frames are read from.
    pub(crate) fn into_inner(self) -> R {
        self.io
    }

    /// The next relevant frame of a server; `None` at the end of the connection. Not cancellation
    /// safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            let (kind, mut body) = match self.part().await? {
                None => return Ok(None),
                Some(Part::Data(data)) => return Ok(Some(Frame::Data(data))),
                Some(Part::Control(Control { kind, body, .. })) => (kind, body),
            };
            if !matches!(kind, SYN_REPLY | RST_STREAM | PING) {
                continue;
            }
            let id = body.try_get_u32().map_err(|_| Error::Spdy("a control frame is too short"))?;
            return Ok(Some(match kind {
                SYN_REPLY => Frame::Reply { stream: id },
                RST_STREAM => Frame::Reset { stream: id },
                _ => Frame::Ping { id },
            }));
        }
    }

    /// The next frame or part of one; `None` at the end of the connection. Not cancellation safe.
    pub(crate) async fn part(&mut self) -> Result<Option<Part>, Error> {
        if let Some((stream, left, last)) = self.data.take() {
            return self.piece(stream, left, last).await.map(Some);
        }
        let mut head = [0; 8];
        if self.io.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        self.io.read_exact(&mut head[1..]).await?;
        let (mut first, mut second) = (&head[..4], &head[4..]);
        let (first, second) = (first.get_u32(), second.get_u32());
        let (flags, length) = (second >> 24, (second & 0x00ff_ffff) as usize);
        if first & CONTROL == 0 {
            return self.piece(first, length, flags & FIN != 0).await.map(Some);
        }
        if first & 0x7fff_0000 != VERSION {
            return Err(Error::Spdy("a control frame is not of version 3"));
        }
        if length > MAX_CONTROL {
            return Err(Error::Spdy("a control frame is too long"));
        }
        let mut body = BytesMut::zeroed(length);
        self.io.read_exact(&mut body).await?;
        Ok(Some(Part::Control(Control { kind: first & 0xffff, flags, body: body.freeze() })))
    }

    async fn piece(&mut self, stream: u32, left: usize, last: bool) -> Result<Part, Error> {
        let mut bytes = BytesMut::with_capacity(left.min(PIECE));
        let most = bytes.capacity().min(left).min(PIECE);
        let mut part = (&mut self.io).take(most as u64);
        if left > 0 && part.read_buf(&mut bytes).await? == 0 {
            return Err(Error::Spdy("the connection was closed within a frame"));
        }
        let left = left - bytes.len();
        if left > 0 {
            self.data = Some((stream, left, last));
        }
        Ok(Part::Data(Data { stream, bytes: bytes.freeze(), last: last && left == 0 }))
    }
}

/// Opens streams: the headers of all of them are one zlib stream.
#[derive(Default)]
pub(crate) struct Opener {
    opened: u32,
}

impl Opener {
    /// The next stream's id, and the frame that opens it with one header.
    pub(crate) fn open(&mut self, name: &str, value: &str) -> (u32, Bytes) {
        let id = self.opened * 2 + 1;
        let mut block = BytesMut::new();
        block.put_u32(1);
        for text in [name, value] {
            block.put_u32(text.len() as u32);
            block.put_slice(text.as_bytes());
        }
        let mut body = BytesMut::new();
        body.put_u32(id);
        body.put_u32(0); // no associated stream
        body.put_u16(0); // priority and slot
        if self.opened == 0 {
            body.put_slice(&[0x78, 0x01]); // zlib, no preset dictionary
        }
        stored(&mut body, &block);
        stored(&mut body, &[]); // flushes the block
        self.opened += 1;
        let frame = Control { kind: SYN_STREAM, flags: 0, body: body.freeze() };
        (id, frame.encoded())
    }
}

/// A stored (uncompressed) block of a deflate stream.
fn stored(out: &mut BytesMut, bytes: &[u8]) {
    let length = bytes.len() as u16;
    out.put_u8(0);
    out.put_u16_le(length);
    out.put_u16_le(!length);
    out.put_slice(bytes);
}

/// The header of a data frame with that many bytes, at most [`PIECE`].
pub(crate) fn data(stream: u32, length: usize, last: bool) -> [u8; 8] {
    let mut head = [0; 8];
    head[..4].copy_from_slice(&stream.to_be_bytes());
    head[4..].copy_from_slice(&(u32::from(last) << 24 | length as u32).to_be_bytes());
    head
}

/// A ping, or its reply.
pub(crate) fn ping(id: u32) -> [u8; 12] {
    let mut frame = [0; 12];
    frame[..4].copy_from_slice(&(CONTROL | VERSION | PING).to_be_bytes());
    frame[4..8].copy_from_slice(&4u32.to_be_bytes());
    frame[8..].copy_from_slice(&id.to_be_bytes());
    frame
}
