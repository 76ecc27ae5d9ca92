//! Which lines of a log pass, and how they look.

use super::Options;
use super::format::{Head, Part, Stream};
use k8s_openapi::jiff::Timestamp;

/// As many bytes as were asked for have passed.
pub(super) struct Full;

pub(super) struct Lines {
    timestamps: bool,
    since: Option<Timestamp>,
    stream: Option<Stream>,
    /// How many bytes may pass yet.
    left: u64,
    line: Line,
    /// The next text begins a line of the container's.
    new_line: bool,
}

/// What becomes of the line being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Dropped,
    /// It passes; whether the container's line goes on after it.
    Kept {
        partial: bool,
    },
}

impl Lines {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            timestamps: options.timestamps,
            since: options.since,
            stream: options.stream,
            left: options.limit.unwrap_or(u64::MAX),
            line: Line::Dropped,
            new_line: true,
        }
    }

    /// Adds to `out` what is to be sent of a part.
    pub(super) fn take(&mut self, part: Part<'_>, out: &mut Vec<u8>) -> Result<(), Full> {
        match (part, self.line) {
            (Part::Head(head), _) => self.head(&head, out),
            (Part::Text(text), Line::Kept { .. }) => self.put(text, out),
            (Part::End, Line::Kept { partial }) => {
                self.line = Line::Dropped;
                self.new_line = !partial;
                if partial { Ok(()) } else { self.put(b"\n", out) }
            }
            (Part::Text(_) | Part::End, Line::Dropped) => Ok(()),
        }
    }

    fn head(&mut self, head: &Head<'_>, out: &mut Vec<u8>) -> Result<(), Full> {
        let wanted = self.since.is_none_or(|since| head.time >= since)
            && self.stream.is_none_or(|stream| head.stream == stream);
        if !wanted {
            self.line = Line::Dropped;
            return Ok(());
        }
        self.line = Line::Kept { partial: head.partial };
        if !(self.timestamps && self.new_line) {
            return Ok(());
        }
        let before = out.len();
        head.put_time(out);
        out.push(b' ');
        self.count(out, before)
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Full> {
        let before = out.len();
        out.extend_from_slice(bytes);
        self.count(out, before)
    }

    /// Counts what was added, and takes back what is too much of it.
    fn count(&mut self, out: &mut Vec<u8>, before: usize) -> Result<(), Full> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        out.truncate(before.saturating_add(left));
        self.left = self.left.saturating_sub((out.len() - before) as u64);
        if self.left == 0 { Err(Full) } else { Ok(()) }
    }
}
