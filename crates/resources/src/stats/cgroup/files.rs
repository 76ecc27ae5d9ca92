//! Reads kernel files as text into one buffer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

use super::group::File;

/// Initial buffer size.
const INITIAL_BUFFER: usize = 4096;
/// Maximum size of a file; longer ones are truncated.
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
    pub(super) fn read_all(&mut self, file: &File<'_>) -> io::Result<&str> {
        self.of(file, false)
    }

    /// The text of a file of a controller that the kernel returns in a single read: complete unless
    /// it fills the buffer.
    pub(super) fn single_read(&mut self, file: &File<'_>) -> io::Result<&str> {
        self.of(file, true)
    }

    /// The number in a file of a controller.
    pub(super) fn number(&mut self, file: &File<'_>) -> io::Result<u64> {
        number(self.single_read(file)?).map_err(|error| named(&file.to_string(), error))
    }

    /// The current content of an open file, with a single read.
    pub(super) fn reread(&mut self, file: &OwnedFd) -> io::Result<&str> {
        let length = rustix::io::pread(file, self.buffer_mut(), 0)?;
        self.as_text(length)
    }

    fn of(&mut self, file: &File<'_>, single_read: bool) -> io::Result<&str> {
        let opened = file.open()?;
        self.read(&opened, single_read).map_err(|error| named(&file.to_string(), error))
    }

    fn read(&mut self, file: &OwnedFd, single_read: bool) -> io::Result<&str> {
        let length = self.fill(file, single_read)?;
        self.as_text(length)
    }

    fn as_text(&self, length: usize) -> io::Result<&str> {
        let text = std::str::from_utf8(self.buffer.get(..length).unwrap_or_default());
        text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn buffer_mut(&mut self) -> &mut [u8] {
        if self.buffer.is_empty() {
            self.buffer.resize(INITIAL_BUFFER, 0);
        }
        &mut self.buffer
    }

    fn fill(&mut self, file: &OwnedFd, single_read: bool) -> io::Result<usize> {
        self.buffer_mut();
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
            if single_read && length < self.buffer.len() {
                return Ok(length);
            }
        }
    }
}

/// Parses a number.
pub(super) fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "invalid number"))
}

/// Adds the file name to an error.
pub(super) fn named(file: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{file}: {error}"))
}

/// Parses lines `key value`.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.trim().parse().ok()?))
    })
}
