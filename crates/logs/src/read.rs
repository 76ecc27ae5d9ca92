//! Reads a log, a piece at a time, where it may block. Memory is bounded by a block and what
//! becomes of it.

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
/// So many blocks are read at once of which nothing passes.
const FRUITLESS: usize = 32;

pub(super) struct Reader {
    chain: Chain,
    parser: Parser,
    lines: Lines,
    /// There may be more at the end of the last file later.
    live: bool,
}

/// What came of reading on.
#[derive(Debug)]
pub(super) enum Step {
    /// This passes; it may be nothing, and there may be more.
    Data(Bytes),
    /// This is the end of what was asked for.
    Last(Bytes),
    /// There is no more now.
    Idle,
}

impl Reader {
    /// Opens the log where what `options` ask for begins. `None`: there is no such log.
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

    /// Reads on until something passes.
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
                // what can be read of the others is worth more than nothing
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

    /// What comes next is in another file.
    fn cut(&mut self, out: &mut Vec<u8>) -> Result<(), Full> {
        self.parser.cut(|part| self.lines.take(part, out))
    }

    /// Takes in that the log may have been rotated, and which files the runtime has closed.
    pub(super) fn rotated(&mut self, closed: &[String]) -> io::Result<()> {
        self.chain.extend()?;
        closed.iter().for_each(|stamp| self.chain.close(stamp));
        Ok(())
    }

    /// When there may be more without anything happening.
    pub(super) fn again_at(&self) -> Option<Instant> {
        self.chain.next_at()
    }

    /// The container has ended: what is there is all.
    pub(super) fn ended(&mut self) {
        self.live = false;
    }
}

/// The end of a log: of its last `lines`, at most so many bytes. Empty where there is no log.
/// Blocks.
///
/// # Errors
/// When it cannot be read.
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
