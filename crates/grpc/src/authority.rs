//! Requests of clients in Go that have dialled the path of a socket.
//!
//! grpc-go makes a target like `/var/lib/kubelet/device-plugins/kubelet.sock` the `:authority` of its requests, with `%2F`
//! for each slash (`encodeAuthority`): device plugins and readers of PodResources do so. RFC 3986 allows that, the crate
//! http does not, and h2 refuses such a request with PROTOCOL_ERROR before anybody sees it. So what is read from a
//! connection passes through [`Tolerant`], which puts `-` for `%` in the authority. Nobody looks at it: there is one
//! server at a socket. In HPACK (RFC 7541) both have the same length, so that nothing else changes, and what later
//! requests refer to by its index is the changed value too.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// What a client sends first: `PRI * HTTP/2.0` and so on.
const PREFACE: usize = 24;
/// The head of a frame: length, type, flags, stream.
const HEAD: usize = 9;
/// The largest frame that a server takes which has not said otherwise.
const MAX_FRAME: usize = 16 << 10;
/// The index of `:authority` in the table that all have.
const AUTHORITY: usize = 1;
/// How much is read at once.
const READ: usize = 8 << 10;
/// The type of a frame that begins a request.
const HEADERS: u8 = 1;
/// Flags of such a frame.
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// How many codes of Huffman's each length has, from 5 bits to 30 (RFC 7541, appendix B).
const CODES: [u32; 26] =
    [10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4];
const SHORTEST: usize = 5;
/// The codes of `%` and `-`, of six bits.
const PERCENT: u32 = 0x15;
const DASH: u32 = 0x16;

/// What is read from a connection whose requests may have a percent sign in their authority.
#[derive(Debug)]
pub(crate) struct Tolerant<S> {
    stream: S,
    scanner: Scanner,
    /// What came last from the stream.
    read: Box<[u8]>,
    /// What has been looked at, and how much of it has been passed on.
    scanned: Vec<u8>,
    passed: usize,
}

impl<S> Tolerant<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            scanner: Scanner { plain: PREFACE, held: Vec::new() },
            read: vec![0; READ].into(),
            scanned: Vec::new(),
            passed: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tolerant<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let ready = this.scanned.get(this.passed..).unwrap_or_default();
            if !ready.is_empty() || buffer.remaining() == 0 {
                let (part, _) = ready.split_at(ready.len().min(buffer.remaining()));
                buffer.put_slice(part);
                this.passed = this.passed.saturating_add(part.len());
                return Poll::Ready(Ok(()));
            }
            this.scanned.clear();
            this.passed = 0;
            let mut read = ReadBuf::new(&mut this.read);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            let read = read.filled();
            if read.is_empty() {
                // The end, perhaps in the middle of a frame.
                this.scanned.append(&mut this.scanner.held);
                if this.scanned.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            this.scanner.scan(read, &mut this.scanned);
        }
    }
}

/// What is known of the frame that is being read.
#[derive(Debug)]
struct Scanner {
    /// Bytes that are passed on as they come.
    plain: usize,
    /// The beginning of a frame: of its head, or of one with headers all that is there.
    held: Vec<u8>,
}

impl Scanner {
    /// Passes bytes on, with other authorities. At most one frame is held back.
    fn scan(&mut self, mut bytes: &[u8], scanned: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let part = if self.plain > 0 { self.plain } else { self.missing() };
            let (part, rest) = bytes.split_at(part.min(bytes.len()));
            bytes = rest;
            if self.plain > 0 {
                self.plain = self.plain.saturating_sub(part.len());
                scanned.extend_from_slice(part);
                continue;
            }
            self.held.extend_from_slice(part);
            if self.missing() > 0 {
                continue;
            }
            let (head, payload) = self.held.split_at_mut(HEAD);
            if payload.is_empty() {
                self.plain = length(head);
            } else if let Some(block) = block(head[4], payload) {
                replace(block);
            }
            scanned.append(&mut self.held);
        }
    }

    /// How many bytes `held` lacks.
    fn missing(&self) -> usize {
        let wanted = match self.held.get(..HEAD) {
            Some(head) if head[3] == HEADERS && length(head) <= MAX_FRAME => {
                HEAD.saturating_add(length(head))
            }
            _ => HEAD,
        };
        wanted.saturating_sub(self.held.len())
    }
}

/// How long a frame is, without its head.
fn length(head: &[u8]) -> usize {
    head.iter().take(3).fold(0, |length, byte| length << 8 | usize::from(*byte))
}

/// The headers in a frame, with padding that may follow them.
fn block(flags: u8, mut payload: &mut [u8]) -> Option<&mut [u8]> {
    if flags & PADDED != 0 {
        payload = payload.get_mut(1..)?;
    }
    if flags & PRIORITY != 0 {
        payload = payload.get_mut(5..)?;
    }
    Some(payload)
}

/// Replaces the percent signs of the authority in a block of headers. In one that is no HPACK, or goes on in another
/// frame, nothing is changed from there on.
fn replace(block: &mut [u8]) {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        // An indexed field; a literal that is indexed; another size of the table; a literal that is not.
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let Some(index) = integer(block, &mut at, prefix) else { return };
        if !is_literal {
            continue;
        }
        if index == 0 && string(block, &mut at).is_none() {
            return;
        }
        let Some((is_huffman, value)) = string(block, &mut at) else { return };
        if index == AUTHORITY
            && let Some(value) = block.get_mut(value)
        {
            if is_huffman {
                replace_coded(value);
            } else {
                value.iter_mut().filter(|byte| **byte == b'%').for_each(|byte| *byte = b'-');
            }
        }
    }
}

/// Reads an integer whose first byte has this many bits of it.
fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let mask = (1_usize << prefix).checked_sub(1)?;
    let mut next = || {
        let byte = usize::from(*block.get(*at)?);
        *at = at.checked_add(1)?;
        Some(byte)
    };
    let mut value = next()? & mask;
    if value < mask {
        return Some(value);
    }
    // Nothing in a frame needs more.
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        value = value.checked_add((byte & 0x7f) << shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Steps over a string; whether it is coded, and where its bytes are.
fn string(block: &[u8], at: &mut usize) -> Option<(bool, Range<usize>)> {
    let is_huffman = block.get(*at)? & 0x80 != 0;
    let length = integer(block, at, 7)?;
    let range = *at..at.checked_add(length)?;
    *at = range.end;
    (range.end <= block.len()).then_some((is_huffman, range))
}

/// Replaces the percent signs of a string in Huffman's code.
fn replace_coded(value: &mut [u8]) {
    let bits = value.len().saturating_mul(8);
    let mut start = 0;
    while let Some((code, length)) = symbol(value, start) {
        if (code, length) == (PERCENT, 6) {
            for bit in 0..6 {
                let at: usize = start.saturating_add(bit);
                let Some(byte) = value.get_mut(at / 8) else { return };
                let mask = 0x80_u8 >> (at % 8);
                let is_set = DASH >> 5_usize.saturating_sub(bit) & 1 == 1;
                *byte = if is_set { *byte | mask } else { *byte & !mask };
            }
        }
        start = start.saturating_add(length);
        if start >= bits {
            return;
        }
    }
}

/// The code that begins at this bit, and its length. Codes of one length are consecutive numbers, and follow those that
/// are shorter.
fn symbol(value: &[u8], start: usize) -> Option<(u32, usize)> {
    let mut code = 0_u32;
    let mut first = 0_u32;
    for length in 1..=30_usize {
        let at = start.checked_add(length)?.checked_sub(1)?;
        let bit = *value.get(at / 8)? >> (7_usize.saturating_sub(at % 8)) & 1;
        code = code << 1 | u32::from(bit);
        first <<= 1;
        let codes = length.checked_sub(SHORTEST).and_then(|index| CODES.get(index)).copied();
        let end = first.checked_add(codes.unwrap_or_default())?;
        if code < end {
            return Some((code, length));
        }
        first = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// What grpc-go's encoder makes of a request, and of a second one on the same connection.
    const REQUEST: &str = "8386458d61254257dc5b3b988562f0e8a341a754587b8ec545868346a8b0f5b632d054aa2c3217b98855aba2d98d\
        5215161eb6c65a0a95d072755f8b1d75d0620d263d4c4d65647a8a9acac8b4c7602bbadae040027465864d833505b11f";
    const SECOND: &str = "8386c2c1c0bfbe";
    /// `%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fkubelet.sock`, and the same with `-`, as grpc-go's encoder has them.
    const PATH: &str =
        "54587b8ec545868346a8b0f5b632d054aa2c3217b98855aba2d98d5215161eb6c65a0a95d07275";
    const REPLACED: &str =
        "58587b8ec585868346b0b0f5b632d054ac2c3217b98855aba2d98d5216161eb6c65a0a95d07275";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }

    fn preface() -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        bytes
    }

    fn scan(bytes: &[u8], chunk: usize) -> Vec<u8> {
        let mut scanner = Scanner { plain: PREFACE, held: Vec::new() };
        let mut scanned = Vec::new();
        bytes.chunks(chunk).for_each(|part| scanner.scan(part, &mut scanned));
        scanned.append(&mut scanner.held);
        scanned
    }

    #[test]
    fn percent_signs_of_the_authority_are_replaced_and_nothing_else() {
        let request = |authority: &str| {
            let block = bytes(&REQUEST.replace(['\\', ' ', '\n'], "").replace(PATH, authority));
            let mut padded = vec![3, 0, 0, 0, 0, 16];
            padded.extend_from_slice(&block);
            padded.extend_from_slice(&[0; 3]);
            let mut all = preface();
            all.extend(frame(HEADERS, 4, 1, &block));
            all.extend(frame(0, 1, 1, b"%2F%2F"));
            all.extend(frame(HEADERS, 4, 3, &bytes(SECOND)));
            all.extend(frame(HEADERS, 4 | PADDED | PRIORITY, 5, &padded));
            // Not coded, and neither indexed.
            all.extend(frame(HEADERS, 4, 7, b"\x01\x04%2Fx\x00\x01%\x01%"));
            all
        };
        let expected = {
            let mut bytes = request(REPLACED);
            let plain = memchr(&bytes, b"%2Fx");
            bytes[plain] = b'-';
            bytes
        };
        for chunk in [1, 2, 7, 64, 10_000] {
            assert_eq!(scan(&request(PATH), chunk), expected, "{chunk}");
        }
    }

    fn memchr(bytes: &[u8], part: &[u8]) -> usize {
        bytes.windows(part.len()).position(|window| window == part).unwrap()
    }

    #[test]
    fn codes_are_those_of_the_rfc() {
        assert_eq!(CODES.iter().sum::<u32>(), 257);
        // '0' is the first of five bits, EOS the last of thirty; '%' is 010101, 'X' 11111100, '!' 1111111000.
        for (bits, expected) in [
            (&[0x00][..], (0, 5)),
            (&[0x54], (PERCENT, 6)),
            (&[0xfc], (0xfc, 8)),
            (&[0xfe, 0x00], (0x3f8, 10)),
            (&[0xff, 0xff, 0xff, 0xff], (0x3fff_ffff, 30)),
        ] {
            assert_eq!(symbol(bits, 0), Some(expected), "{bits:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_passed_on(noise in proptest::collection::vec(any::<u8>(), 0..400), chunk in 1_usize..50) {
            let mut all = preface();
            all.extend(&noise);
            let whole = scan(&all, all.len());
            prop_assert_eq!(whole.len(), all.len());
            prop_assert_eq!(scan(&all, chunk), whole);
            let mut block = noise.clone();
            replace(&mut block);
            replace_coded(&mut block);
        }
    }

    #[tokio::test]
    async fn request_of_a_client_in_go_is_answered() {
        let folder =
            std::env::temp_dir().join(format!("longshore-authority-{}", std::process::id()));
        let _ = std::fs::remove_file(&folder);
        let listener = tokio::net::UnixListener::bind(&folder).unwrap();
        let service =
            hyper::service::service_fn(async |_: hyper::Request<hyper::body::Incoming>| {
                Ok::<_, std::convert::Infallible>(hyper::Response::new("answer".to_owned()))
            });
        let _server = crate::Server::serve(listener, service);
        let mut client = tokio::net::UnixStream::connect(&folder).await.unwrap();
        std::fs::remove_file(&folder).unwrap();
        let mut request = preface();
        let block = bytes(&REQUEST.replace(['\\', ' ', '\n'], ""));
        request.extend(frame(HEADERS, 5, 1, &block));
        request.extend(frame(HEADERS, 5, 3, &bytes(SECOND)));
        client.write_all(&request).await.unwrap();
        let mut answers = 0;
        while answers < 2 {
            let mut head = [0; HEAD];
            client.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; length(&head)];
            client.read_exact(&mut payload).await.unwrap();
            assert_ne!(head[3], 3, "RST_STREAM");
            answers += usize::from(head[3] == 0 && payload == b"answer");
        }
    }
}
