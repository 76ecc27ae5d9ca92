//! A webhook in this process, whose behaviour its path chooses.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::Client;

pub type HookBody = UnsyncBoxBody<Bytes, Infallible>;

/// The webhook.
pub struct Hook {
    pub port: u16,
    pub ca_bundle: String,
    /// Path with query, and body, of each call.
    pub calls: Arc<Mutex<Vec<(String, Value)>>>,
    /// The `traceparent` of each call that has one.
    pub contexts: Arc<Mutex<Vec<String>>>,
}

pub fn whole(text: impl Into<Bytes>) -> HookBody {
    Full::new(text.into()).boxed_unsync()
}

/// What the path `/patch/JSON` has in place of JSON, unescaped.
fn patch_of(path: &str) -> Option<String> {
    let patch = path.strip_prefix("/patch/")?;
    Some(percent_encoding::percent_decode_str(patch).decode_utf8().unwrap().into_owned())
}

/// A path at which the webhook answers with this patch.
pub fn patch_path(patch: &Value) -> String {
    let set = percent_encoding::NON_ALPHANUMERIC;
    format!("/patch/{}", percent_encoding::utf8_percent_encode(&patch.to_string(), set))
}

async fn answer(
    request: Request<Incoming>,
    calls: Arc<Mutex<Vec<(String, Value)>>>,
) -> Response<HookBody> {
    let path = request.uri().path().to_owned();
    let target = request.uri().path_and_query().unwrap().to_string();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    calls.lock().unwrap().push((target, review.clone()));
    let mut response = json!({"uid": review["request"]["uid"], "allowed": true});
    let mut code = 200;
    match path.as_str() {
        "/deny" => {
            response["allowed"] = false.into();
            response["status"] =
                json!({"message": "the webhook says no", "reason": "Odd", "code": 403});
        }
        "/annotate" => response["auditAnnotations"] = json!({"why": "because"}),
        "/warn" => response["warnings"] = json!(["this is \"old\"", "second"]),
        "/other-uid" => response["uid"] = "other".into(),
        "/slow" => tokio::time::sleep(Duration::from_secs(120)).await,
        "/error" => code = 500,
        "/redirect" => code = 307,
        "/garbage" => return Response::new(whole("\0garbage")),
        "/huge" => {
            let chunk = Bytes::from(vec![b' '; 1 << 20]);
            let chunks = futures::stream::iter(0..100).map(move |_| Ok(Frame::data(chunk.clone())));
            return Response::new(StreamBody::new(chunks).boxed_unsync());
        }
        path => {
            if let Some(patch) = patch_of(path) {
                response["patchType"] = "JSONPatch".into();
                response["patch"] = STANDARD.encode(patch).into();
            }
        }
    }
    let body = json!({
        "apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response,
    });
    Response::builder()
        .status(code)
        .header("location", "https://127.0.0.1:1/")
        .body(whole(body.to_string()))
        .unwrap()
}

/// Serves TLS with a certificate for these names. Returns the port, and the CA in base64.
pub async fn serve<F>(
    names: &[&str],
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) -> (u16, String)
where
    F: Future<Output = Response<HookBody>> + Send + 'static,
{
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca_bundle = STANDARD.encode(params.self_signed(&key).unwrap().pem());
    let ca = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let params = CertificateParams::new(names).unwrap();
    let chain = vec![params.signed_by(&key, &ca).unwrap().der().clone()];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer) = (acceptor.clone(), answer.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request| {
                    let answer = answer(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            });
        }
    });
    (port, ca_bundle)
}

impl Hook {
    pub async fn start() -> Hook {
        let calls: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let contexts: Arc<Mutex<Vec<String>>> = Arc::default();
        let (known, traced) = (calls.clone(), contexts.clone());
        let answered = move |request: Request<Incoming>| {
            if let Some(context) = request.headers().get("traceparent") {
                traced.lock().unwrap().push(context.to_str().unwrap().to_owned());
            }
            answer(request, known.clone())
        };
        let (port, ca_bundle) = serve(&["127.0.0.1", "hook.default.svc"], answered).await;
        Hook { port, ca_bundle, calls, contexts }
    }

    /// A `clientConfig` by URL.
    pub fn url(&self, path: &str) -> Value {
        json!({"url": format!("https://127.0.0.1:{}{path}", self.port), "caBundle": self.ca_bundle})
    }

    /// A webhook at this path for operations on resources of any group.
    pub fn webhook(
        &self,
        name: &str,
        path: &str,
        operations: &[&str],
        resources: &[&str],
    ) -> Value {
        json!({
            "name": name,
            "clientConfig": self.url(path),
            "rules": [{
                "operations": operations, "apiGroups": ["*"], "apiVersions": ["*"],
                "resources": resources,
            }],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
        })
    }

    /// The `request` of each call, which are forgotten.
    pub fn requests(&self) -> Vec<Value> {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        calls.into_iter().map(|(_, review)| review["request"].clone()).collect()
    }

    /// How many calls there were, which are forgotten.
    pub fn count(&self) -> usize {
        self.requests().len()
    }
}

/// Makes a configuration of this kind (`mutating` or `validating`).
pub async fn configure(client: &Client, kind: &str, name: &str, webhooks: &[Value]) {
    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations");
    let object = json!({"metadata": {"name": name}, "webhooks": webhooks});
    client.create(&path, object).await;
}

/// Deletes it, whatever its webhooks say.
pub async fn forget(client: &Client, kind: &str, name: &str) {
    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{name}");
    let (code, status) = client.call("DELETE", &path, None).await;
    assert_eq!(code, 200, "{status}");
}
