//! Reads a log in chunks, blocking. Memory is bounded by a block and its output.

use std::io;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use tracing::debug;

use super::Options;
use super::chain::Chain;
use super::format::Parser;
use super::lines::{Full, Lines};

const BLOCK: usize = 64 * 1024;
/// Maximum number of blocks without output that are read at once.
const FRUITLESS: usize = 32;

pub(super) struct Reader {
    chain: Chain,
    parser: Parser,
    lines: Lines,
    /// Data may still be appended to the last file.
    live: bool,
}

/// Result of a read.
#[derive(Debug)]
pub(super) enum Step {
    /// Output, possibly empty; there may be more.
    Data(Bytes),
    /// The end of the requested part.
    Last(Bytes),
    /// No more data now.
    Idle,
}

impl Reader {
    /// Opens the log at the position given by `options`. `None`: there is no such log.
    pub(super) fn open(log: &Path, options: &Options) -> io::Result<Option<Self>> {
        let mut chain = Chain::open(log)?;
        let Some(last) = chain.segments.back_mut() else { return Ok(None) };
        if !options.follow {
            last.end_here()?;
        }
        chain.seek(options)?;
        Ok(Some(Self {
            chain,
            parser: Parser::default(),
            lines: Lines::new(options),
            live: options.follow,
        }))
    }

    /// Reads until there is output.
    pub(super) fn step(&mut self) -> io::Result<Step> {
        let mut block = vec![0; BLOCK];
        let mut out = Vec::new();
        for _ in 0..FRUITLESS {
            let Some(segment) = self.chain.segments.front_mut() else { return Ok(Step::Idle) };
            let taken = match segment.read(&mut block) {
                Ok(0) if self.chain.advance(self.live) => self.cut(&mut out),
                Ok(0) => return Ok(Step::Idle),
                Ok(count) => {
                    out.reserve(count);
                    self.parser.feed(&block[..count], |part| self.lines.take(part, &mut out))
                }
                // an error in one file does not prevent reading the others
                Err(error) if self.chain.segments.len() > 1 => {
                    debug!(%error, "a rotated log is damaged");
                    self.chain.segments.pop_front();
                    self.cut(&mut out)
                }
                Err(error) => return Err(error),
            };
            match taken {
                Err(Full) => return Ok(Step::Last(out.into())),
                Ok(()) if out.is_empty() => {}
                Ok(()) => break,
            }
        }
        Ok(Step::Data(out.into()))
    }

    /// Goes on to the next file.
    fn cut(&mut self, out: &mut Vec<u8>) -> Result<(), Full> {
        self.parser.cut(|part| self.lines.take(part, out))
    }

    /// Handles rotations, and files that the runtime has closed.
    pub(super) fn rotated(&mut self, closed: &[String]) -> io::Result<()> {
        self.chain.extend()?;
        closed.iter().for_each(|stamp| self.chain.close(stamp));
        Ok(())
    }

    /// When there may be more data without a notification.
    pub(super) fn again_at(&self) -> Option<Instant> {
        self.chain.next_at()
    }

    /// The container has exited: no more data follows.
    pub(super) fn ended(&mut self) {
        self.live = false;
    }
}

/// The end of a log: at most that number of bytes of its last `lines`. Empty without a log.
/// Blocks.
///
/// # Errors
/// If it cannot be read.
pub fn tail(log: &Path, lines: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let options = Options { tail: Some(lines), ..Options::default() };
    let mut end = Vec::new();
    let Some(mut reader) = Reader::open(log, &options)? else { return Ok(end) };
    while let Step::Data(piece) | Step::Last(piece) = reader.step()? {
        end.extend_from_slice(&piece);
        let excess = end.len().saturating_sub(bytes);
        end.drain(..excess);
    }
    Ok(end)
}
