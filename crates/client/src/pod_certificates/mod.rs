//! Keys and certificates of pods: what volumes project with the source `podCertificate` (gate
//! `PodCertificateRequest`).
//!
//! Each source of each registered pod has a task: it makes a key, requests a certificate for it with a
//! PodCertificateRequest, waits for the signer's answer (`answers`), and begins again when the certificate
//! is to be refreshed. Nothing is kept across restarts, as upstream: a new daemon requests new ones.

mod answers;
mod keys;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec};
use k8s_openapi::api::core::v1::{Node, Pod, PodCertificateProjection, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use longshore_base::clock;
use longshore_base::panics::{self, Panicked};
use longshore_base::retry::Delays;
use longshore_metrics::{Kind, Labels, Registry, Text};
use longshore_pod::spec;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::error_message;
use crate::events::PodEventRecorder;
use answers::{Answer, Answers, Issued, Refusal};
use keys::KeyAndProof;

/// A request that was made so long ago and is not in the apiserver must have been deleted.
const ASSUME_DELETED: SignedDuration = SignedDuration::from_mins(10);
/// A certificate whose refresh should have begun so long ago is overdue.
const OVERDUE: SignedDuration = SignedDuration::from_mins(10);
/// The bound of random delays, so that pods made together do not request together.
const JITTER_MILLISECONDS: i64 = 5 * 60 * 1000;
/// Delays between attempts at a request. Upstream's tries again with each of its passes, too.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two requests at least, whatever certificates say: the clocks of node and signer may differ.
const MIN_PERIOD: Duration = Duration::from_secs(60);
/// The wall clock is read so often during a wait: it may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The keys and certificates of this node's pods. A cheap handle; clones share them.
#[derive(Clone)]
pub struct PodCertificates(Arc<Inner>);

struct Inner {
    client: Client,
    node_name: String,
    node: watch::Receiver<Option<Arc<Node>>>,
    events: PodEventRecorder,
    answers: watch::Sender<Answers>,
    /// Keys are made one at a time: one of RSA takes a CPU for seconds.
    making: Semaphore,
    /// By UID.
    pods: Mutex<HashMap<String, Sources>>,
}

/// The sources of a pod, by volume and index in it.
type Sources = BTreeMap<(String, usize), Source>;

struct Source {
    signer: String,
    state: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<Result<(), Panicked>>,
}

/// What there is for one source.
#[derive(Clone)]
enum State {
    NotIssued,
    Refused(Refusal),
    Issued(Arc<Credentials>),
}

/// A key with its certificate.
pub struct Credentials {
    /// PKCS #8 in PEM.
    pub key: String,
    /// The certificate and those that it is issued by, in PEM.
    pub certificates: String,
    begin_refresh_at: Timestamp,
    not_after: Timestamp,
}

impl fmt::Debug for Credentials {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

/// Why a source has no credentials, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The pod is not registered.
    #[error("no credentials yet for volume {volume:?}, source {index}")]
    Unknown {
        /// The volume's name.
        volume: String,
        /// The source in it.
        index: usize,
    },
    /// The signer has not answered yet.
    #[error("credential bundle is not issued yet")]
    NotIssued,
    /// The signer refused, or failed. There is no other attempt.
    #[error(
        "PodCertificateRequest was permanently {verdict}: reason={reason:?} message={message:?}"
    )]
    Refused {
        /// `denied` or `failed`.
        verdict: &'static str,
        /// The condition's reason.
        reason: String,
        /// The condition's message.
        message: String,
    },
}

impl PodCertificates {
    /// Those of a node. `node` is its object, once it is known.
    pub fn new(
        client: Client,
        node_name: &str,
        node: watch::Receiver<Option<Arc<Node>>>,
        events: PodEventRecorder,
        registry: &Registry,
    ) -> Self {
        let inner = Arc::new(Inner {
            client,
            node_name: node_name.to_owned(),
            node,
            events,
            answers: watch::Sender::new(None),
            making: Semaphore::new(1),
            pods: Mutex::default(),
        });
        let counted = Arc::clone(&inner);
        registry.collect(move |text| counted.write(text));
        Self(inner)
    }

    /// Follows the answers of signers. Never ends.
    pub async fn run(self) {
        answers::follow(self.0.client.clone(), &self.0.node_name, &self.0.answers).await;
    }

    /// Obtains certificates for a pod's sources from now on, until [`PodCertificates::forget`]. `changed`
    /// is called when there is another certificate or error for one. Calling again for the same pod does
    /// nothing.
    pub(crate) fn track(&self, pod: &Pod, changed: impl Fn() + Clone + Send + Sync + 'static) {
        let mut wanted = sources(pod).peekable();
        if wanted.peek().is_none() {
            return;
        }
        let mut pods = self.0.pods.lock();
        let known = pods.entry(spec::uid(pod).to_owned()).or_default();
        let shared = Arc::new(pod.clone());
        for (volume, index, projection) in wanted {
            known.entry((volume.to_owned(), index)).or_insert_with(|| {
                let state = Arc::new(Mutex::new(State::NotIssued));
                let keeper = Keeper {
                    inner: Arc::clone(&self.0),
                    pod: Arc::clone(&shared),
                    source: projection.clone(),
                    place: format!("volume {volume:?}, source {index}"),
                    state: Arc::clone(&state),
                };
                // What has panicked is logged; the source stays as it was.
                let task = tokio::spawn(panics::contain(keeper.keep(changed.clone())));
                let task = AbortOnDropHandle::new(task);
                Source { signer: projection.signer_name.clone(), state, _task: task }
            });
        }
    }

    /// Drops what there is for a pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.pods.lock().remove(uid);
    }

    /// The credentials of one source of a pod.
    pub(crate) fn get(
        &self,
        uid: &str,
        volume: &str,
        index: usize,
    ) -> Result<Arc<Credentials>, CertificateError> {
        let pods = self.0.pods.lock();
        let source = pods.get(uid).and_then(|pod| pod.get(&(volume.to_owned(), index)));
        let unknown = || CertificateError::Unknown { volume: volume.to_owned(), index };
        let state = source.ok_or_else(unknown)?.state.lock().clone();
        match state {
            State::NotIssued => Err(CertificateError::NotIssued),
            State::Issued(credentials) => Ok(credentials),
            State::Refused(Refusal { denied, reason, message }) => {
                let verdict = if denied { "denied" } else { "failed" };
                Err(CertificateError::Refused { verdict, reason, message })
            }
        }
    }
}

/// The sources of a pod, by volume and index in it.
fn sources(pod: &Pod) -> impl Iterator<Item = (&str, usize, &PodCertificateProjection)> {
    let volumes = pod.spec.iter().flat_map(|own| own.volumes.iter().flatten());
    volumes.flat_map(|volume| {
        let all = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        let all = all.enumerate();
        all.filter_map(|(index, source)| {
            Some((volume.name.as_str(), index, source.pod_certificate.as_ref()?))
        })
    })
}

impl State {
    /// What metrics call it.
    fn name(&self, now: Timestamp) -> &'static str {
        match self {
            Self::NotIssued => "not_yet_issued",
            Self::Refused(Refusal { denied: true, .. }) => "denied",
            Self::Refused(_) => "failed",
            Self::Issued(credentials) if now > credentials.not_after => "expired",
            Self::Issued(credentials) if now > overdue_at(credentials) => "overdue_for_refresh",
            Self::Issued(_) => "fresh",
        }
    }
}

fn overdue_at(credentials: &Credentials) -> Timestamp {
    later(credentials.begin_refresh_at, OVERDUE)
}

fn later(time: Timestamp, span: SignedDuration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

fn jitter() -> SignedDuration {
    SignedDuration::from_millis(fastrand::i64(0..JITTER_MILLISECONDS))
}

/// Until that time of the wall clock.
async fn sleep_until(time: Timestamp) {
    loop {
        let left = Duration::try_from(time.duration_since(clock::now())).unwrap_or_default();
        if left.is_zero() {
            return;
        }
        sleep(left.min(LONGEST_SLEEP)).await;
    }
}

impl Inner {
    fn write(&self, text: &mut Text) {
        let mut counts = BTreeMap::<(String, &'static str), u32>::new();
        let now = clock::now();
        for source in self.pods.lock().values().flat_map(BTreeMap::values) {
            let key = (source.signer.clone(), source.state.lock().name(now));
            let count = counts.entry(key).or_default();
            *count = count.saturating_add(1);
        }
        let help = "[ALPHA] Gauge vector reporting the number of pod certificate projected volume \
                    sources, faceted by signer_name and state.";
        let mut samples = text.family("kubelet_podcertificate_states", help, Kind::Gauge);
        for ((signer, state), count) in counts {
            let labels = Labels::new(&[("signer_name", &signer), ("state", state)]);
            samples.add(&labels, f64::from(count));
        }
    }

    /// The UID of the node's object.
    async fn node_uid(&self) -> Result<String, String> {
        let mut node = self.node.clone();
        let known = node.wait_for(Option::is_some).await;
        let known = known.map_err(|_| "there is no node object".to_owned())?;
        known
            .as_ref()
            .and_then(|node| node.metadata.uid.clone())
            .ok_or_else(|| "it has none".into())
    }
}

/// Keeps one source of a pod supplied.
struct Keeper {
    inner: Arc<Inner>,
    pod: Arc<Pod>,
    source: PodCertificateProjection,
    /// Where in the pod it is, for messages.
    place: String,
    state: Arc<Mutex<State>>,
}

impl Keeper {
    /// Ends when a request is refused.
    async fn keep(self, changed: impl Fn()) {
        let mut current: Option<Arc<Credentials>> = None;
        loop {
            let obtained = match &current {
                None => self.obtain().await,
                Some(current) => {
                    tokio::join!(sleep_until(current.begin_refresh_at), sleep(MIN_PERIOD));
                    tokio::select! {
                        obtained = self.obtain() => obtained,
                        never = self.report_delay(current) => match never {},
                    }
                }
            };
            let state = match obtained {
                Ok(credentials) => {
                    current = Some(Arc::clone(&credentials));
                    State::Issued(credentials)
                }
                Err(refusal) => State::Refused(refusal),
            };
            let ends = matches!(state, State::Refused(_));
            *self.state.lock() = state;
            changed();
            if ends {
                return;
            }
        }
    }

    /// Records events about a certificate that is not refreshed in time.
    async fn report_delay(&self, current: &Credentials) -> std::convert::Infallible {
        let overdue = async {
            sleep_until(overdue_at(current)).await;
            self.warn("CertificateOverdueForRefresh", "PodCertificate refresh overdue");
        };
        let expired = async {
            sleep_until(current.not_after).await;
            self.warn("CertificateExpired", "PodCertificate expired");
        };
        futures::join!(overdue, expired);
        std::future::pending().await
    }

    fn warn(&self, reason: &str, message: &str) {
        self.inner.events.pod(&self.pod, true, reason, message);
    }

    /// Makes requests until one is answered.
    async fn obtain(&self) -> Result<Arc<Credentials>, Refusal> {
        let mut delays = Delays::doubling(FIRST_RETRY, LAST_RETRY);
        loop {
            let error = match self.request().await {
                Ok((key, name, made)) => match self.answer(&name, made).await {
                    Some(Ok(issued)) => {
                        return Ok(Arc::new(Credentials {
                            key,
                            certificates: issued.chain,
                            begin_refresh_at: later(issued.begin_refresh_at, jitter()),
                            not_after: issued.not_after,
                        }));
                    }
                    Some(Err(refusal)) => {
                        self.report_refusal(&name, &refusal);
                        return Err(refusal);
                    }
                    None => {
                        let namespace = spec::namespace(&self.pod);
                        let name = format!("{namespace}/{name}");
                        format!("PodCertificateRequest {name:?} appears to have been deleted")
                    }
                },
                Err(error) => error,
            };
            let (pod, place) = (spec::describe(&self.pod), &self.place);
            warn!(pod, place, error, "cannot obtain a certificate for a pod");
            sleep(delays.next_delay()).await;
        }
    }

    fn report_refusal(&self, name: &str, refusal: &Refusal) {
        let Refusal { denied, reason, message } = refusal;
        let verdict = if *denied { "was denied" } else { "failed" };
        let namespace = spec::namespace(&self.pod);
        let message = format!(
            "PodCertificateRequest {namespace}/{name} {verdict}, reason={reason:?}, \
             message={message:?}"
        );
        self.warn(if *denied { "Denied" } else { "Failed" }, &message);
    }

    /// Makes a key and a request for a certificate; returns the key, and the request's name and age.
    async fn request(&self) -> Result<(String, String, Timestamp), String> {
        let account = self.service_account().await?;
        let node_uid = self.inner.node_uid().await;
        let node_uid = node_uid.map_err(|why| format!("while getting the node's UID: {why}"))?;
        let proof = self.key().await?;
        let (pod, source) = (&self.pod, &self.source);
        let request = PodCertificateRequest {
            metadata: ObjectMeta {
                namespace: pod.metadata.namespace.clone(),
                generate_name: Some("req-".to_owned()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    name: spec::name(pod).to_owned(),
                    uid: spec::uid(pod).to_owned(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                signer_name: source.signer_name.clone(),
                pod_name: spec::name(pod).to_owned(),
                pod_uid: spec::uid(pod).to_owned(),
                service_account_name: account.metadata.name.unwrap_or_default(),
                service_account_uid: account.metadata.uid.unwrap_or_default(),
                node_name: self.inner.node_name.clone(),
                node_uid,
                max_expiration_seconds: source.max_expiration_seconds,
                stub_pkc_s10_request: ByteString(proof.request),
                unverified_user_annotations: source.user_annotations.clone(),
                ..PodCertificateRequestSpec::default()
            },
            status: None,
        };
        let api = Api::<PodCertificateRequest>::namespaced(
            self.inner.client.clone(),
            spec::namespace(pod),
        );
        let params = PostParams::default();
        let made = within(api.create(&params, &request)).await;
        let made =
            made.map_err(|error| format!("while creating PodCertificateRequest: {error}"))?;
        let time = made.metadata.creation_timestamp.map_or_else(clock::now, |time| time.0);
        Ok((proof.key, made.metadata.name.unwrap_or_default(), time))
    }

    async fn service_account(&self) -> Result<ServiceAccount, String> {
        let name = spec::service_account(&self.pod).unwrap_or_default();
        let client = self.inner.client.clone();
        let api = Api::<ServiceAccount>::namespaced(client, spec::namespace(&self.pod));
        let account = within(api.get(name)).await;
        account.map_err(|error| format!("while fetching service account: {error}"))
    }

    async fn key(&self) -> Result<KeyAndProof, String> {
        let _one_at_a_time = self.inner.making.acquire().await;
        let key_type = self.source.key_type.clone();
        let made = panics::blocking(move || KeyAndProof::make(&key_type)).await;
        let made = made.map_err(|error| error.to_string())?;
        made.map_err(|error| format!("while generating keypair: {error}"))
    }

    /// What the signer says of a request; `None`: it must have been deleted.
    async fn answer(&self, name: &str, made: Timestamp) -> Option<Result<Issued, Refusal>> {
        let mut answers = self.inner.answers.subscribe();
        let key = (spec::namespace(&self.pod).to_owned(), name.to_owned());
        // It may be missing because the watch is behind.
        let assume_deleted = later(later(made, ASSUME_DELETED), jitter());
        loop {
            let is_absent = match &*answers.borrow_and_update() {
                None => false,
                Some(answers) => match answers.get(&key) {
                    None => true,
                    Some(Answer::Pending) => false,
                    Some(Answer::Issued(issued)) => return Some(Ok(issued.clone())),
                    Some(Answer::Refused(refusal)) => return Some(Err(refusal.clone())),
                },
            };
            if is_absent && clock::now() >= assume_deleted {
                return None;
            }
            tokio::select! {
                // The sender lives as long as this.
                _ = answers.changed() => {}
                () = sleep_until(assume_deleted), if is_absent => {}
            }
        }
    }
}

/// The answer to a request, or why there is none.
async fn within<T>(request: impl Future<Output = Result<T, KubeError>>) -> Result<T, String> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| error_message(&error)),
        Err(_) => Err(format!("no answer within {REQUEST_TIMEOUT:?}")),
    }
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub mod fake;
#[cfg(test)]
mod tests;
