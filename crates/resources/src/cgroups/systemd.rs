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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::net::UnixStream;
    use std::sync::PoisonError;

    use zbus::{Guid, ObjectPath, OwnedVariant};

    use super::super::limits::Max;
    use super::*;

    type Properties = Vec<(String, OwnedVariant)>;

    /// What a systemd was asked for, a line each.
    #[derive(Clone, Default)]
    struct Asked(Arc<std::sync::Mutex<Vec<String>>>);

    impl Asked {
        fn note(&self, line: String) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    fn show(properties: &Properties) -> String {
        let shown = properties.iter().map(|(name, value)| {
            let value: &Variant<'_> = value;
            match value {
                Variant::Str(text) => format!("{name}={text}"),
                Variant::Bool(value) => format!("{name}={value}"),
                Variant::U64(value) => format!("{name}={value}"),
                Variant::Array(list) => format!("{name}[{}]", list.len()),
                _ => format!("{name}=?"),
            }
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    /// A systemd whose jobs end with `result`, and which has the units that are named.
    async fn fake(result: &'static str, units: &'static [&'static str]) -> (Systemd, Asked) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Builder::unix_stream(theirs).server(Guid::generate()).p2p().build();
        let client = Builder::unix_stream(ours).p2p().build();
        let (server, client) = tokio::try_join!(server, client).unwrap();
        let asked = Asked::default();
        tokio::spawn(serve(server, asked.clone(), result, units));
        (Systemd { connection: Mutex::new(client) }, asked)
    }

    async fn serve(
        server: Connection,
        asked: Asked,
        result: &'static str,
        units: &'static [&'static str],
    ) {
        let job = ObjectPath::try_from("/job/1").unwrap();
        let mut calls = MessageStream::from(&server);
        while let Some(Ok(call)) = calls.next().await {
            let (header, body) = (call.header(), call.body());
            let method = header.member().unwrap().as_str().to_owned();
            let ended = async |unit: &str| {
                // Before the answer, as it may be.
                let body = (1u32, &job, unit, result);
                let nobody = None::<&str>;
                server.emit_signal(nobody, PATH, INTERFACE, "JobRemoved", &body).await.unwrap();
                server.reply(&header, &job).await.unwrap();
            };
            match method.as_str() {
                "StartTransientUnit" => {
                    let (unit, mode, properties, _): (
                        String,
                        String,
                        Properties,
                        Vec<(String, Properties)>,
                    ) = body.deserialize().unwrap();
                    asked.note(format!("start {unit} {mode} {}", show(&properties)));
                    match units.contains(&unit.as_str()) {
                        true => server.reply_error(&header, EXISTS, &"it is there").await.unwrap(),
                        false => ended(&unit).await,
                    }
                }
                "StopUnit" => {
                    let (unit, _): (String, String) = body.deserialize().unwrap();
                    asked.note(format!("stop {unit}"));
                    match units.contains(&unit.as_str()) {
                        true => ended(&unit).await,
                        false => server.reply_error(&header, NO_UNIT, &"no").await.unwrap(),
                    }
                }
                "SetUnitProperties" => {
                    let (unit, runtime, properties): (String, bool, Properties) =
                        body.deserialize().unwrap();
                    asked.note(format!("set {unit} {runtime} {}", show(&properties)));
                    server.reply(&header, &()).await.unwrap();
                }
                other => {
                    asked.note(other.to_owned());
                    server.reply(&header, &()).await.unwrap();
                }
            }
        }
    }

    fn pod() -> Name {
        Name::of_path("/kubepods/burstable/pod1-2").unwrap()
    }

    const SLICE: &str = "kubepods-burstable-pod1_2.slice";

    #[tokio::test]
    async fn a_slice_is_made_set_and_stopped() {
        let (systemd, asked) = fake("done", &[]).await;
        systemd.start(&pod(), true).await.unwrap();
        let limits = Limits {
            memory: Some(Max::At(1 << 20)),
            cpus: Some("0-1".to_owned()),
            ..Limits::default()
        };
        systemd.set(&pod(), &limits, true).await.unwrap();
        systemd.set(&pod(), &Limits::default(), true).await.unwrap();
        assert_eq!(
            asked.take(),
            [
                format!(
                    "start {SLICE} replace Description=cgroup /kubepods/burstable/pod1-2 of the \
                     node's pods Wants[1] MemoryAccounting=true CPUAccounting=true \
                     IOAccounting=true TasksAccounting=true DefaultDependencies=false"
                ),
                format!("set {SLICE} true MemoryMax=1048576 AllowedCPUs[1]"),
            ]
        );
    }

    #[tokio::test]
    async fn what_is_there_or_gone_already_is_as_it_should_be() {
        let (systemd, asked) = fake("done", &[SLICE]).await;
        systemd.start(&pod(), true).await.unwrap();
        systemd.stop(&pod()).await.unwrap();
        systemd.stop(&Name::of_path("/other").unwrap()).await.unwrap();
        let asked = asked.take();
        assert!(asked[0].starts_with("start"), "{asked:?}");
        let stop = format!("stop {SLICE}");
        assert_eq!(asked[1..], [&stop, "ResetFailedUnit", "stop other.slice", "ResetFailedUnit"]);
    }

    #[tokio::test]
    async fn a_job_that_fails_is_told() {
        let (systemd, _) = fake("failed", &[]).await;
        let error = systemd.start(&pod(), true).await.unwrap_err().to_string();
        assert!(error.contains("StartTransientUnit") && error.contains("failed"), "{error}");
    }

    #[tokio::test]
    async fn a_systemd_that_goes_away_is_told() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Builder::unix_stream(theirs).server(Guid::generate()).p2p().build();
        let client = Builder::unix_stream(ours).p2p().build();
        let (server, client) = tokio::try_join!(server, client).unwrap();
        let systemd = Systemd { connection: Mutex::new(client) };
        server.close().await.unwrap();
        let limits = Limits { memory: Some(Max::Unlimited), ..Limits::default() };
        assert!(systemd.set(&pod(), &limits, true).await.is_err());
    }
}
