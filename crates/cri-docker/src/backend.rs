//! Both services over an engine with the streaming server: what serves them, at a socket or in a node's own
//! process, keeps them going by [`Backend::run`].

use std::fmt;
use std::sync::Arc;

use longshore_cri_streaming as streaming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::images::Images;
use crate::{Error, Result, Service, Settings, connect};

/// CRI over an engine.
pub struct Backend {
    service: Service,
    images: Images,
    streaming: Arc<streaming::Server>,
    listener: TcpListener,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(&self.service).finish()
    }
}

impl Backend {
    /// The services over an engine, which need not run yet.
    ///
    /// # Errors
    /// When the endpoint of the engine is not one, and when the streaming address cannot be listened at.
    pub async fn new(settings: Settings) -> Result<Self> {
        let settings = Arc::new(settings);
        let engine = connect(&settings.docker_endpoint, settings.request_timeout)?;
        if let Err(error) = engine.negotiate().await {
            tracing::warn!("{error}; it is waited for");
        }
        let address = settings.streaming_address;
        let unavailable = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(unavailable)?;
        let address = listener.local_addr().map_err(unavailable)?;
        let service = Service::new(engine.clone(), Arc::clone(&settings));
        let (service, streaming) = service.with_streaming(address);
        Ok(Self { service, images: Images::new(engine, settings), streaming, listener })
    }

    /// The runtime service and the image service.
    #[must_use]
    pub fn services(&self) -> (Service, Images) {
        (self.service.clone(), self.images.clone())
    }

    /// Follows the engine and serves exec, attach and port-forward, until `stop`. Containers go on running.
    pub async fn run(self, stop: CancellationToken) {
        let sessions = self.streaming.serve(self.listener, stop.clone());
        tokio::join!(self.service.run(stop), sessions);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use longshore_cri::v1::VersionRequest;
    use longshore_cri::v1::runtime_service_server::RuntimeService;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;
    use tonic::{Code, Request};

    use super::*;

    /// An engine that speaks API 1.43: it says so, and answers all else with what was asked for as its version.
    async fn serve(socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let length = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let body = match head.split(' ').nth(1).unwrap_or_default() {
                "/version" => r#"{"ApiVersion":"1.43","MinAPIVersion":"1.12"}"#.to_owned(),
                path => format!(r#"{{"Version":"{path}"}}"#),
            };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_engine_whose_socket_does_not_exist_yet_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let docker_endpoint = format!("unix://{}", socket.display());
        let settings = Settings { docker_endpoint, ..Settings::default() };
        let backend = Backend::new(settings).await.unwrap();
        let (service, _) = backend.services();
        let version = async || service.version(Request::new(VersionRequest::default())).await;
        let stop = CancellationToken::new();
        let running = tokio::spawn(backend.run(stop.clone()));
        let error = version().await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");

        let serving = tokio::spawn(async move { serve(&socket).await });
        let negotiated = async {
            loop {
                let answer = version().await.map(|answer| answer.into_inner().runtime_version);
                if answer.is_ok_and(|asked_for| asked_for == "/v1.43/version") {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), negotiated).await.unwrap();
        stop.cancel();
        running.await.unwrap();
        serving.abort();
    }
}
