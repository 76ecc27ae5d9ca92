//! Clients that act as service accounts, as controllers do with `--use-service-account-credentials`:
//! each asks for tokens of its account with the credentials of the program, and shows nothing else.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::StatusCode;
use hyper::http::header::AUTHORIZATION;
use hyper::http::{HeaderValue, Request, Response};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::client::{Body, ClientBuilder};
use kube::core::ObjectMeta;
use kube::{Client, Error};
use longshore_base::time::later;
use longshore_metrics::RestClient;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tower::{BoxError, Service};
use tracing::warn;

use crate::response_body::ResponseBody;
use crate::transport::{Shared, Transport, UserAgent};
use crate::{ClientError, ConfigSource, Credentials, Limits};

/// How long a token is to be valid, in seconds.
const LIFETIME: i64 = 3600;
/// Clocks that differ do not make a token's life shorter than this.
const LEAST_LIFETIME: Duration = Duration::from_secs(600);
/// Of its life in percent, when a token is renewed.
const RENEWAL: u32 = 80;
/// The pauses between tries to get a token.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// How soon a renewal that failed is tried again, while the token is used that is there.
const RETRY: Duration = Duration::from_secs(10);

/// Makes clients that act as service accounts of one namespace. They share connections and rate limit.
pub struct AccountClients {
    root: Client,
    transport: Transport,
    component: &'static str,
    namespace: &'static str,
}

impl AccountClients {
    /// For accounts of that namespace in the cluster of `config_source`, whose own credentials are not used;
    /// `root` makes accounts and tokens.
    ///
    /// # Errors
    /// The source cannot be used.
    pub async fn connect(
        root: Client,
        config_source: ConfigSource,
        namespace: &'static str,
        limits: Limits,
        metrics: RestClient,
    ) -> Result<Self, ClientError> {
        let credentials = Credentials { anonymous: true, ..Credentials::from(config_source) };
        let transport = Transport(Shared::open(credentials, limits, metrics).await?);
        Ok(Self { root, transport, component: limits.component, namespace })
    }

    /// A client that acts as the account, which is made if it does not exist when a token is needed.
    #[must_use]
    pub fn client(&self, name: &str) -> Client {
        let user = format!("system:serviceaccount:{}:{name}", self.namespace);
        let account = Account {
            root: self.root.clone(),
            namespace: self.namespace,
            name: name.to_owned(),
            agent: UserAgent::of(self.component, &user),
            token: Mutex::default(),
        };
        let transport =
            AccountTransport { transport: self.transport.clone(), account: Arc::new(account) };
        ClientBuilder::new(transport, "default").build()
    }
}

/// An account and its token.
struct Account {
    root: Client,
    namespace: &'static str,
    name: String,
    agent: UserAgent,
    token: Mutex<Option<Token>>,
}

struct Token {
    /// The header `Authorization`.
    header: HeaderValue,
    renew_at: Instant,
}

impl Account {
    /// The token that is in use, renewed if it is due. One request at a time asks for it.
    async fn header(&self) -> Result<HeaderValue, BoxError> {
        let mut token = self.token.lock().await;
        if let Some(known) = token.as_ref().filter(|known| Instant::now() < known.renew_at) {
            return Ok(known.header.clone());
        }
        match (self.request().await, token.as_mut()) {
            (Ok(new), _) => {
                let header = new.header.clone();
                *token = Some(new);
                Ok(header)
            }
            (Err(error), Some(old)) => {
                warn!(account = self.name, "cannot renew its token: {error}");
                old.renew_at = later(Instant::now(), RETRY);
                Ok(old.header.clone())
            }
            (Err(error), None) => {
                Err(format!("no token for {}/{}: {error}", self.namespace, self.name).into())
            }
        }
    }

    /// The apiserver does not accept this token any more.
    async fn forget(&self, header: &HeaderValue) {
        let mut token = self.token.lock().await;
        if token.as_ref().is_some_and(|known| known.header == *header) {
            *token = None;
        }
    }

    /// Gets a token, in several tries.
    async fn request(&self) -> Result<Token, BoxError> {
        for pause in PAUSES {
            match self.try_request().await {
                Ok(token) => return Ok(token),
                Err(error) => warn!(account = self.name, "get token failed: {error}"),
            }
            sleep(pause).await;
        }
        self.try_request().await
    }

    async fn try_request(&self) -> Result<Token, BoxError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.root.clone(), self.namespace);
        let wanted = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(LIFETIME),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let ask = || accounts.create_token_request(&self.name, &params, &wanted);
        let answer = match ask().await {
            Err(Error::Api(status)) if status.code == 404 => {
                self.create(&accounts).await?;
                ask().await?
            }
            answer => answer?,
        };
        let status = answer.status.unwrap_or_default();
        let token = status.token.ok_or("the answer has no token")?;
        let ends = status.expiration_timestamp.map_or_else(Timestamp::now, |ends| ends.0);
        let lifetime = Duration::try_from(ends.duration_since(Timestamp::now()))
            .unwrap_or_default()
            .max(LEAST_LIFETIME);
        let used_for = lifetime.saturating_mul(RENEWAL).checked_div(100).unwrap_or_default();
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| "the token is not valid in a header")?;
        header.set_sensitive(true);
        Ok(Token { header, renew_at: later(Instant::now(), used_for) })
    }

    async fn create(&self, accounts: &Api<ServiceAccount>) -> Result<(), Error> {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        match accounts.create(&PostParams::default(), &account).await {
            Err(Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            created => created.map(drop),
        }
    }
}

/// The transport of a client that acts as an account.
#[derive(Clone)]
struct AccountTransport {
    transport: Transport,
    account: Arc<Account>,
}

impl Service<Request<Body>> for AccountTransport {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (account, transport) = (Arc::clone(&self.account), self.transport.clone());
        Box::pin(async move {
            let header = account.header().await?;
            request.headers_mut().insert(AUTHORIZATION, header.clone());
            request.extensions_mut().insert(account.agent.clone());
            let answer = transport.0.send(request).await?;
            // the caller's next try has a new one
            if answer.status() == StatusCode::UNAUTHORIZED {
                account.forget(&header).await;
            }
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::HeaderMap;
    use axum::routing::{get, post};
    use k8s_openapi::api::core::v1::Node;
    use longshore_metrics::Registry;
    use serde_json::{Value, json};

    use super::*;
    use crate::connect;

    const LIMITS: Limits = Limits {
        component: "kube-controller-manager",
        qps: 0,
        burst: 0,
        timeout: Duration::from_secs(5),
    };

    /// Serves accounts, whose tokens are numbered, and a node to whoever shows the latest token of `ann`
    /// and nothing else. A new token ends those before it. The URL, and the number of tokens.
    async fn apiserver() -> (String, Arc<AtomicUsize>) {
        let issued = Arc::new(AtomicUsize::new(0));
        let exists = Arc::new(AtomicUsize::new(0));
        let (number, made) = (Arc::clone(&issued), Arc::clone(&exists));
        let token = post(async move |headers: HeaderMap, body: String| {
            assert_eq!(headers["authorization"], "Bearer root");
            let request: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(request["spec"]["expirationSeconds"], 3600);
            if made.load(Ordering::SeqCst) == 0 {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                    "status": "Failure", "reason": "NotFound", "message": "gone", "code": 404});
                return (StatusCode::NOT_FOUND, status.to_string());
            }
            let number = number.fetch_add(1, Ordering::SeqCst) + 1;
            let ends =
                Timestamp::now().checked_add(k8s_openapi::jiff::SignedDuration::from_hours(1));
            let answer = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
                "metadata": {}, "spec": {"audiences": [], "expirationSeconds": 3600},
                "status": {"token": format!("t{number}"), "expirationTimestamp": ends.unwrap()}});
            (StatusCode::CREATED, answer.to_string())
        });
        let accounts = post(async move |body: String| {
            exists.fetch_add(1, Ordering::SeqCst);
            (StatusCode::CREATED, body)
        });
        let number = Arc::clone(&issued);
        let node = get(async move |headers: HeaderMap| {
            let latest = format!("Bearer t{}", number.load(Ordering::SeqCst));
            if headers["authorization"] != latest {
                return (StatusCode::UNAUTHORIZED, String::new());
            }
            let agent = headers["user-agent"].to_str().unwrap();
            let is_named = agent.ends_with("/system:serviceaccount:kube-system:ann");
            assert!(agent.starts_with("kube-controller-manager/") && is_named, "{agent}");
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
            (StatusCode::OK, node.to_string())
        });
        let base = "/api/v1/namespaces/kube-system/serviceaccounts";
        let router = Router::new()
            .route(base, accounts)
            .route(&format!("{base}/ann/token"), token)
            .route("/api/v1/nodes/n", node);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (url, issued)
    }

    /// The nodes, as `ann` sees them.
    async fn nodes(url: &str) -> (Api<Node>, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n\
             users: [{{name: u, user: {{token: root}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        );
        std::fs::write(file.path(), text).unwrap();
        let source = ConfigSource::Kubeconfig(file.path().to_owned());
        let metrics = RestClient::new(&Registry::default());
        let root = connect(&source.clone().into(), LIMITS, metrics.clone()).await.unwrap();
        let clients =
            AccountClients::connect(root, source, "kube-system", LIMITS, metrics).await.unwrap();
        (Api::all(clients.client("ann")), file)
    }

    #[tokio::test]
    async fn account_tokens_are_requested_once_and_again_when_refused() {
        let (url, issued) = apiserver().await;
        let (nodes, _file) = nodes(&url).await;
        for _ in 0..3 {
            nodes.get("n").await.unwrap();
        }
        assert_eq!(issued.load(Ordering::SeqCst), 1);
        issued.fetch_add(1, Ordering::SeqCst);
        assert!(nodes.get("n").await.is_err(), "its token is not the latest");
        nodes.get("n").await.unwrap();
        assert_eq!(issued.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn account_tokens_are_renewed_before_they_expire() {
        let (url, issued) = apiserver().await;
        let (nodes, _file) = nodes(&url).await;
        nodes.get("n").await.unwrap();
        for (minutes, expected) in [(47, 1), (2, 2)] {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(minutes * 60)).await;
            tokio::time::resume();
            nodes.get("n").await.unwrap();
            assert_eq!(issued.load(Ordering::SeqCst), expected, "{minutes}");
        }
    }
}
