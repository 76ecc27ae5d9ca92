//! Header blocks of SPDY/3: those of one direction are one zlib stream with a preset dictionary.

use bytes::{Buf, BufMut};
use flate2::{Decompress, FlushDecompress, Status};

use crate::Error;

/// Limit of a block once it is inflated, in bytes.
pub(crate) const MAX_BLOCK: usize = 64 << 10;

/// The headers in a block. Names are those of HTTP: their case does not matter.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of that header; the first one if it is there more than once.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut headers = self.0.iter();
        headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Checks and reads the header blocks of one direction of a connection, in their order.
///
/// Receivers allocate by the counts and lengths in a block before they read on, so each must be
/// within the block; and a block must have no more than it counts, as the receiver would take what
/// is left for the start of the next one.
#[derive(Default)]
pub struct HeaderBlocks {
    /// Present once the stream has begun.
    inflater: Option<Decompress>,
}

impl HeaderBlocks {
    /// Reads the next block.
    ///
    /// # Errors
    /// When it is not well formed or too long; no further one can be checked then.
    pub fn read(&mut self, compressed: &[u8]) -> Result<Headers, Error> {
        let (inflater, compressed) = match &mut self.inflater {
            Some(inflater) => (inflater, compressed),
            None => {
                let (inflater, rest) = begin(compressed)?;
                (self.inflater.insert(inflater), rest)
            }
        };
        headers(&inflate(inflater, compressed)?)
    }
}

/// Reads the head of a zlib stream (RFC 1950), and returns what inflates the rest.
fn begin(mut stream: &[u8]) -> Result<(Decompress, &[u8]), Error> {
    const DEFLATE: u16 = 8;
    const MAX_WINDOW: u16 = 7;
    const HAS_DICTIONARY: u16 = 1 << 5;
    let invalid = || Error::Spdy("a header block is not zlib");
    let head = stream.try_get_u16().map_err(|_| invalid())?;
    if head >> 8 & 0xf != DEFLATE || head >> 12 > MAX_WINDOW || head % 31 != 0 {
        return Err(invalid());
    }
    let mut inflater = Decompress::new(false);
    if head & HAS_DICTIONARY != 0 {
        if stream.try_get_u32().map_err(|_| invalid())? != DICTIONARY_CHECKSUM {
            return Err(Error::Spdy("a header block has an unknown dictionary"));
        }
        // As a stored block before the others, the dictionary is what these refer to.
        let dictionary = dictionary();
        let length = u16::try_from(dictionary.len()).unwrap_or(u16::MAX);
        let mut block = vec![0];
        block.put_u16_le(length);
        block.put_u16_le(!length);
        block.put_slice(&dictionary);
        inflate(&mut inflater, &block)?;
    }
    Ok((inflater, stream))
}

/// Inflates all of `compressed`.
fn inflate(inflater: &mut Decompress, compressed: &[u8]) -> Result<Vec<u8>, Error> {
    let mut block = Vec::with_capacity(MAX_BLOCK + 1);
    let before = inflater.total_in();
    let status = inflater.decompress_vec(compressed, &mut block, FlushDecompress::Sync);
    let read = inflater.total_in().saturating_sub(before);
    if block.len() > MAX_BLOCK {
        return Err(Error::Spdy("a header block is too long"));
    }
    match status {
        Ok(Status::Ok | Status::BufError) if read == compressed.len() as u64 => Ok(block),
        _ => Err(Error::Spdy("a header block is not deflated")),
    }
}

/// A block is a number of headers, and for each the length of the name, the name, the length of the
/// value, and the value; numbers have 32 bits.
fn headers(mut block: &[u8]) -> Result<Headers, Error> {
    let beyond = || Error::Spdy("a header block counts more than it has");
    let text = |block: &mut &[u8]| {
        let length = block.try_get_u32().map_err(|_| beyond())? as usize;
        let (text, rest) = block.split_at_checked(length).ok_or_else(beyond)?;
        *block = rest;
        Ok::<_, Error>(String::from_utf8_lossy(text).into_owned())
    };
    let count = block.try_get_u32().map_err(|_| beyond())?;
    let mut headers = Vec::new();
    for _ in 0..count {
        headers.push((text(&mut block)?, text(&mut block)?));
    }
    match block {
        [] => Ok(Headers(headers)),
        _ => Err(Error::Spdy("a header block has more than it counts")),
    }
}

/// The preset dictionary of SPDY/3 (section 2.6.10.1 of its draft): each of the words with its
/// length, and the text.
fn dictionary() -> Vec<u8> {
    let mut dictionary = Vec::new();
    for word in DICTIONARY_WORDS {
        dictionary.put_u32(word.len() as u32);
        dictionary.put_slice(word.as_bytes());
    }
    dictionary.put_slice(DICTIONARY_TEXT.as_bytes());
    dictionary
}

/// Adler-32 of the dictionary.
const DICTIONARY_CHECKSUM: u32 = 0xe3c6_a7c2;

#[rustfmt::skip]
const DICTIONARY_WORDS: &[&str] = &[
    "options", "head", "post", "put", "delete", "trace", "accept", "accept-charset",
    "accept-encoding", "accept-language", "accept-ranges", "age", "allow", "authorization",
    "cache-control", "connection", "content-base", "content-encoding", "content-language",
    "content-length", "content-location", "content-md5", "content-range", "content-type", "date",
    "etag", "expect", "expires", "from", "host", "if-match", "if-modified-since", "if-none-match",
    "if-range", "if-unmodified-since", "last-modified", "location", "max-forwards", "pragma",
    "proxy-authenticate", "proxy-authorization", "range", "referer", "retry-after", "server", "te",
    "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning",
    "www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url", "public",
    "set-cookie", "keep-alive", "origin",
];

const DICTIONARY_TEXT: &str = "\
    100101201202205206300302303304305306307402405406407408409410411412413414415416417502\
    504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Re\
    quest401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Impl\
    emented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00\
    :00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,imag\
    e/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivate\
    max-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
