//! What processes have open, from /proc.
//!
//! Which descriptors are sockets is a look at each of them, of which a daemon or the shims of a node's
//! containers have thousands. How many there are is one look: who has as many as before is taken to
//! have the same, for a while.

use std::collections::HashMap;
use std::ffi::CStr;
use std::iter::Sum;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, Mode, openat, readlinkat_raw, statat};

use super::process::DIRECTORY;

/// So long, what was counted holds of a process that has as many descriptors as then.
const AGE: Duration = Duration::from_secs(600);

/// What processes have open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Descriptors.
    pub files: u64,
    /// Sockets among them.
    pub sockets: u64,
}

impl Sum for Open {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |sum, one| Self {
            files: sum.files.saturating_add(one.files),
            sockets: sum.sockets.saturating_add(one.sockets),
        })
    }
}

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// By process.
    known: Mutex<HashMap<u32, Counted>>,
    /// Whether the kernel says how many descriptors there are: those before 6.2 say 0.
    says: OnceLock<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    at: Instant,
    /// How many the kernel said there were.
    size: i64,
    open: Open,
}

impl Counted {
    fn is_young(&self) -> bool {
        self.at.elapsed() < AGE
    }
}

impl Opened {
    /// What a process has open; one that ends meanwhile has nothing.
    pub(super) fn of(&self, proc: impl AsFd, pid: u32) -> Open {
        let path = format!("{pid}/fd");
        let said =
            |path: &str| statat(&proc, path, AtFlags::empty()).map_or(0, |stat| stat.st_size);
        let size = said(&path);
        // As with the kernel's own threads, of which there are hundreds.
        if size == 0 && *self.says.get_or_init(|| said("self/fd") > 0) {
            return Open::default();
        }
        let known = self.known().get(&pid).copied();
        if let Some(known) = known
            && known.is_young()
            && known.size == size
            && size > 0
        {
            return known.open;
        }
        let open = count(proc, &path);
        let mut known = self.known();
        if !known.contains_key(&pid) && known.len() == known.capacity() {
            known.retain(|_, counted| counted.is_young());
        }
        known.insert(pid, Counted { at: Instant::now(), size, open });
        open
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u32, Counted>> {
        // No code panics while it holds the lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All descriptors in such a directory.
fn count(proc: impl AsFd, path: &str) -> Open {
    let mut open = Open::default();
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
    #![allow(clippy::unwrap_used)]

    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::net::UnixDatagram;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process of its own, as the tests beside this one open files meanwhile.
    struct Shell(Child);

    impl Shell {
        /// Once it has opened them, and nothing else.
        fn with(files: &str) -> Self {
            let script = format!("exec {files}; echo; read line");
            let mut command = Command::new("bash");
            command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let told = child.stdout.as_mut().unwrap().read_exact(&mut [0]);
            told.unwrap();
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
    fn descriptors_and_sockets_are_counted() {
        let (proc, opened) = (File::open("/proc").unwrap(), Opened::default());
        assert_eq!(opened.of(&proc, 2), count(&proc, "2/fd"), "kthreadd, or nobody");
        let before = opened.of(&proc, std::process::id());
        let sockets: Vec<_> = (0..50).map(|_| UnixDatagram::unbound().unwrap()).collect();
        let after = opened.of(&proc, std::process::id());
        assert!(after.sockets >= before.sockets + 50, "{before:?} {after:?}");
        assert!(after.files > after.sockets);
        drop(sockets);
        assert_eq!(opened.of(&proc, u32::MAX), Open::default(), "no such process");
    }

    #[test]
    fn a_process_with_as_many_descriptors_is_not_counted_again() {
        let (proc, opened) = (File::open("/proc").unwrap(), Opened::default());
        let shell = Shell::with("7</dev/null 8</dev/null");
        let pid = shell.0.id();
        let open = opened.of(&proc, pid);
        assert!(open.files >= 5, "{open:?}"); // and what it has inherited
        let told = Open { sockets: 77, ..open };
        let size = fs::metadata(format!("/proc/{pid}/fd")).unwrap().len() as i64;
        let now = Instant::now();
        let put = |at, size| opened.known().insert(pid, Counted { at, size, open: told });
        put(now, size);
        assert_eq!(opened.of(&proc, pid), if size > 0 { told } else { open });
        put(now, size + 1);
        assert_eq!(opened.of(&proc, pid), open, "it has another number now");
        if let Some(long_ago) = now.checked_sub(AGE) {
            put(long_ago, size);
            assert_eq!(opened.of(&proc, pid), open, "that was long ago");
        }
    }
}
