//! Frames of SPDY/3.1, and the parts of it that clients and servers of streams need: those open them,
//! these accept them, and both send and receive data.
//!
//! Streaming servers and their clients have no flow control windows, so there are none here. Header
//! blocks are sent as a zlib stream of stored blocks, which every decoder can read.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::Error;
use crate::header_blocks::MAX_BLOCK;
pub use crate::header_blocks::{HeaderBlocks, Headers};

/// The protocol's name in upgrades.
pub const PROTOCOL: &str = "SPDY/3.1";
/// Maximum size of data that is passed on or sent at once.
pub const PIECE: usize = 32 << 10;
/// Limit of control frames; those of streaming servers and their clients are far smaller.
pub const MAX_CONTROL: usize = MAX_BLOCK;

const CONTROL: u32 = 1 << 31;
const VERSION: u32 = 3 << 16;
/// Opens a stream.
pub const SYN_STREAM: u32 = 1;
/// Accepts a stream.
pub const SYN_REPLY: u32 = 2;
/// Ends a stream in both directions.
pub const RST_STREAM: u32 = 3;
/// Settings.
pub const SETTINGS: u32 = 4;
/// Must be sent back by the other side.
pub const PING: u32 = 6;
/// The sender takes no more streams.
pub const GOAWAY: u32 = 7;
/// More headers of a stream.
pub const HEADERS: u32 = 8;
/// Flow control.
pub const WINDOW_UPDATE: u32 = 9;
/// The sender sends no more data on the stream.
pub const FIN: u32 = 1;

/// A frame of either side; one with data may be a part of that which was sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// Data.
    Data(Data),
    /// Anything else.
    Control(Control),
}

/// Data of a stream, at most [`PIECE`] bytes; after the last of a stream, there is no more.
#[derive(Debug, PartialEq, Eq)]
pub struct Data {
    /// The stream's id.
    pub stream: u32,
    /// The data.
    pub bytes: Bytes,
    /// Whether it is the last of its sender.
    pub last: bool,
}

/// A control frame of version 3.
#[derive(Debug, PartialEq, Eq)]
pub struct Control {
    /// Its type.
    pub kind: u32,
    /// Its flags.
    pub flags: u32,
    /// What follows.
    pub body: Bytes,
}

impl Control {
    /// As it is sent.
    #[must_use]
    pub fn encoded(&self) -> Bytes {
        let mut frame = BytesMut::new();
        frame.put_u32(CONTROL | VERSION | self.kind);
        frame.put_u32(self.flags << 24 | self.body.len() as u32);
        frame.put_slice(&self.body);
        frame.freeze()
    }
}

/// A frame of a server.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// The stream is accepted.
    Reply {
        /// Its id.
        stream: u32,
    },
    /// Data.
    Data(Data),
    /// The stream is reset.
    Reset {
        /// Its id.
        stream: u32,
    },
    /// Must be sent back.
    Ping {
        /// Its id.
        id: u32,
    },
}

/// Reads frames.
pub struct Reader<R> {
    io: R,
    /// The rest of a data frame: its stream, its size, and whether it is the last.
    data: Option<(u32, usize, bool)>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from there.
    pub fn new(io: R) -> Self {
        Self { io, data: None }
    }

    /// What the frames are read from.
    pub(crate) fn into_inner(self) -> R {
        self.io
    }

    /// The next relevant frame of a server; `None` at the end of the connection. Not cancellation
    /// safe.
    ///
    /// # Errors
    /// When the connection fails, and at an invalid frame.
    pub async fn next(&mut self) -> Result<Option<Frame>, Error> {
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
    ///
    /// # Errors
    /// When the connection fails, and at a control frame that is too long or of another version.
    pub async fn part(&mut self) -> Result<Option<Part>, Error> {
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

/// Checks that the frame's length is what its kind and its counts say, and returns its headers.
///
/// # Errors
/// When it is not; no further frame can be checked then.
pub fn check(frame: &Control, headers: &mut HeaderBlocks) -> Result<Headers, Error> {
    const SETTING: usize = 8;
    let mut body = &frame.body[..];
    let is_length_valid = match frame.kind {
        SYN_STREAM => return headers.read(body.get(10..).ok_or(TOO_SHORT)?),
        SYN_REPLY | HEADERS => return headers.read(body.get(4..).ok_or(TOO_SHORT)?),
        SETTINGS => {
            let count = body.try_get_u32().map_err(|_| TOO_SHORT)? as usize;
            count.checked_mul(SETTING) == Some(body.len())
        }
        RST_STREAM | GOAWAY | WINDOW_UPDATE => body.len() == 8,
        PING => body.len() == 4,
        _ => return Err(Error::Spdy("a control frame is of no known kind")),
    };
    match is_length_valid {
        true => Ok(Headers::default()),
        false => Err(Error::Spdy("a control frame has another length than it counts")),
    }
}

const TOO_SHORT: Error = Error::Spdy("a control frame is too short");

/// Opens streams.
#[derive(Default)]
pub struct Opener {
    opened: u32,
    headers: HeaderWriter,
}

impl Opener {
    /// The next stream's id, and the frame that opens it with these headers, which are a few and short.
    pub fn open(&mut self, headers: &[(&str, &str)]) -> (u32, Bytes) {
        let id = self.opened * 2 + 1;
        self.opened += 1;
        let mut body = BytesMut::new();
        body.put_u32(id);
        body.put_u32(0); // no associated stream
        body.put_u16(0); // priority and slot
        self.headers.write(&mut body, headers);
        let frame = Control { kind: SYN_STREAM, flags: 0, body: body.freeze() };
        (id, frame.encoded())
    }
}

/// Accepts streams.
#[derive(Default)]
pub struct Acceptor {
    headers: HeaderWriter,
}

impl Acceptor {
    /// The frame that accepts the stream.
    pub fn accept(&mut self, stream: u32) -> Bytes {
        let mut body = BytesMut::new();
        body.put_u32(stream);
        self.headers.write(&mut body, &[]);
        Control { kind: SYN_REPLY, flags: 0, body: body.freeze() }.encoded()
    }
}

/// Writes header blocks: those of one direction are one zlib stream.
#[derive(Default)]
struct HeaderWriter {
    begun: bool,
}

impl HeaderWriter {
    fn write(&mut self, out: &mut BytesMut, headers: &[(&str, &str)]) {
        let mut block = BytesMut::new();
        block.put_u32(headers.len() as u32);
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.put_u32(text.len() as u32);
            block.put_slice(text.as_bytes());
        }
        if !std::mem::replace(&mut self.begun, true) {
            out.put_slice(&[0x78, 0x01]); // zlib, no preset dictionary
        }
        stored(out, &block);
        stored(out, &[]); // flushes the block
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
#[must_use]
pub fn data(stream: u32, length: usize, last: bool) -> [u8; 8] {
    let mut head = [0; 8];
    head[..4].copy_from_slice(&stream.to_be_bytes());
    head[4..].copy_from_slice(&(u32::from(last) << 24 | length as u32).to_be_bytes());
    head
}

/// Why a stream is reset: it is not taken.
pub const REFUSED_STREAM: u32 = 3;
/// Why a stream is reset: it is not needed any more.
pub const CANCEL: u32 = 5;

/// The frame that resets a stream.
#[must_use]
pub fn reset(stream: u32, reason: u32) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u32(stream);
    body.put_u32(reason);
    Control { kind: RST_STREAM, flags: 0, body: body.freeze() }.encoded()
}

/// A ping, or its reply.
#[must_use]
pub fn ping(id: u32) -> [u8; 12] {
    let mut frame = [0; 12];
    frame[..4].copy_from_slice(&(CONTROL | VERSION | PING).to_be_bytes());
    frame[4..8].copy_from_slice(&4u32.to_be_bytes());
    frame[8..].copy_from_slice(&id.to_be_bytes());
    frame
}
