//! The files of a log in order, as far as they are not read yet. Rotations append to it; its files are
//! held open, so that none is missed.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::files::{Files, Rotated};
use super::segment::{Identity, Segment};
use longshore_base::files::if_present;

/// Maximum number of unread files of a follower.
pub(super) const MOST_SEGMENTS: usize = 64;

pub(super) struct Chain {
    log: PathBuf,
    pub(super) segments: VecDeque<Segment>,
    /// The newest timestamp of rotated files in the chain so far.
    newest_stamp: Option<String>,
    /// The last file, if it is the active log as far as is known.
    tip: Option<Identity>,
    /// Maximum number of unread files; `None` while the log is being opened.
    most: Option<usize>,
}

impl Chain {
    /// All files of a log.
    pub(super) fn open(log: &Path) -> io::Result<Self> {
        let mut chain = Self {
            log: log.to_owned(),
            segments: VecDeque::new(),
            newest_stamp: None,
            tip: None,
            most: None,
        };
        chain.extend()?;
        chain.most = Some(chain.segments.len() + MOST_SEGMENTS);
        Ok(chain)
    }

    /// Adds files of new rotations. Cheap enough to call for each notification.
    ///
    /// # Errors
    /// If a file cannot be opened, or too many are unread.
    pub(super) fn extend(&mut self) -> io::Result<()> {
        loop {
            // opened before listing: what is not listed has not been rotated
            let current = if_present(Segment::open(&self.log, None))?;
            let current_id = current.as_ref().map(|current| current.identity);
            let mut current_rotated = false;
            for rotated in Files::list(&self.log)?.rotated {
                if self.newest_stamp.as_ref().is_some_and(|newest| *newest >= rotated.stamp) {
                    continue;
                }
                let Some(segment) = open(&self.log, &rotated)? else { continue };
                current_rotated |= current_id == Some(segment.identity);
                // timestamps are monotonic, so the first new one belongs to the file that was the
                // active log when it was opened. A compressed one is another file with the same
                // content.
                let tip = self.tip.take();
                let is_tip = tip.is_some_and(|tip| rotated.packed || tip == segment.identity);
                self.newest_stamp = Some(rotated.stamp);
                match self.segments.back_mut().filter(|_| is_tip) {
                    Some(last) => last.stamp = segment.stamp,
                    None => self.push(segment)?,
                }
            }
            if current_rotated {
                continue; // there is a newer log, or will be
            }
            let Some(current) = current.filter(|current| self.tip != Some(current.identity)) else {
                return Ok(());
            };
            self.tip = Some(current.identity);
            match self.segments.back_mut().filter(|last| last.identity == current.identity) {
                Some(taken_back) => taken_back.stamp = None,
                None => self.push(current)?,
            }
            return Ok(());
        }
    }

    fn push(&mut self, segment: Segment) -> io::Result<()> {
        if let Some(most) = self.most {
            if self.segments.len() >= most {
                return Err(io::Error::other("the reader has fallen too far behind"));
            }
            if let Some(last) = self.segments.back_mut() {
                last.supersede();
            }
        }
        self.segments.push_back(segment);
        Ok(())
    }

    /// The runtime has closed the file that was rotated with that timestamp.
    pub(super) fn close(&mut self, stamp: &str) {
        let closed = self.segments.iter_mut().find(|s| s.stamp.as_deref() == Some(stamp));
        if let Some(closed) = closed {
            closed.close();
        }
    }

    /// Goes on to the next file after the first was read to its end; returns whether there is one.
    /// While the log is `live`, data may still be appended.
    pub(super) fn advance(&mut self, live: bool) -> bool {
        let has_next = self.segments.len() > 1;
        let is_complete = !live || self.next_at().is_none();
        if has_next && is_complete {
            self.segments.pop_front();
        }
        has_next && is_complete
    }

    /// When the next file may be read, if that depends on time.
    pub(super) fn next_at(&self) -> Option<Instant> {
        match (self.segments.front(), self.segments.len()) {
            (Some(first), 2..) => first.complete_at(),
            _ => None,
        }
    }
}

/// `None` if it was removed.
fn open(log: &Path, rotated: &Rotated) -> io::Result<Option<Segment>> {
    // it may have been compressed since it was listed
    let packed = Rotated { packed: true, ..rotated.clone() };
    for rotated in [rotated, &packed] {
        if let Some(segment) = if_present(Segment::open(log, Some(rotated)))? {
            return Ok(Some(segment));
        }
    }
    Ok(None)
}
