//! Commands in containers and connections to pods: `/exec`, `/attach`, `/portForward`, `/run`.
//!
//! The runtime returns the URL of its streaming server, to which the client's connection is
//! proxied. Bytes are passed through, except for WebSocket protocols that runtimes do not support,
//! which are translated.
//!
//! Current limitations: streaming servers with TLS are not supported. A command that does not read
//! all of its input may hang, as containerd waits for a reader. One that closes its output, as `cat
//! > FILE`, may lose the rest of its input, as containerd closes that too.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use k8s_openapi::api::core::v1::Pod;
use longshore_config::Config;
use longshore_cri::v1::{AttachRequest, ExecRequest};
use longshore_cri::{Code, Error as CriError, Runtime};
use longshore_pod::spec;
use longshore_streams::{self as streams, Error as StreamError, Streams};
use serde::Deserialize;

use super::{Host, Refusal};

struct Sessions {
    host: Arc<dyn Host>,
    runtime: Runtime,
    idle: Duration,
    /// Whether WebSocket protocols are translated.
    translates_websockets: bool,
}

type Parameters = Query<Vec<(String, String)>>;

pub(super) fn routes(config: &Config, host: Arc<dyn Host>, runtime: Runtime) -> Router {
    let idle = config.kubelet.streaming_connection_idle_timeout.get();
    let sessions = Arc::new(Sessions {
        host,
        runtime,
        idle: if idle.is_zero() { streams::NO_IDLE_TIMEOUT } else { idle },
        translates_websockets: config.gates.enabled("ExtendWebSocketsToKubelet"),
    });
    let container = "{namespace}/{pod}/{container}";
    let exact_container = "{namespace}/{pod}/{uid}/{container}";
    let mut router = Router::new();
    for target in [container, exact_container] {
        router = router
            .route(&format!("/exec/{target}"), get(exec).post(exec))
            .route(&format!("/attach/{target}"), get(attach).post(attach))
            .route(&format!("/run/{target}"), post(run));
    }
    for target in ["{namespace}/{pod}", "{namespace}/{pod}/{uid}"] {
        router =
            router.route(&format!("/portForward/{target}"), get(port_forward).post(port_forward));
    }
    router.with_state(sessions)
}

/// The path parameters.
#[derive(Deserialize)]
struct Target {
    namespace: String,
    pod: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    container: String,
}

async fn exec(
    State(sessions): State<Arc<Sessions>>,
    Path(target): Path<Target>,
    Query(query): Parameters,
    request: Request,
) -> Result<Response, Refusal> {
    let wanted = wanted_streams(&query)?;
    let pod = sessions.pod(&target)?;
    let id = sessions.running(&pod, &target.container).ok_or_else(|| not_found(&target))?;
    let url = sessions.runtime.exec(ExecRequest {
        container_id: id,
        cmd: values(&query, "command").map(str::to_owned).collect(),
        tty: wanted.tty,
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
    });
    let url = url.await.map_err(Failure::Runtime)?;
    Ok(sessions.connect_command(request, wanted, &url).await?)
}

async fn attach(
    State(sessions): State<Arc<Sessions>>,
    Path(target): Path<Target>,
    Query(query): Parameters,
    request: Request,
) -> Result<Response, Refusal> {
    let wanted = wanted_streams(&query)?;
    let pod = sessions.pod(&target)?;
    let name = format!("{}_{}", target.pod, target.namespace);
    let missing = |what| Refusal(StatusCode::INTERNAL_SERVER_ERROR, what);
    let not_found = || missing(format!("container {} not found in pod {name}", target.container));
    let id = sessions.running(&pod, &target.container).ok_or_else(not_found)?;
    if !target.uid.is_empty() && target.uid != spec::uid(&pod) {
        return Err(missing(format!("pod {name} not found")));
    }
    // from the spec, as it cannot be changed for a running process
    let (_, container) = spec::container(&pod, &target.container).ok_or_else(not_found)?;
    let tty = container.tty == Some(true);
    let url = sessions.runtime.attach(AttachRequest {
        container_id: id,
        tty,
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
    });
    let url = url.await.map_err(Failure::Runtime)?;
    Ok(sessions.connect_command(request, wanted, &url).await?)
}

async fn port_forward(
    State(sessions): State<Arc<Sessions>>,
    Path(target): Path<Target>,
    Query(query): Parameters,
    mut request: Request,
) -> Result<Response, Refusal> {
    let is_tunnel = sessions.translates_websockets && streams::is_tunnel(request.headers());
    let ports = match streams::is_websocket(request.headers()) && !is_tunnel {
        true => ports(&query).map_err(|why| Refusal(StatusCode::BAD_REQUEST, why))?,
        // named in each stream
        false => Vec::new(),
    };
    let pod = sessions.pod(&target)?;
    if !target.uid.is_empty() && target.uid != spec::uid(&pod) {
        return Err(Refusal(StatusCode::NOT_FOUND, "pod not found".to_owned()));
    }
    let observed = sessions.host.observed(spec::uid(&pod));
    let sandbox = observed.as_ref().and_then(|pod| pod.ready_sandbox()).ok_or_else(|| {
        let name = format!("{}_{}", target.pod, target.namespace);
        Refusal(StatusCode::INTERNAL_SERVER_ERROR, format!("pod not found ({name:?})"))
    })?;
    let url = sessions.runtime.port_forward(&sandbox.id, ports).await;
    let url = url.map_err(Failure::Runtime)?;
    let (url, connection) = streams::dial(&url).await.map_err(Failure::Stream)?;
    let answer = match is_tunnel {
        true => streams::tunnel(&mut request, &url, connection, sessions.idle).await,
        false => streams::pass(&mut request, &url, connection, sessions.idle).await,
    };
    Ok(answer.map_err(Failure::Stream)?.map(Body::new))
}

async fn run(
    State(sessions): State<Arc<Sessions>>,
    Path(target): Path<Target>,
    Query(query): Parameters,
) -> Result<Response, Refusal> {
    let pod = sessions.pod(&target)?;
    let id = sessions.running(&pod, &target.container).ok_or_else(|| not_found(&target))?;
    let command = values(&query, "cmd").next().unwrap_or_default();
    let words = command.split(' ').map(str::to_owned).collect();
    let result = sessions.runtime.exec_sync(&id, words, None).await;
    let failed = |why| Refusal(StatusCode::INTERNAL_SERVER_ERROR, why);
    let result = result.map_err(|error| failed(error.to_string()))?;
    if result.exit_code != 0 {
        let stderr = String::from_utf8_lossy(&result.stderr);
        return Err(failed(format!(
            "command '{command}' exited with {}: {stderr}",
            result.exit_code
        )));
    }
    let output = [result.stdout, result.stderr].concat();
    Ok(([(header::CONTENT_TYPE, "application/json")], output).into_response())
}

impl Sessions {
    fn pod(&self, target: &Target) -> Result<Arc<Pod>, Refusal> {
        let pod = self.host.pod(&target.namespace, &target.pod);
        pod.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, "pod does not exist".to_owned()))
    }

    /// The runtime ID of the pod's container with that name, if it is running.
    fn running(&self, pod: &Pod, container: &str) -> Option<String> {
        let observed = self.host.observed(spec::uid(pod))?;
        let mut containers = observed.containers.iter();
        let running = containers.find(|found| found.name == container && found.is_running());
        running.map(|found| found.id.clone())
    }

    /// Proxies the client to a command's session at that URL.
    async fn connect_command(
        &self,
        mut request: Request,
        wanted: Streams,
        url: &str,
    ) -> Result<Response, Failure> {
        let answer = if self.translates_websockets && streams::is_remote_command(request.headers())
        {
            let url = url.to_owned();
            let backend = async move {
                let (url, connection) = streams::dial(&url).await?;
                streams::upgrade(connection, streams::spdy_request(&url, &streams::REMOTE_COMMANDS))
                    .await
            };
            streams::remote_command(&mut request, wanted, backend, self.idle)
        } else {
            let (url, connection) = streams::dial(url).await?;
            streams::pass(&mut request, &url, connection, self.idle).await
        };
        Ok(answer?.map(Body::new))
    }
}

/// Why a session could not be started.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Runtime(CriError),
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let status = match &failure {
            Failure::Runtime(error) => match error.code() {
                Some(Code::NotFound) => StatusCode::NOT_FOUND,
                Some(Code::ResourceExhausted) => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Failure::Stream(StreamError::Handshake(_)) => StatusCode::BAD_REQUEST,
            Failure::Stream(StreamError::Redirect) => StatusCode::BAD_GATEWAY,
            Failure::Stream(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, failure.to_string())
    }
}

fn not_found(target: &Target) -> Refusal {
    let text = format!("container not found ({:?})", target.container);
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
}

fn values<'a>(query: &'a [(String, String)], name: &str) -> impl Iterator<Item = &'a str> {
    query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// The requested streams of a command; errors are for the client.
fn wanted_streams(query: &[(String, String)]) -> Result<Streams, Refusal> {
    let is_set = |name| values(query, name).next() == Some("1");
    let tty = is_set("tty");
    let wanted = Streams {
        stdin: is_set("input"),
        stdout: is_set("output"),
        // a terminal mixes both outputs
        stderr: is_set("error") && !tty,
        tty,
    };
    if !(wanted.stdin || wanted.stdout || wanted.stderr) {
        let why = "you must specify at least 1 of stdin, stdout, stderr".to_owned();
        return Err(Refusal(StatusCode::BAD_REQUEST, why));
    }
    Ok(wanted)
}

/// The ports in the query of an old WebSocket client; errors are for the client.
fn ports(query: &[(String, String)]) -> Result<Vec<i32>, String> {
    let mut ports = Vec::new();
    for text in values(query, "port") {
        if text.is_empty() {
            return Err("query parameter \"port\" cannot be empty".to_owned());
        }
        for port in text.split(',') {
            match port.parse::<u16>() {
                Ok(0) => return Err(format!("port {text:?} must be > 0")),
                Ok(port) => ports.push(port.into()),
                Err(error) => return Err(format!("unable to parse {text:?} as a port: {error}")),
            }
        }
    }
    match ports.is_empty() {
        true => Err("query parameter \"port\" is required".to_owned()),
        false => Ok(ports),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn streaming_requests_use_container_ids() {
        let all = query(&[("input", "1"), ("output", "1"), ("error", "1")]);
        let streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(wanted_streams(&all).ok(), Some(streams));
        let terminal = query(&[("output", "1"), ("error", "1"), ("tty", "1")]);
        let streams = Streams { stdout: true, tty: true, ..Streams::default() };
        assert_eq!(wanted_streams(&terminal).ok(), Some(streams));
        for none in [&[][..], &[("tty", "1"), ("error", "1")], &[("stdout", "true")]] {
            let refusal = wanted_streams(&query(none)).err().unwrap();
            assert_eq!(refusal.0, StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn port_forward_ports_are_parsed() {
        let read = |texts: &[&str]| {
            let pairs: Vec<_> = texts.iter().map(|text| ("port", *text)).collect();
            ports(&query(&pairs))
        };
        assert_eq!(read(&["80,81", "8080"]), Ok(vec![80, 81, 8080]));
        for (texts, expected) in [
            (&[][..], "query parameter \"port\" is required"),
            (&[""], "query parameter \"port\" cannot be empty"),
            (&["0"], "port \"0\" must be > 0"),
            (&["80,x"], "unable to parse \"80,x\" as a port: invalid digit found in string"),
        ] {
            assert_eq!(read(texts).unwrap_err(), expected);
        }
    }
}
