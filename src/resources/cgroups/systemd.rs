//! Slices of systemd's: made, set and stopped over D-Bus, each call to its end. The bus is used
//! where it is, and systemd's private socket where it is not.

use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::debug;
use zbus::connection::Builder;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedObjectPath, Variant};

use super::limits::Limits;
use super::name::Name;

const DESTINATION: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const PRIVATE: &str = "unix:path=/run/systemd/private";
/// systemd's error for a unit that is there already.
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
/// systemd's error for a unit that is not there.
const NO_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// How long systemd may take for an answer, and then for a job.
const PATIENCE: Duration = Duration::from_secs(30);
/// Ends of jobs that may wait to be looked at.
const JOBS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

type Property = (&'static str, Variant<'static>);

/// Why systemd did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no way to it, or it refuses.
    #[error("{call}: {source}")]
    Call {
        /// The method.
        call: &'static str,
        /// The cause.
        source: zbus::Error,
    },
    /// It did not answer in time.
    #[error("{call}: no answer within {PATIENCE:?}")]
    Overdue {
        /// The method.
        call: &'static str,
    },
    /// It did not get to the end of a job.
    #[error("{call}: the job came to the end {result:?}")]
    Job {
        /// The method.
        call: &'static str,
        /// systemd's word, such as `failed`.
        result: String,
    },
}

/// The way to systemd.
#[derive(Debug)]
pub(super) struct Systemd {
    /// Made anew when the bus, or systemd, was started anew.
    connection: Mutex<Connection>,
}

impl Systemd {
    pub(super) async fn connect() -> Result<Self, Error> {
        Ok(Self { connection: Mutex::new(connect().await?) })
    }

    /// Make a slice. One that is there already stays.
    pub(super) async fn start(&self, name: &Name, unified: bool) -> Result<(), Error> {
        let call = "StartTransientUnit";
        let unit = name.unit();
        let io = if unified { "IOAccounting" } else { "BlockIOAccounting" };
        let properties: Vec<Property> = vec![
            ("Description", format!("cgroup {name} of the node's pods").into()),
            ("Wants", vec![name.parent_unit()].into()),
            // The kernel has trouble with processes that join a memory cgroup later.
            ("MemoryAccounting", true.into()),
            ("CPUAccounting", true.into()),
            (io, true.into()),
            ("TasksAccounting", true.into()),
            ("DefaultDependencies", false.into()),
        ];
        let auxiliary: Vec<(&str, Vec<Property>)> = Vec::new();
        let body = (unit.as_str(), "replace", properties, auxiliary);
        match self.job(call, &body).await {
            Err(Error::Call { source, .. }) if is_named(&source, EXISTS) => Ok(()),
            Err(error) => {
                self.reset(&unit).await;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Have systemd keep to these limits, until the machine is started anew.
    pub(super) async fn set(
        &self,
        name: &Name,
        limits: &Limits,
        unified: bool,
    ) -> Result<(), Error> {
        let properties = limits.properties(unified);
        if properties.is_empty() {
            return Ok(());
        }
        let body = (name.unit(), true, properties);
        self.call("SetUnitProperties", &body).await.map(drop)
    }

    /// End a slice. One that is not there is ended.
    pub(super) async fn stop(&self, name: &Name) -> Result<(), Error> {
        let unit = name.unit();
        let stopped = self.job("StopUnit", &(unit.as_str(), "replace")).await;
        // systemd keeps those that failed.
        self.reset(&unit).await;
        match stopped {
            Err(Error::Call { source, .. }) if is_named(&source, NO_UNIT) => Ok(()),
            // It is removed as a directory next, which tells what is in the way.
            Err(Error::Job { result, .. }) => {
                debug!(unit, result, "slice not stopped");
                Ok(())
            }
            other => other,
        }
    }

    async fn reset(&self, unit: &str) {
        if let Err(error) = self.call("ResetFailedUnit", &unit).await {
            debug!(unit, %error, "nothing to forget of the slice");
        }
    }

    /// A call that begins a job, and the job's end.
    async fn job<B>(&self, call: &'static str, body: &B) -> Result<(), Error>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let failed = |source| Error::Call { call, source };
        // A job may end before the answer that names it is here.
        let connection = self.connection().await?;
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .interface(INTERFACE)
            .member("JobRemoved")
            .path(PATH)
            .build()
            .map_err(failed)?;
        let ends = MessageStream::for_match_rule(rule, &connection, Some(JOBS));
        let mut ends = in_time(call, ends).await?;
        let job: OwnedObjectPath =
            request(&connection, call, body).await?.body().deserialize().map_err(failed)?;
        let end = async {
            while let Some(signal) = ends.next().await {
                let signal = signal?;
                let body = signal.body();
                let (_, ended, _, result): (u32, OwnedObjectPath, String, String) =
                    body.deserialize()?;
                if ended == job {
                    return Ok(result);
                }
            }
            let closed = io::Error::from(io::ErrorKind::ConnectionAborted);
            Err(zbus::Error::InputOutput(Arc::new(closed)))
        };
        match in_time(call, end).await?.as_str() {
            "done" => Ok(()),
            result => Err(Error::Job { call, result: result.to_owned() }),
        }
    }

    async fn call<B>(&self, call: &'static str, body: &B) -> Result<Message, Error>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        request(&self.connection().await?, call, body).await
    }

    /// The connection, anew if the other side has closed it.
    async fn connection(&self) -> Result<Connection, Error> {
        let mut connection = self.connection.lock().await;
        if connection.is_closed() {
            *connection = connect().await?;
        }
        Ok(connection.clone())
    }
}

async fn connect() -> Result<Connection, Error> {
    let call = "connect";
    match in_time(call, Builder::system().build()).await {
        Ok(connection) => Ok(connection),
        Err(error) => {
            debug!(%error, "no system bus: trying systemd's own socket");
            let private = Builder::address(PRIVATE).p2p().build();
            in_time(call, private).await.map_err(|_| error)
        }
    }
}

async fn request<B>(connection: &Connection, call: &'static str, body: &B) -> Result<Message, Error>
where
    B: serde::Serialize + zbus::DynamicType,
{
    // A private connection has nobody but systemd at its other end, and no names.
    let destination = connection.is_bus().then_some(DESTINATION);
    in_time(call, connection.call_method(destination, PATH, Some(INTERFACE), call, body)).await
}

async fn in_time<T>(
    call: &'static str,
    done: impl Future<Output = zbus::Result<T>>,
) -> Result<T, Error> {
    match timeout(PATIENCE, done).await {
        Ok(done) => done.map_err(|source| Error::Call { call, source }),
        Err(_) => Err(Error::Overdue { call }),
    }
}

fn is_named(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(found, ..) if found.as_str() == name)
}
