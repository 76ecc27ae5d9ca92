//! From a request to its answer: understand it, know the caller, ask whether he may, and hand it
//! to the room for its verb.

mod body;
mod connect;
mod impersonation;
mod limits;
mod lists;
mod logs;
mod metrics;
mod negotiate;
mod proxy;
mod request;
mod respond;
mod reviews;
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
use hyper::{HeaderMap, Method, Request, header};
use longshore_base::budget::Holder;
use longshore_base::panics;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::body::drain;
use self::limits::Limits;
use self::metrics::Metrics;
use self::request::{RequestLine, ResourcePath};
use self::respond::{Answer, Result, View};
use crate::RequestLimits;
use crate::auth::{Authenticator, User};
use crate::authz::{self, Access, ResourceTarget, Target};
use crate::facts::{self, Resource};
use crate::gates::FeatureGates;
use crate::kubelet::KubeletClient;
use crate::operations::Api;
use crate::server::Peer;
use crate::status::StatusError;
use crate::table::IncludeObject;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers requests.
pub(crate) struct Router {
    api: Arc<Api>,
    authenticator: Authenticator,
    kubelet: KubeletClient,
    gates: FeatureGates,
    metrics: Metrics,
    stop: CancellationToken,
    limits: Limits,
}

/// A request whose caller is known and allowed.
struct Call<'a> {
    user: &'a User,
    /// The user as a holder of what is limited.
    holder: Holder,
    verb: &'static str,
    line: &'a RequestLine,
    path: &'a ResourcePath,
    resource: &'static Resource,
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
        requests: RequestLimits,
        stop: CancellationToken,
    ) -> Router {
        Router {
            api,
            authenticator,
            kubelet,
            gates,
            metrics: Metrics::default(),
            stop,
            limits: Limits::new(requests),
        }
    }

    /// Every request gets an answer; a refusal is a `Status` object.
    pub(crate) async fn handle(&self, peer: &Peer, request: Request<Incoming>) -> Answer {
        let began = Instant::now();
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let line = RequestLine::parse(&method, &uri);
        let answer = match &line {
            Ok(line) => contained(self.answer(peer, line, request)).await,
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
        peer: &Peer,
        line: &RequestLine,
        mut request: Request<Incoming>,
    ) -> Result {
        let (user, holder) = match self.admit(peer, line, request.headers_mut()).await {
            Ok(caller) => caller,
            Err(error) => {
                drain(request.into_body()).await;
                return Err(error);
            }
        };
        let place = match self.limits.admit(&holder, line) {
            Ok(place) => place,
            Err(error) => {
                drain(request.into_body()).await;
                return Err(error);
            }
        };
        let (head, body) = request.into_parts();
        let answer = match &line.resource {
            None => timeout(REQUEST_TIMEOUT, self.system(line, &head.headers)).await,
            Some(path) => {
                let resource = facts::lookup(&path.group, &path.version, &path.resource)
                    .ok_or_else(StatusError::no_such_path)?;
                let (holder, body) = (holder.clone(), Some(body));
                let call =
                    Call { user: &user, holder, verb: line.verb, line, path, resource, head, body };
                timeout(REQUEST_TIMEOUT, self.dispatch(call)).await
            }
        };
        let mut answer = self.limits.count(&holder, line.verb, answer.map_err(|_| too_long())??)?;
        answer.body_mut().hold(Some(place));
        Ok(answer)
    }

    /// Who asks, and may. The connection is authorized with the request.
    async fn admit(
        &self,
        peer: &Peer,
        line: &RequestLine,
        headers: &mut HeaderMap,
    ) -> Result<(User, Holder)> {
        let caller = self.authenticator.caller(&peer.verdict, headers).await;
        if caller.as_ref().map_or_else(|error| error.code == 401, User::is_anonymous) {
            peer.unauthenticated();
        }
        let user = self.effective(caller?, headers).await?;
        self.authorize(&user, line.verb, line).await?;
        let holder = limits::holder(&user);
        if !user.is_anonymous() && !peer.authorize(&holder) {
            return Err(limits::too_many());
        }
        Ok((user, holder))
    }

    async fn authorize(&self, user: &User, verb: &str, line: &RequestLine) -> Result<()> {
        let fields;
        let target = match &line.resource {
            None => Target::Path(&line.path),
            Some(path) => {
                fields = line.query.get("fieldSelector").map(equalities).unwrap_or_default();
                Target::Resource(ResourceTarget {
                    group: &path.group,
                    resource: &path.resource,
                    subresource: &path.subresource,
                    namespace: &path.namespace,
                    name: &path.name,
                    fields: &fields,
                })
            }
        };
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
        Err(match &line.resource {
            None => StatusError::forbidden_path(&message),
            Some(path) => match facts::lookup(&path.group, &path.version, &path.resource) {
                Some(resource) => StatusError::forbidden(resource, &path.name, &message),
                None => StatusError::forbidden_path(&message),
            },
        })
    }

    async fn dispatch(&self, call: Call<'_>) -> Result {
        let is_stored = !call.resource.storage.is_empty();
        if !call.path.subresource.is_empty() {
            return self.subresource(call).await;
        }
        if !call.resource.allows(call.verb) {
            return Err(StatusError::method_not_allowed(call.resource, call.verb));
        }
        let is_unscoped = call.resource.namespaced && call.path.namespace.is_empty();
        match call.verb {
            "create" if !is_stored => self.review(call).await,
            "list" => self.list(call).await,
            "watch" => self.watch(call).await,
            // Only lists and watches go across namespaces.
            "create" if !call.path.name.is_empty() => {
                Err(StatusError::method_not_allowed(call.resource, call.verb))
            }
            "update" | "patch" if call.path.name.is_empty() => {
                Err(StatusError::method_not_allowed(call.resource, call.verb))
            }
            _ if is_unscoped => Err(StatusError::method_not_allowed(call.resource, call.verb)),
            "get" => self.get(call).await,
            "create" => self.create(call).await,
            "update" | "patch" => self.update(call).await,
            "delete" => self.delete(call).await,
            "deletecollection" => self.delete_collection(call).await,
            _ => Err(StatusError::method_not_allowed(call.resource, call.verb)),
        }
    }

    async fn subresource(&self, call: Call<'_>) -> Result {
        let subresource = call
            .resource
            .subresource(&call.path.subresource)
            .ok_or_else(StatusError::no_such_path)?;
        // OPTIONS has no verb, and is for whom the path leads to.
        let is_handed_on = subresource.name == "proxy" && call.head.method == Method::OPTIONS;
        if !subresource.verbs.contains(&call.verb) && !is_handed_on {
            return Err(StatusError::method_not_allowed(call.resource, call.verb));
        }
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

/// A panic ends its request, and nothing else.
async fn contained(request: impl Future<Output = Result>) -> Result {
    panics::contain(request).await.unwrap_or_else(|_| {
        let message = "This request caused apiserver to panic. Look in the logs for details.";
        Err(StatusError::internal(message))
    })
}

fn too_long() -> StatusError {
    StatusError::timeout("request did not complete within the allotted timeout")
}

/// The `field=value` terms of a selector, for the authorizer.
fn equalities(selector: &str) -> Vec<(String, String)> {
    selector
        .split(',')
        .filter(|term| !term.contains("!="))
        .filter_map(|term| term.split_once('='))
        .map(|(field, value)| {
            (field.trim().to_owned(), value.trim_start_matches('=').trim().to_owned())
        })
        .collect()
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
