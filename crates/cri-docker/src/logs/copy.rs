//! Copies a log of the engine (JSON lines, in files that the engine rotates) into one of CRI's form.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use longshore_base::files::if_present;
use memchr::memchr;
use serde::Deserialize;

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// A line of the engine holds at most 16 KiB, each byte of which may take six. A longer one is none.
const MAX_LINE: usize = 1 << 20;
/// So much of the end of a log is looked at for its last line.
const TAIL: u64 = 256 << 10;
/// The engine keeps no more files of one log than this.
const MAX_FILES: usize = 1000;

/// A log on its way.
#[derive(Debug, Default)]
pub(super) struct Copier {
    source: PathBuf,
    /// What is read now: the source, or one of those that it was renamed to.
    file: Option<File>,
    target: PathBuf,
    out: Option<File>,
    /// The beginning of a line.
    held: Vec<u8>,
    /// Lines that are not written yet.
    pending: Vec<u8>,
    /// What was copied before.
    copied: Option<Mark>,
    /// Whether the rest of a line that is too long is passed over.
    passing: bool,
    moved_on: bool,
}

/// The last line of a log: its time, and how many lines at the end have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    time: Timestamp,
    lines: usize,
}

/// A line of the engine.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, default)]
    log: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    stream: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    time: std::borrow::Cow<'a, str>,
}

impl Copier {
    /// A copy that goes on where an earlier one has ended.
    pub(super) fn new(source: PathBuf, target: PathBuf) -> io::Result<Self> {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        // cri-dockerd's link: all that it leads to is copied.
        if target.is_symlink() {
            fs::remove_file(&target)?;
        }
        let mut copier = Self { source, target, ..Self::default() };
        copier.copied = copier.last_line()?;
        copier.reopen()?;
        Ok(copier)
    }

    /// Begins a new file, or goes on with the one that is there.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        let file = File::options().create(true).append(true).open(&self.target)?;
        self.out = Some(file);
        Ok(())
    }

    /// Whether another file of the engine is read now than before.
    pub(super) fn has_moved_on(&mut self) -> bool {
        std::mem::take(&mut self.moved_on)
    }

    /// Copies all that there is. After an error nothing is lost, and nothing copied twice.
    pub(super) fn copy(&mut self) -> io::Result<()> {
        self.write()?;
        loop {
            if self.file.is_none() {
                self.file = self.oldest()?;
            }
            if self.file.is_none() {
                return Ok(());
            }
            self.drain()?;
            let Some(next) = self.next_file()? else { return Ok(()) };
            // What came between the last read and the rename.
            self.drain()?;
            self.held.clear();
            self.file = Some(next);
            self.moved_on = true;
        }
    }

    /// Reads the file to its end.
    fn drain(&mut self) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let Some(file) = &mut self.file else { return Ok(()) };
            let read = file.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            let mut rest = chunk.get(..read).unwrap_or_default();
            while let Some(end) = memchr(b'\n', rest) {
                let (line, behind) = rest.split_at(end);
                rest = behind.get(1..).unwrap_or_default();
                self.line(line);
            }
            if self.held.len().saturating_add(rest.len()) > MAX_LINE {
                self.held.clear();
                self.passing = true;
            }
            if !self.passing {
                self.held.extend_from_slice(rest);
            }
            self.write()?;
        }
    }

    /// Takes the end of a line.
    fn line(&mut self, end: &[u8]) {
        if std::mem::take(&mut self.passing) {
            return;
        }
        if self.held.is_empty() {
            self.convert(end);
        } else {
            let mut line = std::mem::take(&mut self.held);
            line.extend_from_slice(end);
            self.convert(&line);
        }
    }

    fn convert(&mut self, line: &[u8]) {
        let Ok(Line { log, stream, time }) = serde_json::from_slice(line) else { return };
        if time.is_empty() || !matches!(&*stream, "stdout" | "stderr") || self.is_copied(&time) {
            return;
        }
        let (text, tag) = match log.strip_suffix('\n') {
            Some(text) => (text, 'F'),
            None => (&*log, 'P'),
        };
        // Each line of CRI is one line, whatever is in it.
        for text in text.split('\n') {
            // A vector takes everything.
            let _ = writeln!(self.pending, "{time} {stream} {tag} {text}");
        }
    }

    /// Whether a line was copied by an earlier copier.
    fn is_copied(&mut self, time: &str) -> bool {
        let Some(mark) = &mut self.copied else { return false };
        match time.parse::<Timestamp>() {
            Ok(time) if time < mark.time => true,
            Ok(time) if time == mark.time && mark.lines > 0 => {
                mark.lines = mark.lines.saturating_sub(1);
                true
            }
            Ok(_) => {
                self.copied = None;
                false
            }
            Err(_) => false,
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.out.is_none() {
            self.reopen()?;
        }
        let Some(out) = &mut self.out else { return Ok(()) };
        let mut written = 0_usize;
        let result = loop {
            match out.write(self.pending.get(written..).unwrap_or_default()) {
                Ok(0) if written == self.pending.len() => break Ok(()),
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written = written.saturating_add(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if written == self.pending.len() {
                break Ok(());
            }
        };
        self.pending.drain(..written.min(self.pending.len()));
        result
    }

    /// The first of the engine's files of this log: a rotated one has a number, the higher the older.
    fn oldest(&self) -> io::Result<Option<File>> {
        let mut path = self.source.clone();
        for number in 1..MAX_FILES {
            let rotated = self.rotated(number);
            if !rotated.exists() {
                break;
            }
            path = rotated;
        }
        open(&path)
    }

    /// The file after the one that is read, once the engine has left that. When the engine has removed it already,
    /// the oldest that there is.
    fn next_file(&self) -> io::Result<Option<File>> {
        let Some(file) = &self.file else { return Ok(None) };
        let own = identity(&file.metadata()?);
        let is_own =
            |path: &Path| fs::metadata(path).is_ok_and(|metadata| identity(&metadata) == own);
        if is_own(&self.source) || !self.source.exists() {
            return Ok(None);
        }
        for number in 1..MAX_FILES {
            let rotated = self.rotated(number);
            if !rotated.exists() {
                break;
            }
            if is_own(&rotated) {
                return match number {
                    1 => open(&self.source),
                    number => open(&self.rotated(number.saturating_sub(1))),
                };
            }
        }
        tracing::warn!(
            "log {:?}: the engine has rotated lines away before they were copied",
            self.source
        );
        self.oldest()
    }

    fn rotated(&self, number: usize) -> PathBuf {
        let mut path = self.source.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }

    /// Finds where an earlier copy has ended: in the kubelet's file, or when that is empty in the one that the
    /// kubelet renamed last. Half a line at the end is removed.
    fn last_line(&self) -> io::Result<Option<Mark>> {
        if let Some(mark) = mark_of(&self.target)? {
            return Ok(Some(mark));
        }
        let (Some(folder), Some(name)) = (self.target.parent(), self.target.file_name()) else {
            return Ok(None);
        };
        let prefix = format!("{}.", name.to_string_lossy());
        let rotated = fs::read_dir(folder)?.flatten().filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with(&prefix) && !name.ends_with(".gz") && !name.ends_with(".tmp")
        });
        match rotated.map(|entry| entry.path()).max() {
            Some(newest) => mark_of(&newest),
            None => Ok(None),
        }
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// `None` when it is not there.
fn open(path: &Path) -> io::Result<Option<File>> {
    if_present(File::open(path))
}

/// The last line of a file in CRI's form.
fn mark_of(path: &Path) -> io::Result<Option<Mark>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    (&mut file).take(TAIL).read_to_end(&mut tail)?;
    let whole = memchr::memrchr(b'\n', &tail).map_or(0, |end| end.saturating_add(1));
    if whole < tail.len() {
        let keep = from.saturating_add(u64::try_from(whole).unwrap_or(0));
        File::options().write(true).open(path)?.set_len(keep)?;
    }
    let lines = tail.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n').rev();
    let times = lines.skip(1).map(|line| {
        let word = line.split(|byte| *byte == b' ').next()?;
        std::str::from_utf8(word).ok()?.parse::<Timestamp>().ok()
    });
    let mut mark: Option<Mark> = None;
    for time in times {
        match (&mut mark, time) {
            (None, Some(time)) => mark = Some(Mark { time, lines: 1 }),
            (Some(mark), Some(time)) if mark.time == time => {
                mark.lines = mark.lines.saturating_add(1);
            }
            _ => break,
        }
    }
    Ok(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Logs {
        folder: tempfile::TempDir,
    }

    impl Logs {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn source(&self) -> PathBuf {
            self.folder.path().join("x-json.log")
        }

        fn target(&self) -> PathBuf {
            self.folder.path().join("pod/c/0.log")
        }

        fn copier(&self) -> Copier {
            Copier::new(self.source(), self.target()).unwrap()
        }

        fn write(&self, text: &str) {
            let mut file = File::options().create(true).append(true).open(self.source()).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        /// As the engine rotates: names with numbers, of which the last is removed.
        fn rotate(&self, keep: usize) {
            let name = |number| self.folder.path().join(format!("x-json.log.{number}"));
            let _ = fs::remove_file(name(keep));
            for number in (1..keep).rev() {
                let _ = fs::rename(name(number), name(number + 1));
            }
            fs::rename(self.source(), name(1)).unwrap();
            self.write("");
        }

        fn copied(&self) -> String {
            fs::read_to_string(self.target()).unwrap()
        }
    }

    fn line(number: u32) -> String {
        format!(
            "{{\"log\":\"l{number}\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:00.{number:09}Z\"}}\n"
        )
    }

    fn expected(numbers: impl Iterator<Item = u32>) -> String {
        numbers
            .map(|number| format!("2026-01-01T00:00:00.{number:09}Z stdout F l{number}\n"))
            .collect()
    }

    #[test]
    fn lines_take_the_form_of_cri() {
        let logs = Logs::new();
        logs.write(
            "{\"log\":\"a \\u003cb\\u003e\\r\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:00Z\"}\n\
             {\"log\":\"part\",\"stream\":\"stderr\",\"time\":\"2026-01-01T00:00:01Z\"}\n\
             {\"log\":\" end\\n\",\"stream\":\"stderr\",\"attrs\":{\"x\":\"y\"},\"time\":\"2026-01-01T00:00:02Z\"}\n\
             \u{0}garbage\n{}\n[]\n\n{\"log\":\"x\",\"stream\":\"other\",\"time\":\"t\"}\n",
        );
        logs.copier().copy().unwrap();
        let expected = "2026-01-01T00:00:00Z stdout F a <b>\r\n\
                        2026-01-01T00:00:01Z stderr P part\n\
                        2026-01-01T00:00:02Z stderr F  end\n";
        assert_eq!(logs.copied(), expected);
    }

    #[test]
    fn lines_are_copied_once_whatever_is_cut() {
        let logs = Logs::new();
        let mut copier = logs.copier();
        copier.copy().unwrap();
        let all: String = (0..5).map(line).collect();
        for piece in all.as_bytes().chunks(7) {
            logs.write(std::str::from_utf8(piece).unwrap());
            copier.copy().unwrap();
        }
        assert_eq!(logs.copied(), expected(0..5));
    }

    #[test]
    fn rotations_of_the_engine_lose_nothing() {
        let logs = Logs::new();
        let mut copier = logs.copier();
        for number in 0..40 {
            logs.write(&line(number));
            // Some turns see one rotation, some several.
            if number % 3 == 0 {
                copier.copy().unwrap();
            }
            if number % 2 == 0 {
                logs.rotate(5);
            }
        }
        copier.copy().unwrap();
        assert_eq!(logs.copied(), expected(0..40));
        assert!(copier.has_moved_on() && !copier.has_moved_on());
    }

    #[test]
    fn a_rotation_by_the_kubelet_loses_nothing() {
        let logs = Logs::new();
        let mut copier = logs.copier();
        logs.write(&line(0));
        copier.copy().unwrap();
        let renamed = logs.folder.path().join("pod/c/0.log.20260101-000000");
        fs::rename(logs.target(), &renamed).unwrap();
        logs.write(&line(1));
        copier.copy().unwrap();
        copier.reopen().unwrap();
        logs.write(&line(2));
        copier.copy().unwrap();
        assert_eq!(fs::read_to_string(&renamed).unwrap(), expected(0..2));
        assert_eq!(logs.copied(), expected(2..3));
    }

    #[test]
    fn a_copy_goes_on_where_it_ended() {
        let logs = Logs::new();
        (0..10).for_each(|number| logs.write(&line(number)));
        logs.copier().copy().unwrap();
        // A crash in the middle of a write.
        let copied = logs.copied();
        fs::write(logs.target(), &copied[..copied.len() - 3]).unwrap();
        logs.rotate(5);
        logs.write(&line(10));
        logs.copier().copy().unwrap();
        assert_eq!(logs.copied(), expected(0..11));
        // After a rotation by the kubelet the new file is empty.
        fs::rename(logs.target(), logs.folder.path().join("pod/c/0.log.20260101-000000")).unwrap();
        logs.write(&line(11));
        logs.copier().copy().unwrap();
        assert_eq!(logs.copied(), expected(11..12));
    }

    #[test]
    fn lines_of_one_time_are_distinguished_by_their_number() {
        let logs = Logs::new();
        let same = "{\"log\":\"a\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:00Z\"}\n";
        logs.write(same);
        logs.write(same);
        logs.copier().copy().unwrap();
        logs.write(same);
        logs.copier().copy().unwrap();
        assert_eq!(logs.copied(), "2026-01-01T00:00:00Z stdout F a\n".repeat(3));
    }

    #[test]
    fn endless_lines_take_no_memory() {
        let logs = Logs::new();
        let mut copier = logs.copier();
        logs.write(&format!("{{\"log\":\"{}", "x".repeat(3 * MAX_LINE)));
        copier.copy().unwrap();
        assert!(copier.held.len() <= MAX_LINE);
        logs.write("\"}\n");
        logs.write(&line(1));
        copier.copy().unwrap();
        assert_eq!(logs.copied(), expected(1..2));
    }

    #[test]
    fn a_link_of_cri_dockerd_is_replaced() {
        let logs = Logs::new();
        logs.write(&line(0));
        fs::create_dir_all(logs.target().parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(logs.source(), logs.target()).unwrap();
        logs.copier().copy().unwrap();
        assert!(!logs.target().is_symlink());
        assert_eq!(logs.copied(), expected(0..1));
    }
}
