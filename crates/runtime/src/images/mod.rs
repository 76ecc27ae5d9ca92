//! Images: there when a container needs them, pulled when policy asks for it, with a back-off for
//! those that fail.
//!
//! Current limitations: credentials come from pull secrets and the node's docker config, not from
//! credential provider plugins.

mod credentials;
mod failures;
mod name;
mod pull;
mod records;
mod telling;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Secret};
use longshore_cri::{Runtime, v1};
use longshore_pod::Timestamp;
use longshore_pod::spec::{self, ContainerKind};
use tokio::sync::{OnceCell, Semaphore};
use tracing::{info, warn};

pub use records::Verification;

use super::StartError;
use super::metrics::Metrics;
use super::security::ImageUser;
use credentials::{Credential, SecretLogin};
use failures::Failures;
use longshore_base::rate::TokenBucket;
use longshore_client::events::PodEventRecorder;
use longshore_client::objects::Objects;
use longshore_config::GoDuration;
use name::Name;
use pull::verdict;
use records::{Access, Records};
use telling::Telling;

/// An image that the node has.
#[derive(Clone, Debug)]
pub struct Present {
    /// What a container is made from.
    pub(super) reference: String,
    /// The user that it runs as.
    pub(super) user: ImageUser,
}

/// An image that is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Its name, as the pod spells it.
    pub reference: &'a str,
    /// `imagePullPolicy`.
    pub policy: Option<&'a str>,
    /// The container that is to run it; `None` for a volume of the pod.
    pub container: Option<(ContainerKind, &'a str)>,
}

/// What was found out about an image that was wanted, so far.
#[derive(Default)]
struct Facts {
    present: Option<bool>,
    /// Whether it has to be pulled.
    pull: Option<bool>,
}

/// The policy for an image that is wanted.
fn policy<'a>(wanted: &Wanted<'a>) -> &'a str {
    wanted.policy.unwrap_or("IfNotPresent")
}

/// How images are pulled.
#[derive(Clone, Debug)]
pub struct Pulls {
    /// How many may run at once.
    pub parallel: usize,
    /// How many may begin each second, and at once; `None` for no limit.
    pub rate: Option<(f64, f64)>,
    /// Which pods must show that they could pull an image that is there.
    pub verification: Verification,
}

/// Sees to it that images are there.
pub(super) struct Images {
    cri: Runtime,
    objects: Objects,
    pod_events: PodEventRecorder,
    slots: Semaphore,
    rate: Option<Mutex<TokenBucket>>,
    root_dir: PathBuf,
    records: Records,
    recovered: OnceCell<()>,
    failures: Mutex<Failures>,
    metrics: Metrics,
}

impl Images {
    pub(super) fn new(
        cri: Runtime,
        objects: Objects,
        pod_events: PodEventRecorder,
        root_dir: PathBuf,
        pulls: &Pulls,
        metrics: Metrics,
    ) -> Self {
        let bucket = |(rate, burst)| Mutex::new(TokenBucket::new(rate, burst, Instant::now()));
        Self {
            cri,
            objects,
            pod_events,
            slots: Semaphore::new(pulls.parallel.max(1)),
            rate: pulls.rate.map(bucket),
            records: Records::new(pulls.verification.clone(), &root_dir),
            root_dir,
            recovered: OnceCell::new(),
            failures: Mutex::new(Failures::new()),
            metrics,
        }
    }

    /// Forget the failures of a pod that is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.failures().forget(uid);
        self.metrics.forget(uid);
    }

    /// Forget who pulled an image that was removed, unless it was pulled again since then.
    pub(super) fn removed(&self, image_ref: &str, since: Timestamp) {
        self.records.forget(image_ref, since);
    }

    /// The image of a container or a volume, pulled if its policy asks for that.
    pub(super) async fn ensure(
        &self,
        pod: &Pod,
        wanted: Wanted<'_>,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<Present, StartError> {
        let mut facts = Facts::default();
        let ensured = self.ensure_noting(pod, wanted, sandbox_config, &mut facts).await;
        self.metrics.wanted_image(policy(&wanted), facts.present, facts.pull);
        ensured
    }

    async fn ensure_noting(
        &self,
        pod: &Pod,
        wanted: Wanted<'_>,
        sandbox_config: &v1::PodSandboxConfig,
        facts: &mut Facts,
    ) -> Result<Present, StartError> {
        let Wanted { reference: asked, container, .. } = wanted;
        let telling = Telling { pod_events: &self.pod_events, pod, container };
        let name = Name::parse(asked).map_err(|error| {
            let why = format!("couldn't parse image name {asked:?}: {error}");
            let message = format!("Failed to apply default image tag {asked:?}: {why}");
            telling.fails("InspectFailed", "InvalidImageName", message)
        })?;
        let image = v1::ImageSpec {
            image: name.with_tag(),
            annotations: annotations(pod),
            ..v1::ImageSpec::default()
        };
        let never = || {
            let message =
                format!("Container image {asked:?} is not present with pull policy of Never");
            telling.fails("ErrImageNeverPull", "ErrImageNeverPull", message)
        };
        let policy = policy(&wanted);
        let credentials = OnceCell::new();
        let credentials = async || {
            credentials.get_or_init(async || self.credentials(&telling, &name.source).await).await
        };
        let found = match policy {
            "Always" => None,
            _ => {
                let found = self.inspect(&telling, &image).await?;
                facts.present = Some(found.is_some());
                found
            }
        };
        if let Some(found) = found {
            self.recover().await;
            let logins = async || secret_logins(credentials().await);
            let check = self.records.admits(asked, &found.id, logins).await;
            if let Some(label) = check.label() {
                self.metrics.checked_image(label);
            }
            if check.admits() {
                facts.pull = Some(false);
                let can =
                    if self.records.is_off() { "" } else { " and can be accessed by the pod" };
                let message = format!("Container image {asked:?} already present on machine{can}");
                telling.say(false, "Pulled", &message);
                return Ok(present(found));
            }
        }
        if policy == "Never" {
            // One that is there would have to show that it could be pulled.
            facts.pull = facts.present.filter(|present| *present);
            return Err(never());
        }
        facts.pull = Some(true);
        let key = Failures::key(spec::uid(pod), asked);
        let waits = self.failures().wait(&key, Timestamp::now());
        if let Some((cause, until)) = waits {
            let message = format!("Back-off pulling image {asked:?}");
            telling.say(false, "BackOff", &message);
            return Err(StartError {
                retry_at: Some(until),
                ..StartError::new("ImagePullBackOff", format!("{message}: {cause}"))
            });
        }
        let intention = self.records.intend(asked).map_err(|error| {
            let message = format!(
                "Failed to record image pull intent for container image {asked:?}: {error}"
            );
            self.failed(&key, "ErrImagePull", message)
        })?;
        telling.say(false, "Pulling", &format!("Pulling image {asked:?}"));
        let queued = Instant::now();
        // The semaphore is never closed.
        let slot = self.slots.acquire().await.ok();
        let started = Instant::now();
        let pulled = self.pull(&image, credentials().await, sandbox_config).await;
        let (reference, secret) = pulled.map_err(|error| {
            self.metrics.waited_for_pull(spec::uid(pod), queued);
            telling.say(true, "Failed", &format!("Failed to pull image {asked:?}: {error}"));
            let (reason, message) = verdict(asked, error);
            self.failed(&key, reason, message)
        })?;
        // Found again under the name that was asked for, or at least by what the pull gave.
        let found = match self.inspect(&telling, &image).await? {
            Some(found) => found,
            None => v1::Image { id: reference.clone(), ..v1::Image::default() },
        };
        drop(slot);
        self.failures().succeeded(&key);
        intention.pulled(&reference, Access::of(secret));
        let (took, whole) = (go_duration(started.elapsed()), go_duration(queued.elapsed()));
        let size = found.size;
        self.metrics.pulled(spec::uid(pod), queued, size);
        let message = format!(
            "Successfully pulled image {asked:?} in {took} ({whole} including waiting). Image size: {size} bytes."
        );
        telling.say(false, "Pulled", &message);
        Ok(present(found))
    }

    async fn inspect(
        &self,
        telling: &Telling<'_>,
        image: &v1::ImageSpec,
    ) -> Result<Option<v1::Image>, StartError> {
        self.cri.image_status(image.clone()).await.map_err(|error| {
            let message = format!("Failed to inspect image {:?}: {}", image.image, error.go_text());
            telling.fails("InspectFailed", "ImageInspectError", message)
        })
    }

    /// The credentials that fit an image. A pull secret that is not to be had is told of, and the
    /// pull tried without it.
    async fn credentials(&self, telling: &Telling<'_>, source: &str) -> Vec<Credential> {
        let pod = telling.pod;
        let names = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
        let names = names.map(|reference| reference.name.as_str()).filter(|name| !name.is_empty());
        let (mut secrets, mut missing): (Vec<Arc<Secret>>, Vec<&str>) = Default::default();
        for name in names {
            match self.objects.secret(spec::namespace(pod), name).await {
                Ok(secret) => secrets.push(secret),
                Err(error) => {
                    info!(pod = spec::name(pod), %error, "pull secret is not to be had");
                    missing.push(name);
                }
            }
        }
        if !missing.is_empty() {
            let missing = missing.join(", ");
            let message = format!(
                "Unable to retrieve some image pull secrets ({missing}); attempting to pull the image may not succeed."
            );
            self.pod_events.pod(pod, true, "FailedToRetrieveImagePullSecret", &message);
        }
        credentials::fitting(secrets.iter().map(Arc::as_ref), &self.root_dir, source)
    }

    /// Take the records of an earlier daemon over, once.
    async fn recover(&self) {
        if self.records.is_off() {
            return;
        }
        let recovered = self.recovered.get_or_try_init(async || {
            let images = self.cri.list_images(None).await?;
            self.records.recover(&images);
            Ok::<_, longshore_cri::Error>(())
        });
        if let Err(error) = recovered.await {
            warn!(%error, "earlier pulls are not accounted for yet");
        }
    }

    fn failed(&self, key: &str, reason: &'static str, message: String) -> StartError {
        self.failures().failed(key, format!("{reason}: {message}"), Timestamp::now());
        StartError::new(reason, message)
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pod's annotations, as image calls carry them.
pub(super) fn annotations(pod: &Pod) -> BTreeMap<String, String> {
    pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect()
}

fn secret_logins(credentials: &[Credential]) -> Vec<SecretLogin> {
    credentials.iter().filter_map(|credential| credential.secret.clone()).collect()
}

fn present(image: v1::Image) -> Present {
    let uid = image.uid.map(|uid| uid.value);
    Present { reference: image.id, user: ImageUser { uid, name: image.username } }
}

/// A span in whole milliseconds, as Go writes it.
fn go_duration(span: Duration) -> GoDuration {
    GoDuration::millis(i64::try_from(span.as_millis()).unwrap_or(i64::MAX / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_may_say_why_a_pull_failed() {
        for (error, reason, message) in [
            ("no such host", "ErrImagePull", "no such host"),
            (
                "RegistryUnavailable: try later",
                "RegistryUnavailable",
                "image pull failed for a:1 because the registry is unavailable: try later",
            ),
            (
                "SignatureValidationFailed",
                "SignatureValidationFailed",
                "image pull failed for a:1 because the signature validation failed",
            ),
        ] {
            assert_eq!(verdict("a:1", error.to_owned()), (reason, message.to_owned()));
        }
    }

    #[test]
    fn spans_are_written_as_go_does() {
        for (millis, expected) in [(0, "0s"), (250, "250ms"), (1200, "1.2s"), (61_001, "1m1.001s")]
        {
            assert_eq!(go_duration(Duration::from_millis(millis)).to_string(), expected);
        }
    }
}
