//! The log format of the runtimes: `<time> <stdout|stderr> <F|P> <text>` on each line, where `P`
//! says that the text goes on in the next line.
//!
//! The parser takes bytes as they come and holds on to a line's head alone, however long its text.

use k8s_openapi::jiff::Timestamp;

/// Longer than any head that a runtime writes.
const MAX_HEAD: usize = 256;

/// Where the container wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Stream {
    Stdout,
    Stderr,
}

/// The head of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) struct Head {
    pub(in crate::server) time: Timestamp,
    pub(in crate::server) stream: Stream,
    /// The text goes on in the next line.
    pub(in crate::server) partial: bool,
}

/// A part of a log: one head, its text in any number of pieces, and its end.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::server) enum Part<'a> {
    Head(Head),
    Text(&'a [u8]),
    /// The newline after the text.
    End,
}

/// Takes a log apart. Lines that are none of the format are passed over.
#[derive(Debug, Default)]
pub(in crate::server) struct Parser {
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The bytes of a head so far.
    Head(Vec<u8>),
    Text,
    /// To the end of a line that is not understood.
    Skip,
}

impl Default for State {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

impl Parser {
    /// Takes the next bytes; `take` is given the parts and may end it all by an error.
    pub(in crate::server) fn feed<E>(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Head(head) => {
                    let missing = 3 - head.iter().filter(|byte| **byte == b' ').count();
                    let (end, ended) = head_end(bytes, missing);
                    head.extend_from_slice(&bytes[..end.min(MAX_HEAD)]);
                    bytes = &bytes[end..];
                    match ended {
                        Ended::Complete => match parse_head(head) {
                            Some(parsed) => {
                                self.state = State::Text;
                                take(Part::Head(parsed))?;
                            }
                            None => self.state = State::Skip,
                        },
                        Ended::Newline => self.bare_line(&mut take)?,
                        Ended::No if head.len() > MAX_HEAD => self.state = State::Skip,
                        Ended::No => {}
                    }
                }
                State::Text => {
                    let end = newline(bytes);
                    let text = &bytes[..end.unwrap_or(bytes.len())];
                    bytes = &bytes[end.map_or(bytes.len(), |end| end + 1)..];
                    if end.is_some() {
                        self.state = State::default();
                    }
                    if !text.is_empty() {
                        take(Part::Text(text))?;
                    }
                    if end.is_some() {
                        take(Part::End)?;
                    }
                }
                State::Skip => match newline(bytes) {
                    Some(end) => {
                        bytes = &bytes[end + 1..];
                        self.state = State::default();
                    }
                    None => return Ok(()),
                },
            }
        }
        Ok(())
    }

    /// A line that ended within its head: one without text if it has all but the last space.
    fn bare_line<E>(&mut self, take: &mut impl FnMut(Part<'_>) -> Result<(), E>) -> Result<(), E> {
        let State::Head(mut head) = std::mem::take(&mut self.state) else { return Ok(()) };
        head.pop();
        head.push(b' ');
        if let Some(parsed) = parse_head(&head) {
            take(Part::Head(parsed))?;
            take(Part::End)?;
        }
        Ok(())
    }
}

enum Ended {
    /// With the space before the text.
    Complete,
    /// With the line.
    Newline,
    No,
}

/// How many bytes belong to the head, and how it ended.
fn head_end(bytes: &[u8], mut missing_spaces: usize) -> (usize, Ended) {
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' => return (at + 1, Ended::Newline),
            b' ' => {
                missing_spaces = missing_spaces.saturating_sub(1);
                if missing_spaces == 0 {
                    return (at + 1, Ended::Complete);
                }
            }
            _ => {}
        }
    }
    (bytes.len(), Ended::No)
}

fn newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

/// Parses `<time> <stream> <tags> `; the first of the colon-separated tags counts.
fn parse_head(head: &[u8]) -> Option<Head> {
    let mut words = std::str::from_utf8(head).ok()?.split(' ');
    let (time, stream, tags) = (words.next()?, words.next()?, words.next()?);
    Some(Head {
        time: time.parse().ok()?,
        stream: match stream {
            "stdout" => Stream::Stdout,
            "stderr" => Stream::Stderr,
            _ => return None,
        },
        partial: tags.split(':').next() == Some("P"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIME: &str = "2024-05-06T07:08:09.123456789Z";

    /// What a log says, as one text with the heads marked.
    fn read(log: &[u8], chunk: usize) -> String {
        let mut parser = Parser::default();
        let mut text = Vec::new();
        for bytes in log.chunks(chunk.max(1)) {
            let taken: Result<(), ()> = parser.feed(bytes, |part| {
                match part {
                    Part::Head(head) => {
                        let stream = if head.stream == Stream::Stdout { 'o' } else { 'e' };
                        let partial = if head.partial { "+" } else { "" };
                        text.extend(format!("[{stream}{partial}]").bytes());
                    }
                    Part::Text(piece) => text.extend(piece),
                    Part::End => text.push(b'$'),
                }
                Ok(())
            });
            taken.unwrap();
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn lines_are_taken_apart() {
        for (log, expected) in [
            (format!("{TIME} stdout F hello world\n"), "[o]hello world$"),
            (format!("{TIME} stderr P half\n{TIME} stderr F  whole\n"), "[e+]half$[e] whole$"),
            (format!("{TIME} stdout F \n"), "[o]$"),
            (format!("{TIME} stdout F\n"), "[o]$"),
            (format!("{TIME} stdout P:x:y tagged\n"), "[o+]tagged$"),
            ("2024-05-06T07:08:09+02:00 stdout F zone\n".to_owned(), "[o]zone$"),
            (format!("{TIME} stdout F no end"), "[o]no end"),
            (format!("garbage\n{TIME} stdout F ok\n"), "[o]ok$"),
            (format!("{TIME} stdin F never\n\n\n{TIME} stdout F ok\n"), "[o]ok$"),
            (format!("{}\n{TIME} stdout F ok\n", "x".repeat(5000)), "[o]ok$"),
            (format!("when? stdout F never\n{TIME} stdout F ok\n"), "[o]ok$"),
        ] {
            for chunk in [1, 2, 7, 31, 1000, 100_000] {
                assert_eq!(read(log.as_bytes(), chunk), expected, "{log:?} by {chunk}");
            }
        }
    }

    proptest! {
        #[test]
        fn chunks_make_no_difference(log in proptest::collection::vec(any::<u8>(), 0..400), chunk in 1usize..50) {
            prop_assert_eq!(read(&log, chunk), read(&log, 1000));
        }

        #[test]
        fn every_text_comes_through(lines in proptest::collection::vec("[^\n]{0,60}", 0..20), chunk in 1usize..200) {
            let log: String = lines.iter().map(|line| format!("{TIME} stdout F {line}\n")).collect();
            let expected: String = lines.iter().map(|line| format!("[o]{line}$")).collect();
            prop_assert_eq!(read(log.as_bytes(), chunk), expected);
        }
    }
}
