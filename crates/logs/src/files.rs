//! The files of a log besides the one that is written: what they are called, and their order.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use jiff::{Span, Zoned};

/// The time of a rotation in the name of the file that it put away.
const STAMP: &str = "%Y%m%d-%H%M%S";
/// Its length.
const STAMP_LENGTH: usize = 15;
/// What is packed.
const PACKED: &str = ".gz";
/// What is being packed.
const DRAFT: &str = ".tmp";

/// A file that rotation has put away.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rotated {
    /// The time in its name; a later rotation has a greater one.
    pub(super) stamp: String,
    /// Whether it is packed.
    pub(super) packed: bool,
}

impl Rotated {
    pub(super) fn path(&self, log: &Path) -> PathBuf {
        let end = if self.packed { PACKED } else { "" };
        append(log, &format!(".{}{end}", self.stamp))
    }
}

/// What a directory has of a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Oldest first, one for each stamp.
    pub(super) rotated: Vec<Rotated>,
    /// What a rotation that was interrupted has left: drafts, and what has been packed already.
    pub(super) leftovers: Vec<PathBuf>,
}

impl Files {
    /// What there is of this log; it need not be there itself.
    pub(super) fn list(log: &Path) -> io::Result<Self> {
        let (Some(dir), Some(base)) = (log.parent(), log.file_name()) else {
            return Ok(Self::default());
        };
        let mut files = Self::default();
        let entries = match fs::read_dir(dir) {
            // the pod is gone
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            match Name::parse(name.as_encoded_bytes(), base.as_encoded_bytes()) {
                Some(Name::Rotated(rotated)) => files.rotated.push(rotated),
                Some(Name::Draft) => files.leftovers.push(dir.join(name)),
                Some(Name::Log) | None => {}
            }
        }
        files.rotated.sort();
        // of two with one stamp the second is packed, and whole, for it was a draft before
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

/// What a name in the directory of a log says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The log itself.
    Log,
    Rotated(Rotated),
    Draft,
}

impl Name {
    /// `None` for what is not of the log `base`.
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

/// The stamp of a rotation that happens at `now`: later than all before it, whatever clocks do.
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

/// Where a file is packed, before it is whole.
pub(super) fn draft(file: &Path) -> PathBuf {
    append(file, DRAFT)
}

fn append(path: &Path, end: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(end);
    path.into()
}
