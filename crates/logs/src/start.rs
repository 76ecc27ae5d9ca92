//! Where reading begins: the last so many lines, or what is not too old, are looked for from the
//! newest file backwards, so that no older file is read in vain.

use std::io::{self, BufRead, Read};
use std::os::unix::fs::FileExt;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use memchr::{memchr_iter, memrchr_iter};

use super::Options;
use super::chain::Chain;
use super::format::{Parser, Part};
use super::segment::{At, Segment, SegmentReader};

const BLOCK: usize = 64 * 1024;
/// How much of a file is looked at for its first time; what is not understood may come first.
const FIRST_LINES: u64 = 64 * 1024;
/// By how much times in a log may be out of order: its two streams are written independently.
const DISORDER: SignedDuration = SignedDuration::from_secs(1);

impl Chain {
    /// Moves to where what `options` ask for begins.
    pub(super) fn seek(&mut self, options: &Options) -> io::Result<()> {
        if let Some(since) = options.since {
            self.skip_older(since);
        }
        match options.tail {
            Some(lines) => self.skip_to_tail(lines),
            None => Ok(()),
        }
    }

    /// Leaves out the files that end before that time, as those after them begin before it.
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
                // what is damaged has as many lines as can be read
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
    // of what is damaged, as much as can be read
    let _ = log.take(FIRST_LINES).read_to_end(&mut first);
    let found = Parser::default().feed(&first, |part| match part {
        Part::Head(head) => Err(head.time),
        Part::Text(_) | Part::End => Ok(()),
    });
    found.err()
}

struct Tail {
    start: u64,
    /// How many lines there are from there on.
    lines: u64,
}

/// Where the last so many lines before `end` begin, found backwards. A line that has no end yet
/// comes on top of them.
fn plain_tail(log: &At, end: u64, lines: u64) -> io::Result<Tail> {
    let mut block = vec![0; BLOCK];
    let mut right = log.file.metadata()?.len().min(end);
    let mut seen = 0;
    while right > 0 {
        let left = right.saturating_sub(BLOCK as u64);
        let length = usize::try_from(right.saturating_sub(left)).unwrap_or(BLOCK);
        log.file.read_exact_at(&mut block[..length], left)?;
        for at in memrchr_iter(b'\n', &block[..length]) {
            // the newline before the wanted lines: one more than there are lines
            if seen == lines {
                return Ok(Tail { start: left.saturating_add(at as u64).saturating_add(1), lines });
            }
            seen = u64::saturating_add(seen, 1);
        }
        right = left;
    }
    Ok(Tail { start: 0, lines: seen })
}

/// Reads over so many lines; gives how many there were.
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
