//! Log formats. CRI: `<time> <stdout|stderr> <F|P> <text>` per line, where `P` means that the text
//! continues in the next line. Docker: a JSON object per line.
//!
//! The parser takes chunks of bytes. Of CRI lines it buffers only the head; of Docker lines all of it,
//! up to a limit.

mod json;

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::temporal::DateTimeParser;
use memchr::memchr;

/// Maximum length of a CRI head.
const MAX_HEAD: usize = 256;
/// Maximum length of a Docker line: 16 KiB of text, each byte with up to six characters.
const MAX_JSON: usize = 256 * 1024;

static TIMES: DateTimeParser = DateTimeParser::new();

/// Stream of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"stdout" => Some(Self::Stdout),
            b"stderr" => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// The head of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) time: Timestamp,
    /// The time as written.
    pub(super) written: &'a [u8],
    pub(super) stream: Stream,
    /// The text continues in the next line.
    pub(super) partial: bool,
}

impl<'a> Head<'a> {
    /// `None` if it is invalid.
    pub(super) fn new(written: &'a [u8], stream: &[u8], partial: bool) -> Option<Self> {
        let (stream, time) = (Stream::named(stream)?, TIMES.parse_timestamp(written).ok()?);
        Some(Self { time, written, stream, partial })
    }

    /// Parses `<time> <stream> <tags>`; the first of the colon-separated tags counts.
    fn parse(head: &'a [u8]) -> Option<Self> {
        let mut words = head.split(|byte| *byte == b' ');
        let (time, stream, tags) = (words.next()?, words.next()?, words.next()?);
        let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
        Self::new(time, stream, partial)
    }

    /// Writes the time with nine digits of the second, so that lines align, and with its offset.
    pub(super) fn put_time(&self, out: &mut Vec<u8>) {
        const SECONDS: usize = "2006-01-02T15:04:05".len();
        const DIGITS: usize = 9;
        let (seconds, rest) = self.written.split_at(self.written.len().min(SECONDS));
        let zone = rest.iter().position(|byte| !matches!(byte, b'.' | b',' | b'0'..=b'9'));
        let (fraction, zone) = rest.split_at(zone.unwrap_or(rest.len()));
        let digits = fraction.get(1..).unwrap_or_default();
        let digits = &digits[..digits.len().min(DIGITS)];
        out.extend_from_slice(seconds);
        out.push(b'.');
        out.extend_from_slice(digits);
        out.extend(std::iter::repeat_n(b'0', DIGITS - digits.len()));
        out.extend_from_slice(if zone == b"+00:00" { b"Z" } else { zone });
    }
}

/// A part of a log: a head, its text in chunks, and its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Head(Head<'a>),
    Text(&'a [u8]),
    /// The newline after the text.
    End,
}

/// Splits a log into parts. Invalid lines are skipped.
#[derive(Debug, Default)]
pub(super) struct Parser {
    state: State,
    /// The beginning of a head, or of a JSON line.
    held: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Text,
    Json,
    /// Skipping an invalid line.
    Skip,
}

impl Parser {
    /// Parses the next bytes; `take` gets the parts and may stop by an error.
    pub(super) fn feed<E>(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Head if self.held.is_empty() && bytes.starts_with(b"{") => {
                    self.state = State::Json;
                    bytes
                }
                State::Head => self.head(bytes, &mut take)?,
                State::Text => self.text(bytes, &mut take)?,
                State::Json => self.json(bytes, &mut take)?,
                State::Skip => self.skip(bytes),
            };
        }
        Ok(())
    }

    /// The file ends here: ends an incomplete line.
    pub(super) fn cut<E>(
        &mut self,
        mut take: impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (state, held) = (std::mem::take(&mut self.state), std::mem::take(&mut self.held));
        match state {
            State::Text => take(Part::End),
            State::Json => json::parse(&held, &mut take),
            State::Head | State::Skip => Ok(()),
        }
    }

    /// Number of buffered bytes.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.capacity()
    }

    fn head<'b, E>(
        &mut self,
        bytes: &'b [u8],
        take: &mut impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<&'b [u8], E> {
        let spaces = self.held.iter().filter(|byte| **byte == b' ').count();
        let (length, ended) = head_end(bytes, 3 - spaces);
        let (head, rest) = bytes.split_at(length);
        if self.held.len() + head.len() > MAX_HEAD {
            self.held = Vec::new();
            self.state = if ended == Ended::Newline { State::Head } else { State::Skip };
            return Ok(rest);
        }
        if ended == Ended::No {
            self.held.extend_from_slice(head);
            return Ok(rest);
        }
        // most heads are in one chunk, and need not be copied
        let joined = (!self.held.is_empty()).then(|| {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(head);
            joined
        });
        let head = joined.as_deref().unwrap_or(head);
        let parsed = head.split_last().and_then(|(_, head)| Head::parse(head));
        self.state = match (&parsed, &ended) {
            (Some(_), Ended::Complete) => State::Text,
            (None, Ended::Complete) => State::Skip,
            (_, Ended::Newline | Ended::No) => State::Head,
        };
        if let Some(parsed) = parsed {
            take(Part::Head(parsed))?;
            if ended == Ended::Newline {
                take(Part::End)?; // a line without text
            }
        }
        Ok(rest)
    }

    fn text<'b, E>(
        &mut self,
        bytes: &'b [u8],
        take: &mut impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<&'b [u8], E> {
        let (text, rest) = line(bytes);
        if !text.is_empty() {
            take(Part::Text(text))?;
        }
        if rest.is_some() {
            self.state = State::Head;
            take(Part::End)?;
        }
        Ok(rest.unwrap_or_default())
    }

    fn json<'b, E>(
        &mut self,
        bytes: &'b [u8],
        take: &mut impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<&'b [u8], E> {
        let (text, rest) = line(bytes);
        if self.held.len() + text.len() > MAX_JSON {
            self.held = Vec::new();
            self.state = if rest.is_some() { State::Head } else { State::Skip };
            return Ok(rest.unwrap_or_default());
        }
        match rest {
            Some(_) if self.held.is_empty() => json::parse(text, take)?,
            Some(_) => {
                let mut whole = std::mem::take(&mut self.held);
                whole.extend_from_slice(text);
                json::parse(&whole, take)?;
            }
            None => self.held.extend_from_slice(text),
        }
        if rest.is_some() {
            self.state = State::Head;
        }
        Ok(rest.unwrap_or_default())
    }

    fn skip<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (_, rest) = line(bytes);
        if rest.is_some() {
            self.state = State::Head;
        }
        rest.unwrap_or_default()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// With the space before the text.
    Complete,
    /// With the line.
    Newline,
    No,
}

/// Number of bytes of the head, and how it ended.
fn head_end(bytes: &[u8], mut missing_spaces: usize) -> (usize, Ended) {
    for (at, byte) in bytes.iter().enumerate().take(MAX_HEAD + 1) {
        match byte {
            b'\n' => return (at + 1, Ended::Newline),
            b' ' => {
                missing_spaces = missing_spaces.saturating_sub(1);
                if missing_spaces == 0 {
                    return (at + 1, Ended::Complete);
                }
            }
            _ => {}
        }
    }
    (bytes.len().min(MAX_HEAD + 1), Ended::No)
}

/// A line without its newline, and the rest; `None` if it does not end here.
fn line(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr(b'\n', bytes) {
        Some(end) => (&bytes[..end], Some(&bytes[end + 1..])),
        None => (bytes, None),
    }
}
