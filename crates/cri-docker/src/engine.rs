//! The engine, as the rest of the crate sees it.

use std::path::Path;
use std::time::Duration;

use bollard::{ClientVersion, Docker};

use crate::{Error, Result};

/// The client of the engine; cheap to clone, and safe to share.
pub type Engine = Docker;

/// The oldest API that is spoken: Docker 19.03's.
const OLDEST: ClientVersion = ClientVersion { major_version: 1, minor_version: 40 };

/// The client of the engine at an endpoint (`unix:///var/run/docker.sock`, or a path). Nothing is sent yet;
/// `timeout` is how long the engine may take to begin an answer.
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
    Docker::connect_with_unix(path, timeout.as_secs(), &OLDEST)
        .map_err(|error| Error::docker(format!("connect to {path}"), error))
}
