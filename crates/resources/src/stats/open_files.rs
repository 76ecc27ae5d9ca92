//! Counts of open file descriptors and sockets, from /proc.
//!
//! To count sockets, each descriptor must be read, of which daemons and shims have thousands. The
//! number of descriptors is a single read: counts are reused for a while if it is unchanged.

use std::collections::HashMap;
use std::ffi::CStr;
use std::iter::Sum;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Dir, Mode, openat, readlinkat_raw, statat};

use super::process::DIRECTORY;

/// Maximum age of the counts of a process with an unchanged number of descriptors.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Open file descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFileCount {
    /// Descriptors.
    pub files: u64,
    /// Sockets among them.
    pub sockets: u64,
}

impl Sum for OpenFileCount {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |sum, one| Self {
            files: sum.files.saturating_add(one.files),
            sockets: sum.sockets.saturating_add(one.sockets),
        })
    }
}

/// The cached counts.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    /// By process.
    known: Mutex<HashMap<u32, Counted>>,
    /// Whether the kernel reports the number of descriptors (since 6.2).
    reports_size: OnceLock<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    at: Instant,
    /// The number of descriptors that the kernel reported.
    size: i64,
    open: OpenFileCount,
}

impl Counted {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < MAX_AGE
    }
}

impl OpenFiles {
    /// The counts of a process; zero if it has ended.
    pub(super) fn of(&self, proc: impl AsFd, pid: u32) -> OpenFileCount {
        let path = format!("{pid}/fd");
        let size_of =
            |path: &str| statat(&proc, path, AtFlags::empty()).map_or(0, |stat| stat.st_size);
        let size = size_of(&path);
        // Such as kernel threads.
        if size == 0 && *self.reports_size.get_or_init(|| size_of("self/fd") > 0) {
            return OpenFileCount::default();
        }
        let known = self.known().get(&pid).copied();
        if let Some(known) = known
            && known.is_fresh()
            && known.size == size
            && size > 0
        {
            return known.open;
        }
        let open = count(proc, &path);
        let mut known = self.known();
        if !known.contains_key(&pid) && known.len() == known.capacity() {
            known.retain(|_, counted| counted.is_fresh());
        }
        known.insert(pid, Counted { at: Instant::now(), size, open });
        open
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u32, Counted>> {
        self.known.lock()
    }
}

/// Counts all descriptors in a directory.
fn count(proc: impl AsFd, path: &str) -> OpenFileCount {
    let mut open = OpenFileCount::default();
    let Ok(dir) = openat(proc, path, DIRECTORY, Mode::empty()) else { return open };
    let Ok(entries) = Dir::read_from(&dir) else { return open };
    let mut target = [0_u8; 16];
    for entry in entries.flatten() {
        let name: &CStr = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        open.files = open.files.saturating_add(1);
        if let Ok(length) = readlinkat_raw(&dir, name, &mut target[..]) {
            let known = target.get(..length).unwrap_or_default();
            let is_socket = known.starts_with(b"socket:");
            open.sockets = open.sockets.saturating_add(u64::from(is_socket));
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::net::UnixDatagram;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A separate process, as concurrent tests open files.
    struct Shell(Child);

    impl Shell {
        /// Started with these open files only.
        fn with(files: &str) -> Self {
            let script = format!("exec {files}; echo; read line");
            let mut command = Command::new("bash");
            command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let counted = child.stdout.as_mut().unwrap().read_exact(&mut [0]);
            counted.unwrap();
            Self(child)
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
        }
    }

    #[test]
    fn file_descriptors_and_sockets_are_counted() {
        let (proc, open_files) = (File::open("/proc").unwrap(), OpenFiles::default());
        assert_eq!(open_files.of(&proc, 2), count(&proc, "2/fd"), "kthreadd, or no process");
        let before = open_files.of(&proc, std::process::id());
        let sockets: Vec<_> = (0..50).map(|_| UnixDatagram::unbound().unwrap()).collect();
        let after = open_files.of(&proc, std::process::id());
        assert!(after.sockets >= before.sockets + 50, "{before:?} {after:?}");
        assert!(after.files > after.sockets);
        drop(sockets);
        assert_eq!(open_files.of(&proc, u32::MAX), OpenFileCount::default(), "no such process");
    }

    #[test]
    fn file_descriptor_counts_are_cached() {
        let (proc, open_files) = (File::open("/proc").unwrap(), OpenFiles::default());
        let shell = Shell::with("7</dev/null 8</dev/null");
        let pid = shell.0.id();
        let open = open_files.of(&proc, pid);
        assert!(open.files >= 5, "{open:?}"); // and what it has inherited
        let counted = OpenFileCount { sockets: 77, ..open };
        let size = fs::metadata(format!("/proc/{pid}/fd")).unwrap().len() as i64;
        let now = Instant::now();
        let put = |at, size| open_files.known().insert(pid, Counted { at, size, open: counted });
        put(now, size);
        assert_eq!(open_files.of(&proc, pid), if size > 0 { counted } else { open });
        put(now, size + 1);
        assert_eq!(open_files.of(&proc, pid), open, "it has another number now");
        if let Some(long_ago) = now.checked_sub(MAX_AGE) {
            put(long_ago, size);
            assert_eq!(open_files.of(&proc, pid), open, "that was long ago");
        }
    }
}
