//! The kernel's files as text, read into one buffer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

/// Enough for nearly all of them.
const ROOM: usize = 4096;
/// No file of the kernel's about one cgroup or process is longer; what is beyond is not read.
const MOST: usize = 1 << 20;

/// Reads files one after the other.
#[derive(Default)]
pub(in crate::stats) struct Reader {
    buffer: Vec<u8>,
}

impl Reader {
    /// The text of a file below a directory. The error names the file.
    pub(in crate::stats) fn text(&mut self, dir: impl AsFd, name: &str) -> io::Result<&str> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(dir, name, flags, Mode::empty()).map_err(|error| named(error.into()))?;
        let length = self.fill(&file).map_err(named)?;
        let text = std::str::from_utf8(self.buffer.get(..length).unwrap_or_default());
        text.map_err(|error| named(io::Error::new(io::ErrorKind::InvalidData, error)))
    }

    /// The number that a file holds, and nothing else.
    pub(super) fn number(&mut self, dir: impl AsFd, name: &str) -> io::Result<u64> {
        self.text(dir, name)?
            .trim()
            .parse()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: no number")))
    }

    fn fill(&mut self, file: &OwnedFd) -> io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer.resize(ROOM, 0);
        }
        let mut length = 0;
        loop {
            if length == self.buffer.len() {
                if length >= MOST {
                    return Ok(length);
                }
                self.buffer.resize(length * 2, 0);
            }
            match rustix::io::read(file, self.buffer.get_mut(length..).unwrap_or_default())? {
                0 => return Ok(length),
                more => length += more,
            }
        }
    }
}

/// The lines `key value` of a text.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.trim().parse().ok()?))
    })
}
