//! From a request to its response: parse, authenticate, authorize, and dispatch to the handler of its
//! verb.

mod aggregated;
mod body;
mod components;
mod connect;
mod impersonation;
mod limits;
mod links;
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

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, header};
use longshore_base::budget::{Holder, Share};
use longshore_base::connections::Unadmitted;
use longshore_base::panics;
use longshore_serving::{Handler, Monitored, Peer};
use longshore_tls::ClientCa;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::body::drain;
use self::limits::Limits;
use self::metrics::Metrics;
use self::request::{RequestLine, ResourcePath};
use self::respond::{Answer, Result, View};
use self::served::Route;
use crate::RequestLimits;
use crate::aggregator::ApiService;
use crate::api_types::{Resource, Subresource};
use crate::auth::Authenticator;
use crate::authz::{self, Access, Target};
use crate::gates::FeatureGates;
use crate::kinds::{self, Created, custom};
use crate::kubelet::KubeletClient;
use crate::operations::Api;
use crate::response_body::{Body, RequestGuard};
use crate::status::StatusError;
use crate::table::IncludeObject;
use crate::user::User;

/// Answers requests.
pub(crate) struct Router {
    api: Arc<Api>,
    authenticator: Authenticator,
    kubelet: KubeletClient,
    gates: FeatureGates,
    metrics: Metrics,
    request_timeout: Duration,
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
    pub(crate) fn new(
        api: Arc<Api>,
        authenticator: Authenticator,
        kubelet: KubeletClient,
        gates: FeatureGates,
        requests: RequestLimits,
        request_timeout: Duration,
        stop: CancellationToken,
    ) -> Router {
        Router {
            api,
            authenticator,
            kubelet,
            gates,
            metrics: Metrics::default(),
            request_timeout,
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
                timeout(self.request_timeout, self.dispatch(call)).await
            }
            _ => timeout(self.request_timeout, self.system(line, &head.headers)).await,
        };
        self.limits.charge(&holder, line.verb, answer.map_err(|_| too_long())??)
    }

    /// Who authenticates.
    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// Authenticates, authorizes and admits a request. Its connection becomes an authorized one.
    async fn admit(&self, peer: &Peer, line: &RequestLine, head: &mut Parts) -> Result<Admitted> {
        let verify = |authority: &ClientCa| peer.verify(authority);
        let path = head.uri.path().to_owned();
        let caller = self.authenticator.caller(peer.user(), verify, &path, &mut head.headers).await;
        if caller.as_ref().map_or_else(|error| error.code == 401, User::is_anonymous) {
            // as upstream does since CVE-2023-44487
            if peer.is_http2() {
                peer.close();
            }
        }
        let user = self.effective(caller?, &head.headers).await?;
        let remote = self.remote(line).await;
        let local = line.resource.as_ref().filter(|_| remote.is_none());
        let kinds = self.api.definitions.snapshot();
        let route = local.map(|path| served::route(&kinds, path, &head.method)).transpose()?;
        self.authorize(&user, line.verb, line).await?;
        let holder = limits::holder(&user);
        if !user.is_anonymous() && !peer.authorize(&holder) {
            peer.close();
            return Err(limits::too_many());
        }
        let share = self.limits.admit(&holder, line)?;
        Ok(Admitted { caller: Caller { user, holder, route, remote }, share })
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
        if let Some(refusal) = custom::refusal(call.resource) {
            return Err(refusal);
        }
        let deprecation = custom::deprecation(call.resource);
        let mut answer = self.answer_call(call).await?;
        respond::warn(&mut answer, deprecation.as_slice());
        Ok(answer)
    }

    async fn answer_call(&self, call: Call<'_>) -> Result {
        if let Some(subresource) = call.subresource {
            return self.subresource(call, subresource).await;
        }
        match call.verb {
            // what is not stored and can be read is asked for
            "get" | "list" if call.resource.storage.is_empty() => self.components(call).await,
            "list" => self.list(call).await,
            "watch" => self.watch(call).await,
            "get" => self.get(call).await,
            "create" => match kinds::strategy(call.resource).created {
                Created::Object => self.create(call).await,
                Created::Binding => self.bind_named(call).await,
                Created::Review(review) => self.review(call, review).await,
            },
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

impl Handler for Router {
    type Body = Body;

    /// Errors are `Status` objects.
    async fn handle(
        self: Arc<Self>,
        peer: Arc<Peer>,
        request: Request<Incoming>,
        unadmitted: Unadmitted,
    ) -> Answer {
        let began = Instant::now();
        let (mut head, body) = request.into_parts();
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let mut body = Some(body);
        let line = RequestLine::parse(&method, &uri);
        let admitted = match &line {
            Ok(line) => {
                // Many requests may wait here: they are small until they are admitted.
                let _permit = self.limits.admission_permit(peer.holder()).await;
                contained(self.admit(&peer, line, &mut head)).await.map(|admitted| (line, admitted))
            }
            Err(error) => Err(error.clone()),
        };
        let (answer, held) = match admitted {
            Ok((line, admitted)) => {
                drop(unadmitted);
                let Admitted { caller, share } = admitted;
                let answer = contained(self.answer(caller, line, head, &mut body)).await;
                (answer, RequestGuard::Admitted(share))
            }
            Err(error) => (Err(error), RequestGuard::Refused(unadmitted)),
        };
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(body) = body {
                    drain(body).await;
                }
                respond::refusal(&error)
            }
        };
        answer.body_mut().hold(held);
        if let Some(memory) = answer.body().memory() {
            let memory: Arc<dyn Monitored> = memory.clone();
            peer.monitor(Arc::downgrade(&memory));
        }
        if let Ok(line) = &line {
            self.metrics.count(&self.api.definitions.snapshot(), line, answer.status());
        }
        tracing::debug!(%method, %uri, code = answer.status().as_u16(), took = ?began.elapsed(), "request");
        answer
    }

    fn too_many(&self) -> Answer {
        respond::refusal(&limits::too_many())
    }
}

/// A panic ends its request, and nothing else. A connection holds the little that is left of the request
/// until the answer is sent.
fn contained<T>(request: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>> {
    panics::contained(request, || {
        let message = "This request caused apiserver to panic. Look in the logs for details.";
        Err(StatusError::internal(message))
    })
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
        Ok(View {
            resource: self.resource,
            form: negotiate::form(self.header(header::ACCEPT))?,
            include: IncludeObject::parse(self.line.query.get("includeObject"))?,
        })
    }
}
