//! Hints of the kernel that memory runs short: tasks that stall for it (PSI), events of the pods'
//! cgroup on v2, and on v1, if it is asked for, the use that a threshold stands for. A hint makes
//! the room look at once; what it does follows from what it sees.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_pod::eviction::{Observation, Observations, Signal, Threshold};
use longshore_pod::usage::Memory;
use longshore_resources::stats::Stats;
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{debug, trace};

/// Tasks that have stalled for so much of that time (microseconds) are a hint. Who lacks
/// CAP_SYS_RESOURCE may only ask for windows of whole two seconds.
const STALLS: [&str; 2] = ["some 50000 500000", "some 150000 2000000"];
const PRESSURE: &str = "/proc/pressure/memory";
/// Hints come no more often.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the use that stands for a threshold on v1 is worked out anew.
const REFRESH: Duration = Duration::from_secs(10);
/// When what cannot be watched is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Notify of every hint, as far as some threshold is about memory.
pub(super) async fn watch(stats: &Stats, thresholds: &[Threshold], memcg: bool, woken: &Notify) {
    let has = |signal| thresholds.iter().any(|threshold| threshold.signal == signal);
    if !has(Signal::Memory) && !has(Signal::AllocatableMemory) {
        return;
    }
    let of_pods = |name| stats.pods_memory_file(name).filter(|_| stats.is_unified());
    let memcg = thresholds.iter().filter(|_| memcg && !stats.is_unified());
    let memcg = memcg.map(|threshold| crossings(stats, *threshold, woken));
    tokio::join!(
        stalls(Some(PathBuf::from(PRESSURE)), woken),
        stalls(of_pods("memory.pressure"), woken),
        changes(of_pods("memory.events"), woken),
        futures::future::join_all(memcg),
    );
}

/// Stalls, as a pressure file tells them.
async fn stalls(file: Option<PathBuf>, woken: &Notify) {
    let open = |path: &Path| {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        // A trigger ends with a NUL, and lives as long as the file is open.
        let mut arm = |trigger: &str| file.write_all(format!("{trigger}\0").as_bytes());
        let [short, long] = STALLS;
        arm(short).or_else(|_| arm(long))?;
        Ok(file)
    };
    hints(file, open, woken).await;
}

/// Changes of a file that the kernel tells of.
async fn changes(file: Option<PathBuf>, woken: &Notify) {
    hints(file, |path| File::open(path), woken).await;
}

/// Hints of a file that becomes urgent to read; none if it cannot be watched.
async fn hints(path: Option<PathBuf>, open: impl Fn(&Path) -> io::Result<File>, woken: &Notify) {
    let Some(path) = path else { return };
    let watched = open(&path).and_then(|file| awaitable(file, Interest::PRIORITY));
    let mut file = match watched {
        Ok(file) => file,
        Err(error) => {
            debug!(path = %path.display(), %error, "no hints about memory from there");
            return;
        }
    };
    debug!(path = %path.display(), "the kernel tells from there when memory is short");
    loop {
        match file.ready_mut(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => {
                debug!(path = %path.display(), %error, "no more hints about memory from there");
                return;
            }
        }
        // Reading takes the news; the content is of no interest.
        let content = file.get_mut();
        let _ = content.rewind().and_then(|()| content.read(&mut [0; 512]));
        trace!(path = %path.display(), "a hint that memory is short");
        woken.notify_one();
        sleep(PAUSE).await;
    }
}

/// Crossings of the use that a memory threshold stands for on cgroup v1.
async fn crossings(stats: &Stats, threshold: Threshold, woken: &Notify) {
    loop {
        let pause = match armed(stats, &threshold).await {
            Ok(Some(crossing)) => match timeout(REFRESH, crossing.readable()).await {
                Ok(_) => {
                    trace!(signal = threshold.signal.as_str(), "use has crossed the threshold");
                    woken.notify_one();
                    PAUSE
                }
                Err(_) => Duration::ZERO,
            },
            Ok(None) => return,
            Err(error) => {
                debug!(%error, "no notice of memory thresholds from the kernel");
                RETRY
            }
        };
        sleep(pause).await;
    }
}

/// What becomes readable when the threshold is crossed; `None` if it is not about memory.
async fn armed(stats: &Stats, threshold: &Threshold) -> io::Result<Option<AsyncFd<OwnedFd>>> {
    const USAGE: &str = "memory.usage_in_bytes";
    const CONTROL: &str = "cgroup.event_control";
    let (memory, file) = match threshold.signal {
        Signal::Memory => {
            let machine = stats.machine(PAUSE).await.map_err(io::Error::other)?;
            (machine.memory, stats.root_memory_file(USAGE))
        }
        Signal::AllocatableMemory => {
            let memory = stats.pods_memory().await.map_err(io::Error::other)?;
            let Some((memory, file)) = memory.zip(stats.pods_memory_file(USAGE)) else {
                return Ok(None);
            };
            (memory, file)
        }
        _ => return Ok(None),
    };
    let Some(bytes) = usage_at(threshold, &memory) else { return Ok(None) };
    let watched = File::open(&file)?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let (event_number, file_number) = (event.as_fd().as_raw_fd(), watched.as_raw_fd());
    std::fs::write(file.with_file_name(CONTROL), format!("{event_number} {file_number} {bytes}"))?;
    awaitable(event, Interest::READABLE).map(Some)
}

/// The use of memory at which the threshold is met, as long as the kernel can drop as much as now.
fn usage_at(threshold: &Threshold, memory: &Memory) -> Option<u64> {
    let (available, capacity) = (memory.available()?, memory.limit?);
    let whole = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
    let seen = Observation { available: whole(available), capacity: whole(capacity) };
    let headroom = threshold.headroom(&Observations::from([(threshold.signal, seen)]))?;
    memory.usage.checked_add_signed(headroom)
}

#[allow(deprecated, reason = "its successor is the same and unsafe, for types that are not std's")]
fn awaitable<T: std::os::fd::AsRawFd>(file: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::try_with_interest(file, interest).map_err(io::Error::from)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use longshore_pod::eviction::Amount;
    use nix::sys::socket::{MsgFlags, send};

    use super::*;

    /// Both ends of a connection: what one sends as urgent, the other has to read as the kernel's
    /// hints are to be read.
    fn pair() -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (sender, listener.accept().unwrap().0.into())
    }

    fn urge(sender: &TcpStream) {
        send(sender.as_raw_fd(), b"!", MsgFlags::MSG_OOB).unwrap();
    }

    #[tokio::test]
    async fn every_hint_wakes_but_not_too_often() {
        let (sender, receiver) = pair();
        let woken = Notify::new();
        let receiver = std::cell::Cell::new(Some(receiver));
        let open = |_: &Path| Ok(File::from(receiver.take().unwrap()));
        let told = async {
            assert!(
                timeout(PAUSE * 2, woken.notified()).await.is_err(),
                "there was nothing to tell of"
            );
            let begun = Instant::now();
            for _ in 0..3 {
                urge(&sender);
                timeout(PAUSE * 20, woken.notified()).await.unwrap();
            }
            assert!(begun.elapsed() >= PAUSE * 2, "each waits for the pause after the one before");
        };
        tokio::select! {
            () = hints(Some("the kernel".into()), open, &woken) => unreachable!("it watches on"),
            () = told => {}
        }
    }

    #[tokio::test]
    async fn what_cannot_be_watched_gives_no_hints_and_no_trouble() {
        let woken = Notify::new();
        hints(None, |path| File::open(path), &woken).await;
        changes(Some("/there/is/no/such/file".into()), &woken).await;
        stalls(Some("/proc/self/status".into()), &woken).await;
        assert!(timeout(PAUSE, woken.notified()).await.is_err());
    }

    #[test]
    fn a_threshold_stands_for_a_use_of_memory() {
        let memory = |usage, working_set, limit| Memory { usage, working_set, rss: 0, limit };
        let bytes = |bytes: i128| Amount::Milli { milli: bytes * 1000, binary: false };
        for (value, memory, expected) in [
            // 1000 - 300 are available, 600 above the threshold: so much more may be used.
            (bytes(100), memory(400, 300, Some(1000)), Some(1000)),
            (Amount::Part(0.5), memory(400, 300, Some(1000)), Some(600)),
            // The threshold is met already.
            (bytes(800), memory(400, 300, Some(1000)), Some(300)),
            (bytes(1000), memory(100, 300, Some(1000)), None),
            (bytes(100), memory(400, 300, None), None),
        ] {
            let threshold = Threshold {
                signal: Signal::Memory,
                value,
                grace: Duration::ZERO,
                min_reclaim: None,
            };
            assert_eq!(usage_at(&threshold, &memory), expected, "{value:?} {memory:?}");
        }
    }
}
