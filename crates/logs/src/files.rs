//! Names and order of the rotated files of a log.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use jiff::{Span, Zoned};
use longshore_base::files::if_present;

/// The timestamp in the name of a rotated file.
const STAMP: &str = "%Y%m%d-%H%M%S";
/// Its length.
const STAMP_LENGTH: usize = 15;
/// Suffix of compressed files.
const PACKED: &str = ".gz";
/// Suffix of files being compressed.
const DRAFT: &str = ".tmp";

/// A rotated file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rotated {
    /// The timestamp of its name, monotonic.
    pub(super) stamp: String,
    /// Whether it is compressed.
    pub(super) packed: bool,
}

impl Rotated {
    pub(super) fn path(&self, log: &Path) -> PathBuf {
        let end = if self.packed { PACKED } else { "" };
        append(log, &format!(".{}{end}", self.stamp))
    }
}

/// The files of a log in its directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Rotated files, oldest first, one per timestamp.
    pub(super) rotated: Vec<Rotated>,
    /// Leftovers of an interrupted rotation.
    pub(super) leftovers: Vec<PathBuf>,
}

impl Files {
    /// Lists the files of a log, which may not exist itself.
    pub(super) fn list(log: &Path) -> io::Result<Self> {
        let (Some(dir), Some(base)) = (log.parent(), log.file_name()) else {
            return Ok(Self::default());
        };
        let mut files = Self::default();
        // there is none when the pod was removed
        for entry in if_present(fs::read_dir(dir))?.into_iter().flatten() {
            let name = entry?.file_name();
            match Name::parse(name.as_encoded_bytes(), base.as_encoded_bytes()) {
                Some(Name::Rotated(rotated)) => files.rotated.push(rotated),
                Some(Name::Draft) => files.leftovers.push(dir.join(name)),
                Some(Name::Log) | None => {}
            }
        }
        files.rotated.sort();
        // of two with the same timestamp, the second is compressed and complete
        files.rotated.dedup_by(|second, first| {
            let twins = first.stamp == second.stamp;
            if twins {
                files.leftovers.push(first.path(log));
                first.packed = true;
            }
            twins
        });
        Ok(files)
    }
}

/// A parsed file name in the directory of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The active log.
    Log,
    Rotated(Rotated),
    Draft,
}

impl Name {
    /// `None` for files of other logs than `base`.
    pub(super) fn parse(name: &[u8], base: &[u8]) -> Option<Self> {
        let rest = name.strip_prefix(base)?;
        if rest.is_empty() {
            return Some(Self::Log);
        }
        let (stamp, end) = rest.strip_prefix(b".")?.split_at_checked(STAMP_LENGTH)?;
        let is_stamp = stamp.iter().enumerate().all(|(at, byte)| match at {
            8 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
        let stamp = std::str::from_utf8(stamp).ok().filter(|_| is_stamp)?.to_owned();
        match end {
            b"" => Some(Self::Rotated(Rotated { stamp, packed: false })),
            b".gz" => Some(Self::Rotated(Rotated { stamp, packed: true })),
            b".tmp" => Some(Self::Draft),
            _ => None,
        }
    }
}

/// The timestamp of a rotation at `now`: later than all before, whatever the clock.
pub(super) fn next_stamp(now: &Zoned, newest: Option<&Rotated>) -> String {
    let stamp = now.strftime(STAMP).to_string();
    match newest {
        Some(newest) if newest.stamp >= stamp => {
            let time = DateTime::strptime(STAMP, &newest.stamp);
            let later = time.and_then(|time| time.checked_add(Span::new().seconds(1)));
            later.map_or(stamp, |later| later.strftime(STAMP).to_string())
        }
        _ => stamp,
    }
}

/// The temporary file of a compression.
pub(super) fn draft(file: &Path) -> PathBuf {
    append(file, DRAFT)
}

fn append(path: &Path, end: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(end);
    path.into()
}
