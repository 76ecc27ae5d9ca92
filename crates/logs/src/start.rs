//! Finds where reading starts, for the last lines or a time: backwards from the newest file, so that
//! older files are not read in vain.

use std::io::{self, BufRead, Read};
use std::os::unix::fs::FileExt;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use memchr::{memchr_iter, memrchr_iter};

use super::Options;
use super::chain::Chain;
use super::format::{Parser, Part};
use super::segment::{At, Segment, SegmentReader};

const BLOCK: usize = 64 * 1024;
/// How much of a file is searched for its first time.
const FIRST_LINES: u64 = 64 * 1024;
/// How far times in a log may be out of order, as its two streams are written independently.
const DISORDER: SignedDuration = SignedDuration::from_secs(1);

impl Chain {
    /// Moves to the position given by `options`.
    pub(super) fn seek(&mut self, options: &Options) -> io::Result<()> {
        if let Some(since) = options.since {
            self.skip_older(since);
        }
        match options.tail {
            Some(lines) => self.skip_to_tail(lines),
            None => Ok(()),
        }
    }

    /// Skips files that end before that time.
    fn skip_older(&mut self, since: Timestamp) {
        let begins_before = |segment: &Segment| {
            let first = first_time(segment.look());
            first.is_some_and(|first| first.saturating_add(DISORDER).is_ok_and(|t| t < since))
        };
        if let Some(first) = self.segments.iter().rposition(begins_before) {
            self.segments.drain(..first);
        }
    }

    fn skip_to_tail(&mut self, lines: u64) -> io::Result<()> {
        let mut missing = lines;
        for (index, segment) in self.segments.iter_mut().enumerate().rev() {
            let found = match segment.look() {
                SegmentReader::Plain(file) => {
                    let tail = plain_tail(&file, segment.end, missing)?;
                    segment.seek(tail.start);
                    tail.lines
                }
                // of a damaged file, the lines that can be read count
                SegmentReader::Packed(mut unpacked) => {
                    let there = skip_lines(&mut unpacked, u64::MAX);
                    if let Some(unpacked) = segment.unpacked() {
                        skip_lines(unpacked, there.saturating_sub(missing));
                    }
                    there.min(missing)
                }
            };
            missing = missing.saturating_sub(found);
            if missing == 0 {
                self.segments.drain(..index);
                break;
            }
        }
        Ok(())
    }
}

/// The time of the first line; `None` if there is none at the beginning.
fn first_time(log: SegmentReader) -> Option<Timestamp> {
    let mut first = Vec::new();
    // of a damaged file, as much as can be read
    let _ = log.take(FIRST_LINES).read_to_end(&mut first);
    let found = Parser::default().feed(&first, |part| match part {
        Part::Head(head) => Err(head.time),
        Part::Text(_) | Part::End => Ok(()),
    });
    found.err()
}

struct Tail {
    start: u64,
    /// Number of lines from there on.
    lines: u64,
}

/// The position of the last lines before `end`, found backwards. An incomplete line is not counted.
fn plain_tail(log: &At, end: u64, lines: u64) -> io::Result<Tail> {
    let mut block = vec![0; BLOCK];
    let mut right = log.file.metadata()?.len().min(end);
    let mut seen = 0;
    while right > 0 {
        let left = right.saturating_sub(BLOCK as u64);
        let length = usize::try_from(right.saturating_sub(left)).unwrap_or(BLOCK);
        log.file.read_exact_at(&mut block[..length], left)?;
        for at in memrchr_iter(b'\n', &block[..length]) {
            // the newline before the wanted lines: one more than lines
            if seen == lines {
                return Ok(Tail { start: left.saturating_add(at as u64).saturating_add(1), lines });
            }
            seen = u64::saturating_add(seen, 1);
        }
        right = left;
    }
    Ok(Tail { start: 0, lines: seen })
}

/// Skips lines; returns how many there were.
fn skip_lines(log: &mut impl BufRead, lines: u64) -> u64 {
    let mut seen = 0;
    while seen < lines {
        let Ok(block) = log.fill_buf() else { break };
        if block.is_empty() {
            break;
        }
        let mut used = block.len();
        for at in memchr_iter(b'\n', block) {
            seen = u64::saturating_add(seen, 1);
            if seen == lines {
                used = at + 1;
                break;
            }
        }
        log.consume(used);
    }
    seen
}
