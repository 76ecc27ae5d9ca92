//! Reads a container's log file to the end, or on and on: across rotation, until the container has
//! ended and its last line is read. Memory is bounded by one block.

use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use k8s_openapi::jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

use super::cri::{Head, Parser, Part};
use super::options::Options;

const BLOCK: usize = 32 * 1024;
/// How often a log is looked at without a hint, as hints can be lost.
const LOOK: Duration = Duration::from_secs(1);

/// How long a runtime may take to leave a file that it has opened a successor of.
const SETTLE: Duration = Duration::from_millis(50);

/// A log opened at the place where reading begins.
pub(in crate::server) struct Log {
    /// The name under which rotation makes new files.
    path: PathBuf,
    file: File,
    position: u64,
    output: Output,
    follow: bool,
}

/// Why reading ended before the log did.
enum Stop {
    /// The reader is gone, or has all that it asked for.
    Done,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Log {
    /// Opens the file where what `options` ask for begins; bytes will go to `output`.
    pub(in crate::server) async fn open(
        path: &Path,
        options: &Options,
        output: mpsc::Sender<Bytes>,
    ) -> io::Result<Self> {
        // a link is followed now: rotation happens where it points
        let path = tokio::fs::canonicalize(path).await?;
        let mut file = File::open(&path).await?;
        let position = match options.tail {
            Some(lines) => tail_start(&mut file, lines).await?,
            None => 0,
        };
        file.seek(SeekFrom::Start(position)).await?;
        Ok(Self {
            path,
            file,
            position,
            follow: options.follow,
            output: Output::new(options, output),
        })
    }

    /// Sends the log; `running` tells whether the container may write more.
    pub(in crate::server) async fn send(mut self, running: impl Fn() -> bool) -> io::Result<()> {
        let outcome = match self.follow {
            true => self.follow(running).await,
            false => self.once().await,
        };
        match outcome {
            Ok(()) | Err(Stop::Done) => Ok(()),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// What the file holds now; a container that writes faster cannot make it endless.
    async fn once(&mut self) -> Result<(), Stop> {
        let size = self.file.metadata().await?.len();
        self.read_to(size).await
    }

    async fn follow(&mut self, running: impl Fn() -> bool) -> Result<(), Stop> {
        // watched before the first look, so that no change falls between them
        let mut hints = Hints::new(&self.path);
        loop {
            // asked before reading: what was written before the end is still read after it
            let may_write = running();
            self.read_to(u64::MAX).await?;
            if self.rotated().await? {
                continue;
            }
            if !may_write {
                return Ok(());
            }
            tokio::select! {
                () = hints.next() => {}
                () = self.output.gone() => return Err(Stop::Done),
            }
        }
    }

    /// Goes on to the file that has taken this one's name, if one has and this one is read.
    async fn rotated(&mut self) -> Result<bool, Stop> {
        let next = match File::open(&self.path).await {
            Ok(next) => next,
            // between its renaming and the runtime's making of a new one
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let (old, new) = (self.file.metadata().await?, next.metadata().await?);
        if (old.dev(), old.ino()) != (new.dev(), new.ino()) {
            // the runtime may still be at the last lines of the old file
            tokio::time::sleep(SETTLE).await;
            self.read_to(u64::MAX).await?;
            self.file = next;
            self.position = 0;
            return Ok(true);
        }
        if new.len() < self.position {
            // cut short in place
            self.position = self.file.seek(SeekFrom::Start(0)).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Reads on to the end of the file, or to that position in it.
    async fn read_to(&mut self, limit: u64) -> Result<(), Stop> {
        let mut block = vec![0; BLOCK];
        while self.position < limit {
            let most = usize::try_from(limit - self.position).unwrap_or(BLOCK).min(BLOCK);
            let count = self.file.read(&mut block[..most]).await?;
            if count == 0 {
                break;
            }
            self.position += count as u64;
            self.output.take(&block[..count]).await?;
        }
        Ok(())
    }
}

/// Dresses lines and passes them on.
struct Output {
    parser: Parser,
    dress: Dress,
    channel: mpsc::Sender<Bytes>,
}

impl Output {
    fn new(options: &Options, channel: mpsc::Sender<Bytes>) -> Self {
        let dress = Dress {
            options: options.clone(),
            left: options.limit.unwrap_or(u64::MAX),
            head: None,
            new_line: true,
        };
        Self { parser: Parser::default(), dress, channel }
    }

    async fn take(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let mut out = Vec::with_capacity(bytes.len());
        let taken = self.parser.feed(bytes, |part| self.dress.take(part, &mut out));
        if !out.is_empty() && self.channel.send(out.into()).await.is_err() {
            return Err(Stop::Done);
        }
        taken.map_err(|Full| Stop::Done)
    }

    async fn gone(&self) {
        self.channel.closed().await;
    }
}

/// As many bytes as were asked for have passed.
struct Full;

/// Which lines pass, and how they look.
struct Dress {
    options: Options,
    left: u64,
    /// The head of the line being read; `None`: it does not pass.
    head: Option<Head>,
    /// The next text begins a line of the container's.
    new_line: bool,
}

impl Dress {
    fn take(&mut self, part: Part<'_>, out: &mut Vec<u8>) -> Result<(), Full> {
        match part {
            Part::Head(head) => {
                let wanted = self.options.since.is_none_or(|since| head.time >= since)
                    && self.options.stream.is_none_or(|stream| head.stream == stream);
                self.head = wanted.then_some(head);
                match wanted && self.options.timestamps && self.new_line {
                    true => self.put(format!("{} ", nanoseconds(head.time)).as_bytes(), out),
                    false => Ok(()),
                }
            }
            Part::Text(text) => match self.head {
                Some(_) => self.put(text, out),
                None => Ok(()),
            },
            Part::End => match self.head.take() {
                Some(head) => {
                    self.new_line = !head.partial;
                    if head.partial { Ok(()) } else { self.put(b"\n", out) }
                }
                None => Ok(()),
            },
        }
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Full> {
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        out.extend_from_slice(&bytes[..count]);
        self.left -= count as u64;
        if self.left == 0 { Err(Full) } else { Ok(()) }
    }
}

/// A time with all nine digits, so that lines align.
fn nanoseconds(time: Timestamp) -> String {
    format!("{time:.9}")
}

/// Where the last so many lines of a file begin, found from its end backwards.
async fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let mut block = vec![0; BLOCK];
    let size = file.seek(SeekFrom::End(0)).await?;
    let (mut right, mut seen) = (size, 0);
    while right > 0 {
        let left = right.saturating_sub(BLOCK as u64);
        let length = usize::try_from(right - left).unwrap_or(BLOCK);
        file.seek(SeekFrom::Start(left)).await?;
        file.read_exact(&mut block[..length]).await?;
        for at in (0..length).rev().filter(|at| block[*at] == b'\n') {
            // the newline before the wanted lines: one more than there are lines
            if seen == lines {
                return Ok(left + at as u64 + 1);
            }
            seen += 1;
        }
        right = left;
    }
    Ok(0)
}

/// Wakes when something happens to a log, and now and then.
struct Hints(Option<EventStream<[u8; 1024]>>);

impl Hints {
    /// The kernel has only so many watches: without one, time alone gives the hints.
    fn new(path: &Path) -> Self {
        let watch = || -> io::Result<_> {
            let inotify = Inotify::init()?;
            // the directory, as a rotated log is a new file in it
            let directory = path.parent().unwrap_or(Path::new("/"));
            let mask = WatchMask::MODIFY
                | WatchMask::CREATE
                | WatchMask::MOVED_TO
                | WatchMask::CLOSE_WRITE;
            inotify.watches().add(directory, mask)?;
            inotify.into_event_stream([0; 1024])
        };
        Self(watch().ok())
    }

    /// Whatever an event says, also that events were lost: the log itself tells the truth.
    async fn next(&mut self) {
        let event = async {
            match &mut self.0 {
                Some(events) => drop(events.next().await),
                None => std::future::pending().await,
            }
        };
        let _ = tokio::time::timeout(LOOK, event).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::server::logs::cri::Stream;

    fn line(second: u64, stream: &str, tag: &str, text: &str) -> String {
        format!("2024-01-01T00:00:{second:02}.5Z {stream} {tag} {text}\n")
    }

    async fn read(path: &Path, options: &Options) -> String {
        let (output, mut input) = mpsc::channel(4);
        let log = Log::open(path, options, output).await.unwrap();
        let sending = tokio::spawn(log.send(|| true));
        let mut text = Vec::new();
        while let Some(bytes) = input.recv().await {
            text.extend(bytes);
        }
        sending.await.unwrap().unwrap();
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn what_is_asked_for_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let log = [
            line(1, "stdout", "F", "one"),
            line(2, "stderr", "P", "tw"),
            line(3, "stderr", "F", "o"),
            line(4, "stdout", "F", "three"),
        ];
        fs::write(&path, log.concat()).unwrap();
        let all = Options::default();
        let time = |second: u64| format!("2024-01-01T00:00:{second:02}.500000000Z");
        for (options, expected) in [
            (all.clone(), "one\ntwo\nthree\n".to_owned()),
            (Options { tail: Some(1), ..all.clone() }, "three\n".to_owned()),
            (Options { tail: Some(0), ..all.clone() }, String::new()),
            (Options { tail: Some(100), ..all.clone() }, "one\ntwo\nthree\n".to_owned()),
            (Options { limit: Some(5), ..all.clone() }, "one\nt".to_owned()),
            (
                Options { since: Some("2024-01-01T00:00:04Z".parse().unwrap()), ..all.clone() },
                "three\n".to_owned(),
            ),
            (Options { stream: Some(Stream::Stderr), ..all.clone() }, "two\n".to_owned()),
            (
                Options { timestamps: true, ..all.clone() },
                format!("{} one\n{} two\n{} three\n", time(1), time(2), time(4)),
            ),
        ] {
            assert_eq!(read(&path, &options).await, expected, "{options:?}");
        }
        fs::write(&path, &log.concat()[..40]).unwrap();
        assert_eq!(read(&path, &all).await, "one\n");
    }

    #[tokio::test]
    async fn the_tail_is_found_over_many_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let long = "x".repeat(1000);
        let log: String =
            (0..500).map(|n| line(1, "stdout", "F", &format!("{n} {long}"))).collect();
        fs::write(&path, log).unwrap();
        for lines in [1, 2, 30, 31, 32, 33, 499, 500, 501] {
            let text = read(&path, &Options { tail: Some(lines), ..Options::default() }).await;
            assert_eq!(text.lines().count() as u64, lines.min(500));
            assert!(text.starts_with(&format!("{} ", 500 - lines.min(500))), "{lines}");
        }
    }

    #[tokio::test]
    async fn following_loses_nothing_over_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut file = fs::File::create(&path).unwrap();
        let running = Arc::new(AtomicBool::new(true));
        let (output, mut input) = mpsc::channel(4);
        let log = Log::open(&path, &Options { follow: true, ..Options::default() }, output)
            .await
            .unwrap();
        let may_write = Arc::clone(&running);
        let sending = tokio::spawn(log.send(move || may_write.load(Ordering::SeqCst)));
        let writer = tokio::task::spawn_blocking(move || {
            for n in 0..2000 {
                if n % 400 == 399 {
                    // as the kubelet rotates: rename, a little more to the old file, reopen
                    fs::rename(&path, path.with_extension(format!("log.{n}"))).unwrap();
                    file.write_all(line(1, "stdout", "F", &format!("{n} late")).as_bytes())
                        .unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                    file = fs::File::create(&path).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                } else {
                    file.write_all(line(1, "stdout", "F", &n.to_string()).as_bytes()).unwrap();
                }
            }
            file.write_all(line(1, "stdout", "F", "the last").as_bytes()).unwrap();
            running.store(false, Ordering::SeqCst);
        });
        let mut text = Vec::new();
        while let Some(bytes) = input.recv().await {
            text.extend(bytes);
        }
        writer.await.unwrap();
        sending.await.unwrap().unwrap();
        let text = String::from_utf8(text).unwrap();
        let numbers: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
        let expected: Vec<String> =
            (0..2000).map(|n| n.to_string()).chain(["the".to_owned()]).collect();
        assert_eq!(numbers, expected);
    }

    #[tokio::test]
    async fn following_ends_when_the_reader_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        fs::write(&path, "").unwrap();
        let (output, input) = mpsc::channel(4);
        let log = Log::open(&path, &Options { follow: true, ..Options::default() }, output)
            .await
            .unwrap();
        let sending = tokio::spawn(log.send(|| true));
        drop(input);
        tokio::time::timeout(Duration::from_secs(5), sending).await.unwrap().unwrap().unwrap();
    }
}
