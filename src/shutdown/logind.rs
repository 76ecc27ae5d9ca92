//! systemd-logind over D-Bus: it announces that the machine shuts down, and waits for those that hold
//! an inhibitor lock.

use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use longshore_base::panics;
use tokio::time::timeout;
use tracing::warn;
use zbus::connection::Builder;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedFd, OwnedVariant, Variant};

const LOGIND: &str = "org.freedesktop.login1";
const LOGIND_PATH: &str = "/org/freedesktop/login1";
const LOGIND_MANAGER: &str = "org.freedesktop.login1.Manager";
const SYSTEMD: &str = "org.freedesktop.systemd1";
const SYSTEMD_PATH: &str = "/org/freedesktop/systemd1";
const SYSTEMD_MANAGER: &str = "org.freedesktop.systemd1.Manager";
const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// The node's own file among those of logind.
const DROP_IN: &str = "/etc/systemd/logind.conf.d/99-kubelet.conf";
const SIGHUP: i32 = 1;
/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Buffer size of signals.
const SIGNALS: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// Why logind cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// A call failed.
    #[error("{call}: {source}")]
    Call {
        /// The method.
        call: &'static str,
        /// The cause.
        source: zbus::Error,
    },
    /// A call timed out.
    #[error("{call}: timed out after {CALL_TIMEOUT:?}")]
    Timeout {
        /// The method.
        call: &'static str,
    },
    /// A value has another type than logind's documentation says.
    #[error("InhibitDelayMaxUSec from logind is not a uint64 as expected")]
    Delay,
    /// The configuration of logind cannot be changed.
    #[error("failed writing logind shutdown inhibit override file {path}: {source}", path = .path.display())]
    Override {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// What announces a shutdown. A seam for tests.
pub(super) trait Announcer: Send + Sync {
    /// Delays the shutdown until it is dropped.
    type Lock: Send;

    /// How long locks may delay a shutdown.
    fn delay(&self) -> impl Future<Output = Result<Duration, Error>> + Send;
    /// Requests that they may do it for that long. It takes effect later.
    fn set_delay(&self, delay: Duration) -> impl Future<Output = Result<(), Error>> + Send;
    /// A new lock.
    fn lock(&self) -> impl Future<Output = Result<Self::Lock, Error>> + Send;
    /// Announcements: true if the machine shuts down, false if it does not any more. Ends with the
    /// connection.
    fn announcements(&self)
    -> impl Future<Output = Result<BoxStream<'static, bool>, Error>> + Send;
}

/// A connection to the system bus.
#[derive(Debug)]
pub(super) struct Logind {
    connection: Connection,
    drop_in: PathBuf,
}

impl Logind {
    pub(super) async fn connect() -> Result<Self, Error> {
        let connection = with_timeout("connect", Builder::system().build()).await?;
        Ok(Self { connection, drop_in: PathBuf::from(DROP_IN) })
    }

    async fn call<B>(
        &self,
        (name, path, interface): (&'static str, &'static str, &'static str),
        call: &'static str,
        body: &B,
    ) -> Result<Message, Error>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        // A connection of tests is peer-to-peer and has no bus names.
        let name = self.connection.is_bus().then_some(name);
        let answer = self.connection.call_method(name, path, Some(interface), call, body);
        with_timeout(call, answer).await
    }
}

impl Announcer for Logind {
    type Lock = OwnedFd;

    async fn delay(&self) -> Result<Duration, Error> {
        let call = "Get";
        let body = (LOGIND_MANAGER, "InhibitDelayMaxUSec");
        let answer = self.call((LOGIND, LOGIND_PATH, PROPERTIES), call, &body).await?;
        let body = answer.body();
        let value: OwnedVariant =
            body.deserialize().map_err(|source| Error::Call { call, source })?;
        let value: &Variant<'_> = &value;
        match value {
            Variant::U64(micros) => Ok(Duration::from_micros(*micros)),
            _ => Err(Error::Delay),
        }
    }

    async fn set_delay(&self, delay: Duration) -> Result<(), Error> {
        let path = self.drop_in.clone();
        panics::try_blocking(move || override_delay(&path, delay))
            .await
            .map_err(|source| Error::Override { path: self.drop_in.clone(), source })?;
        // logind reads its configuration again.
        let body = ("systemd-logind.service", "all", SIGHUP);
        self.call((SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER), "KillUnit", &body).await.map(drop)
    }

    async fn lock(&self) -> Result<OwnedFd, Error> {
        let call = "Inhibit";
        let body = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay");
        let answer = self.call((LOGIND, LOGIND_PATH, LOGIND_MANAGER), call, &body).await?;
        answer.body().deserialize().map_err(|source| Error::Call { call, source })
    }

    async fn announcements(&self) -> Result<BoxStream<'static, bool>, Error> {
        let call = "PrepareForShutdown";
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .interface(LOGIND_MANAGER)
            .member(call)
            .path(LOGIND_PATH)
            .build()
            .map_err(|source| Error::Call { call, source })?;
        let signals = MessageStream::for_match_rule(rule, &self.connection, Some(SIGNALS));
        let signals = with_timeout(call, signals).await?;
        let connection = self.connection.clone();
        let values = signals.filter_map(move |signal| {
            let connection = connection.clone();
            async move {
                let signal = signal.ok()?;
                if let Err(why) = check_sender(&connection, &signal).await {
                    warn!(why, "a signal {call} that is not from logind is ignored");
                    return None;
                }
                signal.body().deserialize::<bool>().ok()
            }
        });
        Ok(values.boxed())
    }
}

/// An error unless logind has sent the signal: the bus lets every user send signals, also to one
/// connection alone, and the node would end its pods for any of them.
async fn check_sender(connection: &Connection, signal: &Message) -> Result<(), String> {
    if !connection.is_bus() {
        return Ok(());
    }
    let call = "GetNameOwner";
    let owner = connection.call_method(Some(BUS), BUS_PATH, Some(BUS), call, &LOGIND);
    let owner = with_timeout(call, owner).await.map_err(|error| error.to_string())?;
    let body = owner.body();
    let owner: &str = body.deserialize().map_err(|error| format!("{call}: {error}"))?;
    let header = signal.header();
    match header.sender().map(|sender| sender.as_str()) {
        Some(sender) if sender == owner => Ok(()),
        sender => Err(format!("sent by {sender:?}, logind is {owner}")),
    }
}

/// Writes the file of logind's configuration that is the node's.
fn override_delay(path: &Path, delay: Duration) -> io::Result<()> {
    let text =
        format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n", delay.as_secs());
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(path, text)
}

async fn with_timeout<T>(
    call: &'static str,
    done: impl Future<Output = zbus::Result<T>>,
) -> Result<T, Error> {
    match timeout(CALL_TIMEOUT, done).await {
        Ok(done) => done.map_err(|source| Error::Call { call, source }),
        Err(_) => Err(Error::Timeout { call }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use zbus::Guid;

    use super::*;

    /// A logind of the test, and the calls that it gets.
    async fn fake(delay: u64) -> (Logind, Connection, Arc<Mutex<Vec<String>>>, tempfile::TempDir) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Builder::unix_stream(theirs).server(Guid::generate()).p2p().build();
        let client = Builder::unix_stream(ours).p2p().build();
        let (server, connection) = tokio::try_join!(server, client).unwrap();
        let calls = Arc::<Mutex<Vec<String>>>::default();
        let (served, noted) = (server.clone(), calls.clone());
        tokio::spawn(async move {
            let mut requests = MessageStream::from(&served);
            while let Some(Ok(request)) = requests.next().await {
                let (header, body) = (request.header(), request.body());
                let method = header.member().unwrap().as_str().to_owned();
                match method.as_str() {
                    "Get" => {
                        noted.lock().push(method);
                        let value: Variant<'_> = delay.into();
                        served.reply(&header, &value).await.unwrap();
                    }
                    "Inhibit" => {
                        let words: (String, String, String, String) = body.deserialize().unwrap();
                        noted
                            .lock()
                            .push(format!("{} {} {} {}", words.0, words.1, words.2, words.3));
                        let (lock, _) = UnixStream::pair().unwrap();
                        let lock = OwnedFd::from(std::os::fd::OwnedFd::from(lock));
                        served.reply(&header, &lock).await.unwrap();
                    }
                    "KillUnit" => {
                        let words: (String, String, i32) = body.deserialize().unwrap();
                        noted.lock().push(format!("{} {} {}", words.0, words.1, words.2));
                        served.reply(&header, &()).await.unwrap();
                    }
                    other => panic!("{other}"),
                }
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let drop_in = dir.path().join("logind.conf.d/99-kubelet.conf");
        (Logind { connection, drop_in }, server, calls, dir)
    }

    #[tokio::test]
    async fn logind_is_asked_for_its_delay_a_lock_and_announcements() {
        let (logind, server, calls, _dir) = fake(5_000_000).await;
        assert_eq!(logind.delay().await.unwrap(), Duration::from_secs(5));
        logind.set_delay(Duration::from_secs(30)).await.unwrap();
        let text = std::fs::read_to_string(&logind.drop_in).unwrap();
        assert_eq!(text, "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=30\n");
        let mut announcements = logind.announcements().await.unwrap();
        let _lock = logind.lock().await.unwrap();
        let expected = [
            "Get",
            "systemd-logind.service all 1",
            "shutdown kubelet Kubelet needs time to handle node shutdown delay",
        ];
        assert_eq!(*calls.lock(), expected);
        for value in [true, false] {
            let nobody = None::<&str>;
            let signal = "PrepareForShutdown";
            server.emit_signal(nobody, LOGIND_PATH, LOGIND_MANAGER, signal, &value).await.unwrap();
            assert_eq!(announcements.next().await, Some(value));
        }
        drop(server);
    }

    #[tokio::test]
    async fn logind_announcements_end_with_the_connection() {
        let (logind, server, _, _dir) = fake(1).await;
        let mut announcements = logind.announcements().await.unwrap();
        server.close().await.unwrap();
        assert_eq!(announcements.next().await, None);
    }
}
