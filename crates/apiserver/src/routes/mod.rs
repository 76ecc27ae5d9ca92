//! From a request to its answer: understand it, know the caller, ask whether he may, and hand it
//! to the room for its verb.

mod connect;
mod impersonation;
mod lists;
mod logs;
mod metrics;
mod negotiate;
mod proxy;
mod request;
mod respond;
mod reviews;
mod served;
mod system;
#[cfg(test)]
mod tests;
mod tokens;
mod watches;
mod writes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, header};
use longshore_tls::Verdict;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::metrics::Metrics;
use self::request::{RequestLine, ResourcePath};
use self::respond::{Answer, Result, View};
use self::served::Route;
use crate::auth::{Authenticator, User};
use crate::authz::{self, Access, Target};
use crate::facts::{self, Gvk, Resource, Subresource};
use crate::gates::FeatureGates;
use crate::kubelet::KubeletClient;
use crate::operations::Api;
use crate::schema::{self, FieldValidation};
use crate::status::StatusError;
use crate::table::IncludeObject;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// What is read of the body of a request that is refused, in bytes and time.
const MOST_DRAINED: usize = 64 << 10;
const DRAIN_TIME: Duration = Duration::from_millis(500);
const MAX_BODY: usize = 3 << 20;
/// How much of a body that is too large is read, and forgotten, so that its sender gets to read the answer.
const MAX_DISCARDED: usize = 4 * MAX_BODY;
/// All bodies that are being read or worked on together; a JSON value takes several times as much.
const BODY_BUDGET_KIB: usize = 16 << 10;

/// Answers requests.
pub(crate) struct Router {
    api: Arc<Api>,
    authenticator: Authenticator,
    kubelet: KubeletClient,
    gates: FeatureGates,
    metrics: Metrics,
    stop: CancellationToken,
    body_budget: Arc<Semaphore>,
}

/// A request whose caller is known and allowed.
struct Call<'a> {
    user: &'a User,
    verb: &'static str,
    line: &'a RequestLine,
    path: &'a ResourcePath,
    resource: &'static Resource,
    subresource: Option<&'static Subresource>,
    /// The request but for its body: its headers, and the way to its connection.
    head: Parts,
    /// `None` once it has been read.
    body: Option<Incoming>,
}

impl Router {
    pub(crate) fn new(
        api: Arc<Api>,
        authenticator: Authenticator,
        kubelet: KubeletClient,
        gates: FeatureGates,
        stop: CancellationToken,
    ) -> Router {
        Router {
            api,
            authenticator,
            kubelet,
            gates,
            metrics: Metrics::default(),
            stop,
            body_budget: Arc::new(Semaphore::new(BODY_BUDGET_KIB)),
        }
    }

    /// Every request gets an answer; a refusal is a `Status` object.
    pub(crate) async fn handle(&self, peer: &Verdict, request: Request<Incoming>) -> Answer {
        let began = Instant::now();
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let line = RequestLine::parse(&method, &uri);
        let answer = match &line {
            Ok(line) => self.answer(peer, line, request).await,
            Err(error) => Err(error.clone()),
        };
        let answer = answer.unwrap_or_else(|error| respond::refusal(&error));
        if let Ok(line) = &line {
            self.metrics.count(line, answer.status());
        }
        tracing::debug!(%method, %uri, code = answer.status().as_u16(), took = ?began.elapsed(), "request");
        answer
    }

    async fn answer(
        &self,
        peer: &Verdict,
        line: &RequestLine,
        mut request: Request<Incoming>,
    ) -> Result {
        let (user, route) = match self.admit(peer, line, &mut request).await {
            Ok(admitted) => admitted,
            Err(error) => {
                drain(request.into_body()).await;
                return Err(error);
            }
        };
        let (Some(path), Some(route)) = (&line.resource, route) else {
            return timeout(REQUEST_TIMEOUT, self.system(line, request.headers()))
                .await
                .map_err(|_| too_long())?;
        };
        let (head, body) = request.into_parts();
        let call = Call {
            user: &user,
            verb: line.verb,
            line,
            path,
            resource: route.resource,
            subresource: route.subresource,
            head,
            body: Some(body),
        };
        timeout(REQUEST_TIMEOUT, self.dispatch(call)).await.map_err(|_| too_long())?
    }

    /// Who asks, for something that is served, and may.
    async fn admit(
        &self,
        peer: &Verdict,
        line: &RequestLine,
        request: &mut Request<Incoming>,
    ) -> Result<(User, Option<Route>)> {
        let caller = self.authenticator.caller(peer, request.headers_mut()).await?;
        let user = self.effective(caller, request.headers()).await?;
        let route = line.resource.as_ref().map(|path| served::route(path, request.method()));
        let route = route.transpose()?;
        self.authorize(&user, line.verb, line).await?;
        Ok((user, route))
    }

    async fn authorize(&self, user: &User, verb: &str, line: &RequestLine) -> Result<()> {
        let target = line.target();
        let access = Access { user, verb, target };
        let Err(reason) = self.api.is_allowed(&access).await? else {
            return Ok(());
        };
        tracing::info!(
            user = ?user.name,
            verb,
            path = ?line.path,
            reason = ?reason,
            "refused a request"
        );
        let message = authz::forbidden_message(&access, &reason);
        let Target::Resource(target) = target else {
            return Err(StatusError::forbidden_path(&message));
        };
        let version = line.resource.as_ref().map_or("", |path| &path.version);
        Err(match facts::lookup(target.group, version, target.resource) {
            Some(resource) => StatusError::forbidden(resource, target.name, &message),
            None => StatusError::forbidden_path(&message),
        })
    }

    /// Hands a request that is served ([`served`]) to whoever carries it out.
    async fn dispatch(&self, call: Call<'_>) -> Result {
        if let Some(subresource) = call.subresource {
            return self.subresource(call, subresource).await;
        }
        match call.verb {
            "create" if call.resource.storage.is_empty() => self.review(call).await,
            "list" => self.list(call).await,
            "watch" => self.watch(call).await,
            "get" => self.get(call).await,
            "create" => self.create(call).await,
            "update" | "patch" => self.update(call).await,
            "delete" => self.delete(call).await,
            "deletecollection" => self.delete_collection(call).await,
            _ => Err(StatusError::method_not_allowed(call.resource, call.verb)),
        }
    }

    async fn subresource(&self, call: Call<'_>, subresource: &'static Subresource) -> Result {
        match (subresource.name, call.verb) {
            ("status" | "approval" | "ephemeralcontainers" | "resize", "get") => {
                self.get(call).await
            }
            ("status" | "approval" | "finalize" | "ephemeralcontainers" | "resize", _) => {
                self.update(call).await
            }
            ("exec" | "attach" | "portforward", _) => self.connect(call).await,
            ("proxy", _) => self.proxy(call).await,
            ("scale", _) => self.scale(call, subresource).await,
            ("binding", _) => self.bind(call, subresource).await,
            ("eviction", _) => self.evict(call, subresource).await,
            ("log", _) => self.log(call).await,
            ("token", _) => self.token(call, subresource).await,
            _ => Err(StatusError::method_not_allowed(call.resource, call.verb)),
        }
    }
}

fn too_long() -> StatusError {
    StatusError::timeout("request did not complete within the allotted timeout")
}

impl Call<'_> {
    /// The namespace of the objects; empty for those that are in none, though a namespace's own path has one.
    fn namespace(&self) -> &str {
        if self.resource.namespaced { &self.path.namespace } else { "" }
    }

    fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// How the client wants to see objects of the resource.
    fn view(&self) -> Result<View> {
        Ok(View {
            resource: self.resource,
            form: negotiate::form(self.header(header::ACCEPT))?,
            include: IncludeObject::parse(self.line.query.get("includeObject"))?,
        })
    }
}

/// A body, and the share of all bodies' memory that it holds until it is dropped.
struct BodyText {
    bytes: Bytes,
    content_type: Option<String>,
    _share: tokio::sync::OwnedSemaphorePermit,
}

impl BodyText {
    /// The object of this kind that the body is, and warnings for the client.
    fn read(&self, gvk: Gvk, validation: FieldValidation) -> Result<(Value, Vec<String>)> {
        schema::read(gvk, &self.bytes, self.content_type.as_deref(), validation)
    }
}

impl Router {
    /// Reads a request's body within its bounds.
    async fn read_body(&self, headers: &HeaderMap, mut body: Incoming) -> Result<BodyText> {
        let expected = body.size_hint();
        let most = expected.upper().map_or(MAX_BODY, |bytes| bytes.min(MAX_BODY as u64) as usize);
        let share = self
            .body_budget
            .clone()
            .acquire_many_owned((most / 1024 + 1) as u32)
            .await
            .map_err(StatusError::internal)?;
        let mut text = BytesMut::new();
        let mut read = 0;
        let mut is_too_large = expected.lower() > MAX_BODY as u64;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                StatusError::bad_request(format!("the body could not be read: {error}"))
            })?;
            let data = frame.into_data().unwrap_or_default();
            read += data.len();
            is_too_large |= read > MAX_BODY;
            match is_too_large {
                false => text.extend_from_slice(&data),
                true if read > MAX_DISCARDED => break,
                true => text = BytesMut::new(),
            }
        }
        if is_too_large {
            return Err(StatusError::too_large(format!("limit is {MAX_BODY}")));
        }
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(BodyText {
            bytes: text.freeze(),
            content_type: content_type.map(str::to_owned),
            _share: share,
        })
    }
}

/// Reads what somebody who is refused still sends, if it is little and comes soon: a stream that is
/// answered before it has ended is reset, and there are clients that lose the answer then.
async fn drain(body: Incoming) {
    let _ = timeout(DRAIN_TIME, Limited::new(body, MOST_DRAINED).collect()).await;
}
