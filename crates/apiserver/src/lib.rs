//! The companion apiserver: the part of the Kubernetes API that a node and `kubectl` need,
//! over a revisioned store. Data flows one way:
//! `routes` → `auth` → `authz` → `operations` (with `admission`) → `registry` → store.
//!
//! Any number of servers share a store in etcd: what they decide together is decided by conditional
//! writes, and what one knows of the others it reads there.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod admission;
mod aggregator;
pub mod api_types;
pub mod args;
mod audit;
mod auth;
mod authz;
mod cache;
mod cidr;
mod config_file;
mod conversion;
#[cfg(test)]
mod cpu_time;
mod csr;
mod definitions;
pub mod discovery;
mod encryption;
mod expressions;
mod flow_control;
mod gates;
mod http_client;
pub mod kinds;
mod kubelet;
mod managed;
mod object;
mod offload;
pub mod openapi;
mod operations;
pub mod patch;
pub mod pki;
mod registry;
mod remote;
mod request_metrics;
mod response_body;
mod routes;
mod runtime_config;
pub mod schema;
pub mod selector;
mod service_resolver;
mod serviceaccounts;
mod snapshots;
pub mod status;
pub mod store_tools;
pub mod table;
mod tasks;
mod text;
mod tokens;
mod tracing_config;
mod user;
mod webhook_client;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_base::connections;
use longshore_serving::tls::{
    ClientCaFile, ServingCertificate, SniCertificate, Tls, TlsError, TlsSettings, provider,
    versions,
};
use longshore_serving::{FrontProxyHeaders, Options, serve};
use longshore_store::Store;
use longshore_telemetry::{Exporter, Tracer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use admission::config::{AdmissionConfig, ConfigError};
pub use admission::plugins::{PluginError, Plugins};
pub use admission::services::NodePorts;
pub use aggregator::AggregationConfig;
pub use audit::{
    AuditConfig, AuditError, BatchConfig as AuditBatchConfig, LogConfig as AuditLogConfig,
    LogFormat as AuditLogFormat, Mode as AuditMode, Rotation as AuditRotation,
    TruncateConfig as AuditTruncateConfig, WebhookConfig as AuditWebhookConfig,
};
pub use auth::{
    Anonymous, AnonymousCondition, AuthenticationConfig, FrontProxyConfig, JwtConfig,
    TokenWebhookConfig,
};
pub use authz::{AuthorizationConfig, Mode};
pub use cidr::{Cidr, CidrError, ServiceRanges};
pub use encryption::{Encryption, EncryptionError, refuse_encrypted};
pub use http_client::proxy::use_environment as use_proxies_of_environment;
pub use longshore_base::connections::Limits as ConnectionLimits;
pub use longshore_gates::FeatureGates;
pub use registry::StorageMediaType;
pub use routes::PagesConfig;
pub use runtime_config::RuntimeConfig;
pub use snapshots::SnapshotSocket;
pub use tasks::endpoints::EndpointReconciler;
pub use tokens::TokenConfig;
pub use tracing_config::TracingConfig;

use crate::admission::chain::Chain;
use crate::admission::event_rate_limit::EventLimits;
use crate::admission::policies::Policies;
use crate::admission::services::ServiceAllocator;
use crate::admission::webhooks::Webhooks;
use crate::aggregator::Aggregator;
use crate::audit::Audit;
use crate::auth::Authenticator;
use crate::authz::Authorizer;
use crate::conversion::WebhookConverter;
use crate::definitions::Definitions;
use crate::flow_control::FlowControl;
use crate::kubelet::KubeletClient;
use crate::operations::Api;
use crate::pki::{Identity, Kubeconfig, Pki};
use crate::registry::Registry;
use crate::remote::HostCredentials;
use crate::routes::Router;
use crate::service_resolver::ServiceResolver;
use crate::tokens::Tokens;
use crate::webhook_client::WebhookClient;

/// Everything that an apiserver is started with.
pub struct Config {
    /// Where the objects are.
    pub store: Arc<dyn Store>,
    /// In which form objects of built-in kinds are stored from now on; either is read.
    pub storage_media_type: StorageMediaType,
    /// Where snapshots of the store are given out, if they are.
    pub snapshots: Option<SnapshotSocket>,
    /// Where to listen; port 0 takes any free one.
    pub bind: SocketAddr,
    /// The address under which the cluster reaches this server.
    pub advertise: IpAddr,
    /// Where certificates and kubeconfigs are kept, and made when absent.
    pub cert_dir: PathBuf,
    /// The ranges of the addresses of services.
    pub service_ranges: ServiceRanges,
    /// The ports of nodes that services get.
    pub node_ports: NodePorts,
    /// How the endpoints of the service `kubernetes` are kept.
    pub endpoint_reconciler: EndpointReconciler,
    /// The CA of client certificates; without it, the one in `cert_dir`.
    pub client_ca: Option<PathBuf>,
    /// The serving certificate; without it, one in `cert_dir`.
    pub serving: Option<Identity>,
    /// How clients may connect.
    pub tls: TlsOptions,
    /// The client certificate for kubelets; without it, one in `cert_dir`.
    pub kubelet_client: Option<Identity>,
    /// The CA of the kubelets' serving certificates; without it, they are not verified.
    pub kubelet_ca: Option<PathBuf>,
    /// Which of a node's addresses are used, by type, the first that it has.
    pub kubelet_address_types: Vec<String>,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// How often old revisions are forgotten: after one to two intervals.
    pub compaction_interval: Duration,
    /// Nodes to write kubeconfigs for.
    pub node_names: Vec<String>,
    /// The authentication methods besides certificates.
    pub authentication: AuthenticationConfig,
    /// The authorizers, in order; without any, everything is denied.
    pub authorization: AuthorizationConfig,
    /// Feature gates.
    pub gates: FeatureGates,
    /// What is served of the API that is off by default.
    pub runtime_config: RuntimeConfig,
    /// The limits of requests in flight.
    pub requests: RequestLimits,
    /// How long a request may take that is no watch and opens no connection.
    pub request_timeout: Duration,
    /// How many connections may be open.
    pub connections: ConnectionLimits,
    /// The admission plugins that can be chosen.
    pub plugins: Plugins,
    /// What admission plugins are configured with.
    pub admission: AdmissionConfig,
    /// How webhooks and aggregated servers are called.
    pub aggregation: AggregationConfig,
    /// What is recorded of requests.
    pub audit: AuditConfig,
    /// The encryption that `store` has, for its health and metrics.
    pub encryption: Option<Arc<Encryption>>,
    /// Pages about the server itself.
    pub pages: PagesConfig,
    /// Where spans of requests are sent; `None`: there are none.
    pub tracing: Option<TracingConfig>,
}

/// How clients may connect, in the words of upstream's flags. Empty: all that is secure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The oldest version, such as `VersionTLS13`; none older than 1.2 is spoken.
    pub min_version: String,
    /// The suites of TLS 1.2, by their IANA names.
    pub cipher_suites: Vec<String>,
    /// The key exchanges, by their numbers.
    pub curves: Vec<i32>,
    /// Certificates for clients that ask for certain names.
    pub sni: Vec<SniCertificate>,
    /// Whether HTTP/1.1 alone is served.
    pub http1_alone: bool,
    /// The header `Strict-Transport-Security`; empty: it is not sent.
    pub strict_transport_security: String,
}

/// The limits of requests in flight, without long-running ones such as watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Non-mutating requests.
    pub reading: u32,
    /// Mutating requests.
    pub mutating: u32,
    /// Whether the two limits are added up and divided by priority and fairness. Otherwise zero is no limit.
    pub has_flow_control: bool,
}

impl RequestLimits {
    /// All seats of priority and fairness, if that is in force.
    fn seats(&self) -> Option<u32> {
        let seats = self.reading.saturating_add(self.mutating);
        Some(seats).filter(|seats| self.has_flow_control && *seats > 0)
    }
}

impl Default for RequestLimits {
    /// Upstream's defaults.
    fn default() -> Self {
        RequestLimits { reading: 400, mutating: 200, has_flow_control: true }
    }
}

/// Why an apiserver did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address could not be listened on.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Certificates could not be made or read.
    #[error(transparent)]
    Pki(#[from] pki::Error),
    /// The serving certificate or the CA of clients cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The authorizers cannot be used.
    #[error("authorization: {0}")]
    Authorization(String),
    /// What a cluster starts with could not be written.
    #[error("prepare the store: {0}")]
    Store(#[from] status::StatusError),
    /// The audit could not be set up.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// Spans cannot be sent.
    #[error(transparent)]
    Tracing(#[from] longshore_telemetry::Error),
}

/// Idle connections stay longer than the 90 s after which clients give them up themselves, so that none
/// of them sends a request into a connection that is just being closed.
const CONNECTIONS: Options = Options {
    idle_timeout: Duration::from_secs(120),
    unauthorized_idle_timeout: connections::FIRST_REQUEST_TIMEOUT,
    close_timeout: connections::FIRST_REQUEST_TIMEOUT,
    completes_requests: true,
    ..Options::DEFAULT
};

/// An apiserver that is ready to serve.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Arc<Tls>,
    router: Arc<Router>,
    connections: ConnectionLimits,
    api: Arc<Api>,
    audit: Arc<Audit>,
    encryption: Option<Arc<Encryption>>,
    flow_control: Option<Arc<FlowControl>>,
    node_ports: tasks::node_ports::Repair,
    endpoint_reconciler: EndpointReconciler,
    compaction_interval: Duration,
    snapshots: Option<SnapshotSocket>,
    spans: Option<Exporter>,
    admin_kubeconfig: PathBuf,
    stop: CancellationToken,
}

impl Server {
    /// Makes certificates and kubeconfigs, listens, and puts into the store what a cluster starts with.
    pub async fn start(config: Config) -> Result<Server, Error> {
        let listen = |source| Error::Listen { address: config.bind, source };
        let listener = connections::listen(config.bind).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let advertised = SocketAddr::new(config.advertise, address.port());

        let audit = Audit::start(&config.audit)?;
        let (tracer, spans) = match &config.tracing {
            Some(tracing) => {
                let (tracer, spans) = Tracer::new(&tracing.settings(tasks::identity::name()))?;
                (tracer, Some(spans))
            }
            None => (Tracer::default(), None),
        };
        let pki = Pki::open(&config.cert_dir)?;
        let serving = match &config.serving {
            Some(identity) => identity.clone(),
            None => pki.serving(&serving_names(&config, address.ip()))?,
        };
        let kubelet_client = match &config.kubelet_client {
            Some(identity) => identity.clone(),
            None => pki.client("apiserver-kubelet-client", user::KUBELET_CLIENT, None)?,
        };
        let client_ca = config.client_ca.clone().unwrap_or_else(|| pki.ca_file());
        let (mut authentication, mut aggregation) = (config.authentication, config.aggregation);
        // nobody says how servers behind this one know it: by what is made here
        if config.client_ca.is_none()
            && authentication.front_proxy.is_none()
            && aggregation.proxy_client.is_none()
        {
            let (proxy, identity) = own_front_proxy(&pki)?;
            authentication.front_proxy = Some(proxy);
            aggregation.proxy_client = Some(identity);
        }
        let front_proxy = authentication.front_proxy.clone();
        let front_proxy_ca = front_proxy.iter().map(|known| known.ca_file.clone()).collect();
        let tls = Arc::new(tls(&serving, &config.tls, client_ca.clone(), front_proxy_ca)?);
        let admin_kubeconfig = config.cert_dir.join("admin.conf");
        let local = SocketAddr::new(reachable(address.ip()), address.port());
        kubeconfig(&pki, &format!("https://{local}"), "kubernetes-admin", user::MASTERS)?
            .write(&admin_kubeconfig)?;
        for node in &config.node_names {
            node_kubeconfig(&pki, &format!("https://{advertised}"), node)?
                .write(&config.cert_dir.join(format!("kubelet-{node}.conf")))?;
        }

        let tokens =
            Tokens::new(&authentication.tokens, pki.signing_key_file(), &advertised.to_string())?;
        let resolver = ServiceResolver { endpoints_only: aggregation.endpoints_only };
        let client = |credentials| WebhookClient::new(resolver, credentials);
        let AdmissionConfig { mutating_webhooks, validating_webhooks, .. } = &config.admission;
        let webhooks =
            Webhooks::new(client(mutating_webhooks.clone()), client(validating_webhooks.clone()))?;
        let converter = Arc::new(WebhookConverter::new(client(HostCredentials::default())));
        let authorizer = Authorizer::new(config.authorization, &config.gates)
            .map_err(|error| Error::Authorization(error.message))?;
        let authorizer = Arc::new(authorizer);
        let optional = config.runtime_config.optional(&config.gates);
        let definitions = Arc::new(Definitions::new(optional));
        let policies = Policies::new(authorizer.clone(), definitions.clone())?;
        let api = Arc::new(Api {
            chain: Chain::new(policies, webhooks),
            aggregator: Aggregator::new(&aggregation)?,
            registry: Arc::new(Registry::with_converter(
                config.store,
                config.storage_media_type,
                converter.clone(),
            )),
            converter,
            definitions,
            authorizer,
            services: ServiceAllocator::new(
                config.service_ranges,
                config.node_ports,
                config.plugins,
            )?,
            event_ttl: config.event_ttl,
            gates: config.gates.clone(),
            pod_security: config.admission.pod_security,
            event_limits: EventLimits::new(&config.admission.event_limits),
            limited_resources: config.admission.limited_resources,
            advertised,
            tokens,
            authentication_data: tasks::bootstrap::authentication_data(
                &client_ca,
                front_proxy.as_ref(),
            )?,
        });
        api.services.load(&api.registry).await?;
        let mut node_ports = tasks::node_ports::Repair::new();
        node_ports.round(&api).await?;
        tasks::addresses::load(&api).await?;
        tasks::bootstrap::run(&api).await?;
        tasks::endpoints::start(&api, config.endpoint_reconciler).await?;
        if api.authorizer.has(Mode::Rbac) {
            tasks::roles::run(&api).await?;
        }
        api.authorizer.load(&api.registry).await?;
        tasks::definitions::load(&api).await?;
        api.chain.load(&api.registry).await?;
        tasks::apiservices::start(&api).await?;
        let timeout = config.request_timeout;
        let flow_control =
            config.requests.seats().map(|seats| Arc::new(FlowControl::new(seats, timeout)));
        if let Some(flow_control) = &flow_control {
            tasks::flow_control::load(&api, flow_control).await?;
        }
        let stop = CancellationToken::new();
        let kubelet = KubeletClient::new(
            &kubelet_client,
            config.kubelet_ca.as_slice(),
            advertised,
            config.kubelet_address_types,
        )?;
        let authenticator = Authenticator::new(&authentication, api.clone())?;
        let router = Arc::new(Router::new(
            api.clone(),
            authenticator,
            audit.clone(),
            config.encryption.clone(),
            config.pages,
            kubelet,
            tracer,
            config.gates,
            config.requests,
            flow_control.clone(),
            config.request_timeout,
            &config.tls.strict_transport_security,
            stop.clone(),
        ));
        Ok(Server {
            listener,
            address,
            tls,
            router,
            connections: config.connections,
            api,
            audit,
            encryption: config.encryption,
            flow_control,
            node_ports,
            endpoint_reconciler: config.endpoint_reconciler,
            compaction_interval: config.compaction_interval,
            snapshots: config.snapshots,
            spans,
            admin_kubeconfig,
            stop,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The kubeconfig of the cluster's administrator.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin_kubeconfig
    }

    /// Serves until `stop`; then ends watches, answers what is under way and returns.
    pub async fn run(self, stop: CancellationToken) {
        let parts = self.stop;
        tokio::join!(
            async {
                stop.cancelled().await;
                parts.cancel();
            },
            serve(
                self.listener,
                Some(self.tls),
                self.router.clone(),
                Options { limits: self.connections, ..CONNECTIONS },
                parts.clone(),
            ),
            self.api.authorizer.run(&self.api.registry, parts.clone()),
            self.router.authenticator().run(parts.clone()),
            self.api.chain.run(&self.api.registry, parts.clone()),
            self.api.services.run(&self.api.registry, parts.clone()),
            async {
                if let Some(encryption) = &self.encryption {
                    encryption.run(parts.clone()).await;
                }
            },
            async {
                if let Some(snapshots) = &self.snapshots {
                    snapshots.run(parts.clone()).await;
                }
            },
            async {
                if let Some(spans) = self.spans {
                    spans.run_until(parts.cancelled()).await;
                }
            },
            tasks::apiservices::run(&self.api, parts.clone()),
            tasks::bootstrap::keep(&self.api, parts.clone()),
            tasks::addresses::run(&self.api, parts.clone()),
            self.node_ports.run(&self.api, parts.clone()),
            tasks::endpoints::run(&self.api, self.endpoint_reconciler, parts.clone()),
            tasks::identity::run(&self.api, parts.clone()),
            tasks::definitions::run(&self.api, parts.clone()),
            tasks::policies::run(&self.api, parts.clone()),
            async {
                if let Some(flow_control) = &self.flow_control {
                    tokio::join!(
                        tasks::flow_control::run(&self.api, flow_control, parts.clone()),
                        flow_control.run(parts.clone()),
                    );
                }
            },
            tasks::compaction::run(
                &**self.api.registry.store(),
                self.compaction_interval,
                parts.clone()
            ),
        );
        self.audit.stop().await;
    }
}

/// Serves with `identity`; clients are to show certificates of the CAs in the file `client_ca`.
fn tls(
    identity: &Identity,
    options: &TlsOptions,
    client_ca: PathBuf,
    front_proxy_ca: Vec<PathBuf>,
) -> Result<Tls, TlsError> {
    let settings = TlsSettings {
        certificate: ServingCertificate::Files {
            pairs: vec![(identity.certificate.clone(), identity.key.clone())],
            awaits_signing: false,
            reload: true,
        },
        client_ca: Some(ClientCaFile { path: client_ca, reload: true }),
        provider: Arc::new(provider(&options.cipher_suites, &options.curves)?),
        versions: versions(&options.min_version),
        sni: options.sni.clone(),
        http1_alone: options.http1_alone,
    };
    Tls::with_further_clients(settings, front_proxy_ca)
}

/// This server as the front proxy of servers that it aggregates, with headers as kubeadm names them.
fn own_front_proxy(pki: &Pki) -> pki::Result<(FrontProxyConfig, Identity)> {
    const NAME: &str = "front-proxy-client";
    let (ca_file, identity) = pki.front_proxy(NAME)?;
    let list = |name: &str| vec![name.to_owned()];
    let headers = FrontProxyHeaders {
        allowed_names: list(NAME),
        username_headers: list("X-Remote-User"),
        uid_headers: list("X-Remote-Uid"),
        group_headers: list("X-Remote-Group"),
        extra_prefixes: list("X-Remote-Extra-"),
    };
    Ok((FrontProxyConfig { ca_file, headers }, identity))
}

/// The kubeconfig of a user in a group.
pub fn kubeconfig(pki: &Pki, server: &str, user: &str, group: &str) -> pki::Result<Kubeconfig> {
    // A file name for any user, and the same for the same user.
    let stem: String = user
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    let identity =
        pki.client(&format!("client-{stem}"), user, Some(group).filter(|group| !group.is_empty()))?;
    Kubeconfig::new(pki, server, user, &identity)
}

/// The kubeconfig of a node.
pub fn node_kubeconfig(pki: &Pki, server: &str, node: &str) -> pki::Result<Kubeconfig> {
    kubeconfig(pki, server, &format!("system:node:{node}"), user::NODES)
}

/// Everything that the server may be called by.
fn serving_names(config: &Config, bound: IpAddr) -> Vec<String> {
    let mut names: Vec<String> = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    .map(str::to_owned)
    .into();
    let mut addresses = vec![
        IpAddr::from([127, 0, 0, 1]),
        config.advertise,
        config.service_ranges.primary().address(0),
    ];
    if !bound.is_unspecified() {
        addresses.push(bound);
    }
    addresses.dedup();
    names.extend(addresses.iter().map(IpAddr::to_string));
    names
}

/// An address that this machine itself can use.
fn reachable(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        address => address,
    }
}
