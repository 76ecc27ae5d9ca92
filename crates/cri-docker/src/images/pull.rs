//! Pulls: their progress, the deadline for it, and why they fail.

use std::collections::HashSet;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as DockerError;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures::{Stream, StreamExt};
use hyper::header::{HeaderName, HeaderValue};
use longshore_cri::v1::AuthConfig;
use tokio::time::timeout;
use tonic::Code;

use super::reference::Reference;
use super::{Error, Result, credentials};
use crate::error::{docker_code, docker_status, is_out_of_space};

const REGISTRY_AUTH: HeaderName = HeaderName::from_static("x-registry-auth");
/// The most layers whose extraction is followed.
const MAX_LAYERS: usize = 1024;

/// Pulls an image; ends without progress for that time, except while layers are extracted. To drop the
/// future is to cancel the pull.
///
/// # Errors
/// When the engine, the registry or the credentials refuse, and without progress.
pub(super) async fn pull(
    docker: &Docker,
    reference: &Reference,
    auth: Option<&AuthConfig>,
    deadline: Duration,
) -> Result<()> {
    let image = reference.to_string();
    let header = auth.map_or(Ok(None), |auth| credentials::header(auth, reference.registry()));
    let header = header.and_then(|header| {
        let value = header.map(|header| HeaderValue::from_str(&header)).transpose();
        value.map_err(|_| "they are no header")
    });
    let header = header.map_err(|reason| Error::Credentials { image: image.clone(), reason })?;
    let docker = match header {
        None => docker.clone(),
        Some(mut header) => {
            header.set_sensitive(true);
            docker.clone().with_request_modifier(move |mut request| {
                request.headers_mut().insert(REGISTRY_AUTH, header.clone());
                request
            })
        }
    };
    // a digest takes precedence, as it does in docker pull
    let tag = reference.digest.as_deref().or(reference.tag.as_deref()).unwrap_or_default();
    let options =
        CreateImageOptionsBuilder::new().from_image(&reference.repository).tag(tag).build();
    let progress = docker.create_image(Some(options), None, None);
    follow(&image, progress, deadline).await
}

/// Follows a pull to its end.
async fn follow(
    image: &str,
    progress: impl Stream<Item = std::result::Result<CreateImageInfo, DockerError>>,
    deadline: Duration,
) -> Result<()> {
    let mut progress = std::pin::pin!(progress);
    let mut extracting = HashSet::new();
    let mut last = String::new();
    loop {
        let next = match timeout(deadline, progress.next()).await {
            Ok(next) => next,
            Err(_) if !extracting.is_empty() => continue,
            Err(_) => {
                let (image, seconds) = (image.to_owned(), deadline.as_secs());
                return Err(Error::Stalled { image, seconds, last });
            }
        };
        let Some(message) = next else { return Ok(()) };
        let message = message.map_err(|error| failed(image, &error))?;
        if let Some(detail) = message.error_detail {
            return Err(explained(image, detail.code, detail.message.unwrap_or_default()));
        }
        let status = message.status.unwrap_or_default();
        match message.id {
            Some(layer) if status == "Extracting" && extracting.len() < MAX_LAYERS => {
                extracting.insert(layer);
            }
            Some(layer) => _ = extracting.remove(&layer),
            None => {}
        }
        last = status;
    }
}

fn failed(image: &str, error: &DockerError) -> Error {
    match error {
        DockerError::DockerStreamError { error } => explained(image, None, error.clone()),
        DockerError::DockerResponseServerError { message, .. } => {
            explained(image, docker_status(error).map(i64::from), message.clone())
        }
        other => Error::Pull {
            image: image.to_owned(),
            code: docker_code(other),
            text: other.to_string(),
        },
    }
}

/// A failure with the engine's words, which say more than its status.
fn explained(image: &str, status: Option<i64>, text: String) -> Error {
    let image = image.to_owned();
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if matches!(status, Some(502..=504))
        || has(&["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"])
    {
        return Error::RegistryUnavailable { image, text };
    }
    let code = if has(&["unauthorized", "no basic auth credentials", "authentication required"]) {
        Code::Unauthenticated
    } else if has(&["denied", "403 Forbidden"]) {
        Code::PermissionDenied
    } else if has(&["manifest unknown", "name unknown", "not found"]) || status == Some(404) {
        Code::NotFound
    } else if has(&["toomanyrequests"]) || is_out_of_space(&text) {
        Code::ResourceExhausted
    } else if has(&["connection refused", "no such host", "i/o timeout", "Client.Timeout"]) {
        Code::Unavailable
    } else if has(&["invalid reference format"]) || status == Some(400) {
        Code::InvalidArgument
    } else {
        Code::Unknown
    };
    Error::Pull { image, code, text }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tonic::Status;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn message(id: &str, status: &str) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(id.to_owned()),
            status: Some(status.to_owned()),
            ..CreateImageInfo::default()
        }
    }

    /// Follows messages, each after that many seconds.
    async fn followed(messages: &'static [(u64, &'static str, &'static str)]) -> Result<()> {
        let progress = stream::iter(messages).then(|(seconds, id, status)| async {
            tokio::time::sleep(Duration::from_secs(*seconds)).await;
            Ok(message(id, status))
        });
        follow("x.y/a:1", progress, MINUTE).await
    }

    #[tokio::test(start_paused = true)]
    async fn pulls_without_progress_end() {
        followed(&[(59, "a", "Downloading"), (59, "a", "Downloading"), (59, "b", "Pull complete")])
            .await
            .unwrap();
        followed(&[(1, "a", "Extracting"), (600, "a", "Pull complete")]).await.unwrap();
        for messages in [
            &[(61, "a", "Downloading")][..],
            &[(1, "a", "Downloading"), (61, "a", "Downloading")],
            &[(1, "a", "Extracting"), (90, "a", "Pull complete"), (61, "b", "Downloading")],
        ] {
            let error = followed(messages).await.unwrap_err();
            assert!(matches!(error, Error::Stalled { seconds: 60, .. }), "{error}");
            assert_eq!(Status::from(error).code(), Code::DeadlineExceeded);
        }
    }

    #[tokio::test]
    async fn failed_pulls_have_a_code() {
        let stream = |text: &str| DockerError::DockerStreamError { error: text.to_owned() };
        let answer = |status_code, text: &str| DockerError::DockerResponseServerError {
            status_code,
            message: text.to_owned(),
        };
        for (error, code, start) in [
            (answer(404, "manifest for a not found: manifest unknown"), Code::NotFound, "pull x"),
            (
                answer(404, "pull access denied for a, repository does not exist"),
                Code::PermissionDenied,
                "pull x",
            ),
            (
                answer(500, "Get http://x: unauthorized: authentication required"),
                Code::Unauthenticated,
                "pull x",
            ),
            (
                answer(500, "Get http://x: no basic auth credentials"),
                Code::Unauthenticated,
                "pull x",
            ),
            (answer(500, "dial tcp: connect: connection refused"), Code::Unavailable, "pull x"),
            (answer(502, "<html>"), Code::Unavailable, "RegistryUnavailable: "),
            (
                stream("received unexpected HTTP status: 503 Service Unavailable"),
                Code::Unavailable,
                "RegistryUnavailable: ",
            ),
            (stream("write /x: no space left on device"), Code::ResourceExhausted, "pull x"),
            (stream("filesystem layer verification failed"), Code::Unknown, "pull x"),
            (DockerError::RequestTimeoutError, Code::DeadlineExceeded, "pull x"),
        ] {
            let text = error.to_string();
            let failed = follow("x.y/a:1", stream::iter([Err(error)]), MINUTE).await.unwrap_err();
            let status = Status::from(failed);
            assert_eq!(status.code(), code, "{text}");
            assert!(status.message().starts_with(start), "{}", status.message());
        }
    }
}
