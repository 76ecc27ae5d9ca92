//! From a request to its response: parse, authenticate, authorize, and dispatch to the handler of its
//! verb.

mod aggregated;
mod body;
mod components;
mod connect;
mod flow_control;
mod health;
mod impersonation;
mod limits;
mod links;
mod lists;
mod logs;
mod metrics;
mod negotiate;
mod pages;
mod proxy;
mod request;
mod respond;
mod reviews;
mod served;
mod system;
#[cfg(test)]
mod tests;
mod tokens;
mod trace;
mod watches;
mod writes;
mod yaml;

use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Request, header};
use longshore_base::budget::{Holder, Share};
use longshore_base::connections::Unadmitted;
use longshore_base::panics;
use longshore_serving::{Handler, Monitored, PROFILES, Peer};
use longshore_telemetry::{Span, Tracer};
use longshore_tls::ClientCa;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::body::drain;
use self::limits::Limits;
use self::negotiate::{Accepted, Answered, Media};
use self::pages::Pages;
pub use self::pages::PagesConfig;
use self::request::{RequestLine, ResourcePath};
use self::respond::{Answer, Result, StatusObject, View};
use self::served::Route;
use self::trace::Step;
use crate::RequestLimits;
use crate::aggregator::ApiService;
use crate::api_types::{Resource, Subresource};
use crate::audit::{self, Audit, Received};
use crate::auth::Authenticator;
use crate::authz::{self, Access, Target};
use crate::encryption::Encryption;
use crate::flow_control::{Class, FlowControl};
use crate::kinds::{self, Created, custom};
use crate::kubelet::KubeletClient;
use crate::openapi;
use crate::operations::Api;
use crate::request_metrics::RequestMetrics;
use crate::response_body::{Body, RequestGuard};
use crate::schema::{internal_package, quoted};
use crate::status::StatusError;
use crate::table::IncludeObject;
use crate::user::User;
use longshore_duration::GoDuration;
use longshore_gates::FeatureGates;

/// Answers requests.
pub(crate) struct Router {
    api: Arc<Api>,
    authenticator: Authenticator,
    audit: Arc<Audit>,
    encryption: Option<Arc<Encryption>>,
    pages: Pages,
    kubelet: KubeletClient,
    gates: FeatureGates,
    metrics: RequestMetrics,
    tracer: Tracer,
    /// `None`: only the numbers of requests are limited.
    flow_control: Option<Arc<FlowControl>>,
    request_timeout: Duration,
    strict_transport_security: Option<HeaderValue>,
    stop: CancellationToken,
    limits: Limits,
}

/// An authorized user.
struct Caller {
    user: User,
    /// The user, as the limits count it.
    holder: Holder,
    /// `None` for what is no resource.
    route: Option<Route>,
    /// The server that serves it, if it is another one.
    remote: Option<Arc<ApiService>>,
}

/// An admitted request.
struct Admitted {
    caller: Caller,
    /// Its share of the request limit.
    share: Share,
    /// Authentication and authorization.
    steps: [Step; 2],
}

/// An authorized request.
struct Call<'a> {
    user: &'a User,
    /// The user, as the limits count it.
    holder: Holder,
    verb: &'static str,
    line: &'a RequestLine,
    path: &'a ResourcePath,
    resource: &'static Resource,
    subresource: Option<&'static Subresource>,
    /// The request without its body.
    head: Parts,
    /// `None` once it has been read.
    body: Option<Incoming>,
}

impl Router {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        api: Arc<Api>,
        authenticator: Authenticator,
        audit: Arc<Audit>,
        encryption: Option<Arc<Encryption>>,
        pages: PagesConfig,
        kubelet: KubeletClient,
        tracer: Tracer,
        gates: FeatureGates,
        requests: RequestLimits,
        flow_control: Option<Arc<FlowControl>>,
        request_timeout: Duration,
        strict_transport_security: &str,
        stop: CancellationToken,
    ) -> Router {
        Router {
            api,
            authenticator,
            audit,
            encryption,
            pages: Pages::new(pages),
            kubelet,
            gates,
            metrics: RequestMetrics::new(),
            tracer,
            flow_control,
            request_timeout,
            // flags allow nothing that is not valid in a header
            strict_transport_security: HeaderValue::try_from(strict_transport_security)
                .ok()
                .filter(|value| !value.is_empty()),
            stop,
            limits: Limits::new(requests),
        }
    }

    /// The body is not taken if the request is rejected before it is read.
    async fn answer(
        &self,
        Caller { user, holder, route, remote }: Caller,
        line: &RequestLine,
        head: Parts,
        body: &mut Option<Incoming>,
    ) -> Result {
        if let Some(service) = remote {
            let answer = self.aggregated(&user, &service, head, body.take());
            return timeout(self.request_timeout, answer).await.map_err(|_| too_long())?;
        }
        let limit = self.time_limit(line)?;
        let answer = match (&line.resource, route) {
            (Some(path), Some(route)) => {
                let call = Call {
                    user: &user,
                    holder: holder.clone(),
                    verb: line.verb,
                    line,
                    path,
                    resource: route.resource,
                    subresource: route.subresource,
                    head,
                    body: body.take(),
                };
                timeout(limit, self.dispatch(call)).await
            }
            // its duration is the caller's to choose
            _ if line.path.starts_with(PROFILES) => Ok(self.profile(line, &head.uri).await),
            _ => timeout(limit, self.system(line, &head)).await,
        };
        self.limits.charge(&holder, line.verb, answer.map_err(|_| too_long())??)
    }

    /// How long a request may take: what it says itself, and no more than the server grants.
    fn time_limit(&self, line: &RequestLine) -> Result<Duration> {
        let given = line.query.get("timeout").filter(|_| !limits::is_long_running(line));
        let Some(given) = given else { return Ok(self.request_timeout) };
        let duration: GoDuration = given.parse().map_err(|_| {
            let given = quoted(given);
            StatusError::bad_request(format!(
                "invalid timeout specified in the request URL - time: invalid duration {given}"
            ))
        })?;
        match duration.get() {
            Duration::ZERO => Ok(self.request_timeout),
            given => Ok(given.min(self.request_timeout)),
        }
    }

    /// Who authenticates.
    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// Authenticates, authorizes and admits a request. Its connection becomes an authorized one. `class` is
    /// set once the user is known.
    async fn admit(
        &self,
        peer: &Peer,
        line: &RequestLine,
        head: &mut Parts,
        class: &mut Option<Class>,
    ) -> Result<Admitted> {
        let authentication = Step::begin("authentication");
        let verify = |authority: &ClientCa| peer.verify(authority);
        let (certified, remaining) = (peer.user(), peer.certificate_remaining());
        let authorization = head.headers.get(header::AUTHORIZATION).cloned();
        let caller = self
            .authenticator
            .caller(certified, remaining, verify, &line.path, &mut head.headers)
            .await;
        let authentication = authentication.end();
        let request = received(line, caller.as_ref().ok());
        match &caller {
            Ok(_) => audit::begin(request).await?,
            Err(_) => {
                let has_certificate = !matches!(peer.user(), Ok(None));
                let attempted = audit::attempted(authorization.as_ref(), has_certificate);
                audit::refuse(&request, &attempted);
            }
        }
        if caller.as_ref().map_or_else(|error| error.code == 401, User::is_anonymous) {
            // as upstream does since CVE-2023-44487
            if peer.is_http2() {
                peer.close();
            }
        }
        let user = self.effective(caller?, &head.headers).await?;
        *class = self.classify(&user, line);
        let remote = self.remote(line).await;
        let local = line.resource.as_ref().filter(|_| remote.is_none());
        let kinds = self.api.definitions.snapshot();
        let route = local.map(|path| served::route(&kinds, path, &head.method)).transpose()?;
        let authorization = Step::begin("authorization");
        // a browser has the credentials of its user only once the page is there; the page says nothing
        if !(line.path == openapi::browser::PATH && matches!(line.verb, "get" | "head")) {
            self.authorize(&user, line.verb, line).await?;
        }
        let steps = [authentication, authorization.end()];
        let holder = limits::holder(&user);
        if !user.is_anonymous() && !peer.authorize(&holder) {
            peer.close();
            return Err(limits::too_many());
        }
        let share = self.limits.admit(&holder, line)?;
        Ok(Admitted { caller: Caller { user, holder, route, remote }, share, steps })
    }

    async fn authorize(&self, user: &User, verb: &str, line: &RequestLine) -> Result<()> {
        let target = line.target();
        let access = Access { user, verb, target };
        let reason = match self.api.authorizer.check(&self.api.registry, &access).await {
            Ok(Ok(reason)) => {
                annotate_decision("allow", reason);
                return Ok(());
            }
            Ok(Err(reason)) => reason,
            Err(error) => {
                audit::annotate("authorization.k8s.io/reason", error.message.clone());
                return Err(error);
            }
        };
        annotate_decision("forbid", &reason);
        tracing::info!(
            user = ?user.name,
            verb,
            path = ?line.path,
            reason = ?reason,
            "request forbidden"
        );
        let message = authz::forbidden_message(&access, &reason);
        let Target::Resource(target) = target else {
            return Err(StatusError::forbidden_path(&message));
        };
        let version = line.resource.as_ref().map_or("", |path| &path.version);
        let kinds = self.api.definitions.snapshot();
        Err(match kinds.lookup(target.group, version, target.resource) {
            Some(resource) => StatusError::forbidden(resource, target.name, &message),
            None => StatusError::forbidden_path(&message),
        })
    }

    /// Dispatches a request that is served ([`served`]) to its handler.
    async fn dispatch(&self, call: Call<'_>) -> Result {
        let deprecation = match call.resource.kind {
            "ComponentStatus" => Some("v1 ComponentStatus is deprecated in v1.19+".to_owned()),
            _ => custom::deprecation(call.resource),
        };
        let span = trace::operation(&call);
        match span.enter(self.answer_call(call)).await {
            Ok(mut answer) => {
                respond::warn(&mut answer, deprecation.as_slice());
                Ok(answer)
            }
            Err(error) => respond::refused(error, deprecation.as_slice()),
        }
    }

    /// The answer of a handler. It is on the heap: the future of an operation is large, and would be part of
    /// each connection's, and of the stack of each caller.
    fn answer_call<'c>(&'c self, call: Call<'c>) -> BoxFuture<'c, Result> {
        if let Some(subresource) = call.subresource {
            return self.subresource(call, subresource);
        }
        match call.verb {
            // what is not stored and can be read is asked for
            "get" | "list" if call.resource.storage.is_empty() => self.components(call).boxed(),
            "list" => self.list(call).boxed(),
            "watch" => self.watch(call).boxed(),
            "get" => self.get(call).boxed(),
            "create" => match kinds::strategy(call.resource).created {
                Created::Object => self.create(call).boxed(),
                Created::Binding => self.bind_named(call).boxed(),
                Created::Review(review) => self.review(call, review).boxed(),
            },
            "update" | "patch" => self.update(call).boxed(),
            "delete" => self.delete(call).boxed(),
            "deletecollection" => self.delete_collection(call).boxed(),
            _ => ready(Err(StatusError::method_not_allowed())).boxed(),
        }
    }

    fn subresource<'c>(
        &'c self,
        call: Call<'c>,
        subresource: &'static Subresource,
    ) -> BoxFuture<'c, Result> {
        match (subresource.name, call.verb) {
            ("status" | "approval" | "ephemeralcontainers" | "resize", "get") => {
                self.get(call).boxed()
            }
            ("status" | "approval" | "finalize" | "ephemeralcontainers" | "resize", _) => {
                self.update(call).boxed()
            }
            ("exec" | "attach" | "portforward", _) => self.connect(call).boxed(),
            ("proxy", _) => self.proxy(call).boxed(),
            ("scale", _) => self.scale(call, subresource).boxed(),
            ("binding", _) => self.bind(call, subresource).boxed(),
            ("eviction", _) => self.evict(call, subresource).boxed(),
            ("log", _) => self.log(call).boxed(),
            ("token", _) => self.token(call, subresource).boxed(),
            _ => ready(Err(StatusError::method_not_allowed())).boxed(),
        }
    }
}

impl Handler for Router {
    type Body = Body;

    /// Errors are `Status` objects.
    async fn handle(
        self: Arc<Self>,
        peer: Arc<Peer>,
        request: Request<Incoming>,
        unadmitted: Unadmitted,
    ) -> Answer {
        let (mut head, body) = request.into_parts();
        let takes_gzip = negotiate::takes_gzip(&head.headers);
        let preferred =
            [false, true].map(|is_status| negotiate::preferred(&head.headers, is_status));
        let id = audit::audit_id(&mut head.headers);
        let record = id.as_ref().and_then(|id| self.audit.record(&head, id, peer.address));
        let work = async {
            let mut answer = self.answer_request(peer, head, body, unadmitted).await;
            let is_status = answer.extensions().get::<StatusObject>().is_some();
            audit_answer(&mut answer).await;
            (answer, is_status)
        };
        let (mut answer, is_status) = audit::scope(record, work).await;
        match preferred[usize::from(is_status)] {
            Media::Json => {}
            Media::Yaml => respond::to_yaml(&mut answer),
            Media::Protobuf => respond::to_protobuf(&mut answer),
        }
        if takes_gzip {
            respond::compress(&mut answer);
        }
        if let Some(id) = id {
            answer.headers_mut().entry(audit::AUDIT_ID).or_insert(id);
        }
        if let Some(directives) = &self.strict_transport_security {
            answer.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, directives.clone());
        }
        answer
    }

    fn too_many(&self) -> Answer {
        respond::refusal(&limits::too_many())
    }
}

impl Router {
    async fn answer_request(
        &self,
        peer: Arc<Peer>,
        mut head: Parts,
        body: Incoming,
        unadmitted: Unadmitted,
    ) -> Answer {
        let began = Instant::now();
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let mut body = Some(body);
        let mut class = None;
        let line = RequestLine::parse(&method, &uri).map(Arc::new);
        let admitted = match &line {
            Ok(line) => {
                // Many requests may wait here: they are small until they are admitted.
                let permit = self.limits.admission_permit(peer.holder()).await;
                let admission = self.admit(&peer, line, &mut head, &mut class);
                let mut admission = std::pin::pin!(contained(admission));
                // A permit is for work that is done here: who waits longer, for a webhook or an issuer of
                // tokens, gives it back.
                let early = timeout(limits::ADMISSION_SLOT, admission.as_mut()).await;
                drop(permit);
                let admitted = match early {
                    Ok(admitted) => admitted,
                    Err(_) => admission.await,
                };
                admitted.map(|admitted| (line, admitted))
            }
            Err(error) => {
                let target = Target::Path(uri.path());
                let verb = request::path_verb(&method);
                let request =
                    Received { user: None, verb, target, version: "", is_long_running: false };
                audit::begin(request).await.and(Err(error.clone()))
            }
        };
        let labels = line.as_ref().ok().and_then(|line| {
            metrics::labels(&self.api.definitions.snapshot(), line, &method, &head.headers)
        });
        let mut record = None;
        let mut rejected = None;
        let mut span = Span::default();
        let (answer, held) = match admitted {
            Ok((line, admitted)) => {
                drop(unadmitted);
                let Admitted { caller, share, steps } = admitted;
                // Aggregated servers count what they serve.
                let own = labels.filter(|_| caller.remote.is_none());
                let lasts = limits::is_long_running(line);
                if own.is_some_and(|labels| labels.is_deprecated) {
                    audit::annotate("k8s.io/deprecated", "true");
                }
                let queued = Step::begin("priorityandfairness");
                match self.seat(class.as_ref(), &caller, line, began).await {
                    Ok(seat) => {
                        let queued = queued.end();
                        record = own.map(|labels| self.metrics.begin(labels, began, lasts));
                        let watch = self.count_watch(class.as_ref(), line);
                        let took = began.elapsed();
                        span = trace::request(&self.tracer, &caller.user, line, &head, &peer, took);
                        trace::steps(&span, steps.into_iter().chain([queued])).await;
                        let answer = contained(self.answer(caller, line, head, &mut body));
                        let answer = span.enter(answer).await;
                        // A watch has none from now on.
                        drop(seat);
                        (answer, RequestGuard::Admitted(share, watch))
                    }
                    Err(error) => {
                        if let Some(labels) = own {
                            self.metrics.dropped(labels);
                        }
                        rejected = Some(error);
                        (Err(limits::too_many()), RequestGuard::Admitted(share, None))
                    }
                }
            }
            Err(error) => {
                if let Some(labels) = labels.filter(|_| error.code == 429) {
                    self.metrics.dropped(labels);
                }
                (Err(error), RequestGuard::Refused(unadmitted))
            }
        };
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(body) = body {
                    drain(body).await;
                }
                match rejected {
                    Some(rejected) => respond::rejected(rejected.retry_after),
                    None => respond::refusal(&error),
                }
            }
        };
        span.number("http.response.status_code", answer.status().as_u16().into());
        if answer.status().is_server_error() {
            span.fail("");
        }
        if span.is_recorded() {
            answer.body_mut().trace(span);
        }
        if let Some(class) = class {
            class.mark(answer.headers_mut());
        }
        answer.body_mut().hold(held);
        if let Some(memory) = answer.body().memory() {
            let memory: Arc<dyn Monitored> = memory.clone();
            peer.monitor(Arc::downgrade(&memory));
        }
        if let Some(mut record) = record {
            record.answered(answer.status());
            answer.body_mut().count(record);
        }
        tracing::debug!(%method, %uri, code = answer.status().as_u16(), took = ?began.elapsed(), "request");
        answer
    }
}

/// A request for the audit.
fn received<'a>(line: &'a RequestLine, user: Option<&'a User>) -> Received<'a> {
    Received {
        user,
        verb: line.verb,
        target: line.target(),
        version: line.resource.as_ref().map_or("", |path| &path.version),
        is_long_running: limits::is_long_running(line),
    }
}

/// What the audit says about an authorization.
fn annotate_decision(decision: &str, reason: impl Into<String>) {
    audit::annotate("authorization.k8s.io/decision", decision);
    audit::annotate("authorization.k8s.io/reason", reason);
}

/// Makes the events of an answer.
async fn audit_answer(answer: &mut Answer) {
    let status = answer.extensions_mut().remove::<StatusObject>();
    let Some(record) = audit::current() else { return };
    let content_type = answer.headers().get(header::CONTENT_TYPE);
    let is_json = content_type.is_some_and(|value| value == respond::JSON);
    let is_wanted = is_json && audit::wants_response();
    let text = is_wanted.then(|| answer.body_mut().whole().cloned()).flatten();
    let text = text.filter(|text| !text.is_empty());
    let status = status.as_ref().map(|StatusObject(status)| status);
    let goes_on = record.respond(answer.status().as_u16(), status, text.as_ref()).await;
    if let Some(record) = goes_on {
        answer.body_mut().keep(record);
    }
}

/// A panic ends its request, and nothing else. A connection holds the little that is left of the request
/// until the answer is sent.
fn contained<T>(request: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>> {
    let contained = panics::contain(request);
    async {
        contained.await.unwrap_or_else(|panic| {
            audit::panicked(&panic);
            let message = "This request caused apiserver to panic. Look in the logs for details.";
            Err(StatusError::internal(message))
        })
    }
}

fn too_long() -> StatusError {
    StatusError::timeout("request did not complete within the allocated timeout")
}

impl Call<'_> {
    /// The namespace of the objects; empty for those that are in none, though a namespace's own path has one.
    fn namespace(&self) -> &str {
        if self.resource.namespaced { &self.path.namespace } else { "" }
    }

    fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// The requested form of objects of the resource.
    fn view(&self) -> Result<View> {
        let accept = self.header(header::ACCEPT);
        let is_custom = self.resource.custom.is_some();
        let answered = match self.verb {
            "watch" => Answered::Watch,
            "list" => Answered::List,
            _ => Answered::Object,
        };
        let Accepted { form, media, kind, api_version } =
            negotiate::accepted(accept, !is_custom, answered)?;
        let go_type = |list: &str| match is_custom {
            true => format!("*unstructured.Unstructured{list}"),
            false => {
                let package = internal_package(self.resource.gvk());
                format!("*{package}.{}{list}", self.resource.kind)
            }
        };
        let refusal = match (answered, kind) {
            (Answered::List, "PartialObjectMetadata") => {
                format!(
                    "you requested {kind}, but the requested object is a list ({})",
                    go_type("List")
                )
            }
            (Answered::Object, "PartialObjectMetadataList") => {
                format!(
                    "you requested {kind}, but the requested object is not a list ({})",
                    go_type("")
                )
            }
            _ => String::new(),
        };
        if !refusal.is_empty() {
            return Err(StatusError::not_acceptable_kind(refusal));
        }
        // Other forms have no such parameter.
        let include = Some(form).filter(|form| *form == negotiate::Form::Table);
        let include = include.and_then(|_| self.line.query.get("includeObject"));
        Ok(View {
            resource: self.resource,
            form,
            is_protobuf: media == Media::Protobuf,
            api_version,
            include: IncludeObject::parse(include)?,
        })
    }
}
