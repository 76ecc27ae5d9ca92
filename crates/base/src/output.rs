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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use super::*;

    /// Finding 13: a full disk behind standard output and error.
    #[test]
    fn output_to_full_disk_does_not_panic() {
        const CHILD: &str = "OUTPUT_TO_A_FULL_DISK";
        if std::env::var_os(CHILD).is_some() {
            report("lost");
            assert_eq!(Stderr.write(b"lost").unwrap(), 4);
            std::process::exit(if print("lost").is_err() { 7 } else { 5 });
        }
        let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args([
            "--exact",
            "output::tests::output_to_full_disk_does_not_panic",
            "--nocapture",
        ]);
        // its own output is discarded, too: the exit code shows the result
        program.arg("--quiet").env(CHILD, "1").stdout(Stdio::null());
        assert_eq!(program.stderr(full()).status().unwrap().code(), Some(5), "it went on");
    }
}
