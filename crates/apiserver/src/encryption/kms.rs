//! KMS v2: values are encrypted with keys that are derived from a seed, and the seed by a plugin beside the
//! apiserver, called over gRPC on a Unix socket. The encrypted seed is stored with each value.
//!
//! The plugin is asked for a seed's encryption once for each of its keys, and for decryption once for each
//! seed that is met. While it is gone, values are written for three more minutes, and those whose seeds are known
//! are read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use longshore_grpc::{Endpoint, Failure, await_response, request};
use parking_lot::Mutex;
use prost::Message;
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::ciphers::{self, GcmKey, random};
use super::metrics::{Direction, Metrics};
use crate::object;

const SEED: usize = 32;
const INFO: usize = 32;
const DERIVED_KEY: usize = 32;
const MAX_KEY_ID: usize = 1 << 10;
const MAX_ENCRYPTED_SEED: usize = 1 << 10;
const MAX_ANNOTATIONS: usize = 32 << 10;
/// How long a seed is used to write after the plugin was last well.
const MAX_AGE: Duration = Duration::from_secs(3 * 60);
/// Between two looks at a plugin that is well, and at one that is not.
const POSITIVE_INTERVAL: Duration = Duration::from_secs(60);
const NEGATIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the result of a health check counts.
const POSITIVE_TTL: Duration = Duration::from_secs(20);
const NEGATIVE_TTL: Duration = Duration::from_secs(3);
/// Seeds that are known, about 200 bytes each.
const MAX_KNOWN: usize = 10_000;

/// A derived key whose nonces are beyond AES-GCM's, or a key that older servers used as it is.
const SOURCE_KEY: i32 = 0;
const SOURCE_SEED: i32 = 1;

/// What is stored for a value (`kmsv2/v2/api.proto`).
#[derive(Clone, PartialEq, Message)]
struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    encrypted_data: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    encrypted_source: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
    #[prost(int32, tag = "5")]
    source_type: i32,
}

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

/// A plugin.
pub(super) struct Kms {
    name: String,
    timeout: Duration,
    channel: Channel,
    state: Mutex<Option<Arc<WriteState>>>,
    known: Mutex<HashMap<[u8; 32], Source>>,
    health: tokio::sync::Mutex<Health>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Health {
    last: Option<(Instant, Result<(), String>)>,
    /// That of the first status.
    version: String,
}

/// With what values are written.
struct WriteState {
    key_id: String,
    encrypted_source: Vec<u8>,
    annotations: BTreeMap<String, Vec<u8>>,
    seed: [u8; SEED],
    expires: Mutex<Instant>,
}

/// The plaintext of an encrypted source.
#[derive(Clone)]
enum Source {
    Seed(Vec<u8>),
    Key(GcmKey),
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// The key for one value.
fn derived(seed: &[u8], info: &[u8]) -> Result<GcmKey, String> {
    let mut key = [0; DERIVED_KEY];
    Prk::new_less_safe(HKDF_SHA256, seed)
        .expand(&[info], Length(DERIVED_KEY))
        .and_then(|output| output.fill(&mut key))
        .map_err(|_| "failed to KDF expand seed with info".to_owned())?;
    GcmKey::new(&key).map_err(|error| error.to_string())
}

impl Source {
    fn new(plaintext: Vec<u8>, source_type: i32) -> Result<Source, String> {
        match source_type {
            SOURCE_KEY => GcmKey::new(&plaintext).map(Source::Key).map_err(|e| e.to_string()),
            _ if plaintext.len() < SEED => {
                Err(format!("invalid seed length {} used for key generation", plaintext.len()))
            }
            _ => Ok(Source::Seed(plaintext)),
        }
    }

    fn decrypt(&self, data: &[u8], authenticated: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Source::Key(key) => key.decrypt(data, authenticated),
            Source::Seed(seed) => {
                let short = || ciphers::Error::Short.to_string();
                let (info, text) = data.split_at_checked(INFO).ok_or_else(short)?;
                derived(seed, info)?.decrypt(text, authenticated)
            }
        }
        .map_err(|error| error.to_string())
    }
}

fn check(object: &EncryptedObject) -> Result<(), String> {
    let EncryptedObject { encrypted_data, key_id, encrypted_source, annotations, source_type } =
        object;
    if !matches!(*source_type, SOURCE_KEY | SOURCE_SEED) {
        return Err(format!("unknown encryptedDEKSourceType: {source_type}"));
    }
    if encrypted_data.is_empty() {
        return Err("encrypted data is empty".to_owned());
    }
    match encrypted_source.len() {
        0 => {
            return Err(
                "failed to validate encrypted DEK source: encrypted DEK source is empty".to_owned()
            );
        }
        size if size > MAX_ENCRYPTED_SEED => {
            return Err(format!(
                "failed to validate encrypted DEK source: encrypted DEK source is {size} bytes, which exceeds \
                 the max size of {MAX_ENCRYPTED_SEED}"
            ));
        }
        _ => {}
    }
    check_key_id(key_id).map_err(|(_, why)| format!("failed to validate key id: {why}"))?;
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    let odd =
        annotations.keys().find(|key| !key.contains('.') || !crate::schema::is_dns_subdomain(key));
    match odd {
        Some(key) => Err(format!(
            "failed to validate annotations: annotations: Invalid value: {key:?}: should be a domain with at \
             least two segments separated by dots"
        )),
        None if size > MAX_ANNOTATIONS => Err(format!(
            "failed to validate annotations: total size of annotations is {size}, which exceeds the max size of \
             {MAX_ANNOTATIONS}"
        )),
        None => Ok(()),
    }
}

/// The error with its code for metrics.
fn check_key_id(key_id: &str) -> Result<(), (&'static str, String)> {
    match key_id.len() {
        0 => Err(("empty", "keyID is empty".to_owned())),
        size if size > MAX_KEY_ID => Err((
            "too_long",
            format!("keyID is {size} bytes, which exceeds the max size of {MAX_KEY_ID}"),
        )),
        _ => Ok(()),
    }
}

/// What identifies an encrypted source.
fn cache_key(object: &EncryptedObject) -> [u8; 32] {
    let identity = EncryptedObject { encrypted_data: Vec::new(), ..object.clone() };
    Sha256::digest(identity.encode_to_vec()).into()
}

fn uid() -> Result<String, String> {
    object::new_uid().map_err(|error| error.to_string())
}

impl Kms {
    /// A plugin that is called when it is needed first.
    pub(super) fn new(
        name: &str,
        endpoint: &str,
        timeout: Duration,
        metrics: Arc<Metrics>,
    ) -> Result<Kms, String> {
        let endpoint = Endpoint::parse(endpoint).map_err(|error| {
            format!("could not configure KMSv2-Plugin's probe {name:?}, error: {error}")
        })?;
        Ok(Kms {
            name: name.to_owned(),
            timeout,
            channel: endpoint.channel(),
            state: Mutex::default(),
            known: Mutex::default(),
            health: tokio::sync::Mutex::default(),
            metrics,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    async fn call<Q, A>(&self, method: &'static str, question: Q) -> Result<A, String>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let began = Instant::now();
        let mut client = Grpc::new(self.channel.clone());
        let path = match method {
            "Status" => "/v2.KeyManagementService/Status",
            "Encrypt" => "/v2.KeyManagementService/Encrypt",
            _ => "/v2.KeyManagementService/Decrypt",
        };
        let called = async {
            client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
            let codec = tonic_prost::ProstCodec::<Q, A>::default();
            let path = PathAndQuery::from_static(path);
            client.unary(request(question, Some(self.timeout)), path, codec).await
        };
        let answer = await_response(Some(self.timeout), called).await;
        let code = answer.as_ref().map_or_else(Failure::code, |_| tonic::Code::Ok);
        self.metrics.called(&self.name, method, code, began.elapsed());
        answer.map_err(Failure::into_message)
    }

    /// The value behind a stored one, and whether it would be written otherwise now.
    pub(super) async fn decrypt(
        &self,
        stored: &[u8],
        authenticated: &[u8],
    ) -> Result<(Vec<u8>, bool), String> {
        let object = EncryptedObject::decode(stored).map_err(|error| error.to_string())?;
        check(&object)?;
        let state = self.state.lock().clone();
        let state = state.ok_or("got unexpected nil transformer")?;
        let key = cache_key(&object);
        let known = self.known.lock().get(&key).cloned();
        let source = match known {
            Some(source) => source,
            None => {
                self.metrics.cache_miss();
                let question = DecryptRequest {
                    ciphertext: object.encrypted_source.clone(),
                    uid: uid()?,
                    key_id: object.key_id.clone(),
                    annotations: object.annotations.clone(),
                };
                let answer: DecryptResponse = self
                    .call("Decrypt", question)
                    .await
                    .map_err(|error| format!("failed to decrypt DEK, error: {error}"))?;
                let source = Source::new(answer.plaintext, object.source_type)?;
                self.remember(key, source.clone());
                source
            }
        };
        self.metrics.key_used(Direction::FromStorage, &self.name, &object.key_id);
        let value = source.decrypt(&object.encrypted_data, authenticated)?;
        let is_stale = object.key_id != state.key_id || object.source_type != SOURCE_SEED;
        Ok((value, is_stale))
    }

    fn remember(&self, key: [u8; 32], source: Source) {
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, source);
        self.metrics.known_sources(&self.name, known.len());
    }

    pub(super) fn encrypt(&self, value: &[u8], authenticated: &[u8]) -> Result<Vec<u8>, String> {
        let state = self.state.lock().clone();
        let state = state.ok_or("got unexpected nil transformer")?;
        if Instant::now() > *state.expires.lock() {
            return Err(format!(
                "encryptedDEKSource with keyID hash {:?} expired",
                super::metrics::hash(&state.key_id)
            ));
        }
        let failed = |error: ciphers::Error| error.to_string();
        let info = random::<INFO>().map_err(failed)?;
        let text = derived(&state.seed, &info)?.encrypt(value, authenticated).map_err(failed)?;
        self.metrics.key_used(Direction::ToStorage, &self.name, &state.key_id);
        let object = state.object([info.as_slice(), &text].concat());
        Ok(object.encode_to_vec())
    }

    /// Whether the plugin is well; asks it, and for a new seed if its key has changed, unless it was just done.
    pub(super) async fn check(&self) -> Result<(), String> {
        let mut health = self.health.lock().await;
        if let Some((when, result)) = &health.last {
            let ttl = if result.is_ok() { POSITIVE_TTL } else { NEGATIVE_TTL };
            if when.elapsed() < ttl {
                return result.clone();
            }
        }
        let result = self.look(&mut health.version).await;
        health.last = Some((Instant::now(), result.clone()));
        result
    }

    async fn look(&self, version: &mut String) -> Result<(), String> {
        let name = &self.name;
        let status: StatusResponse =
            self.call("Status", StatusRequest {}).await.map_err(|error| {
                format!(
                    "failed to perform status section of the healthz check for KMS Provider {name}, error: {error}"
                )
            })?;
        let mut faults = Vec::new();
        if status.healthz != "ok" {
            faults.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        match status.version.as_str() {
            found @ ("v2" | "v2beta1") => {
                if version.is_empty() {
                    found.clone_into(version);
                }
                if found != version {
                    faults.push(format!(
                        "KMSv2 API version should not change after the initial status response version {version}, \
                         got {found}"
                    ));
                }
            }
            found => faults.push(format!("expected KMSv2 API version v2, got {found}")),
        }
        match check_key_id(&status.key_id) {
            Err((code, why)) => {
                self.metrics.invalid_key_id(name, code);
                faults.push(format!(
                    "got invalid KMSv2 KeyID hash {:?}: {why}",
                    super::metrics::hash(&status.key_id)
                ));
            }
            Ok(()) => {
                self.metrics.key_reported(name, &status.key_id);
                faults.extend(self.rotate(&status.key_id).await.err());
            }
        }
        match faults.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("kmsv2 Provider {name} is not healthy, error: {one}")),
            many => {
                let faults = many.join(", ");
                Err(format!("kmsv2 Provider {name} is not healthy, error: [{faults}]"))
            }
        }
    }

    /// Makes a new seed if the plugin has another key.
    async fn rotate(&self, key_id: &str) -> Result<(), String> {
        let expires = longshore_base::time::after(MAX_AGE);
        let state = self.state.lock().clone();
        if let Some(state) = state.filter(|state| state.key_id == key_id) {
            *state.expires.lock() = expires;
            return Ok(());
        }
        let seed = random::<SEED>();
        self.metrics.key_generated(seed.is_err());
        let seed = seed.map_err(|error| error.to_string())?;
        let question = EncryptRequest { plaintext: seed.to_vec(), uid: uid()? };
        let answer: EncryptResponse = self.call("Encrypt", question).await.map_err(|error| {
            format!("failed to rotate DEK: failed to encrypt DEK, error: {error}")
        })?;
        let EncryptResponse { ciphertext, key_id: used, annotations } = answer;
        let state = WriteState {
            key_id: used,
            encrypted_source: ciphertext,
            annotations,
            seed,
            expires: Mutex::new(expires),
        };
        // any data, to check the rest
        let mut object = state.object(vec![0]);
        check(&object).map_err(|error| format!("failed to rotate DEK: {error}"))?;
        if state.key_id != key_id {
            return Err(format!(
                "failed to rotate DEK: statusKeyIDHash={:?}, encryptKeyIDHash={:?}",
                super::metrics::hash(key_id),
                super::metrics::hash(&state.key_id)
            ));
        }
        object.encrypted_data.clear();
        self.remember(cache_key(&object), Source::Seed(seed.to_vec()));
        *self.state.lock() = Some(Arc::new(state));
        Ok(())
    }

    /// Keeps an eye on the plugin, for ever.
    pub(super) async fn watch(&self) {
        loop {
            let wait = match self.check().await {
                Ok(()) => POSITIVE_INTERVAL,
                Err(error) => {
                    tracing::error!(
                        name = self.name,
                        error,
                        "kms plugin failed health check probe"
                    );
                    NEGATIVE_INTERVAL
                }
            };
            sleep(wait).await;
        }
    }
}

impl WriteState {
    fn object(&self, encrypted_data: Vec<u8>) -> EncryptedObject {
        EncryptedObject {
            encrypted_data,
            key_id: self.key_id.clone(),
            encrypted_source: self.encrypted_source.clone(),
            annotations: self.annotations.clone(),
            source_type: SOURCE_SEED,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use std::convert::Infallible;
    use std::path::PathBuf;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tonic::body::Body;
    use tonic::codegen::http::{Request, Response};
    use tonic::server::{Grpc as ServerGrpc, NamedService, UnaryService};

    use super::*;

    /// A plugin that "encrypts" by turning bytes round, with a key that tests change.
    #[derive(Clone)]
    pub(in super::super) struct Plugin {
        pub(in super::super) key_id: Arc<Mutex<String>>,
        pub(in super::super) calls: Arc<Mutex<Vec<&'static str>>>,
        pub(in super::super) is_broken: Arc<Mutex<bool>>,
    }

    impl NamedService for Plugin {
        const NAME: &'static str = "v2.KeyManagementService";
    }

    type Answered<T> =
        Pin<Box<dyn Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send>>;

    struct Method<F>(F);

    impl<Q, A, F> UnaryService<Q> for Method<F>
    where
        F: FnMut(Q) -> Result<A, tonic::Status>,
        A: Send + 'static,
    {
        type Response = A;
        type Future = Answered<A>;

        fn call(&mut self, question: tonic::Request<Q>) -> Self::Future {
            let answer = (self.0)(question.into_inner()).map(tonic::Response::new);
            Box::pin(std::future::ready(answer))
        }
    }

    impl tonic::codegen::Service<Request<Body>> for Plugin {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let plugin = self.clone();
            Box::pin(async move {
                let key_id = plugin.key_id.lock().clone();
                let note = |method| -> Result<(), tonic::Status> {
                    plugin.calls.lock().push(method);
                    match *plugin.is_broken.lock() {
                        true => Err(tonic::Status::internal("the plugin is broken")),
                        false => Ok(()),
                    }
                };
                let annotations = || BTreeMap::from([("a.example.com".to_owned(), b"v".to_vec())]);
                Ok(match request.uri().path().rsplit_once('/').unwrap().1 {
                    "Status" => {
                        let answer = |_: StatusRequest| {
                            note("Status")?;
                            Ok(StatusResponse {
                                version: "v2".into(),
                                healthz: "ok".into(),
                                key_id: key_id.clone(),
                            })
                        };
                        let codec = tonic_prost::ProstCodec::default();
                        ServerGrpc::new(codec).unary(Method(answer), request).await
                    }
                    "Encrypt" => {
                        let answer = |question: EncryptRequest| {
                            note("Encrypt")?;
                            let ciphertext = question.plaintext.iter().rev().copied().collect();
                            let key_id = key_id.clone();
                            Ok(EncryptResponse { ciphertext, key_id, annotations: annotations() })
                        };
                        let codec = tonic_prost::ProstCodec::default();
                        ServerGrpc::new(codec).unary(Method(answer), request).await
                    }
                    _ => {
                        let answer = |question: DecryptRequest| {
                            note("Decrypt")?;
                            assert_eq!(question.annotations, annotations());
                            let plaintext = question.ciphertext.iter().rev().copied().collect();
                            Ok(DecryptResponse { plaintext })
                        };
                        let codec = tonic_prost::ProstCodec::default();
                        ServerGrpc::new(codec).unary(Method(answer), request).await
                    }
                })
            })
        }
    }

    impl Plugin {
        pub(in super::super) fn serve(socket: PathBuf) -> Plugin {
            let plugin = Plugin {
                key_id: Arc::new(Mutex::new("key-1".into())),
                calls: Arc::default(),
                is_broken: Arc::default(),
            };
            let listener = tokio::net::UnixListener::bind(socket).unwrap();
            let service = plugin.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let service = hyper_util::service::TowerToHyperService::new(service.clone());
                    let service = hyper::service::service_fn(
                        move |request: Request<hyper::body::Incoming>| {
                            hyper::service::Service::call(&service, request.map(Body::new))
                        },
                    );
                    let io = hyper_util::rt::TokioIo::new(stream);
                    let executor = hyper_util::rt::TokioExecutor::new();
                    let builder = hyper::server::conn::http2::Builder::new(executor);
                    tokio::spawn(builder.serve_connection(io, service));
                }
            });
            plugin
        }
    }

    fn kms(dir: &std::path::Path) -> Kms {
        let endpoint = format!("unix://{}", dir.join("kms.sock").display());
        Kms::new("k", &endpoint, Duration::from_secs(3), Arc::default()).unwrap()
    }

    #[tokio::test]
    async fn encryption_by_kms_asks_the_plugin_once_for_a_seed() {
        let dir = tempfile::tempdir().unwrap();
        let plugin = Plugin::serve(dir.path().join("kms.sock"));
        let writer = kms(dir.path());
        assert!(writer.encrypt(b"v", b"/a").is_err(), "before the first status");
        writer.check().await.unwrap();
        writer.check().await.unwrap();
        let (first, second) =
            (writer.encrypt(b"v", b"/a").unwrap(), writer.encrypt(b"v", b"/a").unwrap());
        assert_ne!(first, second);
        assert_eq!(writer.decrypt(&first, b"/a").await, Ok((b"v".to_vec(), false)));
        assert_eq!(*plugin.calls.lock(), ["Status", "Encrypt"]);
        assert!(writer.decrypt(&first, b"/b").await.unwrap_err().contains("authentication"));

        let reader = kms(dir.path());
        reader.check().await.unwrap();
        for stored in [&first, &second] {
            assert_eq!(reader.decrypt(stored, b"/a").await, Ok((b"v".to_vec(), false)));
        }
        let decryptions = plugin.calls.lock().iter().filter(|call| **call == "Decrypt").count();
        assert_eq!(decryptions, 1);
        assert!(reader.decrypt(b"\xff\xff", b"/a").await.is_err());
        assert!(reader.decrypt(b"", b"/a").await.is_err());
    }

    #[tokio::test]
    async fn encryption_by_kms_follows_the_plugins_key() {
        let dir = tempfile::tempdir().unwrap();
        let plugin = Plugin::serve(dir.path().join("kms.sock"));
        let kms = kms(dir.path());
        kms.check().await.unwrap();
        let stored = kms.encrypt(b"v", b"/a").unwrap();
        *plugin.key_id.lock() = "key-2".into();
        kms.health.lock().await.last = None;
        kms.check().await.unwrap();
        assert_eq!(kms.decrypt(&stored, b"/a").await, Ok((b"v".to_vec(), true)));
        let stored = kms.encrypt(b"v", b"/a").unwrap();
        assert_eq!(kms.decrypt(&stored, b"/a").await, Ok((b"v".to_vec(), false)));
        *plugin.is_broken.lock() = true;
        kms.health.lock().await.last = None;
        assert!(kms.check().await.unwrap_err().contains("the plugin is broken"));
        assert!(kms.encrypt(b"v", b"/a").is_ok(), "for three minutes");
        let state = kms.state.lock().clone().unwrap();
        *state.expires.lock() = Instant::now();
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(kms.encrypt(b"v", b"/a").unwrap_err().contains("expired"));
        assert!(kms.decrypt(&stored, b"/a").await.is_ok());
    }

    #[test]
    fn encryption_by_kms_checks_stored_objects() {
        let good = EncryptedObject {
            encrypted_data: vec![1],
            key_id: "k".into(),
            encrypted_source: vec![1],
            annotations: BTreeMap::new(),
            source_type: SOURCE_SEED,
        };
        assert_eq!(check(&good), Ok(()));
        let annotated = |key: &str, size| BTreeMap::from([(key.to_owned(), vec![0; size])]);
        for (bad, why) in [
            (EncryptedObject { source_type: 2, ..good.clone() }, "unknown encryptedDEKSourceType"),
            (EncryptedObject { encrypted_data: vec![], ..good.clone() }, "data is empty"),
            (EncryptedObject { encrypted_source: vec![], ..good.clone() }, "source is empty"),
            (EncryptedObject { encrypted_source: vec![0; 1025], ..good.clone() }, "1025 bytes"),
            (EncryptedObject { key_id: String::new(), ..good.clone() }, "keyID is empty"),
            (EncryptedObject { key_id: "k".repeat(1025), ..good.clone() }, "exceeds the max size"),
            (EncryptedObject { annotations: annotated("a", 1), ..good.clone() }, "domain"),
            (
                EncryptedObject { annotations: annotated("a.b", 33 << 10), ..good.clone() },
                "total size",
            ),
        ] {
            let error = check(&bad).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
