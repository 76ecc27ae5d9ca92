//! One open file of a log, which may be renamed, compressed or removed meanwhile.

use std::fs::{File, Metadata};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flate2::bufread::MultiGzDecoder;

use super::files::Rotated;

/// How long the runtime may be silent in an old file, after it has opened a new one, before the old one
/// is considered closed.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

/// Identity of a file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

pub(super) struct Segment {
    pub(super) identity: Identity,
    /// `None` for the active log.
    pub(super) stamp: Option<String>,
    file: Arc<File>,
    content: Content,
    /// Where reading stops.
    pub(super) end: u64,
    /// Since when it is replaced.
    superseded: Option<Instant>,
    /// When data was last appended.
    touched: Instant,
    /// The runtime has closed it.
    closed: bool,
}

enum Content {
    Plain(At),
    Packed(Box<Unpacked>),
}

/// Reader of a compressed file.
pub(super) type Unpacked = BufReader<MultiGzDecoder<BufReader<At>>>;

impl Segment {
    /// The active log, or a rotated file.
    pub(super) fn open(log: &Path, rotated: Option<&Rotated>) -> io::Result<Self> {
        let path = rotated.map(|rotated| rotated.path(log));
        let file = Arc::new(File::open(path.as_deref().unwrap_or(log))?);
        let metadata = file.metadata()?;
        let packed = rotated.is_some_and(|rotated| rotated.packed);
        // files rotated long ago are closed
        let age = metadata.modified().ok().filter(|_| rotated.is_some());
        let age = age.and_then(|modified| modified.elapsed().ok()).unwrap_or_default();
        let now = Instant::now();
        let content = match packed {
            true => Content::Packed(Box::new(unpack(&file))),
            false => Content::Plain(At { file: file.clone(), at: 0 }),
        };
        Ok(Self {
            identity: Identity::from(&metadata),
            stamp: rotated.map(|rotated| rotated.stamp.clone()),
            file,
            content,
            end: u64::MAX,
            superseded: None,
            touched: now.checked_sub(age).unwrap_or(now),
            closed: packed,
        })
    }

    /// Reads into `buffer`, up to that number of bytes. 0: no more data now.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.content {
            Content::Packed(unpacked) => unpacked.read(buffer)?,
            Content::Plain(at) => {
                let left = usize::try_from(self.end.saturating_sub(at.at)).unwrap_or(usize::MAX);
                let most = buffer.len().min(left);
                match at.read(&mut buffer[..most])? {
                    // truncated in place, as some programs rotate: reads from its start
                    0 if most > 0 && self.file.metadata()?.len() < at.at => {
                        at.at = 0;
                        at.read(&mut buffer[..most])?
                    }
                    count => count,
                }
            }
        };
        if count > 0 {
            self.touched = Instant::now();
        }
        Ok(count)
    }

    /// The file, for reads that do not move its position.
    pub(super) fn look(&self) -> SegmentReader {
        match self.content {
            Content::Plain(_) => SegmentReader::Plain(At { file: self.file.clone(), at: 0 }),
            Content::Packed(_) => SegmentReader::Packed(Box::new(unpack(&self.file))),
        }
    }

    /// Continues at that position of a plain file.
    pub(super) fn seek(&mut self, place: u64) {
        if let Content::Plain(at) = &mut self.content {
            at.at = place;
        }
    }

    /// The reader of a compressed file.
    pub(super) fn unpacked(&mut self) -> Option<&mut Unpacked> {
        match &mut self.content {
            Content::Packed(unpacked) => Some(unpacked),
            Content::Plain(_) => None,
        }
    }

    /// Limits reading to the current size: a fast writer cannot make it endless.
    pub(super) fn end_here(&mut self) -> io::Result<()> {
        self.end = self.file.metadata()?.len();
        Ok(())
    }

    pub(super) fn supersede(&mut self) {
        self.superseded.get_or_insert_with(Instant::now);
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// When it is considered complete; `None`: it is.
    pub(super) fn complete_at(&self) -> Option<Instant> {
        if self.closed {
            return None;
        }
        let quiet_since = self.superseded.map_or(self.touched, |since| since.max(self.touched));
        quiet_since.checked_add(SETTLE).filter(|at| *at > Instant::now())
    }
}

fn unpack(file: &Arc<File>) -> Unpacked {
    BufReader::new(MultiGzDecoder::new(BufReader::new(At { file: file.clone(), at: 0 })))
}

/// The content of a segment from its beginning.
pub(super) enum SegmentReader {
    Plain(At),
    Packed(Box<Unpacked>),
}

impl Read for SegmentReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(at) => at.read(buffer),
            Self::Packed(unpacked) => unpacked.read(buffer),
        }
    }
}

/// A position of its own in a shared file.
pub(super) struct At {
    pub(super) file: Arc<File>,
    pub(super) at: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at = self.at.saturating_add(count as u64);
        Ok(count)
    }
}
