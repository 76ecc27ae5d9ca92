//! Usage of file systems, and the largest users of a disk.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use longshore_cri::Runtime;
use longshore_machine::FileSystem;

use super::{Error, blocking};

/// Maximum number of directory entries that are read to find the users of a disk.
const MOST_ENTRIES: usize = 200_000;
/// Maximum number of users that are reported.
const MAX_REPORTED: usize = 5;
/// Block size in `st_blocks`.
const BLOCK: u64 = 512;

/// Usage of a file system (bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) capacity: u64,
    /// Available to unprivileged users.
    pub(super) available: u64,
}

impl Usage {
    /// Of the file system of a path. Blocks.
    fn of(path: &Path) -> std::io::Result<Self> {
        let FileSystem { capacity, available, .. } = FileSystem::of(path)?;
        Ok(Self { capacity, available: available.min(capacity) })
    }

    pub(super) async fn read(path: &Path) -> Result<Self, Error> {
        let owned = path.to_owned();
        let read = blocking(move || Self::of(&owned)).await;
        let read = read.unwrap_or_else(|| Err(std::io::ErrorKind::Interrupted.into()));
        read.map_err(|source| Error::Io { path: path.to_owned(), source })
    }

    /// Used percentage, rounded up; 100 without capacity.
    pub(super) fn percent(self) -> u64 {
        100_u64.saturating_sub(percentage(self.available, self.capacity).unwrap_or(0))
    }

    /// Bytes to free to reach `percent`.
    pub(super) fn above(self, percent: u64) -> u64 {
        let free = u128::from(self.capacity) * u128::from(100_u64.saturating_sub(percent)) / 100;
        u64::try_from(free).unwrap_or(u64::MAX).saturating_sub(self.available)
    }
}

fn percentage(part: u64, whole: u64) -> Option<u64> {
    let percent = (u128::from(part) * 100).checked_div(u128::from(whole))?;
    Some(u64::try_from(percent).unwrap_or(100).min(100))
}

/// Where the runtime keeps its images.
pub(super) async fn image_filesystem(cri: &Runtime) -> Result<PathBuf, Error> {
    let info = cri.image_fs_info().await?;
    let first = info.image_filesystems.into_iter().next();
    let id = first.and_then(|filesystem| filesystem.fs_id).ok_or(Error::NoImageFilesystem)?;
    Ok(PathBuf::from(id.mountpoint))
}

/// Available bytes on the file systems of these paths, each counted once. Errors count as 0.
pub(super) async fn available(paths: Vec<PathBuf>) -> u64 {
    let look = move || {
        let mut seen = HashSet::new();
        let new =
            paths.iter().filter(|path| device(path).is_some_and(|device| seen.insert(device)));
        let usage = new.filter_map(|path| Usage::of(path).ok());
        usage.fold(0, |sum: u64, usage| sum.saturating_add(usage.available))
    };
    blocking(look).await.unwrap_or_default()
}

pub(super) fn device(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.dev())
}

/// Size of each directory in `dir` on a device, by name. Blocks. Reads a limited number of entries, so
/// the size of a huge tree is incomplete.
pub(super) fn taken_by_children(dir: &Path, device: u64) -> Vec<(String, u64)> {
    let mut left = MOST_ENTRIES;
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let sizes = entries.flatten().map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, taken(entry.path(), device, &mut left))
    });
    sizes.filter(|(_, size)| *size > 0).collect()
}

fn taken(root: PathBuf, device: u64, left: &mut usize) -> u64 {
    let (mut sum, mut waiting) = (0_u64, vec![root]);
    while let Some(path) = waiting.pop() {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.dev() != device {
            continue;
        }
        sum = sum.saturating_add(metadata.blocks().saturating_mul(BLOCK));
        if metadata.is_dir() {
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                if *left == 0 {
                    return sum;
                }
                *left -= 1;
                waiting.push(entry.path());
            }
        }
    }
    sum
}

/// The largest users of a disk, as a sentence; empty if there are none.
pub(super) fn biggest(mut users: Vec<(String, u64)>) -> String {
    users.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
    let mut text = String::new();
    for (user, size) in users.into_iter().take(MAX_REPORTED) {
        let before = if text.is_empty() { " Biggest users:" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(text, "{before} {user} ({})", human(size));
    }
    if !text.is_empty() {
        text.push('.');
    }
    text
}

/// A size as upstream's events write it.
#[allow(clippy::cast_precision_loss)]
pub(super) fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn disk_usage_thresholds_match_upstream() {
        // capacity, available, used percent, what is to be freed to come down to 80 %
        for (capacity, available, percent, above) in [
            (1000, 200, 80, 0),
            (1000, 50, 95, 150),
            (1000, 55, 95, 145),
            (1000, 1000, 0, 0),
            (1000, 0, 100, 200),
            (0, 0, 100, 0),
            (u64::MAX, 0, 100, u64::MAX / 5),
        ] {
            let usage = Usage { capacity, available };
            assert_eq!((usage.percent(), usage.above(80)), (percent, above), "{usage:?}");
        }
    }

    #[test]
    fn disk_sizes_are_human_readable() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1 << 20, "1.0 MiB"),
            (GIB * 3 / 2, "1.5 GiB"),
            (GIB << 20, "1048576.0 GiB".replace("1048576.0 GiB", "1024.0 TiB").as_str()),
        ] {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn disk_usage_names_the_largest_users() {
        assert_eq!(biggest(Vec::new()), "");
        let users = |sizes: &[u64]| sizes.iter().map(|size| (format!("u{size}"), *size)).collect();
        assert_eq!(biggest(users(&[1, 2048])), " Biggest users: u2048 (2.0 KiB), u1 (1 B).");
        assert_eq!(biggest(users(&[1, 2, 3, 4, 5, 6])).matches(" B)").count(), MAX_REPORTED);
    }

    #[test]
    fn disk_usage_excludes_other_file_systems() {
        let dir = tempfile::tempdir().unwrap();
        let child = dir.path().join("a/b");
        std::fs::create_dir_all(&child).unwrap();
        std::fs::write(child.join("file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/", child.join("link")).unwrap();
        let here = device(dir.path()).unwrap();
        let taken = taken_by_children(dir.path(), here);
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].0, "a");
        assert!((100_000..1_000_000).contains(&taken[0].1), "{taken:?}");
        assert!(taken_by_children(dir.path(), here + 1).is_empty());
    }

    proptest! {
        #[test]
        fn disk_usage_freeing_the_excess_reaches_the_threshold(capacity in 1..=u64::MAX, available: u64, low in 0..=100_u64) {
            let usage = Usage { capacity, available: available.min(capacity) };
            let freed = usage.available.saturating_add(usage.above(low));
            let after = Usage { available: freed.min(capacity), ..usage };
            // Percentages are rounded up.
            prop_assert!(after.percent() <= low + 1, "{after:?}");
            prop_assert_eq!(after.above(low), 0);
        }
    }
}
