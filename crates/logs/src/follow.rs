//! Sends a log to a reader of any speed: its end, or until the container has exited and its last line
//! is read.
//!
//! Files are read on threads that may block, a step at a time; a reader who is slow holds up a task,
//! a step's output and the files that rotation takes away meanwhile.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use longshore_base::{panics, time};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::read::{Reader, Step};
use super::watch::{Awaited, Seen, Watch};
use super::{Error, Options};

/// Lines in quick succession are sent together.
const PACE: Duration = Duration::from_millis(10);
/// How long the runtime may take to write the last output of a container.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Chunks of a log, or an error.
pub(crate) type Output = mpsc::Sender<io::Result<Bytes>>;

/// An opened log at the position of the first line to send.
pub struct Log {
    reader: Box<Reader>,
    /// `None`: it is not followed.
    watch: Option<Watch>,
}

/// Why reading ended before the end of the log.
enum Stop {
    /// The reader is gone, or has all requested bytes.
    Done,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Log {
    /// Opens the log at the position given by `options`.
    ///
    /// # Errors
    /// If there is none, not even a rotated one, or it cannot be read.
    pub async fn open(path: &Path, options: &Options) -> Result<Self, Error> {
        let (path, options) = (path.to_owned(), options.clone());
        let failed = |source| Error::Open { path: path.clone(), source };
        let open = {
            let path = path.clone();
            move || open(&path, &options)
        };
        let opened = panics::blocking(open).await.map_err(io::Error::other);
        opened.map_err(failed)?
    }

    /// Sends the log; a followed one until `ended` resolves or the reader is gone.
    pub async fn send(self, ended: impl Future<Output = ()>, output: Output) {
        let sent = match self.watch {
            Some(watch) => Follow { reader: self.reader, watch, output: &output }.run(ended).await,
            None => send_all(self.reader, &output).await.map(drop),
        };
        if let Err(Stop::Failed(error)) = sent {
            tracing::debug!(%error, "log not read to its end");
            let _ = output.send(Err(error)).await;
        }
    }
}

fn open(path: &Path, options: &Options) -> Result<Log, Error> {
    let log = resolve(path)?;
    // watched before the first read, so that no change is missed
    let watch = options.follow.then(|| Watch::new(&log));
    match Reader::open(&log, options) {
        Ok(Some(reader)) => Ok(Log { reader: Box::new(reader), watch }),
        Ok(None) => Err(missing(path)),
        Err(source) => Err(Error::Open { path: log, source }),
    }
}

/// The path of a log with links resolved, as rotation happens at the target. The log may not exist
/// during a rotation.
fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(missing(path));
    };
    std::fs::canonicalize(path)
        .or_else(|_| std::fs::canonicalize(directory).map(|directory| directory.join(name)))
        .map_err(|_| missing(path))
}

fn missing(path: &Path) -> Error {
    let mut parts: Vec<&Path> = path.ancestors().collect();
    parts.reverse();
    let at_fault = parts.into_iter().find_map(|part| Some((part, part.symlink_metadata().err()?)));
    let (part, source) = at_fault.unwrap_or((path, io::ErrorKind::NotFound.into()));
    Error::Resolve { path: path.to_owned(), missing: part.display().to_string(), source }
}

/// Reads a chunk on a blocking thread.
async fn step(mut reader: Box<Reader>) -> Result<(Box<Reader>, Step), Stop> {
    let step = move || {
        let step = reader.step();
        step.map(|step| (reader, step))
    };
    Ok(panics::blocking(step).await.map_err(io::Error::other)??)
}

/// Sends the log to its end.
async fn send_all(mut reader: Box<Reader>, output: &Output) -> Result<Box<Reader>, Stop> {
    loop {
        let (next, step) = step(reader).await?;
        reader = next;
        let (bytes, is_last) = match step {
            Step::Data(bytes) => (bytes, false),
            Step::Last(bytes) => (bytes, true),
            Step::Idle => return Ok(reader),
        };
        let sent = bytes.is_empty() || output.send(Ok(bytes)).await.is_ok();
        if is_last || !sent {
            return Err(Stop::Done);
        }
    }
}

struct Follow<'a> {
    reader: Box<Reader>,
    watch: Watch,
    output: &'a Output,
}

impl Follow<'_> {
    async fn run(mut self, ended: impl Future<Output = ()>) -> Result<(), Stop> {
        let mut ended = pin!(ended);
        loop {
            self.watch.expect(Awaited::Lines);
            let read_at = Instant::now();
            self = self.send_new().await?;
            let again_at = self.reader.again_at().map(Instant::from_std);
            tokio::select! {
                biased;
                () = self.output.closed() => return Err(Stop::Done),
                seen = self.watch.next() => {
                    self.take(seen).await?;
                    sleep_until(time::later(read_at, PACE)).await;
                }
                () = time::until(again_at) => {}
                () = &mut ended => break,
            }
        }
        sleep(LAST_WORDS).await;
        self.take(Seen { rotated: true, ..Seen::default() }).await?;
        self.reader.ended();
        send_all(self.reader, self.output).await.map(drop)
    }

    /// Sends new data.
    async fn send_new(mut self) -> Result<Self, Stop> {
        loop {
            let (reader, step) = step(self.reader).await?;
            self.reader = reader;
            match step {
                Step::Idle => return Ok(self),
                Step::Data(bytes) => self.put(bytes).await?,
                Step::Last(bytes) => {
                    self.put(bytes).await?;
                    return Err(Stop::Done);
                }
            }
        }
    }

    /// Sends a chunk. Rotations are handled meanwhile, so that no file is missed.
    async fn put(&mut self, bytes: Bytes) -> Result<(), Stop> {
        if bytes.is_empty() {
            return Ok(());
        }
        let bytes = match self.output.try_send(Ok(bytes)) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Stop::Done),
            Err(mpsc::error::TrySendError::Full(bytes)) => bytes,
        };
        self.watch.expect(Awaited::Rotations);
        let place = loop {
            tokio::select! {
                place = self.output.reserve() => break place.map_err(|_| Stop::Done)?,
                seen = self.watch.next() => self.take(seen).await?,
            }
        };
        place.send(bytes);
        self.watch.expect(Awaited::Lines);
        Ok(())
    }

    async fn take(&mut self, seen: Seen) -> Result<(), Stop> {
        if seen.rotated {
            // a few calls on a small directory, once per rotation
            self.reader.rotated(&seen.closed)?;
        }
        Ok(())
    }
}
