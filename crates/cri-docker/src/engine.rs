//! The engine, as the rest of the crate sees it: bollard's client, with the version of the API that the engine
//! speaks, and what the machine lets the engine do.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use bollard::{ClientVersion, Docker};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::info::{Info, InfoCache};
use crate::transport::{OLDEST, Transport, UNKNOWN};
use crate::{Error, Result};

/// The newest that is known.
const NEWEST: u32 = 53;
/// How long the engine may take to tell its version.
const HELLO: Duration = Duration::from_secs(10);
/// No answer about the version is longer.
const MAX_HELLO: u64 = 1 << 20;

/// The client of an engine; cheap to clone, and safe to share.
#[derive(Clone)]
pub struct Engine {
    docker: Docker,
    socket: PathBuf,
    facts: Arc<Facts>,
}

/// What is known of the engine since [`Engine::negotiate`].
#[derive(Debug)]
struct Facts {
    /// The minor version of the API, 1.x, or [`UNKNOWN`].
    api: Arc<AtomicU32>,
    /// The lowest `oom_score_adj` that the engine can give.
    oom_floor: AtomicI64,
    info: InfoCache,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Deref for Engine {
    type Target = Docker;

    fn deref(&self) -> &Docker {
        &self.docker
    }
}

/// What the engine says of itself.
#[derive(Deserialize)]
struct Hello {
    #[serde(rename = "ApiVersion")]
    api: String,
    #[serde(rename = "MinAPIVersion", default)]
    oldest_api: String,
}

/// The client of the engine at an endpoint (`unix:///var/run/docker.sock`, or a path). Nothing is sent yet, and
/// the socket need not exist yet; `timeout` is how long the engine may take to begin an answer.
///
/// # Errors
/// When the endpoint is no Unix socket.
pub fn connect(endpoint: &str, timeout: Duration) -> Result<Engine> {
    let invalid = |reason| Error::Endpoint { endpoint: endpoint.to_owned(), reason };
    let path = ["unix://", "docker://"].iter().find_map(|scheme| endpoint.strip_prefix(scheme));
    let path = path.unwrap_or(endpoint);
    if path.contains("://") {
        return Err(invalid("the engine is spoken to over its Unix socket: unix:///path"));
    }
    if !Path::new(path).is_absolute() {
        return Err(invalid("the path of the socket is not absolute"));
    }
    let facts = Facts {
        api: Arc::new(AtomicU32::new(UNKNOWN)),
        oom_floor: AtomicI64::new(-1000),
        info: InfoCache::default(),
    };
    let facts = Arc::new(facts);
    let transport = Transport::new(path.into(), Arc::clone(&facts.api));
    let oldest = ClientVersion { major_version: 1, minor_version: OLDEST as usize };
    // What the host is called does not matter: the transport knows the socket.
    let docker = Docker::connect_with_custom_transport(
        move |request| transport.send(request),
        Some("http://docker"),
        timeout.as_secs(),
        &oldest,
    )
    .map_err(|error| Error::docker(format!("connect to {path}"), error))?;
    Ok(Engine { docker, socket: path.into(), facts })
}

impl Engine {
    /// Learns which version of the API the engine speaks: the newest that both know. To be repeated when
    /// the engine has been started anew, for it may be another one, or have another configuration.
    ///
    /// # Errors
    /// When the engine does not answer, or is older or newer than what is known here.
    pub async fn negotiate(&self) -> Result<()> {
        let unavailable = |source| Error::Unreachable { socket: self.socket.clone(), source };
        let hello = tokio::time::timeout(HELLO, self.hello()).await;
        let hello = hello.map_err(|_| unavailable(io::ErrorKind::TimedOut.into()))?;
        let (hello, peer) = hello.map_err(unavailable)?;
        let api = common(&hello.api, &hello.oldest_api)?;
        self.facts.api.store(api, Ordering::Relaxed);
        self.facts.oom_floor.store(peer.map_or(-1000, oom_floor), Ordering::Relaxed);
        self.facts.info.forget();
        Ok(())
    }

    /// Asks without a version, and returns who answers.
    async fn hello(&self) -> io::Result<(Hello, Option<i32>)> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        let peer = stream.peer_cred()?.pid();
        stream.write_all(b"GET /version HTTP/1.0\r\nHost: docker\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.take(MAX_HELLO).read_to_end(&mut answer).await?;
        let body = memchr::memmem::find(&answer, b"\r\n\r\n").and_then(|end| answer.get(end + 4..));
        let hello = serde_json::from_slice(body.unwrap_or_default())?;
        Ok((hello, peer))
    }

    /// What the engine says of itself and its machine.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn settings(&self) -> Result<Arc<Info>> {
        self.facts.info.get(self.docker.info()).await
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The minor version of the API that is spoken: 41 for 1.41. The oldest, as long as it is not known.
    #[must_use]
    pub fn api(&self) -> u32 {
        self.facts.api.load(Ordering::Relaxed).max(OLDEST)
    }

    /// The `oom_score_adj` that the engine can give for one that is wanted: without CAP_SYS_RESOURCE none
    /// that is lower than its own.
    pub(crate) fn oom_score(&self, wanted: i64) -> i64 {
        wanted.clamp(-1000, 1000).max(self.facts.oom_floor.load(Ordering::Relaxed))
    }

    /// The client, with a longer time for the engine to begin an answer.
    pub(crate) fn patient(&self, extra: Duration) -> Docker {
        let timeout = self.docker.timeout().saturating_add(extra);
        self.docker.clone().with_timeout(timeout)
    }
}

/// The newest version that both sides know.
fn common(newest: &str, oldest: &str) -> Result<u32> {
    let minor = |text: &str| text.strip_prefix("1.").and_then(|minor| minor.parse::<u32>().ok());
    let Some(theirs) = minor(newest) else {
        return Err(Error::Api(format!("the engine's API version {newest:?} is not known")));
    };
    let api = theirs.min(NEWEST);
    if api < OLDEST {
        return Err(Error::Api(format!("the engine's API {newest} is older than 1.{OLDEST}")));
    }
    if minor(oldest).is_some_and(|oldest| oldest > NEWEST) {
        return Err(Error::Api(format!("the engine's API begins at {oldest}, after 1.{NEWEST}")));
    }
    Ok(api)
}

/// The lowest `oom_score_adj` that the engine can give.
fn oom_floor(pid: i32) -> i64 {
    const CAP_SYS_RESOURCE: u32 = 24;
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let status = read("status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    match effective {
        Some(mask) if mask >> CAP_SYS_RESOURCE & 1 == 0 => {
            read("oom_score_adj").and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        }
        _ => -1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_spoken() {
        let cases = [
            ("1.41", "1.12", Some(41)),
            ("1.40", "", Some(40)),
            ("1.99", "1.44", Some(NEWEST)),
            ("1.39", "1.12", None),
            ("1.99", "1.60", None),
            ("2.0", "", None),
            ("", "", None),
        ];
        for (newest, oldest, expected) in cases {
            assert_eq!(common(newest, oldest).ok(), expected, "{newest} {oldest}");
        }
    }

    #[test]
    fn endpoints_are_unix_sockets() {
        for wrong in ["tcp://1.2.3.4:2375", "npipe:////./pipe/x", "relative.sock", ""] {
            let error = connect(wrong, Duration::from_secs(1)).unwrap_err();
            assert!(matches!(error, Error::Endpoint { .. }), "{wrong}: {error}");
        }
    }
}
