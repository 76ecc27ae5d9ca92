//! What the machine's network devices have carried, all by one question to the kernel. A sandbox's
//! device has its other end among them, as a rule, and what went into the one came out of the other:
//! to read the sandbox's own table costs thirty times as much.

mod kernel;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kernel::{Carried, Kernel};

use super::cgroup::Detail;
use super::process::Interface;

/// So long, a sandbox that has lost no packets is taken to lose none: its other end does not tell.
const AGE: Duration = Duration::from_secs(60);

/// The other end of a sandbox's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has not been found yet.
    Unknown,
    /// There is none on the machine, or there are several.
    Elsewhere,
    /// A device of the machine.
    Here(Here),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Here {
    index: u32,
    /// What it had carried when the sandbox's table was read, or just before.
    carried: Carried,
    /// When that was.
    read: Instant,
    /// Whether the sandbox had lost nothing since its table was read before.
    lossless: bool,
}

/// All devices of the machine.
#[derive(Default)]
pub(super) struct Links {
    /// By their index.
    carried: HashMap<u32, Carried>,
    /// Those whose other end is in another network namespace, by the kernel's id of that; `None`:
    /// several are.
    others: OnceLock<HashMap<i32, Option<u32>>>,
    kernel: Mutex<Option<Kernel>>,
}

impl Links {
    /// In the network namespace of the calling thread. What cannot be found out leaves every end
    /// unknown.
    pub(super) fn at(detail: Detail) -> Self {
        if detail < Detail::Load {
            return Self::default();
        }
        let links = Self::read();
        links.inspect_err(|error| tracing::debug!(%error, "network devices")).unwrap_or_default()
    }

    fn read() -> io::Result<Self> {
        let mut kernel = Kernel::open()?;
        let carried = kernel.carried()?;
        Ok(Self { carried, others: OnceLock::new(), kernel: Mutex::new(Some(kernel)) })
    }

    /// Brings up to date what a sandbox sees, if its other end can tell. If not, its table has to be
    /// read.
    pub(super) fn renew(&self, end: &End, seen: &mut [Interface]) -> bool {
        let (End::Here(here), [seen]) = (end, seen) else { return false };
        let Some(now) = self.carried.get(&here.index) else { return false };
        let still = *now == here.carried;
        if !still && here.lossless && here.read.elapsed() < AGE {
            mirror(now, seen);
            return true;
        }
        still
    }

    /// The other end of what a process has just been found to see, and saw before. At first the proof
    /// is that the two have carried the same; what goes through meanwhile leaves it for the next time.
    pub(super) fn end(&self, end: &End, pid: u32, before: &[Interface], seen: &[Interface]) -> End {
        let [seen] = seen else { return End::Unknown };
        let lossless = matches!(before, [before] if lost(before) == lost(seen));
        let here = |index| {
            let carried = *self.carried.get(&index)?;
            Some(Here { index, carried, read: Instant::now(), lossless })
        };
        let known = match end {
            End::Elsewhere => return End::Elsewhere,
            End::Here(known) => here(known.index),
            End::Unknown => None,
        };
        if let Some(known) = known {
            return End::Here(known);
        }
        match self.other_end(pid).map(|index| index.map(here)) {
            Ok(None) => End::Elsewhere,
            Ok(Some(Some(here))) if is_mirror(&here.carried, seen) => End::Here(here),
            Ok(_) => End::Unknown,
            Err(error) => {
                tracing::trace!(pid, %error, "the other end of a device is not found");
                End::Unknown
            }
        }
    }

    /// The only device of the machine with an end in the network namespace of a process.
    fn other_end(&self, pid: u32) -> io::Result<Option<u32>> {
        // No code panics while it holds the lock.
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = kernel.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let Some(id) = kernel.namespace(pid)? else { return Ok(None) };
        let others = match self.others.get() {
            Some(others) => others,
            None => {
                let others = kernel.others()?;
                self.others.get_or_init(|| others)
            }
        };
        Ok(others.get(&id).copied().flatten())
    }
}

/// What one end has received the other has sent.
fn mirror(carried: &Carried, other: &mut Interface) {
    let Interface { received, sent, .. } = other;
    [sent.packets, received.packets, sent.bytes, received.bytes, ..] = *carried;
}

fn is_mirror(carried: &Carried, other: &Interface) -> bool {
    let mut mirrored = other.clone();
    mirror(carried, &mut mirrored);
    mirrored == *other
}

/// What an end tells of itself alone.
fn lost(end: &Interface) -> [u64; 4] {
    let Interface { received, sent, .. } = end;
    [received.errors, received.dropped, sent.errors, sent.dropped]
}
