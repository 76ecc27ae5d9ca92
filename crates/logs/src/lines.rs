//! Filters and formats the lines of a log.

use super::Options;
use super::format::{Head, Part, Stream};
use k8s_openapi::jiff::Timestamp;

/// The requested number of bytes is reached.
pub(super) struct Full;

pub(super) struct Lines {
    timestamps: bool,
    since: Option<Timestamp>,
    stream: Option<Stream>,
    /// Remaining bytes.
    left: u64,
    line: Line,
    /// The next text starts a line.
    new_line: bool,
}

/// State of the current line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Dropped,
    /// It is sent; whether the line of the container continues after it.
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

    /// Appends the output of a part to `out`.
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

    /// Counts appended bytes, and truncates at the limit.
    fn count(&mut self, out: &mut Vec<u8>, before: usize) -> Result<(), Full> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        out.truncate(before.saturating_add(left));
        self.left = self.left.saturating_sub((out.len() - before) as u64);
        if self.left == 0 { Err(Full) } else { Ok(()) }
    }
}
