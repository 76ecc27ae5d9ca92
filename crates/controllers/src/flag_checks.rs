//! What the flags say, checked: controllers, their settings, the leader election, the port.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use kube::config::Kubeconfig;
use longshore_client::reviews::DecisionTtls;
use longshore_csr::Signer;
use longshore_informer::LeaderConfig;
use longshore_serving::FrontProxyHeaders;

use crate::args::{Flags, RELEASE_LEASE};
use crate::cluster_settings::{Recycler, RecyclerSettings};
use crate::delegated::DelegatedOptions;
use crate::list::{WITHOUT_WORK, gate};
use crate::serving::PortOptions;
use crate::signer_files::SignerError;
use crate::{ClusterSettings, Controller, Settings, SignerFiles, all};

/// The controller that `--enable-garbage-collector` is about.
const GARBAGE_COLLECTOR: &str = "garbage-collector-controller";
/// The gate of ClusterTrustBundles.
const CLUSTER_TRUST_BUNDLE: &str = "ClusterTrustBundle";

/// The host of an apiserver's URL: a name, or an address without brackets.
fn host_of(url: &str) -> Option<String> {
    let host = url.parse::<hyper::Uri>().ok()?.host()?.to_owned();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    Some(bare.parse::<IpAddr>().map_or_else(|_| host.clone(), |address| address.to_string()))
}

/// Why a command line cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// There is no such controller.
    #[error("{0:?} is not in the list of known controllers")]
    UnknownController(String),
    /// Flags of the log.
    #[error("{0}")]
    Logging(String),
    /// Flags that do not go together.
    #[error("{0}")]
    Signers(&'static str),
    /// Flags of nodes' ranges that do not go together.
    #[error("{0}")]
    Masks(&'static str),
    /// One flag without the other.
    #[error("--cluster-signing-{0}cert-file and --cluster-signing-{0}key-file go together")]
    Pair(&'static str),
    /// A CA cannot be used.
    #[error(transparent)]
    Signer(#[from] SignerError),
    /// Certificates cannot be read.
    #[error(transparent)]
    Certificates(#[from] longshore_tls::Error),
    /// A file is not the template of a pod.
    #[error("{}: not the template of a pod: {reason}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl Flags {
    /// What the log is started with.
    ///
    /// # Errors
    /// The flags of the log are not valid.
    pub fn logging(&self) -> Result<longshore_base::logging::Settings, FlagError> {
        let settings = self.logging.settings(self.v, |gate| self.feature_gates.enabled(gate));
        settings.map_err(FlagError::Logging)
    }

    /// The controllers that are to run.
    pub fn selected(&self) -> Result<Vec<Controller>, FlagError> {
        let all = all();
        let is_named = |one: &Controller, name: &str| one.name == name || one.alias == name;
        for name in &self.controllers {
            let name = name.strip_prefix('-').unwrap_or(name);
            if name == "*" || all.iter().any(|one| is_named(one, name)) {
                continue;
            }
            let known = WITHOUT_WORK.iter().filter(|_| !name.is_empty());
            match known.clone().find(|(own, alias, _)| [own, alias].contains(&&name)) {
                None => return Err(FlagError::UnknownController(name.to_owned())),
                Some((name, _, why)) => tracing::info!(controller = name, "does not run: {why}"),
            }
        }
        let has = |wanted: &str| self.controllers.iter().any(|name| name == wanted);
        let is_selected = |one: &Controller| {
            if one.name == GARBAGE_COLLECTOR && !self.enable_garbage_collector {
                return false;
            }
            let mut names = [one.name, one.alias].into_iter();
            if names.clone().any(|name| has(&format!("-{name}"))) {
                return false;
            }
            names.any(has) || (has("*") && one.by_default)
        };
        let has_gate =
            |one: &Controller| gate(one.name).is_none_or(|gate| self.feature_gates.enabled(gate));
        Ok(all.into_iter().filter(|one| is_selected(one) && has_gate(one)).collect())
    }

    /// The leader election of a copy of that identity, if copies elect one.
    pub fn leader(&self, identity: &str) -> Option<LeaderConfig> {
        self.leader_elect.then(|| LeaderConfig {
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self.leader_elect_resource_name.clone(),
            identity: identity.to_owned(),
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
            releases_on_stop: self.feature_gates.enabled(RELEASE_LEASE),
        })
    }

    /// The CAs of the signers: one for all, or one for each that has flags of its own.
    fn signers(&self) -> Result<Vec<SignerFiles>, FlagError> {
        let pair = |name, certificate: &Option<PathBuf>, key: &Option<PathBuf>| match (
            certificate.clone(),
            key.clone(),
        ) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            _ => Err(FlagError::Pair(name)),
        };
        let of_all = pair("", &self.cluster_signing_cert_file, &self.cluster_signing_key_file)?;
        let each = [
            (
                Signer::KubeletServing,
                pair(
                    "kubelet-serving-",
                    &self.cluster_signing_kubelet_serving_cert_file,
                    &self.cluster_signing_kubelet_serving_key_file,
                )?,
            ),
            (
                Signer::KubeletClient,
                pair(
                    "kubelet-client-",
                    &self.cluster_signing_kubelet_client_cert_file,
                    &self.cluster_signing_kubelet_client_key_file,
                )?,
            ),
            (
                Signer::Client,
                pair(
                    "kube-apiserver-client-",
                    &self.cluster_signing_kube_apiserver_client_cert_file,
                    &self.cluster_signing_kube_apiserver_client_key_file,
                )?,
            ),
            (
                Signer::LegacyUnknown,
                pair(
                    "legacy-unknown-",
                    &self.cluster_signing_legacy_unknown_cert_file,
                    &self.cluster_signing_legacy_unknown_key_file,
                )?,
            ),
        ];
        let has_own = each.iter().any(|(_, own)| own.is_some());
        if has_own && of_all.is_some() {
            return Err(FlagError::Signers(
                "cannot specify --cluster-signing-{cert,key}-file and other \
                 --cluster-signing-*-file flags at the same time",
            ));
        }
        let files = |(signer, own): (Signer, Option<(PathBuf, PathBuf)>)| {
            let (certificate, key) = own.or_else(|| of_all.clone())?;
            Some(SignerFiles { signer, certificate, key })
        };
        let signers: Vec<SignerFiles> = each.into_iter().filter_map(files).collect();
        for files in &signers {
            files.read()?;
        }
        if self.approve_kubelet_serving {
            self.check_serving_authority(&signers)?;
        }
        Ok(signers)
    }

    /// Whatever a node gets signed, it must not pass for the apiserver with it: the CA must not be one
    /// that clients of the apiserver trust.
    fn check_serving_authority(&self, signers: &[SignerFiles]) -> Result<(), FlagError> {
        let of = |signer| signers.iter().find(|files| files.signer == signer);
        let Some(serving) = of(Signer::KubeletServing) else {
            return Err(FlagError::Signers(
                "--approve-kubelet-serving requires --cluster-signing-kubelet-serving-cert-file \
                 and --cluster-signing-kubelet-serving-key-file",
            ));
        };
        let own = serving.read()?;
        let mut trusted = Vec::new();
        if let Some(root) = &self.root_ca_file {
            let roots = longshore_tls::certificates(root)?;
            trusted.extend(roots.into_iter().map(|root| root.to_vec()));
        }
        for files in signers.iter().filter(|files| files.signer != Signer::KubeletServing) {
            trusted.push(files.read()?.certificate().to_vec());
        }
        if trusted.iter().any(|certificate| certificate == own.certificate()) {
            return Err(FlagError::Signers(
                "--approve-kubelet-serving requires a CA of its own in \
                 --cluster-signing-kubelet-serving-cert-file: not that of --root-ca-file or of \
                 another signer",
            ));
        }
        Ok(())
    }

    /// The host of the apiserver's URL.
    pub(crate) fn apiserver_host(&self) -> Option<String> {
        let url = match &self.master {
            Some(master) => master.clone(),
            None => {
                let kubeconfig = Kubeconfig::read_from(self.kubeconfig.as_ref()?).ok()?;
                let current = kubeconfig.current_context?;
                let context = kubeconfig.contexts.into_iter().find(|one| one.name == current)?;
                let name = context.context?.cluster;
                let cluster = kubeconfig.clusters.into_iter().find(|one| one.name == name)?;
                cluster.cluster?.server?
            }
        };
        host_of(&url)
    }

    /// The port, unless there is none.
    pub(crate) fn port(&self) -> Option<PortOptions> {
        (self.secure_port != 0).then(|| PortOptions {
            address: SocketAddr::new(self.bind_address, self.secure_port),
            certificate: self.tls_cert_file.clone().zip(self.tls_private_key_file.clone()),
            delegated: DelegatedOptions {
                client_ca: self.client_ca_file.clone(),
                front_proxy_ca: self.requestheader_client_ca_file.clone(),
                headers: FrontProxyHeaders {
                    allowed_names: self.requestheader_allowed_names.clone(),
                    username_headers: self.requestheader_username_headers.clone(),
                    uid_headers: self.requestheader_uid_headers.clone(),
                    group_headers: self.requestheader_group_headers.clone(),
                    extra_prefixes: self.requestheader_extra_headers_prefix.clone(),
                },
                skip_lookup: self.authentication_skip_lookup,
                requires_lookup: !self.authentication_tolerate_lookup_failure,
            },
            tls_min_version: self.tls_min_version.clone(),
            cipher_suites: self.tls_cipher_suites.clone(),
            curves: self.tls_curve_preferences.clone(),
            sni: self.tls_sni_cert_key.clone(),
            http1_alone: self.disable_http2_serving,
            profiling: self.profiling,
            always_allow_paths: self.authorization_always_allow_paths.clone(),
            token_ttl: self.authentication_token_webhook_cache_ttl,
            decision_ttls: DecisionTtls {
                allowed: self.authorization_webhook_cache_authorized_ttl,
                denied: self.authorization_webhook_cache_unauthorized_ttl,
            },
        })
    }

    /// Bits of nodes' ranges of IPv4 and IPv6 addresses.
    fn node_masks(&self) -> Result<(u8, u8), FlagError> {
        let set = |bits: u8| Some(bits).filter(|bits| *bits != 0);
        let (both, v4, v6) = (
            set(self.node_cidr_mask_size),
            set(self.node_cidr_mask_size_ipv4),
            set(self.node_cidr_mask_size_ipv6),
        );
        let is_v6 = self.cluster_cidr.first().is_some_and(|cidr| cidr.contains(':'));
        let why = match self.cluster_cidr.len() {
            _ if !self.allocate_node_cidrs => None,
            0 => None,
            1 if both.is_some() && (v4.is_some() || v6.is_some()) => Some(
                "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed \
                 if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use \
                 IPFamily specific flags",
            ),
            1 if v4.is_some() && is_v6 => Some(
                "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster",
            ),
            1 if v6.is_some() && !is_v6 => Some(
                "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
            ),
            1 => None,
            _ if both.is_some() => {
                Some("usage of --node-cidr-mask-size is not allowed with dual-stack clusters")
            }
            _ => None,
        };
        match why {
            Some(why) => Err(FlagError::Masks(why)),
            None => Ok((both.or(v4).unwrap_or(24), both.or(v6).unwrap_or(64))),
        }
    }

    /// The settings of controllers.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn settings(&self) -> Result<Settings, FlagError> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path)
                .map_err(|source| FlagError::File { path: path.clone(), source })
        };
        let template = |path: &Option<PathBuf>| -> Result<Option<Pod>, FlagError> {
            let Some(path) = path.as_ref().filter(|path| !path.as_os_str().is_empty()) else {
                return Ok(None);
            };
            let refused = |reason: String| FlagError::Template { path: path.clone(), reason };
            let options = serde_saphyr::options! { with_snippet: false };
            // by way of a tree: the code that reads a pod from JSON is there already
            let tree: serde_json::Value =
                serde_saphyr::from_str_with_options(&read(path)?, options)
                    .map_err(|error| refused(error.to_string()))?;
            let pod = serde_json::from_str(&tree.to_string());
            pod.map(Some).map_err(|error| refused(error.to_string()))
        };
        let (node_mask_v4, node_mask_v6) = self.node_masks()?;
        Ok(Settings {
            deployment_workers: self.concurrent_deployment_syncs,
            replicaset_workers: self.concurrent_replicaset_syncs,
            replication_controller_workers: self.concurrent_rc_syncs,
            daemonset_workers: self.concurrent_daemonset_syncs,
            statefulset_workers: self.concurrent_statefulset_syncs,
            job_workers: self.concurrent_job_syncs,
            cronjob_workers: self.concurrent_cron_job_syncs,
            cluster: ClusterSettings {
                service_endpoint_workers: self.concurrent_service_endpoint_syncs,
                endpoint_workers: self.concurrent_endpoint_syncs,
                mirroring_workers: self.mirroring_concurrent_service_endpoint_syncs,
                max_endpoints_per_slice: self.max_endpoints_per_slice,
                max_mirrored_endpoints: self.mirroring_max_endpoints_per_subset,
                endpoint_batch_period: self.endpoint_updates_batch_period,
                slice_batch_period: self.endpointslice_updates_batch_period,
                mirroring_batch_period: self.mirroring_endpointslice_updates_batch_period,
                device_taint_workers: self.concurrent_device_taint_eviction_syncs,
                namespace_workers: self.concurrent_namespace_syncs,
                service_account_workers: self.concurrent_serviceaccount_token_syncs,
                root_ca: self.root_ca_file.as_ref().map(read).transpose()?,
                gc_workers: self.concurrent_gc_syncs,
                node_monitor_period: self.node_monitor_period,
                node_monitor_grace: self.node_monitor_grace_period,
                node_startup_grace: self.node_startup_grace_period,
                node_eviction_rate: self.node_eviction_rate,
                secondary_node_eviction_rate: self.secondary_node_eviction_rate,
                unhealthy_zone_threshold: self.unhealthy_zone_threshold,
                large_cluster_threshold: self.large_cluster_size_threshold,
                terminated_pod_threshold: self.terminated_pod_gc_threshold,
                allocate_node_cidrs: self.allocate_node_cidrs,
                enable_hostpath_provisioner: self.enable_hostpath_provisioner,
                signers: self.signers()?,
                cluster_trust_bundle: self.feature_gates.enabled(CLUSTER_TRUST_BUNDLE),
                signing_duration: self.cluster_signing_duration,
                approve_kubelet_serving: self.approve_kubelet_serving,
                service_ranges: self.service_cluster_ip_range.clone(),
                apiserver_host: self.apiserver_host(),
                legacy_token_period: self.legacy_service_account_token_clean_up_period,
                enable_dynamic_provisioning: self.enable_dynamic_provisioning,
                disable_force_detach_on_timeout: self.disable_force_detach_on_timeout,
                resource_claim_workers: self.concurrent_resourceclaim_syncs,
                ephemeral_volume_workers: self.concurrent_ephemeralvolume_syncs,
                recyclers: RecyclerSettings {
                    host_path: Recycler {
                        minimum: self.pv_recycler_minimum_timeout_hostpath,
                        increment: self.pv_recycler_timeout_increment_hostpath,
                        template: template(&self.pv_recycler_pod_template_filepath_hostpath)?,
                    },
                    nfs: Recycler {
                        minimum: self.pv_recycler_minimum_timeout_nfs,
                        increment: self.pv_recycler_increment_timeout_nfs,
                        template: template(&self.pv_recycler_pod_template_filepath_nfs)?,
                    },
                },
                cluster_cidrs: self.cluster_cidr.clone(),
                node_mask_v4,
                node_mask_v6,
                ttl_after_finished_workers: self.concurrent_ttl_after_finished_syncs,
                resource_quota_workers: self.concurrent_resource_quota_syncs,
                resource_quota_period: self.resource_quota_sync_period,
                hpa_workers: self.concurrent_horizontal_pod_autoscaler_syncs,
                hpa_period: self.horizontal_pod_autoscaler_sync_period,
                hpa_tolerance: self.horizontal_pod_autoscaler_tolerance,
                hpa_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
                hpa_cpu_initialization: self.horizontal_pod_autoscaler_cpu_initialization_period,
                hpa_initial_readiness: self.horizontal_pod_autoscaler_initial_readiness_delay,
                ..ClusterSettings::default()
            },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

    use clap::Parser;
    use longshore_client::ConfigSource;
    use longshore_gates::FeatureGates;

    use super::*;

    /// Each flag with its default and another value, of kube-controller-manager 1.36.
    const VALUES: &str = include_str!("../tests/data/flag-values-1.36.tsv");

    #[test]
    fn flags_of_upstream_take_their_defaults_and_other_values() {
        let page = include_str!("../../../docs/flags.md");
        for line in VALUES.lines() {
            let [name, default, other] = line.split('\t').collect::<Vec<_>>()[..] else {
                unreachable!("{line}")
            };
            for value in [default, other] {
                let given = ["x".into(), OsString::from(format!("--{name}={value}"))];
                let flags = Flags::try_parse_from(Flags::given(given.into()));
                let flags = flags.unwrap_or_else(|error| unreachable!("{error}"));
                flags.selected().unwrap();
                for ignored in flags.without_effect() {
                    let ignored = ignored.split('=').next().unwrap();
                    assert!(page.contains(&format!("`--{ignored}`")), "{ignored} is documented");
                }
            }
        }
    }

    #[test]
    fn flags_of_the_garbage_collector_and_masks() {
        let flags = |line: &[&str]| Flags::try_parse_from([&["x"], line].concat()).unwrap();
        let has =
            |own: Flags| own.selected().unwrap().iter().any(|own| own.name == GARBAGE_COLLECTOR);
        assert!(has(flags(&[])) && !has(flags(&["--enable-garbage-collector=false"])));
        let masks = |line: &[&str]| {
            let settings = flags(line).settings().map_err(|error| error.to_string())?;
            Ok::<_, String>((settings.cluster.node_mask_v4, settings.cluster.node_mask_v6))
        };
        assert_eq!(masks(&[]), Ok((24, 64)));
        assert_eq!(masks(&["--node-cidr-mask-size-ipv4=0"]), Ok((24, 64)));
        assert_eq!(masks(&["--node-cidr-mask-size=26"]), Ok((26, 26)));
        let error = masks(&[
            "--allocate-node-cidrs=true",
            "--node-cidr-mask-size=26",
            "--cluster-cidr=10.0.0.0/8,fd00::/48",
        ]);
        assert!(error.unwrap_err().contains("not allowed with dual-stack"));
    }

    /// What `kubeadm init` writes into the static pod's manifest.
    #[test]
    fn flags_of_kubeadm_start_the_program() {
        let line = "kube-controller-manager --allocate-node-cidrs=true \
            --authentication-kubeconfig=/etc/kubernetes/controller-manager.conf \
            --authorization-kubeconfig=/etc/kubernetes/controller-manager.conf \
            --bind-address=127.0.0.1 --client-ca-file=/etc/kubernetes/pki/ca.crt \
            --cluster-cidr=10.244.0.0/16 --cluster-name=kubernetes \
            --cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt \
            --cluster-signing-key-file=/etc/kubernetes/pki/ca.key \
            --controllers=*,bootstrapsigner,tokencleaner \
            --kubeconfig=/etc/kubernetes/controller-manager.conf --leader-elect=true \
            --requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt \
            --service-account-private-key-file=/etc/kubernetes/pki/sa.key \
            --service-cluster-ip-range=10.96.0.0/12 --use-service-account-credentials=true";
        let dir = tempfile::tempdir().unwrap();
        authority(dir.path(), "ca");
        let line = line.replace("/etc/kubernetes/pki", &dir.path().display().to_string());
        let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
        flags.selected().unwrap();
        flags.settings().unwrap();
        let ignored = flags.without_effect();
        assert_eq!(ignored, ["cluster-name", "service-account-private-key-file"]);
        assert!(flags.use_service_account_credentials);
        let delegated = flags.port().unwrap().delegated;
        assert!(delegated.front_proxy_ca.is_some() && delegated.headers.allowed_names.is_empty());
        assert_eq!(delegated.headers.username_headers, ["x-remote-user"]);
    }

    fn selected(list: &str) -> Result<Vec<&'static str>, String> {
        let flags = Flags::try_parse_from(["x", &format!("--controllers={list}")]).unwrap();
        let selected = flags.selected().map_err(|error| error.to_string())?;
        Ok(selected.iter().map(|one| one.name).collect())
    }

    /// The file has the names that upstream's command line takes, which are off by default, and older ones.
    #[test]
    fn flags_name_controllers_as_upstream() {
        let lines = include_str!("testdata/controllers.txt").lines();
        let all = all();
        for line in lines.filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, state, aliases @ ..] = &words[..] else { panic!("{line}") };
            let own = all.iter().find(|one| one.name == *name);
            if let Some(own) = own {
                let alias = aliases.first().unwrap_or(name);
                assert_eq!((own.by_default, own.alias), (*state == "on", *alias), "{name}");
            }
            let runs =
                own.is_some() && gate(name).is_none_or(|it| FeatureGates::default().enabled(it));
            for given in [name].into_iter().chain(aliases) {
                let named = selected(given).unwrap_or_else(|error| panic!("{given}: {error}"));
                assert_eq!(named, if runs { vec![*name] } else { vec![] }, "{given}");
                assert!(!selected(&format!("*,-{given}")).unwrap().contains(name), "{given}");
            }
        }
    }

    #[test]
    fn flags_of_nodes_ranges() {
        let (v4, v6) = ("--cluster-cidr=10.0.0.0/8", "--cluster-cidr=fd00::/48");
        let both = "--cluster-cidr=10.0.0.0/8,fd00::/48";
        for (flags, expected) in [
            (vec![v4], Ok((24, 64))),
            (vec![v4, "--node-cidr-mask-size=20"], Ok((20, 20))),
            (vec![v4, "--node-cidr-mask-size-ipv4=22"], Ok((22, 64))),
            (vec![v6, "--node-cidr-mask-size-ipv6=56"], Ok((24, 56))),
            (vec![both, "--node-cidr-mask-size-ipv4=22"], Ok((22, 64))),
            (vec![both, "--node-cidr-mask-size=20"], Err("not allowed with dual-stack clusters")),
            (
                vec![v4, "--node-cidr-mask-size=20", "--node-cidr-mask-size-ipv4=22"],
                Err("is not allowed if --node-cidr-mask-size is set"),
            ),
            (vec![v6, "--node-cidr-mask-size-ipv4=22"], Err("for a single-stack IPv6 cluster")),
            (vec![v4, "--node-cidr-mask-size-ipv6=56"], Err("for a single-stack IPv4 cluster")),
        ] {
            let line = ["x", "--allocate-node-cidrs"].into_iter().chain(flags.clone());
            let settings = Flags::try_parse_from(line).unwrap().settings();
            match (settings, expected) {
                (Ok(settings), Ok(masks)) => {
                    let cluster = settings.cluster;
                    assert_eq!((cluster.node_mask_v4, cluster.node_mask_v6), masks, "{flags:?}");
                }
                (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{error}"),
                (found, _) => panic!("{flags:?}: {}", found.is_ok()),
            }
        }
    }

    #[test]
    fn flags_of_gates_select_controllers() {
        for (gate, name) in [
            (
                "ClusterTrustBundle",
                "kube-apiserver-serving-clustertrustbundle-publisher-controller",
            ),
            ("DRADeviceTaints", "device-taint-eviction-controller"),
            ("PodCertificateRequest", "podcertificaterequest-cleaner-controller"),
        ] {
            for is_on in [true, false] {
                let gates = format!("--feature-gates={gate}={is_on}");
                let flags = Flags::try_parse_from(["x", &gates]).unwrap();
                let selected = flags.selected().unwrap();
                assert_eq!(selected.iter().any(|one| one.name == name), is_on, "{gates}");
                assert!(flags.without_effect().is_empty(), "{gates}");
            }
        }
    }

    #[test]
    fn flags_select_controllers() {
        let has_gate = |one: &&Controller| {
            gate(one.name).is_none_or(|gate| FeatureGates::default().enabled(gate))
        };
        let default: Vec<_> = all()
            .iter()
            .filter(|one| one.by_default)
            .filter(has_gate)
            .map(|one| one.name)
            .collect();
        assert_eq!(selected("*").unwrap(), default);
        let without = selected("*,-deployment-controller,-job").unwrap();
        assert_eq!(without.len(), default.len() - 2);
        assert_eq!(selected("deployment,replicaset-controller").unwrap().len(), 2);
        assert_eq!(
            selected("*,none").unwrap_err(),
            "\"none\" is not in the list of known controllers"
        );
    }

    /// A CA's files in a directory.
    fn authority(dir: &std::path::Path, name: &str) -> [String; 2] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let files = [("crt", pem), ("key", key.serialize_pem())];
        files.map(|(kind, text)| {
            let path = dir.join(format!("{name}.{kind}"));
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        })
    }

    #[test]
    fn flags_of_signers() {
        let dir = tempfile::tempdir().unwrap();
        let ([ca, key], [own, own_key]) =
            (authority(dir.path(), "ca"), authority(dir.path(), "serving"));
        let all = [
            format!("--cluster-signing-cert-file={ca}"),
            format!("--cluster-signing-key-file={key}"),
        ];
        let serving = |ca: &str, key: &str| {
            [
                format!("--cluster-signing-kubelet-serving-cert-file={ca}"),
                format!("--cluster-signing-kubelet-serving-key-file={key}"),
            ]
        };
        let root = format!("--root-ca-file={ca}");
        let approve = "--approve-kubelet-serving".to_owned();
        let signers = |flags: &[&[String]]| {
            let flags = flags.iter().flat_map(|flags| flags.iter().cloned());
            let flags = std::iter::once("x".to_owned()).chain(flags);
            let settings = Flags::try_parse_from(flags).unwrap().settings();
            settings
                .map(|own| own.cluster.signers.iter().map(|own| own.signer).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        assert_eq!(signers(&[]).unwrap(), []);
        assert_eq!(signers(&[&all]).unwrap().len(), 4);
        let own = serving(&own, &own_key);
        assert_eq!(signers(&[&own]).unwrap(), [Signer::KubeletServing]);
        assert_eq!(signers(&[&own, &[root.clone(), approve.clone()]]).unwrap().len(), 1);
        for (flags, why) in [
            (&[&all[..], &own[..]][..], "at the same time"),
            (&[&all[..1]][..], "go together"),
            (&[&own[1..]][..], "--cluster-signing-kubelet-serving-cert-file"),
            (&[&[approve.clone()][..]][..], "requires --cluster-signing-kubelet-serving-cert-file"),
            (&[&all[..], &[approve.clone()][..]][..], "a CA of its own"),
            (&[&serving(&ca, &key)[..], &[root, approve][..]][..], "a CA of its own"),
            (&[&serving(&ca, &own_key)[..]][..], "not that of the certificate"),
            (&[&serving("/none", &own_key)[..]][..], "/none"),
        ] {
            let error = signers(flags).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
        for duration in ["9999999h", "0s", "-1h"] {
            let flag = format!("--cluster-signing-duration={duration}");
            assert!(Flags::try_parse_from(["x", &flag]).is_err(), "{duration}");
        }
    }

    #[test]
    fn flags_read_templates_of_recyclers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let flag = format!("--pv-recycler-pod-template-filepath-nfs={}", file.path().display());
        let settings = || Flags::try_parse_from(["x", &flag]).unwrap().settings();
        std::fs::write(file.path(), "kind: Pod\nspec: {containers: [{name: c, image: scrub}]}\n")
            .unwrap();
        let pod = settings().unwrap().cluster.recyclers.nfs.template.unwrap();
        assert_eq!(pod.spec.unwrap().containers[0].image.as_deref(), Some("scrub"));
        std::fs::write(file.path(), "spec: none").unwrap();
        let error = settings().unwrap_err().to_string();
        assert!(error.contains("not the template of a pod"), "{error}");
    }

    #[test]
    fn flags_are_those_of_upstream() {
        let flags = Flags::try_parse_from([
            "x",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--kubeconfig=/k",
            "--profiling=false",
            "--tls-sni-cert-key=a,b:c",
            "--tls-sni-cert-key=d,e",
            "--tls-curve-preferences=29,23",
            "--disable-http2-serving",
            "--authentication-tolerate-lookup-failure=false",
            "--node-monitor-grace-period=40s",
            "--cluster-cidr=10.0.0.0/8,fd00::/48",
            "--feature-gates=MemoryQoS=true",
            "-v=2",
        ])
        .unwrap();
        assert!(flags.leader("me").is_none());
        let port = flags.port().unwrap();
        assert_eq!((port.sni.len(), port.curves.as_slice()), (2, &[29, 23][..]));
        assert!(port.http1_alone && !port.profiling && port.delegated.requires_lookup);
        let empty = ["x", "--root-ca-file=", "--client-ca-file=", "--cluster-cidr="];
        assert_eq!(Flags::given(empty.map(OsString::from).into()), ["x"]);
        let settings = flags.settings().unwrap();
        assert_eq!(settings.cluster.node_monitor_grace, Duration::from_secs(40));
        assert_eq!(settings.cluster.cluster_cidrs.len(), 2);
        let default = Flags::try_parse_from(["x"]).unwrap();
        assert_eq!(default.leader("me").unwrap().lease_duration, Duration::from_secs(15));
        assert!(!default.leader("me").unwrap().releases_on_stop);
        let releases =
            ["x", "--feature-gates=ControllerManagerReleaseLeaderElectionLockOnExit=true"];
        assert!(Flags::try_parse_from(releases).unwrap().leader("me").unwrap().releases_on_stop);
        for gates in ["A", "A=true", "NodeSwap=false"] {
            Flags::try_parse_from(["x", "--feature-gates", gates]).unwrap_err();
        }
        assert_eq!(default.config_source(), ConfigSource::Pod);
        let same = format!("{:?}", Settings::default());
        assert_eq!(format!("{:?}", default.settings().unwrap()), same, "the same defaults");
        assert!(Flags::try_parse_from(["x", "--no-such-flag"]).is_err());
        for (flag, fails) in [
            ("--tls-min-version=VersionTLS13", false),
            ("--tls-min-version=VersionTLS14", true),
            ("--client-ca-file=/ca", false),
        ] {
            assert_eq!(Flags::try_parse_from(["x", flag]).is_err(), fails, "{flag}");
        }
        let paths = ["/healthz", "/readyz", "/livez"];
        assert_eq!(default.port().unwrap().always_allow_paths, paths);
        let flags = ["x", "--authorization-always-allow-paths=/metrics,/live*", "--secure-port=1"];
        let port = Flags::try_parse_from(flags).unwrap().port().unwrap();
        assert_eq!((port.always_allow_paths.len(), port.address.port()), (2, 1));
        assert!(Flags::try_parse_from(["x", "--secure-port=0"]).unwrap().port().is_none());
    }
}
