//! Copies of a store: a snapshot is a file with all that was there at one revision, and its sum.
//!
//! Its bytes: [`MAGIC`], the revision, then for each key a 1, the lengths of key and value, the
//! revisions at which the key came and was last written, when it goes (seconds since 1970, 0 is never),
//! key and value; in the end a 0, how many keys there were, and the SHA-256 of all before it. Numbers
//! are little endian: lengths of 32 bits, all others of 64.

use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::{Error, Result, Revision};

/// The first bytes of a snapshot.
pub const MAGIC: &[u8] = b"longshore snapshot 1\n";

/// The largest key and value that are taken, in bytes.
const MAX_KEY: usize = 4 << 10;
const MAX_VALUE: usize = 16 << 20;

/// One key with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Full key.
    pub key: String,
    /// The stored bytes.
    pub value: Bytes,
    /// Revision at which the key came into being.
    pub create_revision: Revision,
    /// Revision of the last write to the key.
    pub mod_revision: Revision,
    /// When it goes by itself, since 1970.
    pub deadline: Option<Duration>,
}

impl Entry {
    /// Refuses what no store can have written.
    pub(crate) fn check(&self) -> Result<()> {
        let Entry { key, value, create_revision, mod_revision, .. } = self;
        let why = match () {
            () if key.is_empty() || key.len() > MAX_KEY => "its key has a wrong length",
            () if value.len() > MAX_VALUE => "its value is too long",
            () if !(1..=*mod_revision).contains(create_revision) || *mod_revision == i64::MAX => {
                "its revisions make no sense"
            }
            () => return Ok(()),
        };
        let key: String = key.chars().take(100).collect();
        Err(Error::Backend(format!("key {key:?}: {why}")))
    }
}

/// What a copy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its revision.
    pub revision: Revision,
    /// How many keys.
    pub entries: u64,
}

/// A snapshot that is being written.
pub struct SnapshotWriter<W> {
    out: W,
    sum: Sha256,
    summary: Summary,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins a snapshot of a revision.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn begin(out: W, revision: Revision) -> io::Result<SnapshotWriter<W>> {
        let summary = Summary { revision, entries: 0 };
        let mut writer = SnapshotWriter { out, sum: Sha256::new(), summary };
        writer.write(MAGIC)?;
        writer.write(&revision.to_le_bytes())?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.out.write_all(bytes)
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let length = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
        self.write(&[1])?;
        self.write(&length(entry.key.len())?.to_le_bytes())?;
        self.write(&length(entry.value.len())?.to_le_bytes())?;
        self.write(&entry.create_revision.to_le_bytes())?;
        self.write(&entry.mod_revision.to_le_bytes())?;
        self.write(&entry.deadline.map_or(0, |deadline| deadline.as_secs()).to_le_bytes())?;
        self.write(entry.key.as_bytes())?;
        self.write(&entry.value)?;
        self.summary.entries = self.summary.entries.saturating_add(1);
        Ok(())
    }

    /// What it is written to.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Ends the snapshot.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn finish(mut self) -> io::Result<(W, Summary)> {
        self.write(&[0])?;
        self.write(&self.summary.entries.to_le_bytes())?;
        let sum = self.sum.finalize();
        self.out.write_all(&sum)?;
        self.out.flush()?;
        Ok((self.out, self.summary))
    }
}

/// Reads a snapshot, entry by entry. What `entry` is given counts only once this has returned: the sum
/// is at the end.
///
/// # Errors
///
/// It is no snapshot, it is damaged, or `entry` fails.
pub fn read_snapshot(
    input: impl Read,
    entry: &mut dyn FnMut(Entry) -> Result<()>,
) -> Result<Summary> {
    let mut reader = SnapshotReader { input: BufReader::new(input), sum: Sha256::new() };
    if reader.take(MAGIC.len())? != MAGIC {
        return Err(damaged("not a snapshot"));
    }
    let mut summary = Summary { revision: reader.number()?, entries: 0 };
    // a store must be able to go on from there
    if !(0..i64::MAX / 2).contains(&summary.revision) {
        return Err(damaged("its revision makes no sense"));
    }
    loop {
        match reader.array::<1>()? {
            [0] => break,
            [1] => {}
            _ => return Err(damaged("something else is where a key should be")),
        }
        let key_length = u32::from_le_bytes(reader.array()?) as usize;
        let value_length = u32::from_le_bytes(reader.array()?) as usize;
        if key_length > MAX_KEY || value_length > MAX_VALUE {
            return Err(damaged("a key or value that is too long"));
        }
        let (create_revision, mod_revision) = (reader.number()?, reader.number()?);
        let deadline = u64::from_le_bytes(reader.array()?);
        let key = String::from_utf8(reader.take(key_length)?)
            .map_err(|_| damaged("a key that is no text"))?;
        let value = Bytes::from(reader.take(value_length)?);
        let deadline = Some(deadline).filter(|at| *at > 0).map(Duration::from_secs);
        let one = Entry { key, value, create_revision, mod_revision, deadline };
        one.check()?;
        if one.mod_revision > summary.revision {
            return Err(damaged("a key that is newer than the snapshot"));
        }
        entry(one)?;
        summary.entries = summary.entries.saturating_add(1);
    }
    if u64::from_le_bytes(reader.array()?) != summary.entries {
        return Err(damaged("keys are missing"));
    }
    let expected = reader.sum.clone().finalize();
    if reader.take(expected.len())? != expected[..] {
        return Err(damaged("its sum is another one"));
    }
    match reader.input.read(&mut [0]) {
        Ok(0) => Ok(summary),
        Ok(_) => Err(damaged("something follows its end")),
        Err(error) => Err(damaged(&error.to_string())),
    }
}

fn damaged(why: &str) -> Error {
    Error::Backend(format!("the snapshot cannot be used: {why}"))
}

struct SnapshotReader<R> {
    input: R,
    sum: Sha256,
}

impl<R: Read> SnapshotReader<R> {
    fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.input.read_exact(&mut bytes).map_err(|error| damaged(&error.to_string()))?;
        self.sum.update(&bytes);
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(|error| damaged(&error.to_string()))?;
        self.sum.update(bytes);
        Ok(bytes)
    }

    fn number(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }
}

/// Makes a store of a snapshot, in a file that is not there yet. Its revision is by `bump` greater than
/// that of the snapshot: clients that have seen later ones take no older object for a newer one.
///
/// # Errors
///
/// The snapshot cannot be used, or the file is there or cannot be written.
pub fn restore(snapshot: &Path, path: &Path, bump: u32) -> Result<Summary> {
    let input = std::fs::File::open(snapshot)
        .map_err(|error| Error::Backend(format!("{}: {error}", snapshot.display())))?;
    let mut file = crate::NewFile::create(path)?;
    let summary = read_snapshot(input, &mut |entry| file.add(entry))?;
    let revision = summary
        .revision
        .checked_add(bump.into())
        .ok_or_else(|| damaged("its revision is too large"))?;
    file.finish(revision)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(key: &str, value: &[u8], revision: Revision) -> Entry {
        Entry {
            key: key.to_owned(),
            value: Bytes::copy_from_slice(value),
            create_revision: 1,
            mod_revision: revision,
            deadline: (revision % 2 == 0).then_some(Duration::from_secs(7)),
        }
    }

    fn written(entries: &[Entry], revision: Revision) -> Vec<u8> {
        let mut writer = SnapshotWriter::begin(Vec::new(), revision).unwrap();
        entries.iter().for_each(|entry| writer.add(entry).unwrap());
        writer.finish().unwrap().0
    }

    #[test]
    fn snapshot_there_and_back() {
        let entries = [entry("a", b"", 2), entry("b", b"\0k8s", 9), entry("ü", &[7; 70_000], 3)];
        let bytes = written(&entries, 9);
        let mut read = Vec::new();
        let summary = read_snapshot(&bytes[..], &mut |entry| {
            read.push(entry);
            Ok(())
        });
        assert_eq!(summary.unwrap(), Summary { revision: 9, entries: 3 });
        assert_eq!(read, entries);
    }

    proptest! {
        /// Damage at any place is found, and never a panic or much memory.
        #[test]
        fn snapshot_damage_is_found(at in 0usize..400, flip in 1u8.., cut in 0usize..400) {
            let whole = written(&[entry("a", b"12345", 2), entry("b", &[7; 200], 3)], 9);
            let mut bytes = whole.clone();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            prop_assert!(read_snapshot(&bytes[..], &mut |_| Ok(())).is_err());
            let cut = cut % whole.len();
            prop_assert!(read_snapshot(&whole[..cut], &mut |_| Ok(())).is_err());
            let more = [&whole[..], b"x"].concat();
            prop_assert!(read_snapshot(&more[..], &mut |_| Ok(())).is_err());
        }
    }
}
