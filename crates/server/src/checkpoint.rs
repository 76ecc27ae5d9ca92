//! `POST /checkpoint/{namespace}/{pod}/{container}`: the runtime writes a container's state to an
//! archive under the node's root directory.
//!
//! Archives hold all of a container's memory and may be large, so there are at most
//! [`MAX_CHECKPOINTS`] of them, and one is created at a time. Old ones are not removed
//! automatically.

use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use k8s_openapi::jiff::{Timestamp, Unit};
use longshore_config::Config;
use longshore_cri::{Error as CriError, Runtime};
use longshore_pod::spec;
use serde_json::json;
use tokio::sync::Semaphore;
use tracing::info;

use super::{Host, Refusal};

/// Maximum number of archives on disk.
const MAX_CHECKPOINTS: usize = 32;

struct Checkpoints {
    host: Arc<dyn Host>,
    runtime: Runtime,
    directory: PathBuf,
    /// Held while an archive is created.
    in_progress: Semaphore,
}

/// Why a checkpoint failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("container {0} not found")]
    NotRunning(String),
    #[error("the timeout must not be negative")]
    Timeout,
    #[error("another checkpoint is in progress")]
    Busy,
    #[error("{} already exists", .0.display())]
    Taken(PathBuf),
    #[error("limit of {MAX_CHECKPOINTS} checkpoints in {} reached: remove some first", .0.display())]
    Full(PathBuf),
    #[error("{}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Runtime(#[from] CriError),
}

pub(super) fn routes(config: &Config, host: Arc<dyn Host>, runtime: Runtime) -> Router {
    if !config.gates.enabled("ContainerCheckpoint") {
        return Router::new();
    }
    let checkpoints = Checkpoints {
        host,
        runtime,
        directory: config.root_dir.join("checkpoints"),
        in_progress: Semaphore::new(1),
    };
    Router::new()
        .route("/checkpoint/{namespace}/{pod}/{container}", post(checkpoint))
        .with_state(Arc::new(checkpoints))
}

async fn checkpoint(
    State(checkpoints): State<Arc<Checkpoints>>,
    Path((namespace, pod_name, container)): Path<(String, String, String)>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let missing = |what: String| Refusal(StatusCode::NOT_FOUND, what);
    let pod = checkpoints
        .host
        .pod(&namespace, &pod_name)
        .ok_or_else(|| missing("pod does not exist".to_owned()))?;
    if spec::container(&pod, &container).is_none() {
        return Err(missing(format!("container {container} does not exist")));
    }
    let seconds = timeout(&query).map_err(missing)?;
    let made = checkpoints.make(spec::uid(&pod), &namespace, &pod_name, &container, seconds).await;
    let archive = made.map_err(|failure| {
        let status = match failure {
            Failure::Busy | Failure::Taken(_) => StatusCode::TOO_MANY_REQUESTS,
            Failure::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let at = format!("{namespace}/{pod_name}/{container}");
        Refusal(status, format!("checkpointing of {at} failed ({failure})"))
    })?;
    let text = json!({"items": [archive]}).to_string();
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// The timeout of a request in seconds, 0 by default; errors are for the client.
fn timeout(query: &[(String, String)]) -> Result<i64, String> {
    // the last one wins
    let mut texts = query.iter().filter(|(key, _)| key == "timeout").map(|(_, value)| value);
    texts.next_back().map_or(Ok(0), |text| {
        text.parse().map_err(|_| "cannot parse value of timeout parameter".to_owned())
    })
}

impl Checkpoints {
    /// Creates an archive and returns its path.
    async fn make(
        &self,
        uid: &str,
        namespace: &str,
        pod: &str,
        container: &str,
        seconds: i64,
    ) -> Result<String, Failure> {
        let timeout = Duration::from_secs(u64::try_from(seconds).map_err(|_| Failure::Timeout)?);
        let observed = self.host.observed(uid);
        let id = observed
            .iter()
            .flat_map(|pod| &pod.containers)
            .find(|found| found.name == container && found.is_running())
            .map(|found| found.id.clone())
            .ok_or_else(|| Failure::NotRunning(container.to_owned()))?;
        let _permit = self.in_progress.try_acquire().map_err(|_| Failure::Busy)?;
        let now = Timestamp::now();
        let now = now.round(Unit::Second).unwrap_or(now);
        let name = format!("checkpoint-{pod}_{namespace}-{container}-{now}.tar");
        let path = prepare_path(&self.directory, &name)?.display().to_string();
        let result = self.runtime.checkpoint_container(&id, &path, timeout).await;
        if let Err(error) = result {
            // remove the incomplete archive
            let _ = std::fs::remove_file(&path);
            return Err(error.into());
        }
        info!(namespace, pod, container, path, "checkpoint created");
        Ok(path)
    }
}

/// Creates the private directory and returns the path of a new archive, within the limit.
fn prepare_path(directory: &FilePath, name: &str) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |source| Failure::Directory { path: directory.to_owned(), source };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let there = std::fs::read_dir(directory).map_err(failed)?.take(MAX_CHECKPOINTS).count();
    let path = directory.join(name);
    match there < MAX_CHECKPOINTS {
        // created in the same second
        true if path.exists() => Err(Failure::Taken(path)),
        true => Ok(path),
        false => Err(Failure::Full(directory.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checkpoints_are_limited_in_number() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("checkpoints");
        for number in 0..MAX_CHECKPOINTS {
            let name = number.to_string();
            std::fs::write(prepare_path(&directory, &name).unwrap(), "").unwrap();
            let again = prepare_path(&directory, &name);
            assert!(matches!(again, Err(Failure::Taken(_) | Failure::Full(_))), "{again:?}");
        }
        assert!(matches!(prepare_path(&directory, "more"), Err(Failure::Full(_))));
        let mode = std::fs::metadata(&directory).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o700);
    }

    proptest! {
        #[test]
        fn checkpoint_timeout_is_parsed(texts in prop::collection::vec(".{0,8}|-?[0-9]{1,20}", 0..3)) {
            let pairs: Vec<_> = texts.iter().map(|text| ("timeout".to_owned(), text.clone())).collect();
            match (timeout(&pairs), texts.last()) {
                (Ok(0), None) => {}
                (Ok(seconds), Some(text)) => prop_assert_eq!(Ok(seconds), text.parse::<i64>()),
                (Err(_), Some(text)) => prop_assert!(text.parse::<i64>().is_err()),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
