//! Images: checked before a container starts, pulled if the pull policy requires it, with backoff
//! for failed pulls.

mod credentials;
mod events;
mod failures;
mod name;
mod plugins;
mod pull;
mod records;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Secret};
use longshore_cri::{Runtime, v1};
use longshore_pod::Timestamp;
use longshore_pod::spec::{self, ContainerKind};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OnceCell, Semaphore};
use tracing::{info, warn};

pub use records::Verification;

use super::StartError;
use super::metrics::Metrics;
use super::security::ImageUser;
use credentials::{Credential, PodLogins};
use events::ImageEvents;
use failures::Failures;
use longshore_base::clock;
use longshore_base::rate::TokenBucket;
use longshore_client::events::PodEventRecorder;
use longshore_client::objects::Objects;
use longshore_config::GoDuration;
use longshore_credential_provider::CredentialProviders;
use name::Name;
use pull::failure_reason;
use records::{Access, Records};

/// An image that is present on the node.
#[derive(Clone, Debug)]
pub struct Present {
    /// Its reference for container configs.
    pub(super) reference: String,
    /// The user in its config.
    pub(super) user: ImageUser,
}

/// An image that a container or volume requires.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageRequest<'a> {
    /// Its name in the pod.
    pub reference: &'a str,
    /// `imagePullPolicy`.
    pub policy: Option<&'a str>,
    /// The container; `None` for a volume of the pod.
    pub container: Option<(ContainerKind, &'a str)>,
}

/// What is known about a required image, for metrics.
#[derive(Default)]
struct PullDecision {
    present: Option<bool>,
    /// Whether it must be pulled.
    pull: Option<bool>,
}

/// The pull policy of a required image.
fn policy<'a>(request: &ImageRequest<'a>) -> &'a str {
    request.policy.unwrap_or("IfNotPresent")
}

/// Settings of image pulls.
#[derive(Clone, Debug)]
pub struct Pulls {
    /// Maximum number of parallel pulls.
    pub parallel: usize,
    /// Rate per second, and burst; `None` for no limit.
    pub rate: Option<(f64, f64)>,
    /// Which pods must prove that they can pull an image that is present.
    pub verification: Verification,
}

/// Ensures that images are present.
pub(super) struct Images {
    cri: Runtime,
    objects: Objects,
    providers: CredentialProviders,
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
        providers: CredentialProviders,
        pod_events: PodEventRecorder,
        root_dir: PathBuf,
        pulls: &Pulls,
        metrics: Metrics,
    ) -> Self {
        let records = Records::new(pulls.verification.clone(), &root_dir);
        records.register_metrics(&metrics.registry);
        let bucket = |(rate, burst)| Mutex::new(TokenBucket::new(rate, burst, Instant::now()));
        Self {
            cri,
            objects,
            providers,
            pod_events,
            slots: Semaphore::new(pulls.parallel.max(1)),
            rate: pulls.rate.map(bucket),
            records,
            root_dir,
            recovered: OnceCell::new(),
            failures: Mutex::new(Failures::new()),
            metrics,
        }
    }

    /// Remove the state of a pod that is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.failures().forget(uid);
        self.metrics.forget(uid);
    }

    /// Remove the record of an image that was removed, unless it was pulled again since then.
    pub(super) fn removed(&self, image_ref: &str, since: Timestamp) {
        self.records.forget(image_ref, since);
    }

    /// The image of a container or a volume, pulled if its policy requires it.
    pub(super) async fn ensure(
        &self,
        pod: &Pod,
        request: ImageRequest<'_>,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<Present, StartError> {
        let mut decision = PullDecision::default();
        let ensured = self.ensure_image(pod, request, sandbox_config, &mut decision).await;
        self.metrics.image_required(policy(&request), decision.present, decision.pull);
        ensured
    }

    async fn ensure_image(
        &self,
        pod: &Pod,
        request: ImageRequest<'_>,
        sandbox_config: &v1::PodSandboxConfig,
        decision: &mut PullDecision,
    ) -> Result<Present, StartError> {
        let ImageRequest { reference: requested, container, .. } = request;
        let events = ImageEvents { pod_events: &self.pod_events, pod, container };
        let name = Name::parse(requested).map_err(|error| {
            let why = format!("couldn't parse image name {requested:?}: {error}");
            let message = format!("Failed to apply default image tag {requested:?}: {why}");
            events.failure("InspectFailed", "InvalidImageName", message)
        })?;
        let image = v1::ImageSpec {
            image: name.with_tag(),
            annotations: annotations(pod),
            ..v1::ImageSpec::default()
        };
        let never = || {
            let message =
                format!("Container image {requested:?} is not present with pull policy of Never");
            events.failure("ErrImageNeverPull", "ErrImageNeverPull", message)
        };
        let policy = policy(&request);
        let credentials = OnceCell::new();
        let credentials = async || {
            credentials.get_or_init(async || self.credentials(&events, &name.source).await).await
        };
        let found = match policy {
            "Always" => None,
            _ => {
                let found = self.inspect(&events, &image).await?;
                decision.present = Some(found.is_some());
                found
            }
        };
        if let Some(found) = found {
            self.recover().await;
            let logins = async || PodLogins::of(credentials().await);
            let check = self.records.check(requested, &found.id, logins).await;
            if let Some(label) = check.label() {
                self.metrics.image_access_checked(label);
            }
            if check.is_allowed() {
                decision.pull = Some(false);
                let can =
                    if self.records.is_off() { "" } else { " and can be accessed by the pod" };
                let message =
                    format!("Container image {requested:?} already present on machine{can}");
                events.record(false, "Pulled", &message);
                return Ok(present(found));
            }
        }
        if policy == "Never" {
            // One that is present is not accessible to the pod without a pull.
            decision.pull = decision.present.filter(|present| *present);
            return Err(never());
        }
        decision.pull = Some(true);
        let key = Failures::key(spec::uid(pod), requested);
        let waits = self.failures().wait(&key, clock::now());
        if let Some((cause, until)) = waits {
            let message = format!("Back-off pulling image {requested:?}");
            events.record(false, "BackOff", &message);
            return Err(StartError {
                retry_at: Some(until),
                ..StartError::new("ImagePullBackOff", format!("{message}: {cause}"))
            });
        }
        let intent = self.records.record_intent(requested).map_err(|error| {
            let message = format!(
                "Failed to record image pull intent for container image {requested:?}: {error}"
            );
            self.failed(&key, "ErrImagePull", message)
        })?;
        events.record(false, "Pulling", &format!("Pulling image {requested:?}"));
        let queued = Instant::now();
        // The semaphore is never closed.
        let slot = self.slots.acquire().await.ok();
        let started = Instant::now();
        let pulled = self.pull(&image, credentials().await, sandbox_config).await;
        let (reference, source) = pulled.map_err(|error| {
            self.metrics.pull_finished(spec::uid(pod), queued);
            events.record(true, "Failed", &format!("Failed to pull image {requested:?}: {error}"));
            let (reason, message) = failure_reason(requested, error);
            self.failed(&key, reason, message)
        })?;
        // Inspected again under its name, or else the result of the pull.
        let found = match self.inspect(&events, &image).await? {
            Some(found) => found,
            None => v1::Image { id: reference.clone(), ..v1::Image::default() },
        };
        drop(slot);
        self.failures().succeeded(&key);
        intent.pulled(&reference, Access::of(source));
        let (took, total) = (go_duration(started.elapsed()), go_duration(queued.elapsed()));
        let size = found.size;
        self.metrics.pulled(spec::uid(pod), queued, size);
        let message = format!(
            "Successfully pulled image {requested:?} in {took} ({total} including waiting). Image size: {size} bytes."
        );
        events.record(false, "Pulled", &message);
        Ok(present(found))
    }

    async fn inspect(
        &self,
        events: &ImageEvents<'_>,
        image: &v1::ImageSpec,
    ) -> Result<Option<v1::Image>, StartError> {
        self.cri.image_status(image.clone()).await.map_err(|error| {
            let message = format!("Failed to inspect image {:?}: {}", image.image, error.go_text());
            events.failure("InspectFailed", "ImageInspectError", message)
        })
    }

    /// The credentials that match an image. A pull secret that is not available is reported in an
    /// event, and the pull is tried without it.
    async fn credentials(&self, events: &ImageEvents<'_>, source: &str) -> Vec<Credential> {
        let pod = events.pod;
        let names = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
        let names = names.map(|reference| reference.name.as_str()).filter(|name| !name.is_empty());
        let (mut secrets, mut missing): (Vec<Arc<Secret>>, Vec<&str>) = Default::default();
        for name in names {
            match self.objects.secret(spec::namespace(pod), name).await {
                Ok(secret) => secrets.push(secret),
                Err(error) => {
                    info!(pod = spec::name(pod), %error, "cannot get pull secret");
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
        let mut found =
            credentials::matching(secrets.iter().map(Arc::as_ref), &self.root_dir, source);
        let given = plugins::credentials(&self.providers, &self.objects, events, source).await;
        found.extend(credentials::of_plugins(given, source));
        found
    }

    /// Recover the records of the last run of the daemon, once.
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
            warn!(%error, "cannot recover image pull records, will retry");
        }
    }

    fn failed(&self, key: &str, reason: &'static str, message: String) -> StartError {
        self.failures().failed(key, format!("{reason}: {message}"), clock::now());
        StartError::new(reason, message)
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock()
    }
}

/// The pod's annotations, for image calls.
pub(super) fn annotations(pod: &Pod) -> BTreeMap<String, String> {
    pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect()
}

fn present(image: v1::Image) -> Present {
    let uid = image.uid.map(|uid| uid.value);
    Present { reference: image.id, user: ImageUser { uid, name: image.username } }
}

/// A duration in whole milliseconds, as Go formats it.
fn go_duration(span: Duration) -> GoDuration {
    GoDuration::millis(i64::try_from(span.as_millis()).unwrap_or(i64::MAX / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_pull_failure_reasons_of_runtimes() {
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
            assert_eq!(failure_reason("a:1", error.to_owned()), (reason, message.to_owned()));
        }
    }

    #[test]
    fn durations_are_formatted_as_in_go() {
        for (millis, expected) in [(0, "0s"), (250, "250ms"), (1200, "1.2s"), (61_001, "1m1.001s")]
        {
            assert_eq!(go_duration(Duration::from_millis(millis)).to_string(), expected);
        }
    }
}
