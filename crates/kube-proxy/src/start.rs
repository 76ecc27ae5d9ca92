//! The start of kube-proxy, in order: the node's object, the kernel's settings, the iptables in use,
//! an engine for each family.

use std::io::ErrorKind;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_config::ProxyConfig;
use longshore_proxy::Family;
use longshore_proxy::accounting;
use longshore_proxy::apply::{self, Backend, CleanupMode, Iptables, Limits};
use longshore_proxy::config::{KubeProxyConfiguration, LocalMode, Machine, Mode};
use longshore_proxy::model::{self, Tracker};
use longshore_proxy::proxier::Proxier;
use longshore_proxy::render::Settings;
use longshore_proxy::sysctl::{self, BE_LIBERAL, ROUTE_LOCALNET, Sysctls};
use longshore_proxy::userspace::{self, Relays};
use tokio::sync::watch;
use tracing::{info, warn};

use super::Error;
use super::engine::Engine;
use super::own_node::{self, OwnNode};

/// What the work is done with.
pub(super) struct Parts {
    pub(super) node: watch::Receiver<Option<Node>>,
    pub(super) machine: Machine,
    /// The engine of each family that the kernel has, and its tables.
    pub(super) engines: Vec<(Engine, Iptables)>,
}

pub(super) async fn set_up(
    config: &ProxyConfig,
    mut node: watch::Receiver<Option<Node>>,
    recorder: &Recorder,
) -> Result<Parts, Error> {
    let settings = &config.settings;
    let own = own_node::wait(&mut node, &config.node_name, settings).await?;
    let sysctls = Sysctls::default();
    set_conntrack(&sysctls, settings, recorder, &config.node_name)?;
    let backend = Backend::detect(Limits::default()).await?;
    let mut machine = Machine {
        random_fully: backend.random_fully(),
        tcp_be_liberal: sysctls.get(BE_LIBERAL).is_ok_and(|value| value == 1),
        accounting: accounting::ensure().await,
        ..Machine::default()
    };
    follow_node(&mut machine, settings, &own);

    let mut families = Vec::new();
    for family in Family::ALL {
        let iptables = backend.family(family);
        match iptables.supported().await {
            Ok(()) => families.push(iptables),
            Err(error) if family == own.primary => {
                warn!(%family, %error, "no iptables");
                return Err(Error::Family(family));
            }
            Err(error) => {
                info!(%family, %error, "no iptables for this family: only services of the other family are served")
            }
        }
    }
    check_families(settings, &own, families.len() == 1)?;
    let v4 = settings.settings(Family::V4, &machine);
    if settings.mode != Mode::Userspace && v4.localhost_node_ports {
        sysctls.ensure(ROUTE_LOCALNET, 1)?;
    }
    if settings.node_port_addresses.is_empty() {
        info!("nodePortAddresses is empty: node ports are served at all addresses of the node");
    }
    let mut engines = Vec::new();
    for iptables in families {
        if let Err(error) = apply::cleanup_nftables(iptables.family()).await {
            warn!(family = %iptables.family(), %error, "cannot remove rules of nftables mode");
        }
        let other = match settings.mode {
            Mode::Userspace => CleanupMode::IpTables,
            _ => CleanupMode::Userspace,
        };
        if let Err(error) = apply::cleanup_mode(&iptables, other).await {
            warn!(family = %iptables.family(), %error, "cannot remove rules of another mode");
        }
        engines.push((engine(config, &machine, &own, iptables.clone()), iptables));
    }
    Ok(Parts { node, machine, engines })
}

/// What of the machine follows the node's object and its interfaces.
pub(super) fn follow_node(machine: &mut Machine, settings: &KubeProxyConfiguration, own: &OwnNode) {
    machine.node_ips.clone_from(&own.ips);
    machine.pod_cidrs.clone_from(&own.pod_cidrs);
    // Checked only where it matters.
    if !settings.node_port_addresses.is_empty() {
        machine.addresses = longshore_machine::addresses::host_addresses();
    }
}

fn engine(config: &ProxyConfig, machine: &Machine, own: &OwnNode, iptables: Iptables) -> Engine {
    let family = iptables.family();
    let node = model::Node { name: config.node_name.clone(), zone: own.zone.clone() };
    let tracker = Tracker::new(family, node, Timestamp::now())
        .with_external_ips(config.gates.enabled("AllowServiceExternalIPs"));
    let rules = config.settings.settings(family, machine);
    if config.settings.mode == Mode::Userspace {
        let settings = relay_settings(&config.settings, &rules);
        return Engine::Userspace(Box::new(Relays::new(tracker, iptables, settings)));
    }
    Engine::IpTables(Box::new(Proxier::new(tracker, iptables, rules)))
}

fn relay_settings(settings: &KubeProxyConfiguration, rules: &Settings) -> userspace::Settings {
    let any = match rules.family {
        Family::V4 => IpAddr::from([0; 4]),
        Family::V6 => IpAddr::from([0; 16]),
    };
    let bind: Option<IpAddr> = settings.bind_address.parse().ok();
    let listen = bind.filter(|ip| Family::of(*ip) == rules.family).unwrap_or(any);
    let ports = settings.port_range_bounds().flatten();
    userspace::Settings { ports, ..userspace::Settings::new(listen, rules.node_ip) }
}

/// A container may not be allowed to: then that is logged, and the settings have to be made outside.
fn set_conntrack(
    sysctls: &Sysctls,
    settings: &KubeProxyConfiguration,
    recorder: &Recorder,
    node: &str,
) -> Result<(), sysctl::Error> {
    let cpus = u32::try_from(longshore_machine::Machine::read().cpus).unwrap_or(1);
    let error = match sysctls.set_conntrack(&settings.conntrack_sysctls(), cpus) {
        Err(error) => error,
        Ok(()) => return Ok(()),
    };
    let refused = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];
    match &error {
        sysctl::Error::Write { source, .. } if refused.contains(&source.kind()) => {
            warn!(%error, "cannot configure connection tracking");
            let message = format!("cannot configure connection tracking: {error}");
            let about = node_reference(node);
            recorder.event(about, EventType::Warning, "ReadOnlySysFS", &message);
            Ok(())
        }
        _ => Err(error),
    }
}

/// Ranges that are all of the wrong family would make all traffic external.
fn check_families(
    settings: &KubeProxyConfiguration,
    own: &OwnNode,
    single: bool,
) -> Result<(), Error> {
    let primary = own.primary;
    let others = |families: Vec<Family>| {
        !families.is_empty() && families.iter().all(|family| *family != primary)
    };
    let cluster: Vec<_> = settings.cluster_cidrs().filter_map(family_of).collect();
    let pods = own.pod_cidrs.iter().map(model::Cidr::family).collect();
    let node_ports = settings.node_port_addresses.iter();
    match settings.detect_local_mode {
        LocalMode::ClusterCidr if single && others(cluster) => {
            return Err(Error::OtherFamily { what: "clusterCIDR", primary });
        }
        LocalMode::NodeCidr if others(pods) => {
            return Err(Error::OtherFamily { what: "podCIDRs of the node", primary });
        }
        _ => {}
    }
    if others(node_ports.filter_map(|range| family_of(range)).collect()) {
        warn!("nodePortAddresses has no range of {primary}: all of its addresses serve node ports");
    }
    Ok(())
}

fn family_of(range: &str) -> Option<Family> {
    range.parse::<model::Cidr>().ok().map(|range| range.family())
}
