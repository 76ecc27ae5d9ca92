//! How requests reach the engine: each over a connection of its own to the Unix socket, which need not exist
//! before it. Bollard's own way there refuses a socket that does not exist when the client is made.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bollard::BollardRequest;
use bollard::errors::Error;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// The oldest API that is spoken, 1.40, is Docker 19.03's.
pub(crate) const OLDEST: u32 = 40;
/// What stands for the version before the engine has told it.
pub(crate) const UNKNOWN: u32 = 0;

/// The way to one engine.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    pub(crate) socket: PathBuf,
    /// The minor version of the API that calls have, or [`UNKNOWN`].
    pub(crate) api: Arc<AtomicU32>,
}

impl Transport {
    /// Sends a request, and returns the beginning of its answer.
    pub(crate) async fn send(
        self,
        mut request: BollardRequest,
    ) -> Result<Response<Incoming>, Error> {
        if let Some(target) = target(request.uri(), self.api.load(Ordering::Relaxed)) {
            *request.uri_mut() = target;
        }
        request.headers_mut().entry(HOST).or_insert(HeaderValue::from_static("docker"));
        let stream = UnixStream::connect(&self.socket).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the answer, or with who no longer waits for it.
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!("a connection to the Docker Engine: {error}");
            }
        });
        Ok(sender.send_request(request).await?)
    }
}

/// PURE: what is asked for, without the host, in a version of the API. Bollard has it in the URI, if at all, in the
/// one that it was made with. Without a version the engine takes its own newest.
fn target(uri: &Uri, api: u32) -> Option<Uri> {
    let path = uri.path_and_query()?.as_str();
    let plain = path.strip_prefix(&format!("/v1.{OLDEST}")).filter(|rest| rest.starts_with('/'));
    let plain = plain.unwrap_or(path);
    match api {
        UNKNOWN => plain.parse().ok(),
        api => format!("/v1.{api}{plain}").parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_version_that_was_negotiated() {
        for (uri, api, expected) in [
            ("http://docker/containers/json?all=true", 44, "/v1.44/containers/json?all=true"),
            ("http://docker/v1.40/containers/json", 44, "/v1.44/containers/json"),
            ("http://docker/v1.400/x", 44, "/v1.44/v1.400/x"),
            ("http://docker/version", UNKNOWN, "/version"),
            ("http://docker/v1.40/version", UNKNOWN, "/version"),
        ] {
            let found = target(&uri.parse().unwrap(), api).map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), Some(expected));
        }
    }
}
