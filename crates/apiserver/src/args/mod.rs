//! The command line, in the words of upstream's `kube-apiserver` where it has them.

mod aggregation;
mod audit;
mod authentication;
mod authorization;
mod stores;
mod upstream;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use longshore_base::flags::without_empty;
use longshore_base::logging::{self, LoggingFlags};
use longshore_serving::tls::SniCertificate;
use longshore_store::{EmbeddedStore, Store};

pub use aggregation::AggregationArgs;
pub use audit::AuditArgs;
pub use authentication::AuthenticationArgs;
pub use authorization::AuthorizationArgs;
pub(crate) use stores::store_file;
pub use stores::{EtcdArgs, MigrateArgs, Place, SnapshotCommand};
pub use upstream::UpstreamArgs;

use crate::cidr::family_of;
use crate::pki::Identity;
use crate::snapshots::{SNAPSHOT_SOCKET, SnapshotSocket};
use crate::{
    ConnectionLimits, EndpointReconciler, FeatureGates, Mode, NodePorts, RequestLimits,
    RuntimeConfig, ServiceRanges, TlsOptions,
};
use crate::{Encryption, PagesConfig, StorageMediaType, TracingConfig, refuse_encrypted};

/// What `/logs/` serves, as upstream.
const LOGS: &str = "/var/log";
const STORE_FILE: &str = "longshore.db";
const DATA_DIR: &str = "/var/lib/longshore";

/// The companion apiserver of a Longshore node.
#[derive(Debug, Parser)]
#[command(name = "longshore-apiserver", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// How to serve.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Something else than serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The arguments of this process.
fn arguments() -> Vec<OsString> {
    given(std::env::args_os())
}

/// Of flags without a default, an empty value is no value.
fn given(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = Cli::command();
    let is_unset = |name: &str| {
        let known = command.get_arguments().find(|known| known.get_long() == Some(name));
        // a switch has an optional value, and an empty one is a mistake
        let is_switch =
            |known: &clap::Arg| known.get_num_args().is_some_and(|n| n.min_values() == 0);
        known.is_some_and(|known| known.get_default_values().is_empty() && !is_switch(known))
    };
    without_empty(arguments, is_unset)
}

/// The flags of this process with their values, given or not.
fn flags() -> BTreeMap<String, String> {
    let command = Cli::command().ignore_errors(true);
    let Ok(matches) = command.clone().try_get_matches_from(arguments()) else {
        return BTreeMap::new();
    };
    let value = |arg: &clap::Arg| {
        let values = matches.try_get_raw(arg.get_id().as_str()).ok().flatten()?;
        let values = values.map(|value| value.to_string_lossy()).collect::<Vec<_>>();
        Some((arg.get_long()?.to_owned(), values.join(",")))
    };
    command.get_arguments().filter_map(value).collect()
}

/// Flags that longshore-controllers has, and this program had once.
const OF_CONTROLLERS: [&str; 4] =
    ["--approve-kubelet-serving", "--cluster-signing-", "--empty-namespaces", "--root-ca-file"];

impl Cli {
    /// Reads the command line; ends the process when it cannot be used.
    pub fn read() -> Cli {
        Cli::try_parse_from(arguments()).unwrap_or_else(|error| with_program(error).exit())
    }
}

/// The error, with the program that has the unknown flag now, if one has it.
fn with_program(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    if OF_CONTROLLERS.iter().any(|moved| flag.starts_with(moved)) {
        let why = format!("{flag} is a flag of longshore-controllers");
        let why = ContextValue::StyledStrs(vec![why.into()]);
        error.insert(ContextKind::Suggested, why);
    }
    error
}

/// What the binary does besides serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print (or write) a kubeconfig for a user
    Kubeconfig(KubeconfigArgs),
    /// Back up, restore, verify or pack the embedded store
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Copy all objects from an etcd into a new embedded store, or back
    Migrate(MigrateArgs),
}

/// Flags of `kubeconfig`.
#[derive(Debug, Args)]
pub struct KubeconfigArgs {
    /// The user, such as system:node:n1
    #[arg(long, value_name = "NAME")]
    pub user: String,
    /// The user's group [default: system:nodes for a node, none for others]
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Where the certificates are
    #[arg(long, value_name = "DIR", default_value = "/var/run/kubernetes")]
    pub cert_dir: PathBuf,
    /// The apiserver to use
    #[arg(long, value_name = "URL", default_value = "https://127.0.0.1:6443")]
    pub server: String,
    /// The file to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl KubeconfigArgs {
    /// The group that goes with the user.
    pub fn group(&self) -> &str {
        match &self.group {
            Some(group) => group,
            None if self.user.starts_with("system:node:") => crate::user::NODES,
            None => "",
        }
    }
}

/// Where the objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// The URLs of the members of an etcd.
    Etcd(Vec<String>),
    /// The file of the embedded store.
    File(PathBuf),
}

/// Flags of serving.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The port to serve HTTPS on; 0 takes any free one
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// The address to listen on
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The address under which the cluster reaches this server [default: the bind address, or that of the default route]
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Where etcd is.
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// In which form objects of built-in kinds are stored, as far as upstream's apiserver stores them in it
    /// [default: protobuf in etcd, JSON in the embedded store]
    #[arg(long, value_name = "TYPE", value_parser = media_type)]
    pub storage_media_type: Option<StorageMediaType>,
    /// How often old revisions are forgotten; 0 is never
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = interval)]
    pub etcd_compaction_interval: Duration,
    /// The directory of the embedded store, used when there is no etcd
    #[arg(long, value_name = "DIR", default_value = DATA_DIR, conflicts_with = "etcd_servers")]
    pub data_dir: PathBuf,
    /// Where certificates are kept, and made when absent
    #[arg(long, value_name = "DIR", default_value = "/var/run/kubernetes")]
    pub cert_dir: PathBuf,
    /// The addresses of services: a range, or one of each family, the default one first
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "10.96.0.0/12")]
    pub service_cluster_ip_range: ServiceRanges,
    /// The ports of nodes that services get
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767")]
    pub service_node_port_range: NodePorts,
    /// How the endpoints of the service kubernetes are kept: by leases of the servers, or not at all
    #[arg(long, value_name = "TYPE", default_value = "lease")]
    pub endpoint_reconciler_type: EndpointReconciler,
    /// The CAs of client certificates [default: the CA in --cert-dir]
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// The serving certificate [default: one made in --cert-dir]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// The key of --tls-cert-file
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// The oldest version of TLS: VersionTLS12 or VersionTLS13
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12",
        value_parser = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"])]
    pub tls_min_version: String,
    /// The suites of TLS 1.2 [default: all that are secure]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// The key exchanges, by their numbers [default: all that are secure]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    pub tls_curve_preferences: Vec<i32>,
    /// Certificates for clients that ask for certain names [default: those in the certificate]; may be repeated
    #[arg(long, value_name = "FILE,FILE[:NAMES]")]
    pub tls_sni_cert_key: Vec<SniCertificate>,
    /// Serve HTTP/1.1 alone
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub disable_http2_serving: bool,
    /// The directives of the header Strict-Transport-Security [default: it is not sent]
    #[arg(long, value_name = "DIRECTIVES", value_delimiter = ',', value_parser = hsts_directive)]
    pub strict_transport_security_directives: Vec<String>,
    /// Serve profiles at /debug/pprof/, to those who may get that path
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub profiling: bool,
    /// The certificate to show to nodes [default: one made in --cert-dir]
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// The key of --kubelet-client-certificate
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    pub kubelet_client_key: Option<PathBuf>,
    /// The CA of the nodes' serving certificates [default: any certificate is taken]
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Which of a node's addresses to use, by type: the first that it has. Upstream's default begins with
    /// the names, which few clusters resolve
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "InternalIP,Hostname,InternalDNS,ExternalIP,ExternalDNS"
    )]
    pub kubelet_preferred_address_types: Vec<String>,
    /// Whether containers may be privileged, where pod security lets them
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_privileged: bool,
    /// Admission plugins to add to those that are always on: DenyServiceExternalIPs, EventRateLimit
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins not to have; those that are always on cannot be named
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// An AdmissionConfiguration with configurations of plugins
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// Feature gates; those with an effect here are ClusterTrustBundle, NodeDeclaredFeatures,
    /// PodCertificateRequest and PodLogsQuerySplitStreams
    #[arg(long, value_name = "NAME=BOOL,…", default_value = "", hide_default_value = true,
        value_parser = crate::gates::parse)]
    pub feature_gates: FeatureGates,
    /// What is served of the API that is off by default: with the feature gate PodCertificateRequest,
    /// certificates.k8s.io/v1beta1/podcertificaterequests=true
    #[arg(long, value_name = "KEY=BOOL,…")]
    pub runtime_config: Vec<RuntimeConfig>,
    /// How long events are kept, such as 1h0m0s
    #[arg(long, value_name = "DURATION", default_value = "1h0m0s", value_parser = duration)]
    pub event_ttl: Duration,
    /// Queue and dispatch requests with priority and fairness: FlowSchemas and
    /// PriorityLevelConfigurations divide --max-requests-inflight and --max-mutating-requests-inflight
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_priority_and_fairness: bool,
    /// The most requests under way that change nothing; without priority and fairness, 0 is no limit
    #[arg(long, value_name = "COUNT", default_value_t = RequestLimits::default().reading)]
    pub max_requests_inflight: u32,
    /// The most requests under way that change something; without priority and fairness, 0 is no limit
    #[arg(long, value_name = "COUNT", default_value_t = RequestLimits::default().mutating)]
    pub max_mutating_requests_inflight: u32,
    /// How long a request may take that is no watch
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = duration)]
    pub request_timeout: Duration,
    /// Write a kubeconfig kubelet-NAME.conf for this node into --cert-dir; may be repeated
    #[arg(long, value_name = "NAME")]
    pub node_name: Vec<String>,
    /// Who decides what callers may do.
    #[command(flatten)]
    pub authorization: AuthorizationArgs,
    /// How callers prove who they are.
    #[command(flatten)]
    pub authentication: AuthenticationArgs,
    /// Flags of calls to services.
    #[command(flatten)]
    pub aggregation: AggregationArgs,
    /// An EncryptionConfiguration: which resources are stored encrypted
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub encryption_provider_config: String,
    /// Read --encryption-provider-config again when it changes
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub encryption_provider_config_automatic_reload: bool,
    /// Serve the files in /var/log at /logs/, to those who may get that path
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_logs_handler: bool,
    /// A TracingConfiguration: where spans of requests are sent, as OTLP over gRPC
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub tracing_config_file: String,
    /// What is recorded of requests.
    #[command(flatten)]
    pub audit: AuditArgs,
    /// What upstream's apiserver has and this one does not.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// How much to log: 0 is little, 4 is debugging, more is everything
    #[arg(short, long, value_name = "LEVEL", default_value_t = 2)]
    pub v: u32,
    /// The form of the log, and where it goes.
    #[command(flatten)]
    pub logging: LoggingFlags,
}

impl ServeArgs {
    /// The etcd servers as URLs, or else the file of the embedded store.
    pub fn store(&self) -> StoreLocation {
        match self.etcd.servers() {
            Some(servers) => StoreLocation::Etcd(servers),
            None => StoreLocation::File(store_file(&self.data_dir)),
        }
    }

    /// The form in which objects are stored from now on: in etcd that of upstream's apiserver. The
    /// embedded store has no other readers, and JSON can be read by people.
    fn media_type(&self) -> StorageMediaType {
        self.storage_media_type.unwrap_or(match self.store() {
            StoreLocation::Etcd(_) => StorageMediaType::Protobuf,
            StoreLocation::File(_) => StorageMediaType::Json,
        })
    }

    /// The encryption of values, if there is one.
    async fn encryption(&self) -> anyhow::Result<Option<Arc<Encryption>>> {
        let reload = self.encryption_provider_config_automatic_reload;
        if self.encryption_provider_config.is_empty() {
            anyhow::ensure!(
                !reload,
                "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
            );
            return Ok(None);
        }
        let path = std::path::Path::new(&self.encryption_provider_config);
        let loaded = Encryption::load(path, reload).await;
        loaded.map(Some).context("--encryption-provider-config")
    }

    /// Opens the store, and says how snapshots are made of it. Errors name the flag.
    async fn open_store(
        &self,
        encryption: Option<&Arc<Encryption>>,
    ) -> anyhow::Result<(Arc<dyn Store>, Option<SnapshotSocket>)> {
        let (store, snapshots): (Arc<dyn Store>, _) = match self.store() {
            StoreLocation::Etcd(servers) => (Arc::new(self.etcd.connect(&servers).await?), None),
            StoreLocation::File(file) => {
                let dir = self.data_dir.display();
                std::fs::create_dir_all(&self.data_dir)
                    .with_context(|| format!("--data-dir: create {dir}"))?;
                let store = EmbeddedStore::open(&file).await;
                let store =
                    store.with_context(|| format!("--data-dir: open {}", file.display()))?;
                let store = Arc::new(store);
                let path = self.data_dir.join(SNAPSHOT_SOCKET);
                (store.clone(), Some(SnapshotSocket { store, path }))
            }
        };
        let prefix = &self.etcd.etcd_prefix;
        let store = match encryption {
            Some(encryption) => encryption.encrypt(store, prefix),
            None => refuse_encrypted(store),
        };
        Ok((longshore_store::with_prefix(store, prefix), snapshots))
    }

    /// Opens the store and puts everything together. Errors name the flag.
    pub async fn config(&self) -> anyhow::Result<crate::Config> {
        for node in &self.node_name {
            anyhow::ensure!(
                crate::schema::is_dns_subdomain(node),
                "--node-name: {node:?} is not the name of a node: lower-case letters, digits, '-' and '.'"
            );
        }
        self.upstream.warn();
        crate::gates::warn(&self.feature_gates);
        let runtime_config: RuntimeConfig = self.runtime_config.iter().cloned().collect();
        runtime_config.warn(&self.feature_gates);
        let (plugins, warnings) = crate::Plugins::choose(
            &self.enable_admission_plugins,
            &self.disable_admission_plugins,
        )?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let admission = match &self.admission_control_config_file {
            Some(file) => {
                let (admission, warnings) = crate::AdmissionConfig::load(file, plugins)
                    .context("--admission-control-config-file")?;
                for warning in warnings {
                    tracing::warn!("--admission-control-config-file: {warning}");
                }
                admission
            }
            None => crate::AdmissionConfig::default(),
        };
        anyhow::ensure!(
            !plugins.event_rate_limit || !admission.event_limits.is_empty(),
            "--enable-admission-plugins: EventRateLimit has no limits: configure them with \
             --admission-control-config-file"
        );
        let authorization = self.authorization.config()?;
        let mut authentication = self.authentication.config()?;
        if authorization.local().contains(&Mode::AlwaysAllow) && authentication.anonymous.enabled {
            tracing::warn!(
                "AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting \
                 AnonymousAuth to false. You should use a different authorizer"
            );
            authentication.anonymous.enabled = false;
        }
        let (service_ranges, advertise) = (self.service_cluster_ip_range, self.advertise());
        let (primary, public) = (service_ranges.primary(), family_of(advertise));
        anyhow::ensure!(
            primary.family() == public,
            "service IP family {:?} must match public address family {:?}",
            primary.to_string(),
            advertise.to_string()
        );
        anyhow::ensure!(
            self.allow_privileged,
            "--allow-privileged=false is refused: privileged containers are left to pod security"
        );
        anyhow::ensure!(
            !self.enable_priority_and_fairness
                || self.max_requests_inflight > 0
                || self.max_mutating_requests_inflight > 0,
            "--max-requests-inflight and --max-mutating-requests-inflight are 0: they must add up to \
             something positive, or --enable-priority-and-fairness=false"
        );
        let audit = self.audit.config()?;
        let tracing = match self.tracing_config_file.as_str() {
            "" => None,
            file => Some(TracingConfig::load(file.as_ref()).map_err(anyhow::Error::msg)?),
        };
        let encryption = self.encryption().await?;
        let (store, snapshots) = self.open_store(encryption.as_ref()).await?;
        let identity = |certificate: &Option<PathBuf>, key: &Option<PathBuf>| {
            certificate
                .clone()
                .zip(key.clone())
                .map(|(certificate, key)| Identity { certificate, key })
        };
        Ok(crate::Config {
            store,
            storage_media_type: self.media_type(),
            snapshots,
            bind: SocketAddr::new(self.bind_address, self.secure_port),
            advertise,
            cert_dir: self.cert_dir.clone(),
            service_ranges,
            node_ports: self.service_node_port_range,
            endpoint_reconciler: self.endpoint_reconciler_type,
            client_ca: self.client_ca_file.clone(),
            serving: identity(&self.tls_cert_file, &self.tls_private_key_file),
            tls: TlsOptions {
                min_version: self.tls_min_version.clone(),
                cipher_suites: self.tls_cipher_suites.clone(),
                curves: self.tls_curve_preferences.clone(),
                sni: self.tls_sni_cert_key.clone(),
                http1_alone: self.disable_http2_serving,
                strict_transport_security: self.strict_transport_security_directives.join("; "),
            },
            kubelet_client: identity(&self.kubelet_client_certificate, &self.kubelet_client_key),
            kubelet_ca: self.kubelet_certificate_authority.clone(),
            kubelet_address_types: self.kubelet_preferred_address_types.clone(),
            event_ttl: self.event_ttl,
            compaction_interval: self.etcd_compaction_interval,
            node_names: self.node_name.clone(),
            authentication,
            authorization,
            gates: self.feature_gates.clone(),
            runtime_config,
            requests: RequestLimits {
                reading: self.max_requests_inflight,
                mutating: self.max_mutating_requests_inflight,
                has_flow_control: self.enable_priority_and_fairness,
            },
            request_timeout: self.request_timeout,
            connections: ConnectionLimits::for_open_files(raise_open_files()),
            plugins,
            admission,
            aggregation: self.aggregation.config(),
            audit,
            encryption,
            pages: PagesConfig {
                flags: flags(),
                logs: self.enable_logs_handler.then(|| PathBuf::from(LOGS)),
                profiling: self.profiling,
            },
            tracing,
        })
    }

    fn advertise(&self) -> IpAddr {
        match self.advertise_address {
            Some(address) => address,
            None if !self.bind_address.is_unspecified() => self.bind_address,
            None => default_route_address().unwrap_or(Ipv4Addr::LOCALHOST.into()),
        }
    }

    /// What the log is started with.
    ///
    /// # Errors
    /// The flags of the log are not valid.
    pub fn logging(&self) -> anyhow::Result<logging::Settings> {
        let settings = self.logging.settings(self.v, |gate| self.feature_gates.enabled(gate));
        let settings = settings.map_err(anyhow::Error::msg)?;
        Ok(logging::Settings { quiet: true, ..settings })
    }
}

/// A directive of `Strict-Transport-Security`.
fn hsts_directive(text: &str) -> Result<String, String> {
    let is_age =
        text.split_once('=').is_some_and(|(name, age)| name == "max-age" && is_number(age));
    match text.trim() {
        "" => Err("empty value in strict-transport-security-directives".to_owned()),
        "includeSubDomains" | "preload" => Ok(text.trim().to_owned()),
        _ if is_age => Ok(text.to_owned()),
        _ => Err("allowed values: max-age=expireTime, includeSubDomains, preload. see \
                  https://tools.ietf.org/html/rfc6797#section-6.1 for more information"
            .to_owned()),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A media type that objects can be stored in.
fn media_type(text: &str) -> Result<StorageMediaType, String> {
    StorageMediaType::parse(text).ok_or_else(|| {
        let [json, protobuf] = StorageMediaType::ALL.map(StorageMediaType::name);
        format!("{text} is not supported, {json} and {protobuf} are")
    })
}

/// Raises the limit on open files as far as this process may, as Go's runtime does, and returns it.
fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without a limit there is nothing to raise; where it cannot be raised, it stays.
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// The source address of the default route. Nothing is sent: connecting a datagram socket only looks up the route.
fn default_route_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A hundred years: an unlimited duration that can still be added to any time.
const MAX_DURATION: Duration = Duration::from_secs(100 * 8766 * 3600);

/// How long something is cached; 0: not at all.
fn cache_ttl(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        text => duration(text),
    }
}

/// The same, or 0: never.
fn interval(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(MAX_DURATION),
        text => duration(text),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| "expected a duration such as 1h0m0s".to_owned())?;
    match Duration::try_from(parsed) {
        Ok(duration) if duration > MAX_DURATION => Err("must be at most 876600h0m0s".into()),
        // Everything that is given as such is counted in seconds.
        Ok(duration) if duration.as_secs() > 0 => Ok(duration),
        _ => Err("must be at least one second".into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("longshore-apiserver").chain(line.split_whitespace()))
    }

    #[test]
    fn flags_are_upstreams() {
        let cli = parse(
            "--secure-port=7443 --bind-address=127.0.0.1 --etcd-servers=http://127.0.0.1:2379,http://127.0.0.1:2381/ \
             --service-cluster-ip-range=10.0.0.0/24 --event-ttl=1h30m0s -v=4 --node-name=a --node-name=b",
        )
        .unwrap();
        let members = ["http://127.0.0.1:2379", "http://127.0.0.1:2381"].map(str::to_owned);
        assert_eq!(cli.serve.store(), StoreLocation::Etcd(members.into()));
        assert_eq!(cli.serve.event_ttl, Duration::from_secs(5400));
        assert_eq!(cli.serve.node_name, ["a", "b"]);
        let modes = cli.serve.authorization.config().unwrap().local();
        assert_eq!(modes, [Mode::Node, Mode::Rbac]);
        assert_eq!(cli.serve.advertise().to_string(), "127.0.0.1");
        let cli = parse(
            "--anonymous-auth=false --service-account-issuer=https://a --service-account-issuer=b --api-audiences=x,y \
             --service-account-max-token-expiration=2h0m0s --service-account-key-file=k1 --service-account-key-file=k2",
        );
        let config = cli.unwrap().serve.authentication.config().unwrap();
        assert!(
            !config.anonymous.enabled && config.bootstrap_tokens && config.tokens.extend_expiration
        );
        assert_eq!(config.tokens.issuers, ["https://a", "b"]);
        assert_eq!(config.tokens.audiences, ["x", "y"]);
        assert_eq!((config.tokens.key_files.len(), config.tokens.max_expiration), (2, Some(7200)));
        let given = parse("--anonymous-auth").unwrap().serve.authentication.anonymous_auth;
        assert_eq!(given, Some(true));
        assert_eq!(
            parse("--v=2 --data-dir=d").unwrap().serve.store(),
            StoreLocation::File("d/longshore.db".into())
        );
        let (json, protobuf) = (StorageMediaType::Json, StorageMediaType::Protobuf);
        for (line, expected) in [
            ("--data-dir=d", json),
            ("--etcd-servers=a", protobuf),
            ("--etcd-servers=a --storage-media-type=application/json", json),
            ("--data-dir=d --storage-media-type=application/vnd.kubernetes.protobuf", protobuf),
        ] {
            assert_eq!(parse(line).unwrap().serve.media_type(), expected, "{line}");
        }
    }

    #[test]
    fn flags_without_a_default_may_be_empty() {
        let line = ["x", "--client-ca-file=", "--oidc-issuer-url=", "--authentication-config="];
        let left = given(line.map(OsString::from));
        assert_eq!(left, ["x"]);
        let wrong = ["x", "--event-ttl=", "--anonymous-auth=", "--unknown="];
        assert_eq!(given(wrong.map(OsString::from)), wrong);
    }

    #[test]
    fn flags_of_controllers_are_rejected_with_the_name_of_that_program() {
        for flag in [
            "--cluster-signing-cert-file=c",
            "--cluster-signing-duration=1h",
            "--approve-kubelet-serving",
            "--root-ca-file=c",
            "--empty-namespaces=false",
        ] {
            let text = with_program(parse(flag).unwrap_err()).to_string();
            assert!(text.contains("is a flag of longshore-controllers"), "{flag}: {text}");
        }
        let text = with_program(parse("--unknown").unwrap_err()).to_string();
        assert!(!text.contains("longshore-controllers"), "{text}");
    }

    #[test]
    fn flags_with_invalid_values_are_rejected() {
        for (line, flag) in [
            ("--secure-port=70000", "--secure-port"),
            ("--storage-media-type=application/cbor", "--storage-media-type"),
            ("--bind-address=nowhere", "--bind-address"),
            ("--service-cluster-ip-range=10.0.0.0/99", "--service-cluster-ip-range"),
            ("--service-cluster-ip-range=10.0.0.0", "--service-cluster-ip-range"),
            ("--event-ttl=soon", "--event-ttl"),
            ("--event-ttl=0s", "--event-ttl"),
            ("--event-ttl=1ms", "--event-ttl"),
            ("--event-ttl=9999999h", "--event-ttl"),
            ("--event-ttl=9223372036854775807s", "--event-ttl"),
            ("--event-ttl=99999999999999999999h", "--event-ttl"),
            (
                "--service-account-max-token-expiration=9223372036854775807s",
                "--service-account-max-token-expiration",
            ),
            ("--secure-port=-1", "--secure-port"),
            ("-v=4294967296", "-v"),
            ("--service-cluster-ip-range=0.0.0.0/0", "--service-cluster-ip-range"),
            ("--service-cluster-ip-range=::/0", "--service-cluster-ip-range"),
            (
                "--service-cluster-ip-range=10.0.0.0/24,fd00::/64,fd01::/64",
                "--service-cluster-ip-range must not contain more than two entries",
            ),
            (
                "--service-cluster-ip-range=10.0.0.0/24,10.0.1.0/24",
                "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family",
            ),
            ("--feature-gates=AllowServiceExternalIPs=false", "DenyServiceExternalIPs"),
            ("--authorization-config=/a --authorization-mode=Node", "--authorization-mode"),
            ("--requestheader-client-ca-file=/a", "--requestheader-username-headers"),
            ("--tls-min-version=VersionTLS14", "--tls-min-version"),
            ("--tls-sni-cert-key=a", "expected comma separated certificate and key file paths"),
            ("--strict-transport-security-directives=max-age", "allowed values: max-age"),
            ("--strict-transport-security-directives=preloads", "allowed values: max-age"),
            ("--service-node-port-range=32767-30000", "--service-node-port-range"),
            ("--service-node-port-range=0-70000", "--service-node-port-range"),
            ("--oidc-required-claim=a", "--oidc-required-claim"),
            ("--authentication-token-webhook-version=v2", "--authentication-token-webhook-version"),
            ("--event-ttl=-1h", "--event-ttl"),
            ("--tls-cert-file=a", "--tls-private-key-file"),
            ("--kubelet-client-key=a", "--kubelet-client-certificate"),
            ("--etcd-servers=a --data-dir=b", "--data-dir"),
            ("--anonymous-auth=perhaps", "--anonymous-auth"),
            ("--feature-gates=None=true", "--feature-gates"),
            ("--feature-gates=PodLogsQuerySplitStreams=perhaps", "--feature-gates"),
            (
                "--service-account-max-token-expiration=10m",
                "--service-account-max-token-expiration",
            ),
            ("--unknown", "--unknown"),
            ("kubeconfig", "--user"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(flag), "{line}: {error}");
        }
    }

    /// Finding 6: an accepted flag has an effect, and a new one is listed here; those without are in
    /// `upstream`.
    #[test]
    fn flags_are_all_applied() {
        use clap::CommandFactory;
        const HONOURED: &[&str] = &[
            "admission-control-config-file",
            "advertise-address",
            "allow-privileged",
            "anonymous-auth",
            "api-audiences",
            "audit-log-batch-buffer-size",
            "audit-log-batch-max-size",
            "audit-log-batch-max-wait",
            "audit-log-batch-throttle-burst",
            "audit-log-batch-throttle-enable",
            "audit-log-batch-throttle-qps",
            "audit-log-compress",
            "audit-log-format",
            "audit-log-maxage",
            "audit-log-maxbackup",
            "audit-log-maxsize",
            "audit-log-mode",
            "audit-log-path",
            "audit-log-truncate-enabled",
            "audit-log-truncate-max-batch-size",
            "audit-log-truncate-max-event-size",
            "audit-log-version",
            "audit-policy-file",
            "audit-webhook-batch-buffer-size",
            "audit-webhook-batch-max-size",
            "audit-webhook-batch-max-wait",
            "audit-webhook-batch-throttle-burst",
            "audit-webhook-batch-throttle-enable",
            "audit-webhook-batch-throttle-qps",
            "audit-webhook-config-file",
            "audit-webhook-initial-backoff",
            "audit-webhook-mode",
            "audit-webhook-truncate-enabled",
            "audit-webhook-truncate-max-batch-size",
            "audit-webhook-truncate-max-event-size",
            "audit-webhook-version",
            "authentication-config",
            "authentication-token-webhook-cache-ttl",
            "authentication-token-webhook-config-file",
            "authentication-token-webhook-version",
            "authorization-config",
            "authorization-mode",
            "authorization-policy-file",
            "authorization-webhook-cache-authorized-ttl",
            "authorization-webhook-cache-unauthorized-ttl",
            "authorization-webhook-config-file",
            "authorization-webhook-version",
            "bind-address",
            "cert-dir",
            "client-ca-file",
            "data-dir",
            "disable-admission-plugins",
            "disable-http2-serving",
            "enable-admission-plugins",
            "enable-aggregator-routing",
            "enable-bootstrap-token-auth",
            "enable-logs-handler",
            "enable-priority-and-fairness",
            "encryption-provider-config",
            "encryption-provider-config-automatic-reload",
            "endpoint-reconciler-type",
            "etcd-cafile",
            "etcd-certfile",
            "etcd-compaction-interval",
            "etcd-keyfile",
            "etcd-prefix",
            "etcd-servers",
            "event-ttl",
            "feature-gates",
            "kubelet-certificate-authority",
            "kubelet-client-certificate",
            "kubelet-client-key",
            "kubelet-preferred-address-types",
            "log-flush-frequency",
            "log-json-info-buffer-size",
            "log-json-split-stream",
            "log-text-info-buffer-size",
            "log-text-split-stream",
            "logging-format",
            "max-mutating-requests-inflight",
            "max-requests-inflight",
            "node-name",
            "oidc-ca-file",
            "oidc-client-id",
            "oidc-groups-claim",
            "oidc-groups-prefix",
            "oidc-issuer-url",
            "oidc-required-claim",
            "oidc-signing-algs",
            "oidc-username-claim",
            "oidc-username-prefix",
            "profiling",
            "proxy-client-cert-file",
            "proxy-client-key-file",
            "request-timeout",
            "requestheader-allowed-names",
            "requestheader-client-ca-file",
            "requestheader-extra-headers-prefix",
            "requestheader-group-headers",
            "requestheader-uid-headers",
            "requestheader-username-headers",
            "runtime-config",
            "secure-port",
            "service-account-extend-token-expiration",
            "service-account-issuer",
            "service-account-jwks-uri",
            "service-account-key-file",
            "service-account-max-token-expiration",
            "service-account-signing-key-file",
            "service-cluster-ip-range",
            "service-node-port-range",
            "storage-media-type",
            "strict-transport-security-directives",
            "tls-cert-file",
            "tls-cipher-suites",
            "tls-curve-preferences",
            "tls-min-version",
            "tls-private-key-file",
            "tls-sni-cert-key",
            "token-auth-file",
            "tracing-config-file",
            "v",
            "vmodule",
        ];
        let command = Cli::command();
        let mut flags: Vec<&str> =
            command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        flags.retain(|flag| !upstream::is_without_effect(flag));
        flags.sort_unstable();
        assert_eq!(flags, HONOURED);
    }

    #[test]
    fn kubeconfig_for_a_node_has_the_nodes_group() {
        let Some(Command::Kubeconfig(args)) =
            parse("kubeconfig --user system:node:n1").unwrap().command
        else {
            panic!()
        };
        assert_eq!(args.group(), "system:nodes");
    }
}
