//! Where lines go: to the standard error, or information to the standard output, with a buffer.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::Level;

use super::settings::{Format, Settings};
use crate::output::Stderr;

/// Writes whole lines. What cannot be written is lost.
pub(super) struct Writer {
    /// The least severe level that goes to the standard error.
    errors: Level,
    information: Option<Arc<Buffer<io::Stdout>>>,
}

impl Writer {
    /// A writer; if it has a buffer, a thread writes it from time to time.
    pub(super) fn start(settings: &Settings) -> Self {
        let Settings { format, routing, flush_frequency, .. } = settings;
        let information = routing
            .split_stream
            .then(|| Arc::new(Buffer::new(io::stdout(), routing.info_buffer_size)));
        if let Some(buffer) = information.clone().filter(|_| routing.info_buffer_size > 0) {
            flush_periodically(buffer, *flush_frequency);
        }
        // upstream has warnings with errors in text, and with information in JSON
        let errors = if *format == Format::Json { Level::ERROR } else { Level::WARN };
        Self { errors, information }
    }

    pub(super) fn write(&self, level: Level, line: &[u8]) {
        match &self.information {
            Some(buffer) if level > self.errors => buffer.write(line),
            _ => {
                let _ = Stderr.write_all(line);
            }
        }
    }

    pub(super) fn flush(&self) {
        if let Some(buffer) = &self.information {
            buffer.flush();
        }
    }
}

fn flush_periodically(buffer: Arc<Buffer<io::Stdout>>, period: Duration) {
    let flush = move || {
        loop {
            std::thread::sleep(period);
            buffer.flush();
        }
    };
    // without the thread, the buffer is written when it is full and at the end
    let _ = std::thread::Builder::new().name("log".to_owned()).spawn(flush);
}

/// Lines that are written when the next one does not fit; with size 0 at once.
struct Buffer<W> {
    size: usize,
    inner: Mutex<(Vec<u8>, W)>,
}

impl<W: Write> Buffer<W> {
    fn new(output: W, size: usize) -> Self {
        Self { size, inner: Mutex::new((Vec::new(), output)) }
    }

    fn write(&self, line: &[u8]) {
        let (lines, output) = &mut *self.inner.lock();
        if lines.len() + line.len() > self.size {
            drain(lines, output);
        }
        match line.len() > self.size {
            true => {
                let _ = output.write_all(line).and_then(|()| output.flush());
            }
            false => lines.extend_from_slice(line),
        }
    }

    fn flush(&self) {
        let (lines, output) = &mut *self.inner.lock();
        drain(lines, output);
    }
}

fn drain(lines: &mut Vec<u8>, output: &mut impl Write) {
    if !lines.is_empty() {
        let _ = output.write_all(lines).and_then(|()| output.flush());
        lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_buffer_keeps_whole_lines_in_order() {
        let buffer = Buffer::new(Vec::new(), 8);
        let written = || String::from_utf8(buffer.inner.lock().1.clone()).unwrap();
        buffer.write(b"one\n");
        buffer.write(b"two\n");
        assert_eq!(written(), "");
        buffer.write(b"3\n");
        assert_eq!(written(), "one\ntwo\n");
        buffer.write(b"longer than it\n");
        assert_eq!(written(), "one\ntwo\n3\nlonger than it\n");
        buffer.write(b"4\n");
        buffer.flush();
        assert!(written().ends_with("4\n"));
        let none = Buffer::new(Vec::new(), 0);
        none.write(b"x\n");
        assert_eq!(none.inner.lock().1, b"x\n");
    }
}
