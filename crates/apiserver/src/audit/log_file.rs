//! A log file with its rotation, in upstream's manner: a file that would become too large is renamed by the time,
//! and old ones are compressed and removed by number and age.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use longshore_base::files::if_present;
use parking_lot::Mutex;

/// In the names of old files, in UTC.
const TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.3f";
const MODE: u32 = 0o600;
const SECONDS_OF_A_DAY: i64 = 24 * 3600;

/// When a file is replaced by an empty one, and what becomes of old ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// In bytes; 0: never.
    pub max_size: u64,
    /// The most old files; 0: any number.
    pub max_backups: usize,
    /// After how many days an old file is removed; 0: never.
    pub max_age_days: u32,
    /// Whether old files are compressed.
    pub compress: bool,
}

/// A log that is open.
pub(super) struct LogFile {
    target: Target,
    rotation: Rotation,
    /// One thread at a time cares for old files.
    cleaning: Arc<Mutex<()>>,
}

enum Target {
    Stdout,
    /// `file`: `None` while it cannot be opened.
    File {
        path: PathBuf,
        file: Option<File>,
        size: u64,
    },
}

impl LogFile {
    /// Opens a file, which is made with its directory if it is absent. `None`: the standard output.
    pub(super) fn open(path: Option<&Path>, rotation: Rotation) -> io::Result<LogFile> {
        let target = match path {
            None => Target::Stdout,
            Some(path) => {
                if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
                }
                let file = append_to(path)?;
                let size = file.metadata()?.len();
                Target::File { path: path.to_owned(), file: Some(file), size }
            }
        };
        Ok(LogFile { target, rotation, cleaning: Arc::default() })
    }

    /// Appends a line.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let Target::File { path, file, size } = &mut self.target else {
            let mut stdout = io::stdout().lock();
            return stdout.write_all(line).and_then(|()| stdout.flush());
        };
        let limit = self.rotation.max_size;
        if limit > 0 {
            let length = line.len() as u64;
            if length > limit {
                let reason = format!("write length {length} exceeds maximum file size {limit}");
                return Err(io::Error::other(reason));
            }
            if *size > 0 && size.saturating_add(length) > limit {
                *file = None;
                rotate(path, Timestamp::now())?;
                *size = 0;
                self.clean();
                return self.append(line);
            }
        }
        self.append(line)
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let Target::File { path, file, size } = &mut self.target else { return Ok(()) };
        if file.is_none() {
            *file = Some(append_to(path)?);
        }
        if let Some(file) = file {
            file.write_all(line)?;
            *size = size.saturating_add(line.len() as u64);
        }
        Ok(())
    }

    /// Removes and compresses old files, on a thread of its own: it may take seconds.
    fn clean(&self) {
        let Target::File { path, .. } = &self.target else { return };
        let (path, rotation, cleaning) = (path.clone(), self.rotation, self.cleaning.clone());
        let work = move || {
            let _one = cleaning.lock();
            if let Err(error) = clean(&path, rotation, Timestamp::now()) {
                tracing::warn!(path = %path.display(), %error, "old audit logs stay as they are");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("audit-rotation".into()).spawn(work) {
            tracing::warn!(%error, "old audit logs stay as they are");
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(MODE).open(path)
}

/// What stands before and after the time in the names of old files.
fn affixes(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| {
        part.map(|part| part.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let extension = path.extension().map(|extension| format!(".{}", text(Some(extension))));
    (format!("{}-", text(path.file_stem())), extension.unwrap_or_default())
}

/// Renames the file, with the mode that it has for the new one.
fn rotate(path: &Path, mut now: Timestamp) -> io::Result<()> {
    // somebody else may have moved it
    let Some(metadata) = if_present(fs::metadata(path))? else { return Ok(()) };
    let (prefix, suffix) = affixes(path);
    let backup = loop {
        let backup = path.with_file_name(format!("{prefix}{}{suffix}", now.strftime(TIME_FORMAT)));
        if !backup.try_exists()? {
            break backup;
        }
        // no file replaces another one
        now = now.checked_add(SignedDuration::from_millis(1)).map_err(io::Error::other)?;
    };
    fs::rename(path, backup)?;
    let file = append_to(path)?;
    file.set_permissions(fs::Permissions::from_mode(metadata.permissions().mode()))
}

/// Old files, the newest first: their times, paths, and whether they are compressed.
fn backups(path: &Path) -> io::Result<Vec<(Timestamp, PathBuf, bool)>> {
    let (prefix, suffix) = affixes(path);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut found = Vec::new();
    for entry in fs::read_dir(dir.unwrap_or(Path::new(".")))? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let (plain, is_compressed) = match name.strip_suffix(".gz") {
            Some(plain) => (plain, true),
            None => (name, false),
        };
        let time = plain.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(&suffix));
        let time = time.and_then(|time| DateTime::strptime(TIME_FORMAT, time).ok());
        let time = time.and_then(|time| time.to_zoned(TimeZone::UTC).ok());
        if let Some(time) = time {
            found.push((time.timestamp(), entry.path(), is_compressed));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

fn clean(path: &Path, rotation: Rotation, now: Timestamp) -> io::Result<()> {
    let Rotation { max_backups, max_age_days, compress, .. } = rotation;
    let age = i64::from(max_age_days).saturating_mul(SECONDS_OF_A_DAY);
    let oldest = now.checked_sub(SignedDuration::from_secs(age)).unwrap_or(Timestamp::MIN);
    let mut times = Vec::new();
    for (time, backup, is_compressed) in backups(path)? {
        if times.last() != Some(&time) {
            times.push(time);
        }
        let is_too_many = max_backups > 0 && times.len() > max_backups;
        let is_too_old = max_age_days > 0 && time < oldest;
        if is_too_many || is_too_old {
            fs::remove_file(&backup)?;
        } else if compress && !is_compressed {
            compress_file(&backup)?;
        }
    }
    Ok(())
}

fn compress_file(path: &Path) -> io::Result<()> {
    let mut source = File::open(path)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".gz");
    let target = PathBuf::from(name);
    let mode = source.metadata()?.permissions().mode();
    let file =
        OpenOptions::new().create(true).write(true).truncate(true).mode(mode).open(&target)?;
    let compressed = (|| {
        let mut encoder = GzEncoder::new(file, Compression::default());
        let mut part = vec![0; 64 << 10];
        loop {
            match source.read(&mut part)? {
                0 => break,
                length => encoder.write_all(part.get(..length).unwrap_or_default())?,
            }
        }
        encoder.finish().map(drop)
    })();
    match compressed {
        Ok(()) => fs::remove_file(path),
        Err(error) => {
            let _ = fs::remove_file(&target);
            Err(error)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use flate2::read::GzDecoder;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn audit_log_is_rotated_by_size_and_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/audit.log");
        let rotation = Rotation { max_size: 100, ..Rotation::default() };
        let mut log = LogFile::open(Some(&path), rotation).unwrap();
        for i in 0..50 {
            log.write(format!("{i:09}\n").as_bytes()).unwrap();
        }
        let deep = dir.path().join("deep");
        let mut lines = Vec::new();
        for name in names(&deep) {
            let path = deep.join(name);
            assert!(fs::metadata(&path).unwrap().len() <= 100);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            lines.extend(fs::read_to_string(path).unwrap().lines().map(str::to_owned));
        }
        assert_eq!(names(&deep).len(), 5);
        lines.sort();
        assert_eq!(lines, (0..50).map(|i| format!("{i:09}")).collect::<Vec<_>>());
        assert!(log.write(&[b'x'; 101]).unwrap_err().to_string().contains("exceeds maximum"));
        let unlimited = Rotation::default();
        let mut log = LogFile::open(Some(&path), unlimited).unwrap();
        log.write(&[b'x'; 200]).unwrap();
        assert_eq!(names(&deep).len(), 5);
    }

    #[test]
    fn audit_log_rotation_goes_on_after_its_file_was_moved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let rotation = Rotation { max_size: 10, ..Rotation::default() };
        let mut log = LogFile::open(Some(&path), rotation).unwrap();
        log.write(b"12345678\n").unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        log.write(b"12345678\n").unwrap();
        assert_eq!(names(dir.path()), ["audit.log", "moved"]);
    }

    #[test]
    fn audit_log_removes_and_compresses_old_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let old = |day: u8| format!("audit-2026-01-{day:02}T00-00-00.000.log");
        let now: Timestamp = "2026-01-10T12:00:00Z".parse().unwrap();
        let fill = || {
            for day in 1..=9 {
                fs::write(dir.path().join(old(day)), format!("day {day}")).unwrap();
            }
            for other in ["audit.log", "audit-x.log", "other-2026-01-01T00-00-00.000.log"] {
                fs::write(dir.path().join(other), "other").unwrap();
            }
        };
        fill();
        clean(&path, Rotation { max_backups: 3, ..Rotation::default() }, now).unwrap();
        let kept = |days: &[u8], suffix: &str| {
            let mut kept: Vec<String> = days.iter().map(|day| old(*day) + suffix).collect();
            kept.extend(
                ["audit-x.log", "audit.log", "other-2026-01-01T00-00-00.000.log"].map(Into::into),
            );
            kept.sort();
            kept
        };
        assert_eq!(names(dir.path()), kept(&[7, 8, 9], ""));
        fill();
        let rotation = Rotation { max_age_days: 3, compress: true, ..Rotation::default() };
        clean(&path, rotation, now).unwrap();
        assert_eq!(names(dir.path()), kept(&[8, 9], ".gz"));
        let mut text = String::new();
        let file = File::open(dir.path().join(old(9) + ".gz")).unwrap();
        GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "day 9");
        clean(&path, rotation, now).unwrap();
        assert_eq!(names(dir.path()), kept(&[8, 9], ".gz"));
    }
}
