//! What a program prints, to either stream, as it comes: the beginning is kept, and the rest dropped, so
//! that a program that prints without end costs no memory and does not wait for a reader.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use longshore_base::panics;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// How many bytes are kept.
const MOST: usize = 1 << 20;
/// How many of them are part of errors.
const MOST_IN_ERRORS: usize = 4096;
/// Bytes that are read at once.
const BLOCK: usize = 16 << 10;
/// The most that a pipe holds, unless root has made it larger.
const LARGEST_PIPE: usize = 1 << 20;

/// The end of a pipe that programs print to.
pub(super) struct Printed {
    pipe: Receiver,
    is_open: bool,
    kept: Vec<u8>,
}

impl Printed {
    /// The reading end of a pipe, whose other end is only that of programs.
    pub(super) fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self { pipe: Receiver::from_owned_fd(pipe)?, is_open: true, kept: Vec::new() })
    }

    /// Keeps what is printed until something has ended.
    pub(super) async fn keep_until<T>(&mut self, end: impl Future<Output = T>) -> T {
        let mut end = std::pin::pin!(end);
        let mut block = vec![0; BLOCK];
        loop {
            tokio::select! {
                ended = &mut end => return ended,
                read = self.pipe.read(&mut block), if self.is_open => {
                    let count = read.unwrap_or(0);
                    self.is_open = count > 0;
                    self.keep(&block, count);
                }
            }
        }
    }

    /// What was printed until now. Background processes of the program may go on printing: that is dropped.
    pub(super) fn text(mut self) -> String {
        self.keep_rest();
        if self.is_open {
            let mut pipe = self.pipe;
            tokio::spawn(panics::contain(async move {
                let mut block = vec![0; BLOCK];
                while pipe.read(&mut block).await.is_ok_and(|count| count > 0) {}
            }));
        }
        String::from_utf8_lossy(&self.kept).into_owned()
    }

    /// Keeps what is in the pipe still, without waiting for more.
    fn keep_rest(&mut self) {
        let mut block = vec![0; BLOCK];
        for _ in 0..LARGEST_PIPE / BLOCK {
            // Not by the runtime's read, to which the end of the program may be known before the data is.
            match rustix::io::read(self.pipe.as_fd(), &mut block[..]) {
                Ok(0) => {
                    self.is_open = false;
                    return;
                }
                Ok(count) => self.keep(&block, count),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn keep(&mut self, block: &[u8], count: usize) {
        let remaining = MOST.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(block.get(..count.min(remaining)).unwrap_or_default());
    }
}

/// The beginning of an output, for errors.
pub(super) fn shortened(text: &str) -> String {
    let text = text.trim();
    let end = text.floor_char_boundary(MOST_IN_ERRORS);
    text.get(..end).unwrap_or(text).to_owned()
}
