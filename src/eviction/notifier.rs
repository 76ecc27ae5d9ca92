//! Memory notifications of the kernel: pressure stall information (PSI), events of the pods' cgroup on
//! v2, and on v1, if configured, usage thresholds. A notification only triggers a sample.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_base::files::awaitable;
use longshore_pod::eviction::{Observation, Observations, Signal, Threshold};
use longshore_pod::usage::Memory;
use longshore_resources::stats::Stats;
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{debug, trace};

/// PSI triggers: stall time and window in microseconds. Without CAP_SYS_RESOURCE, windows must be
/// multiples of two seconds.
const STALLS: [&str; 2] = ["some 50000 500000", "some 150000 2000000"];
const PRESSURE: &str = "/proc/pressure/memory";
/// Minimum interval of notifications.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval at which usage thresholds on v1 are recalculated.
const REFRESH: Duration = Duration::from_secs(10);
/// Delay of retries.
const RETRY: Duration = Duration::from_secs(60);

/// Notifies about memory pressure, if there is a threshold for memory.
pub(super) async fn watch(stats: &Stats, thresholds: &[Threshold], memcg: bool, notify: &Notify) {
    let has = |signal| thresholds.iter().any(|threshold| threshold.signal == signal);
    if !has(Signal::Memory) && !has(Signal::AllocatableMemory) {
        return;
    }
    let of_pods = |name| stats.pods_memory_file(name).filter(|_| stats.is_unified());
    let memcg = thresholds.iter().filter(|_| memcg && !stats.is_unified());
    let memcg = memcg.map(|threshold| crossings(stats, *threshold, notify));
    tokio::join!(
        stalls(Some(PathBuf::from(PRESSURE)), notify),
        stalls(of_pods("memory.pressure"), notify),
        changes(of_pods("memory.events"), notify),
        futures::future::join_all(memcg),
    );
}

/// Notifications of a pressure file.
async fn stalls(file: Option<PathBuf>, notify: &Notify) {
    let open = |path: &Path| {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        // A trigger ends with a NUL, and lives as long as the file is open.
        let mut arm = |trigger: &str| file.write_all(format!("{trigger}\0").as_bytes());
        let [short, long] = STALLS;
        arm(short).or_else(|_| arm(long))?;
        Ok(file)
    };
    notifications(file, open, notify).await;
}

/// Notifications about changes of a file.
async fn changes(file: Option<PathBuf>, notify: &Notify) {
    notifications(file, |path| File::open(path), notify).await;
}

/// Notifications of a file with POLLPRI; none if it cannot be watched.
async fn notifications(
    path: Option<PathBuf>,
    open: impl Fn(&Path) -> io::Result<File>,
    notify: &Notify,
) {
    let Some(path) = path else { return };
    let watched = open(&path).and_then(|file| awaitable(file, Interest::PRIORITY));
    let mut file = match watched {
        Ok(file) => file,
        Err(error) => {
            debug!(path = %path.display(), %error, "no memory notifications from this file");
            return;
        }
    };
    debug!(path = %path.display(), "memory notifications enabled");
    loop {
        match file.ready_mut(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => {
                debug!(path = %path.display(), %error, "memory notifications disabled");
                return;
            }
        }
        // Reading resets the notification; the content is not used.
        let content = file.get_mut();
        let _ = content.rewind().and_then(|()| content.read(&mut [0; 512]));
        trace!(path = %path.display(), "memory notification");
        notify.notify_one();
        sleep(PAUSE).await;
    }
}

/// Notifications of usage thresholds on cgroup v1.
async fn crossings(stats: &Stats, threshold: Threshold, notify: &Notify) {
    loop {
        let pause = match armed(stats, &threshold).await {
            Ok(Some(crossing)) => match timeout(REFRESH, crossing.readable()).await {
                Ok(_) => {
                    trace!(
                        signal = threshold.signal.as_str(),
                        "memory usage has crossed the threshold"
                    );
                    notify.notify_one();
                    PAUSE
                }
                Err(_) => Duration::ZERO,
            },
            Ok(None) => return,
            Err(error) => {
                debug!(%error, "cannot register memory threshold");
                RETRY
            }
        };
        sleep(pause).await;
    }
}

/// An eventfd for the threshold; `None` if it is not about memory.
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

/// The memory usage at which the threshold is met, with the current amount of reclaimable memory.
fn usage_at(threshold: &Threshold, memory: &Memory) -> Option<u64> {
    let (available, capacity) = (memory.available()?, memory.limit?);
    let whole = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
    let seen = Observation { available: whole(available), capacity: whole(capacity) };
    let headroom = threshold.headroom(&Observations::from([(threshold.signal, seen)]))?;
    memory.usage.checked_add_signed(headroom)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use longshore_pod::eviction::Amount;
    use nix::sys::socket::{MsgFlags, send};

    use super::*;

    /// A connection: urgent data of one end is signalled like the kernel's notifications at the other.
    fn pair() -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (sender, listener.accept().unwrap().0.into())
    }

    fn send_urgent(sender: &TcpStream) {
        send(sender.as_raw_fd(), b"!", MsgFlags::MSG_OOB).unwrap();
    }

    #[tokio::test]
    async fn eviction_memory_notifications_are_rate_limited() {
        let (sender, receiver) = pair();
        let notify = Notify::new();
        let receiver = std::cell::Cell::new(Some(receiver));
        let open = |_: &Path| Ok(File::from(receiver.take().unwrap()));
        let check = async {
            assert!(timeout(PAUSE * 2, notify.notified()).await.is_err(), "no notification before");
            let begun = Instant::now();
            for _ in 0..3 {
                send_urgent(&sender);
                timeout(PAUSE * 600, notify.notified()).await.unwrap();
            }
            assert!(begun.elapsed() >= PAUSE * 2, "each waits for the pause after the one before");
        };
        tokio::select! {
            () = notifications(Some("the kernel".into()), open, &notify) => unreachable!("it watches on"),
            () = check => {}
        }
    }

    #[tokio::test]
    async fn eviction_memory_notifications_are_optional() {
        let notify = Notify::new();
        notifications(None, |path| File::open(path), &notify).await;
        changes(Some("/there/is/no/such/file".into()), &notify).await;
        stalls(Some("/proc/self/status".into()), &notify).await;
        assert!(timeout(PAUSE, notify.notified()).await.is_err());
    }

    #[test]
    fn eviction_memory_threshold_is_converted_to_usage() {
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
