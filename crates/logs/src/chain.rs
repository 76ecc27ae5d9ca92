//! The files of a log in the order in which they were written, as far as they are yet to be read.
//! Rotations add to its end; files that are in it are held open, so none of them is missed.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::files::{Files, Rotated};
use super::segment::{Identity, Segment};

/// So many files may wait for one who follows.
pub(super) const MOST_SEGMENTS: usize = 64;

pub(super) struct Chain {
    log: PathBuf,
    pub(super) segments: VecDeque<Segment>,
    /// The greatest stamp of those that are, or were, in the chain.
    newest_stamp: Option<String>,
    /// The last of them, if it is the log itself as far as is known.
    tip: Option<Identity>,
    /// How many may wait to be read; `None` while the log is being opened.
    most: Option<usize>,
}

impl Chain {
    /// All that there is of a log.
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

    /// Adds what rotations have made since. Cheap enough for each hint that one has happened.
    ///
    /// # Errors
    /// When a file cannot be opened, or too many are waiting to be read.
    pub(super) fn extend(&mut self) -> io::Result<()> {
        loop {
            // opened before the list is made: what the list does not show has not been put away
            let current = match Segment::open(&self.log, None) {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                current => Some(current?),
            };
            let current_id = current.as_ref().map(|current| current.identity);
            let mut put_away = false;
            for rotated in Files::list(&self.log)?.rotated {
                if self.newest_stamp.as_ref().is_some_and(|newest| *newest >= rotated.stamp) {
                    continue;
                }
                let Some(segment) = open(&self.log, &rotated)? else { continue };
                put_away |= current_id == Some(segment.identity);
                // Stamps only grow, so that the first new one is of the file which was the log when
                // it was opened. A packed one is another file with the same content.
                let tip = self.tip.take();
                let is_tip = tip.is_some_and(|tip| rotated.packed || tip == segment.identity);
                self.newest_stamp = Some(rotated.stamp);
                match self.segments.back_mut().filter(|_| is_tip) {
                    Some(last) => last.stamp = segment.stamp,
                    None => self.push(segment)?,
                }
            }
            if put_away {
                continue; // there is a newer log, or there will be
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

    /// The runtime has closed the file that was put away with that stamp.
    pub(super) fn close(&mut self, stamp: &str) {
        let closed = self.segments.iter_mut().find(|s| s.stamp.as_deref() == Some(stamp));
        if let Some(closed) = closed {
            closed.close();
        }
    }

    /// Goes on to the next file, the first being read to its end; whether there is one. While the
    /// log is `live`, the end of a file may not be its last.
    pub(super) fn advance(&mut self, live: bool) -> bool {
        let has_next = self.segments.len() > 1;
        let is_complete = !live || self.next_at().is_none();
        if has_next && is_complete {
            self.segments.pop_front();
        }
        has_next && is_complete
    }

    /// When the next file may be gone on to, if that is a matter of time.
    pub(super) fn next_at(&self) -> Option<Instant> {
        match (self.segments.front(), self.segments.len()) {
            (Some(first), 2..) => first.complete_at(),
            _ => None,
        }
    }
}

/// `None` if it is gone.
fn open(log: &Path, rotated: &Rotated) -> io::Result<Option<Segment>> {
    // it may have been packed since it was listed
    let packed = Rotated { packed: true, ..rotated.clone() };
    for rotated in [rotated, &packed] {
        match Segment::open(log, Some(rotated)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            segment => return segment.map(Some),
        }
    }
    Ok(None)
}
