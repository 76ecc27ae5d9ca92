//! systemd slices: started, updated and stopped over D-Bus, over the system bus or systemd's
//! private socket.

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
/// The unit exists already.
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
/// The unit does not exist.
const NO_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// Timeout of a call, and of a job.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Buffer size of job signals.
const JOBS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

type Property = (&'static str, Variant<'static>);

/// Why a systemd operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    /// A job failed.
    #[error("{call}: job finished with result {result:?}")]
    Job {
        /// The method.
        call: &'static str,
        /// The job result, such as `failed`.
        result: String,
    },
}

/// A connection to systemd.
#[derive(Debug)]
pub(super) struct Systemd {
    /// Reopened when the bus, or systemd, was restarted.
    connection: Mutex<Connection>,
}

impl Systemd {
    pub(super) async fn connect() -> Result<Self, Error> {
        Ok(Self { connection: Mutex::new(connect().await?) })
    }

    /// Starts a slice, if it does not exist.
    pub(super) async fn start(&self, name: &Name, unified: bool) -> Result<(), Error> {
        let call = "StartTransientUnit";
        let unit = name.unit();
        let io = if unified { "IOAccounting" } else { "BlockIOAccounting" };
        let properties: Vec<Property> = vec![
            ("Description", format!("cgroup {name} of the node's pods").into()),
            ("Wants", vec![name.parent_unit()].into()),
            // As upstream: accounting must be on before processes join.
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

    /// Sets runtime properties of a slice.
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

    /// Stops a slice, if it exists.
    pub(super) async fn stop(&self, name: &Name) -> Result<(), Error> {
        let unit = name.unit();
        let stopped = self.job("StopUnit", &(unit.as_str(), "replace")).await;
        // systemd keeps failed units.
        self.reset(&unit).await;
        match stopped {
            Err(Error::Call { source, .. }) if is_named(&source, NO_UNIT) => Ok(()),
            // Its directory is removed next, which shows the cause.
            Err(Error::Job { result, .. }) => {
                debug!(unit, result, "slice not stopped");
                Ok(())
            }
            other => other,
        }
    }

    async fn reset(&self, unit: &str) {
        if let Err(error) = self.call("ResetFailedUnit", &unit).await {
            debug!(unit, %error, "failed to reset the slice");
        }
    }

    /// A call that starts a job; waits for the job's end.
    async fn job<B>(&self, call: &'static str, body: &B) -> Result<(), Error>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let failed = |source| Error::Call { call, source };
        // Subscribed before, as a job may end before the reply arrives.
        let connection = self.connection().await?;
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .interface(INTERFACE)
            .member("JobRemoved")
            .path(PATH)
            .build()
            .map_err(failed)?;
        let ends = MessageStream::for_match_rule(rule, &connection, Some(JOBS));
        let mut ends = with_timeout(call, ends).await?;
        let job: OwnedObjectPath =
            request(&connection, call, body).await?.body().deserialize().map_err(failed)?;
        let end = async {
            while let Some(signal) = ends.next().await {
                let signal = signal?;
                let body = signal.body();
                let (_, reply_with_job, _, result): (u32, OwnedObjectPath, String, String) =
                    body.deserialize()?;
                if reply_with_job == job {
                    return Ok(result);
                }
            }
            let closed = io::Error::from(io::ErrorKind::ConnectionAborted);
            Err(zbus::Error::InputOutput(Arc::new(closed)))
        };
        match with_timeout(call, end).await?.as_str() {
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

    /// The connection, reopened if it was closed.
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
    match with_timeout(call, Builder::system().build()).await {
        Ok(connection) => Ok(connection),
        Err(error) => {
            debug!(%error, "no system bus: trying systemd's private socket");
            let private = Builder::address(PRIVATE).p2p().build();
            with_timeout(call, private).await.map_err(|_| error)
        }
    }
}

async fn request<B>(connection: &Connection, call: &'static str, body: &B) -> Result<Message, Error>
where
    B: serde::Serialize + zbus::DynamicType,
{
    // A private connection is peer-to-peer and has no bus names.
    let destination = connection.is_bus().then_some(DESTINATION);
    with_timeout(call, connection.call_method(destination, PATH, Some(INTERFACE), call, body)).await
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

fn is_named(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(found, ..) if found.as_str() == name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use zbus::{Guid, ObjectPath, OwnedVariant};

    use super::super::limits::Max;
    use super::*;

    type Properties = Vec<(String, OwnedVariant)>;

    /// The requests that the fake systemd received.
    #[derive(Clone, Default)]
    struct Requests(Arc<parking_lot::Mutex<Vec<String>>>);

    impl Requests {
        fn note(&self, line: String) {
            self.0.lock().push(line);
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.0.lock())
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

    /// A fake systemd whose jobs end with `result`, with these existing units.
    async fn fake(result: &'static str, units: &'static [&'static str]) -> (Systemd, Requests) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Builder::unix_stream(theirs).server(Guid::generate()).p2p().build();
        let client = Builder::unix_stream(ours).p2p().build();
        let (server, client) = tokio::try_join!(server, client).unwrap();
        let requests = Requests::default();
        tokio::spawn(serve(server, requests.clone(), result, units));
        (Systemd { connection: Mutex::new(client) }, requests)
    }

    async fn serve(
        server: Connection,
        requests: Requests,
        result: &'static str,
        units: &'static [&'static str],
    ) {
        let job = ObjectPath::try_from("/job/1").unwrap();
        let mut calls = MessageStream::from(&server);
        while let Some(Ok(call)) = calls.next().await {
            let (header, body) = (call.header(), call.body());
            let method = header.member().unwrap().as_str().to_owned();
            let reply_with_job = async |unit: &str| {
                // The signal before the reply, which is possible.
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
                    requests.note(format!("start {unit} {mode} {}", show(&properties)));
                    match units.contains(&unit.as_str()) {
                        true => server.reply_error(&header, EXISTS, &"it is there").await.unwrap(),
                        false => reply_with_job(&unit).await,
                    }
                }
                "StopUnit" => {
                    let (unit, _): (String, String) = body.deserialize().unwrap();
                    requests.note(format!("stop {unit}"));
                    match units.contains(&unit.as_str()) {
                        true => reply_with_job(&unit).await,
                        false => server.reply_error(&header, NO_UNIT, &"no").await.unwrap(),
                    }
                }
                "SetUnitProperties" => {
                    let (unit, runtime, properties): (String, bool, Properties) =
                        body.deserialize().unwrap();
                    requests.note(format!("set {unit} {runtime} {}", show(&properties)));
                    server.reply(&header, &()).await.unwrap();
                }
                other => {
                    requests.note(other.to_owned());
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
    async fn systemd_slice_is_started_updated_and_stopped() {
        let (systemd, requests) = fake("done", &[]).await;
        systemd.start(&pod(), true).await.unwrap();
        let limits = Limits {
            memory: Some(Max::At(1 << 20)),
            cpus: Some("0-1".to_owned()),
            ..Limits::default()
        };
        systemd.set(&pod(), &limits, true).await.unwrap();
        systemd.set(&pod(), &Limits::default(), true).await.unwrap();
        assert_eq!(
            requests.take(),
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
    async fn systemd_existing_or_missing_units_are_no_error() {
        let (systemd, requests) = fake("done", &[SLICE]).await;
        systemd.start(&pod(), true).await.unwrap();
        systemd.stop(&pod()).await.unwrap();
        systemd.stop(&Name::of_path("/other").unwrap()).await.unwrap();
        let requests = requests.take();
        assert!(requests[0].starts_with("start"), "{requests:?}");
        let stop = format!("stop {SLICE}");
        assert_eq!(
            requests[1..],
            [&stop, "ResetFailedUnit", "stop other.slice", "ResetFailedUnit"]
        );
    }

    #[tokio::test]
    async fn systemd_job_failure_is_reported() {
        let (systemd, _) = fake("failed", &[]).await;
        let error = systemd.start(&pod(), true).await.unwrap_err().to_string();
        assert!(error.contains("StartTransientUnit") && error.contains("failed"), "{error}");
    }

    #[tokio::test]
    async fn systemd_disconnection_is_reported() {
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
