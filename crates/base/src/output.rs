//! Standard output and error of a daemon. Their disk may be full, their pipe without a reader, their
//! descriptor closed; `println!` and `eprintln!` panic then. What cannot be written is lost, and the
//! daemon goes on.

use std::fmt;
use std::io::{self, Write};

/// Standard error as a writer that never fails, for logs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Of what is written in part, the rest is lost with it.
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}

/// Writes to standard output.
///
/// # Errors
/// Not all of it was written.
pub fn print(text: impl fmt::Display) -> io::Result<()> {
    let mut output = io::stdout().lock();
    write!(output, "{text}")?;
    output.flush()
}

/// Writes a line to standard error, if that can be done.
pub fn report(text: impl fmt::Display) {
    let _ = writeln!(Stderr, "{text}");
}
