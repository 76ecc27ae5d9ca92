//! The programs: connect, serve, wait for the lease, and run controllers, scheduler or both.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use kube::Client;
use longshore_base::panics;
use longshore_base::systemd;
use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use longshore_client::reviews::DecisionTtls;
use longshore_client::{AccountClients, ClientError, Credentials, Limits, connect, named};
use longshore_informer::{
    ElectionError, Informers, LeaderElector, LeaderMetrics, LeaseApi, QueueMetrics,
};
use longshore_metrics::{
    Registry, RestClient, Version, register_process_metrics, register_version,
};
use longshore_scheduler::program as scheduler;
use longshore_scheduler::service::Service;
use longshore_serving::FrontProxyHeaders;
use longshore_serving::tls::{InvalidSniCertificate, SniCertificate};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::args::Flags;
use crate::context::MANAGER;
use crate::delegated::DelegatedOptions;
use crate::flag_checks::FlagError;
use crate::serving::{Endpoints, Health, PortOptions, Reviewers, Serving, ServingError};
use crate::{Context, Controller, Metrics};

/// How long the apiserver may take to begin its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The path of the scheduler's page about the resources of pods.
const RESOURCES: &str = "/metrics/resources";
/// The namespace of the controllers' service accounts.
const NAMESPACE: &str = "kube-system";
/// How long after its end a part starts again.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Why the program ended.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The command line.
    #[error(transparent)]
    Flags(#[from] FlagError),
    /// The connection to the apiserver.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The port.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// The lease.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The scheduler.
    #[error("scheduler: {0}")]
    Scheduler(#[from] scheduler::Error),
    /// A flag of the scheduler's port.
    #[error("invalid argument {value:?} for \"--tls-sni-cert-key\" flag: {source}")]
    Sni {
        /// What was given.
        value: String,
        /// What is wrong with it.
        source: InvalidSniCertificate,
    },
}

/// What a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The controllers, as kube-controller-manager.
    Controllers,
    /// Controllers and scheduler, with the same informers and under one lease.
    ControllersAndScheduler,
}

/// Runs controllers, and a scheduler as the role says, until `stop` or until the lease is lost.
///
/// # Errors
/// The program cannot start, or the lease was lost.
pub async fn run(flags: Flags, role: Role, stop: CancellationToken) -> Result<(), ProgramError> {
    let controllers = flags.selected()?;
    let settings = flags.settings()?;
    let ignored = flags.without_effect();
    if !ignored.is_empty() {
        tracing::warn!(flags = ?ignored, "these flags have no effect");
    }
    let registry = registry();
    flags.feature_gates.register_metrics(&registry);
    let leader_metrics = LeaderMetrics::new(&registry);
    let credentials = Credentials::from(flags.config_source());
    let requests = RestClient::new(&registry);
    // Upstream gives each controller a client, and each client this rate.
    let clients = i32::try_from(controllers.len()).unwrap_or(i32::MAX).max(1);
    let limits = Limits {
        component: MANAGER,
        qps: flags.qps().saturating_mul(clients),
        burst: flags.kube_api_burst.saturating_mul(clients),
        timeout: REQUEST_TIMEOUT,
    };
    let client = connect(&credentials, limits, requests.clone()).await?;
    let of_accounts = requests.clone();
    let reviewers = Reviewers {
        authentication: reviewer(
            &client,
            flags.authentication_kubeconfig.as_deref(),
            limits,
            &requests,
        )
        .await?,
        authorization: reviewer(
            &client,
            flags.authorization_kubeconfig.as_deref(),
            limits,
            &requests,
        )
        .await?,
    };
    let pages = scheduler::Pages { metrics: registry.clone(), resources: Registry::default() };
    let mut more = Vec::new();
    let scheduler = match role {
        Role::Controllers => None,
        Role::ControllersAndScheduler => {
            let options = scheduler::Options {
                config: flags.scheduler_config.clone(),
                ..scheduler::Options::default()
            };
            let service =
                Service::new(scheduler::configuration(&options)?, &flags.feature_gates, &pages)
                    .sharing_informers();
            service.check().map_err(scheduler::Error::from)?;
            more.push((RESOURCES, pages.resources.clone()));
            let limits =
                Limits { component: "kube-scheduler", qps: 0, burst: 0, timeout: REQUEST_TIMEOUT };
            Some((service, connect(&credentials, limits, requests).await?))
        }
    };
    let health = Health::default();
    if let Some(port) = flags.port() {
        let endpoints = Endpoints {
            reviewers,
            registry: registry.clone(),
            more,
            configz: flags.configz(),
            health: health.clone(),
        };
        let serving = Serving::open(port, endpoints)?;
        serving.look_up().await?;
        tokio::spawn(serving.run());
    }
    let accounts = match flags.use_service_account_credentials {
        false => None,
        true => {
            let (root, source) = (client.clone(), flags.config_source());
            let accounts = AccountClients::connect(root, source, NAMESPACE, limits, of_accounts);
            Some(Arc::new(accounts.await?))
        }
    };
    let context = Context {
        accounts,
        informers: Informers::new(named(&client, MANAGER, "shared-informers")),
        client: client.clone(),
        queues: QueueMetrics::new(&registry),
        metrics: Arc::new(Metrics::new(&registry)),
        settings,
        stop: stop.clone(),
    };
    let work = || async move {
        let scheduling = async {
            if let Some((service, client)) = scheduler {
                run_scheduler(&context, service, client).await;
            }
        };
        join(run_all(context.clone(), controllers), scheduling).await;
    };
    // A copy that waits for the lease is as ready as it gets.
    systemd::notify_ready();
    match flags.leader(&scheduler::identity()?) {
        None => work().await,
        Some(leader) => {
            let store = LeaseApi::new(named(&client, MANAGER, "leader-election"), &leader);
            let elector = LeaderElector::new(store, leader).with_metrics(leader_metrics);
            let done = elector.run(&stop, work).await;
            if done.is_err() {
                health.set_unhealthy();
            }
            // of a copy that is stopped others take the lease over when it is not renewed
            done?;
        }
    }
    Ok(())
}

/// A registry with what every program of Kubernetes has in it.
fn registry() -> Registry {
    let registry = Registry::default();
    registry.count_families();
    register_process_metrics(&registry, Handle::current());
    let platform = format!("linux/{}", go_arch());
    let version = Version { kubernetes: KUBERNETES_VERSION, commit: "", platform: &platform };
    register_version(&registry, version);
    registry
}

fn sni_certificates(given: &[String]) -> Result<Vec<SniCertificate>, ProgramError> {
    let read = |value: &String| {
        value.parse().map_err(|source| ProgramError::Sni { value: value.clone(), source })
    };
    given.iter().map(read).collect()
}

/// The client of reviews: that of the kubeconfig, or the program's own.
async fn reviewer(
    own: &Client,
    kubeconfig: Option<&Path>,
    limits: Limits,
    requests: &RestClient,
) -> Result<Client, ClientError> {
    match kubeconfig.filter(|path| !path.as_os_str().is_empty()) {
        None => Ok(own.clone()),
        Some(path) => connect(&Credentials::of(path), limits, requests.clone()).await,
    }
}

/// Runs a scheduler by itself, as kube-scheduler, until `stop` or until the lease is lost.
///
/// # Errors
/// The program cannot start, or the lease was lost.
pub async fn run_kube_scheduler(
    options: scheduler::Options,
    stop: CancellationToken,
) -> Result<(), ProgramError> {
    let registry = registry();
    options.feature_gates.register_metrics(&registry);
    let gates = options.feature_gates.changed();
    for (name, value) in gates.filter(|(name, _)| !scheduler::READ_GATES.contains(name)) {
        tracing::warn!("the feature gate {name}={value} has no effect");
    }
    if !options.without_effect.is_empty() {
        tracing::warn!(flags = ?options.without_effect, "these flags have no effect");
    }
    let configuration = scheduler::configuration(&options)?;
    let requests = RestClient::new(&registry);
    let client = scheduler::connect(&configuration, &options, requests.clone()).await?;
    let running = scheduler::Running::default();
    let resources = Registry::default();
    if options.secure_port != 0 {
        let port = PortOptions {
            address: SocketAddr::new(options.bind_address, options.secure_port),
            certificate: options.tls_cert_file.clone().zip(options.tls_private_key_file.clone()),
            delegated: DelegatedOptions {
                client_ca: options.client_ca_file.clone(),
                front_proxy_ca: options.front_proxy_ca_file.clone(),
                headers: FrontProxyHeaders {
                    allowed_names: options.front_proxy_names.clone(),
                    username_headers: options.username_headers.clone(),
                    uid_headers: options.uid_headers.clone(),
                    group_headers: options.group_headers.clone(),
                    extra_prefixes: options.extra_headers_prefix.clone(),
                },
                skip_lookup: options.skip_lookup,
                requires_lookup: !options.tolerates_lookup_failure,
            },
            tls_min_version: options.tls_min_version.clone(),
            cipher_suites: options.tls_cipher_suites.clone(),
            curves: options.tls_curve_preferences.clone(),
            sni: sni_certificates(&options.tls_sni_cert_key)?,
            http1_alone: options.disable_http2_serving,
            profiling: configuration.has_profiling(),
            always_allow_paths: options.always_allow_paths.clone(),
            token_ttl: options.token_ttl,
            decision_ttls: DecisionTtls {
                allowed: options.authorized_ttl,
                denied: options.unauthorized_ttl,
            },
        };
        let ready = running.clone();
        let limits =
            Limits { component: "kube-scheduler", qps: 50, burst: 100, timeout: REQUEST_TIMEOUT };
        let (authentication, authorization) =
            (&options.authentication_kubeconfig, &options.authorization_kubeconfig);
        let reviewers = Reviewers {
            authentication: reviewer(&client, authentication.as_deref(), limits, &requests).await?,
            authorization: reviewer(&client, authorization.as_deref(), limits, &requests).await?,
        };
        let endpoints = Endpoints {
            reviewers,
            registry: registry.clone(),
            more: vec![(RESOURCES, resources.clone())],
            configz: configuration.configz().to_string(),
            health: Health::with_readiness(move || ready.is_ready()),
        };
        let serving = Serving::open(port, endpoints)?;
        serving.look_up().await?;
        tokio::spawn(serving.run());
    }
    let pages = scheduler::Pages { metrics: registry, resources };
    systemd::notify_ready();
    Ok(scheduler::run(configuration, &options, client, &pages, running, stop).await?)
}

/// Runs the scheduler until the context's stop. If it panics, it starts again.
async fn run_scheduler(context: &Context, service: Service, client: Client) {
    while !context.stop.is_cancelled() {
        info!("starting the scheduler");
        let (service, client, informers) =
            (service.clone(), client.clone(), context.informers.clone());
        let work = panics::task(async move { service.run(client, &informers, || {}).await });
        tokio::select! {
            ended = work => match ended {
                Ok(Ok(())) => {}
                Ok(Err(failed)) => error!("scheduler: {failed}"),
                Err(panicked) => error!("scheduler: {panicked}"),
            },
            () = context.stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(RESTART_DELAY) => {}
            () = context.stop.cancelled() => {}
        }
    }
}

/// Runs controllers until the context's stop. One that panics starts again; one that returns has nothing
/// to do with these settings.
pub async fn run_all(context: Context, controllers: Vec<Controller>) {
    let run = |controller: Controller| {
        let context = context.of(&controller);
        async move {
            while !context.stop.is_cancelled() {
                info!(controller = controller.name, "starting");
                let work = panics::task((controller.run)(context.clone()));
                let running = context.metrics.running.with([controller.name, MANAGER]);
                running.set(1.0);
                let ended = context.stop.run_until_cancelled(work).await;
                running.set(0.0);
                match ended {
                    None => return,
                    Some(Ok(())) => {
                        info!(controller = controller.name, "nothing to do");
                        return;
                    }
                    Some(Err(panicked)) => error!(controller = controller.name, "{panicked}"),
                }
                tokio::select! {
                    () = tokio::time::sleep(RESTART_DELAY) => {}
                    () = context.stop.cancelled() => {}
                }
            }
        }
    };
    join_all(controllers.into_iter().map(run)).await;
}
