//! Images: there when a container needs them, pulled when policy asks for it, with a back-off for
//! those that fail.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_cri::{Runtime, v1};
use longshore_pod::Timestamp;
use longshore_pod::backoff::{Backoff, RESTART_BASE, RESTART_MAX};
use longshore_pod::spec::{self, ContainerKind};
use tokio::sync::Semaphore;

use super::announce::Announcer;
use super::credentials;
use super::security::ImageUser;
use super::{StartError, describe};
use crate::objects::Objects;

/// An image that the node has.
#[derive(Clone, Debug)]
pub struct Present {
    /// What a container is made from.
    pub(super) reference: String,
    /// The user that it runs as.
    pub(super) user: ImageUser,
}

/// Sees to it that images are there.
pub(super) struct Images {
    cri: Runtime,
    objects: Objects,
    announcer: Announcer,
    /// How many pulls may run at once.
    slots: Semaphore,
    failures: Mutex<Failures>,
}

#[derive(Debug)]
struct Failures {
    backoff: Backoff<String>,
    /// When a pull failed last, and the reason and message of it.
    last: HashMap<String, (Timestamp, String)>,
}

impl Images {
    pub(super) fn new(
        cri: Runtime,
        objects: Objects,
        announcer: Announcer,
        parallel: usize,
    ) -> Self {
        Self {
            cri,
            objects,
            announcer,
            slots: Semaphore::new(parallel.max(1)),
            failures: Mutex::new(Failures {
                backoff: Backoff::new(RESTART_BASE, RESTART_MAX),
                last: HashMap::new(),
            }),
        }
    }

    /// Forget the failures of a pod that is gone.
    pub(super) fn forget(&self, uid: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.backoff.retain(|key| !key.starts_with(uid));
        failures.last.retain(|key, _| !key.starts_with(uid));
    }

    /// The image of a container, pulled if its policy asks for that.
    pub(super) async fn ensure(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        container: &Container,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<Present, StartError> {
        let asked = container.image.as_deref().unwrap_or_default();
        let say = |warning, reason: &str, message: &str| {
            self.announcer.container(pod, kind, &container.name, warning, reason, message);
        };
        let image = with_tag(asked).ok_or_else(|| {
            let message = format!("Failed to apply default image tag {asked:?}: couldn't parse image name {asked:?}: invalid reference format");
            say(true, "InspectFailed", &message);
            StartError::new("InvalidImageName", message)
        })?;
        let policy = container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        let image_spec = v1::ImageSpec {
            image: image.clone(),
            annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
            ..v1::ImageSpec::default()
        };
        let inspect = |result: longshore_cri::Result<Option<v1::Image>>| {
            result.map_err(|error| {
                let message = format!("Failed to inspect image {image:?}: {error}");
                say(true, "InspectFailed", &message);
                StartError::new("ImageInspectError", message)
            })
        };
        if policy != "Always"
            && let Some(found) = inspect(self.cri.image_status(image_spec.clone()).await)?
        {
            say(false, "Pulled", &format!("Container image {asked:?} already present on machine"));
            return Ok(present(found));
        }
        if policy == "Never" {
            let message =
                format!("Container image {asked:?} is not present with pull policy of Never");
            say(true, "ErrImageNeverPull", &message);
            return Err(StartError::new("ErrImageNeverPull", message));
        }
        let key = format!("{}_{image}", spec::uid(pod));
        if let Some((message, until)) = self.backing_off(&key, &image) {
            say(false, "BackOff", &message);
            return Err(StartError {
                retry_at: Some(until),
                ..StartError::new("ImagePullBackOff", message)
            });
        }
        say(false, "Pulling", &format!("Pulling image {asked:?}"));
        let queued = Instant::now();
        // The semaphore is never closed.
        let slot = self.slots.acquire().await.ok();
        let started = Instant::now();
        let pulled = self.pull(pod, &image_spec, sandbox_config).await;
        drop(slot);
        if let Err(error) = pulled {
            say(true, "Failed", &format!("Failed to pull image {asked:?}: {error}"));
            return Err(self.failed(&key, error.to_string()));
        }
        self.succeeded(&key);
        let found = inspect(self.cri.image_status(image_spec).await)?;
        let found = found.ok_or_else(|| {
            self.failed(&key, format!("image {image:?} is not there after its pull"))
        })?;
        let (took, whole) = (started.elapsed(), queued.elapsed());
        say(
            false,
            "Pulled",
            &format!(
                "Successfully pulled image {asked:?} in {took:.3?} ({whole:.3?} including waiting). Image size: {} bytes.",
                found.size
            ),
        );
        Ok(present(found))
    }

    /// Try each credential that fits the image; with none, try without.
    async fn pull(
        &self,
        pod: &Pod,
        image: &v1::ImageSpec,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> longshore_cri::Result<()> {
        let mut tries: Vec<Option<v1::AuthConfig>> =
            credentials::of_pod(&self.objects, pod, &image.image)
                .await
                .into_iter()
                .map(Some)
                .collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut result = Ok(());
        for auth in tries {
            let pulled =
                self.cri.pull_image(image.clone(), auth, Some(sandbox_config.clone())).await;
            result = pulled.map(drop);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn backing_off(&self, key: &String, image: &str) -> Option<(String, Timestamp)> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, cause) = failures.last.get(key)?;
        let until = failures.backoff.waits_until(key, *at, Timestamp::now())?;
        Some((format!("Back-off pulling image {image:?}: {cause}"), until))
    }

    fn failed(&self, key: &str, message: String) -> StartError {
        let now = Timestamp::now();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.backoff.next(&key.to_owned(), now, now);
        failures.last.insert(key.to_owned(), (now, format!("ErrImagePull: {message}")));
        StartError::new("ErrImagePull", message)
    }

    fn succeeded(&self, key: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.last.remove(key);
    }
}

fn present(image: v1::Image) -> Present {
    let uid = image.uid.map(|uid| uid.value);
    Present { reference: image.id, user: ImageUser { uid, name: image.username } }
}

/// The image's name with `:latest` where it names neither tag nor digest; `None` if it is no
/// image name.
fn with_tag(image: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@+[]".contains(c);
    if image.is_empty() || !image.chars().all(allowed) {
        return None;
    }
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let (path, tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (name, None),
    };
    let (host, repository) = match path.split_once('/') {
        // A first part with a dot or a port is a registry's host, where capitals are allowed.
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => {
            (Some(host), rest)
        }
        _ => (None, path),
    };
    let valid_part = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let valid = repository.split('/').all(valid_part)
        && host
            .is_none_or(|host| host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '['))
        && tag.is_none_or(|tag| !tag.is_empty() && tag.len() <= 128)
        && digest
            .is_none_or(|digest| digest.split_once(':').is_some_and(|(_, hex)| hex.len() >= 32));
    valid.then(|| match (tag, digest) {
        (None, None) => format!("{image}:latest"),
        _ => image.to_owned(),
    })
}

/// A wait because of a container that failed, as its event and its status tell it.
pub(super) fn backoff_message(pod: &Pod, container: &str, delay: std::time::Duration) -> String {
    let delay = delay.as_secs();
    let delay = match (delay / 60, delay % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    };
    format!("back-off {delay} restarting failed container={container} pod={}", describe(pod))
}

#[cfg(test)]
mod tests {
    use super::with_tag;

    #[test]
    fn names_get_a_tag_and_bad_names_are_refused() {
        let digest = format!("a@sha256:{}", "0".repeat(64));
        for (image, expected) in [
            ("busybox", Some("busybox:latest")),
            ("busybox:1", Some("busybox:1")),
            ("host:5000/a/b", Some("host:5000/a/b:latest")),
            ("host:5000/a/b:x", Some("host:5000/a/b:x")),
            (digest.as_str(), Some(digest.as_str())),
            ("", None),
            ("Busybox", None),
            ("a b", None),
            ("a/", None),
            ("a:", None),
            ("../x", None),
            ("a@sha256:short", None),
        ] {
            assert_eq!(with_tag(image).as_deref(), expected, "{image:?}");
        }
    }
}
