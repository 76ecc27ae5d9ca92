//! The kernel's files as text, read into one buffer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

use super::group::File;

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
        let file = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(|error| named(name, error.into()))?;
        self.read(&file, false).map_err(|error| named(name, error))
    }

    /// The text of a file of a controller.
    pub(super) fn whole(&mut self, file: &File<'_>) -> io::Result<&str> {
        self.of(file, false)
    }

    /// The text of a file of a controller, which the kernel gives in one piece: what comes is all
    /// that there is unless it fills the buffer, so nobody has to ask for the end.
    pub(super) fn piece(&mut self, file: &File<'_>) -> io::Result<&str> {
        self.of(file, true)
    }

    /// The number that a file of a controller holds, and nothing else.
    pub(super) fn number(&mut self, file: &File<'_>) -> io::Result<u64> {
        number(self.piece(file)?).map_err(|error| named(&file.to_string(), error))
    }

    /// What is in an open file now, as far as it is one piece.
    pub(super) fn now(&mut self, file: &OwnedFd) -> io::Result<&str> {
        let length = rustix::io::pread(file, self.room(), 0)?;
        self.said(length)
    }

    fn of(&mut self, file: &File<'_>, piece: bool) -> io::Result<&str> {
        let opened = file.open()?;
        self.read(&opened, piece).map_err(|error| named(&file.to_string(), error))
    }

    fn read(&mut self, file: &OwnedFd, piece: bool) -> io::Result<&str> {
        let length = self.fill(file, piece)?;
        self.said(length)
    }

    fn said(&self, length: usize) -> io::Result<&str> {
        let text = std::str::from_utf8(self.buffer.get(..length).unwrap_or_default());
        text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn room(&mut self) -> &mut [u8] {
        if self.buffer.is_empty() {
            self.buffer.resize(ROOM, 0);
        }
        &mut self.buffer
    }

    fn fill(&mut self, file: &OwnedFd, piece: bool) -> io::Result<usize> {
        self.room();
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
            if piece && length < self.buffer.len() {
                return Ok(length);
            }
        }
    }
}

/// The number that a text is.
pub(super) fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no number"))
}

/// The error with the file that it is about.
pub(super) fn named(file: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{file}: {error}"))
}

/// The lines `key value` of a text.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.trim().parse().ok()?))
    })
}
