//! Flags as kube-scheduler has them: `--flag=value`, `--flag value`, `--flag` for booleans.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use longshore_base::logging::{self, LoggingFlags};
use longshore_duration::GoDuration;
use longshore_gates::FeatureGates;

use crate::config::LeaderElection;
use crate::queue::Waits;

/// Why the command line cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// There is no such flag.
    #[error("unknown flag: --{0}")]
    Unknown(String),
    /// A flag has no value.
    #[error("flag needs an argument: --{0}")]
    Missing(String),
    /// A value is not valid.
    #[error("invalid argument {value:?} for \"--{flag}\" flag: {reason}")]
    Invalid {
        /// The flag.
        flag: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Flags of the log.
    #[error("{0}")]
    Logging(String),
    /// Something that is no flag.
    #[error("\"kube-scheduler\" does not take any arguments, got {0:?}")]
    Argument(String),
}

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Parsed {
    /// To run.
    Run(Box<Options>),
    /// To show the flags.
    Help,
    /// To show the version.
    Version,
}

/// Leader election as flags set it; what they do not set is the configuration's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LeaderFlags {
    elect: Option<bool>,
    lease_duration: Option<GoDuration>,
    renew_deadline: Option<GoDuration>,
    retry_period: Option<GoDuration>,
    resource_lock: Option<String>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

impl LeaderFlags {
    /// Sets what the flags say.
    pub fn apply(&self, to: &mut LeaderElection) {
        fn set<T: Clone>(to: &mut T, from: Option<&T>) {
            if let Some(from) = from {
                to.clone_from(from);
            }
        }
        set(&mut to.leader_elect, self.elect.as_ref());
        set(&mut to.lease_duration, self.lease_duration.as_ref());
        set(&mut to.renew_deadline, self.renew_deadline.as_ref());
        set(&mut to.retry_period, self.retry_period.as_ref());
        set(&mut to.resource_lock, self.resource_lock.as_ref());
        set(&mut to.resource_name, self.resource_name.as_ref());
        set(&mut to.resource_namespace, self.resource_namespace.as_ref());
    }
}

/// What the flags say.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--policy-config-file`: a classic policy.
    pub policy: Option<PathBuf>,
    /// `--algorithm-provider`: a classic policy by name.
    pub provider: Option<String>,
    /// `--master`
    pub master: Option<String>,
    /// `--kubeconfig`
    pub kubeconfig: Option<String>,
    /// `--kube-api-qps`
    pub qps: Option<f32>,
    /// `--kube-api-burst`
    pub burst: Option<i32>,
    /// `--leader-elect…`
    pub leader: LeaderFlags,
    /// `--bind-address`
    pub bind_address: IpAddr,
    /// `--secure-port`; 0: none.
    pub secure_port: u16,
    /// `--cert-dir`
    pub cert_dir: Option<PathBuf>,
    /// `--tls-cert-file`
    pub tls_cert_file: Option<PathBuf>,
    /// `--tls-private-key-file`
    pub tls_private_key_file: Option<PathBuf>,
    /// `--client-ca-file`
    pub client_ca_file: Option<PathBuf>,
    /// `--requestheader-client-ca-file`
    pub front_proxy_ca_file: Option<PathBuf>,
    /// `--requestheader-allowed-names`
    pub front_proxy_names: Vec<String>,
    /// `--requestheader-username-headers`
    pub username_headers: Vec<String>,
    /// `--requestheader-uid-headers`
    pub uid_headers: Vec<String>,
    /// `--requestheader-group-headers`
    pub group_headers: Vec<String>,
    /// `--requestheader-extra-headers-prefix`
    pub extra_headers_prefix: Vec<String>,
    /// `--authentication-skip-lookup`
    pub skip_lookup: bool,
    /// `--tls-min-version`
    pub tls_min_version: String,
    /// `--tls-cipher-suites`
    pub tls_cipher_suites: Vec<String>,
    /// `--tls-curve-preferences`
    pub tls_curve_preferences: Vec<i32>,
    /// `--tls-sni-cert-key`, once for each time that it is given.
    pub tls_sni_cert_key: Vec<String>,
    /// `--disable-http2-serving`
    pub disable_http2_serving: bool,
    /// `--authentication-tolerate-lookup-failure`
    pub tolerates_lookup_failure: bool,
    /// `--profiling`
    pub profiling: Option<bool>,
    /// `--authentication-token-webhook-cache-ttl`
    pub token_ttl: Duration,
    /// `--authorization-webhook-cache-authorized-ttl`
    pub authorized_ttl: Duration,
    /// `--authorization-webhook-cache-unauthorized-ttl`
    pub unauthorized_ttl: Duration,
    /// `--authentication-kubeconfig`
    pub authentication_kubeconfig: Option<PathBuf>,
    /// `--authorization-kubeconfig`
    pub authorization_kubeconfig: Option<PathBuf>,
    /// `--authorization-always-allow-paths`
    pub always_allow_paths: Vec<String>,
    /// `--pod-max-in-unschedulable-pods-duration`
    pub max_unschedulable: Duration,
    /// `--v`
    pub verbosity: u32,
    /// The form of the log, and where it goes.
    pub log: LoggingFlags,
    /// `--feature-gates`
    pub feature_gates: FeatureGates,
    /// Flags that were given and have no effect.
    pub without_effect: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: None,
            policy: None,
            provider: None,
            master: None,
            kubeconfig: None,
            qps: None,
            burst: None,
            leader: LeaderFlags::default(),
            bind_address: IpAddr::from([0, 0, 0, 0]),
            secure_port: 10259,
            cert_dir: None,
            tls_cert_file: None,
            tls_private_key_file: None,
            client_ca_file: None,
            front_proxy_ca_file: None,
            front_proxy_names: Vec::new(),
            username_headers: vec!["x-remote-user".to_owned()],
            uid_headers: Vec::new(),
            group_headers: vec!["x-remote-group".to_owned()],
            extra_headers_prefix: vec!["x-remote-extra-".to_owned()],
            skip_lookup: false,
            tls_min_version: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_curve_preferences: Vec::new(),
            tls_sni_cert_key: Vec::new(),
            disable_http2_serving: false,
            tolerates_lookup_failure: true,
            profiling: None,
            token_ttl: CACHE_TTL,
            authorized_ttl: CACHE_TTL,
            unauthorized_ttl: CACHE_TTL,
            authentication_kubeconfig: None,
            authorization_kubeconfig: None,
            always_allow_paths: ["/healthz", "/readyz", "/livez"].map(str::to_owned).into(),
            max_unschedulable: Waits::default().max_unschedulable,
            verbosity: 0,
            log: LoggingFlags::default(),
            feature_gates: FeatureGates::default(),
            without_effect: Vec::new(),
        }
    }
}

/// How long reviews are cached.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// Values of `--tls-min-version`.
const TLS_VERSIONS: [&str; 5] =
    ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];

/// Flags of upstream that have no effect here; those with `true` are booleans.
const IGNORED: [(&str, bool); 13] = [
    ("allow-metric-labels", false),
    ("allow-metric-labels-manifest", false),
    ("contention-profiling", true),
    ("disabled-metrics", false),
    ("emulated-version", false),
    ("emulation-forward-compatible", true),
    ("http2-max-streams-per-connection", false),
    ("kube-api-content-type", false),
    ("min-compatibility-version", false),
    ("permit-address-sharing", true),
    ("permit-port-sharing", true),
    ("show-hidden-metrics-for-version", false),
    ("unsupported-kube-api-over-localhost", true),
];
/// Booleans that have an effect.
const BOOLEANS: [&str; 9] = [
    "authentication-skip-lookup",
    "authentication-tolerate-lookup-failure",
    "disable-http2-serving",
    "help",
    "leader-elect",
    "log-json-split-stream",
    "log-text-split-stream",
    "profiling",
    "version",
];

fn is_boolean(name: &str) -> bool {
    BOOLEANS.contains(&name) || IGNORED.contains(&(name, true))
}

fn value<T: FromStr<Err: fmt::Display>>(flag: &str, value: &str) -> Result<T, FlagError> {
    value.parse().map_err(|error: T::Err| FlagError::Invalid {
        flag: flag.to_owned(),
        value: value.to_owned(),
        reason: error.to_string(),
    })
}

fn duration(flag: &str, text: &str) -> Result<Duration, FlagError> {
    value::<GoDuration>(flag, text).map(GoDuration::get)
}

impl Options {
    /// Reads a command line without the program's name.
    ///
    /// # Errors
    /// A flag is not known, or its value is not valid.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Parsed, FlagError> {
        let mut own = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let name = match arg.strip_prefix("--") {
                Some(name) => name,
                None if arg == "-h" => return Ok(Parsed::Help),
                None => match arg.strip_prefix("-v") {
                    Some(level) if !level.is_empty() => {
                        own.verbosity = value("v", level.trim_start_matches('='))?;
                        continue;
                    }
                    Some(_) => "v",
                    None => return Err(FlagError::Argument(arg)),
                },
            };
            let (name, given) = match name.split_once('=') {
                Some((name, value)) => (name.replace('_', "-"), Some(value.to_owned())),
                None => (name.replace('_', "-"), None),
            };
            let text = match given {
                Some(value) => value,
                None if is_boolean(&name) => "true".to_owned(),
                None if !own.knows(&name) => return Err(FlagError::Unknown(name)),
                None => args.next().ok_or_else(|| FlagError::Missing(name.clone()))?,
            };
            match name.as_str() {
                "help" if value(&name, &text)? => return Ok(Parsed::Help),
                "version" if text != "false" => return Ok(Parsed::Version),
                "help" | "version" => {}
                _ if own.set(&name, &text)? => {}
                _ => return Err(FlagError::Unknown(name)),
            }
        }
        Ok(Parsed::Run(Box::new(own)))
    }

    /// What the log is started with.
    ///
    /// # Errors
    /// The flags of the log are not valid.
    pub fn logging(&self) -> Result<logging::Settings, FlagError> {
        let settings = self.log.settings(self.verbosity, |gate| self.feature_gates.enabled(gate));
        settings.map_err(FlagError::Logging)
    }

    fn knows(&self, name: &str) -> bool {
        // a value that does not fit is as good as one that does
        !matches!(self.clone().set(name, "0"), Ok(false))
    }

    /// Whether there is such a flag.
    fn set(&mut self, name: &str, text: &str) -> Result<bool, FlagError> {
        let names = || text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let path = || Some(text).filter(|text| !text.is_empty()).map(PathBuf::from);
        match name {
            "config" => self.config = path(),
            "policy-config-file" => self.policy = path(),
            "algorithm-provider" => self.provider = Some(text.to_owned()),
            "master" => self.master = Some(text.to_owned()).filter(|text| !text.is_empty()),
            "kubeconfig" => self.kubeconfig = Some(text.to_owned()),
            "kube-api-qps" => self.qps = Some(value(name, text)?),
            "kube-api-burst" => self.burst = Some(value(name, text)?),
            "leader-elect" => self.leader.elect = Some(value(name, text)?),
            "leader-elect-lease-duration" => self.leader.lease_duration = Some(value(name, text)?),
            "leader-elect-renew-deadline" => self.leader.renew_deadline = Some(value(name, text)?),
            "leader-elect-retry-period" => self.leader.retry_period = Some(value(name, text)?),
            "leader-elect-resource-lock" => self.leader.resource_lock = Some(text.to_owned()),
            "leader-elect-resource-name" => self.leader.resource_name = Some(text.to_owned()),
            "leader-elect-resource-namespace" => {
                self.leader.resource_namespace = Some(text.to_owned());
            }
            "bind-address" => self.bind_address = value(name, text)?,
            "secure-port" => self.secure_port = value(name, text)?,
            "cert-dir" => self.cert_dir = path(),
            "tls-cert-file" => self.tls_cert_file = path(),
            "tls-private-key-file" => self.tls_private_key_file = path(),
            "client-ca-file" => self.client_ca_file = path(),
            "authentication-kubeconfig" => self.authentication_kubeconfig = path(),
            "authorization-kubeconfig" => self.authorization_kubeconfig = path(),
            "authentication-skip-lookup" => self.skip_lookup = value(name, text)?,
            "authentication-tolerate-lookup-failure" => {
                self.tolerates_lookup_failure = value(name, text)?;
            }
            "disable-http2-serving" => self.disable_http2_serving = value(name, text)?,
            "profiling" => self.profiling = Some(value(name, text)?),
            "tls-curve-preferences" => {
                let numbers = text.split(',').map(|number| value::<i32>(name, number));
                self.tls_curve_preferences.extend(numbers.collect::<Result<Vec<_>, _>>()?);
            }
            "tls-sni-cert-key" => self.tls_sni_cert_key.push(text.to_owned()),
            "requestheader-client-ca-file" => self.front_proxy_ca_file = path(),
            "requestheader-allowed-names" => self.front_proxy_names = names(),
            "requestheader-username-headers" => self.username_headers = names(),
            "requestheader-uid-headers" => self.uid_headers = names(),
            "requestheader-group-headers" => self.group_headers = names(),
            "requestheader-extra-headers-prefix" => self.extra_headers_prefix = names(),
            "authorization-always-allow-paths" => {
                self.always_allow_paths = text.split(',').map(str::to_owned).collect();
            }
            "authentication-token-webhook-cache-ttl" => self.token_ttl = duration(name, text)?,
            "authorization-webhook-cache-authorized-ttl" => {
                self.authorized_ttl = duration(name, text)?;
            }
            "authorization-webhook-cache-unauthorized-ttl" => {
                self.unauthorized_ttl = duration(name, text)?;
            }
            "pod-max-in-unschedulable-pods-duration" => {
                self.max_unschedulable = duration(name, text)?;
            }
            "v" => self.verbosity = value(name, text)?,
            "logging-format" => text.clone_into(&mut self.log.logging_format),
            "log-flush-frequency" => text.clone_into(&mut self.log.log_flush_frequency),
            "vmodule" => text.clone_into(&mut self.log.vmodule),
            "log-text-split-stream" => self.log.log_text_split_stream = value(name, text)?,
            "log-json-split-stream" => self.log.log_json_split_stream = value(name, text)?,
            "log-text-info-buffer-size" => text.clone_into(&mut self.log.log_text_info_buffer_size),
            "log-json-info-buffer-size" => text.clone_into(&mut self.log.log_json_info_buffer_size),
            "tls-min-version" if TLS_VERSIONS.contains(&text) => {
                text.clone_into(&mut self.tls_min_version)
            }
            "tls-min-version" => {
                return Err(FlagError::Invalid {
                    flag: name.to_owned(),
                    value: text.to_owned(),
                    reason: format!("unknown tls version {text:?}"),
                });
            }
            "feature-gates" => self.feature_gates = value(name, text)?,
            "write-config-to" if text.is_empty() => {}
            "write-config-to" => {
                return Err(FlagError::Invalid {
                    flag: name.to_owned(),
                    value: text.to_owned(),
                    reason: "it is not supported".to_owned(),
                });
            }
            "tls-cipher-suites" => {
                self.tls_cipher_suites = names();
            }
            _ => {
                let Some((own, is_boolean)) = IGNORED.iter().find(|(own, _)| *own == name) else {
                    return Ok(false);
                };
                if *is_boolean {
                    value::<bool>(name, text)?;
                }
                self.without_effect.push(own);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Parsed, FlagError> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    fn options(line: &str) -> Options {
        match parse(line).unwrap() {
            Parsed::Run(options) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_are_upstreams() {
        let own = options(
            "--config=/etc/scheduler.yaml --kubeconfig /etc/scheduler.conf --leader-elect=false \
             --leader-elect-lease-duration 30s --bind-address=127.0.0.1 --secure-port=10260 \
             --authentication-kubeconfig=/a --authorization-kubeconfig=/b --profiling --v=4 \
             --tls-curve-preferences=29,23 --tls-sni-cert-key=a,b --tls-sni-cert-key c,d:e,f \
             --feature-gates=MemoryQoS=true --leader_elect_retry_period=5s",
        );
        assert_eq!(own.config, Some("/etc/scheduler.yaml".into()));
        assert_eq!(own.kubeconfig.as_deref(), Some("/etc/scheduler.conf"));
        assert_eq!((own.secure_port, own.verbosity), (10260, 4));
        assert_eq!(own.tls_curve_preferences, [29, 23]);
        assert_eq!(own.tls_sni_cert_key, ["a,b", "c,d:e,f"]);
        assert!(own.tolerates_lookup_failure && own.profiling == Some(true));
        let mut election = LeaderElection::default();
        own.leader.apply(&mut election);
        assert!(!election.leader_elect);
        assert_eq!(election.lease_duration, GoDuration::secs(30));
        assert_eq!(election.retry_period, GoDuration::secs(5));
        assert_eq!(election.renew_deadline, GoDuration::secs(10));
        assert_eq!(options("").secure_port, 10259);
        assert_eq!(options("-v2").verbosity, 2);
    }

    /// Every flag of kube-scheduler 1.36, from its `--help`.
    const UPSTREAM: &str = include_str!("../../tests/data/flags-1.36.txt");

    /// Each flag with its default and another value, of kube-scheduler 1.36.
    const VALUES: &str = include_str!("../../tests/data/flag-values-1.36.tsv");

    #[test]
    fn flags_of_upstream_take_their_defaults_and_other_values() {
        let page = include_str!("../../../../docs/flags.md");
        for line in VALUES.lines() {
            let [name, default, other] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            for value in [default, other] {
                match Options::parse([format!("--{name}={value}")]) {
                    Ok(Parsed::Run(own)) => {
                        for ignored in &own.without_effect {
                            let named = format!("`--{ignored}`");
                            assert!(page.contains(&named), "{ignored} is documented");
                        }
                    }
                    // upstream has no empty list of numbers either
                    Err(_) if name == "tls-curve-preferences" && value.is_empty() => {}
                    Err(error) => assert_eq!(name, "write-config-to", "{error}"),
                    Ok(other) => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn flags_of_gates_are_checked() {
        let error = |gates: &str| Options::parse([format!("--feature-gates={gates}")]).unwrap_err();
        assert!(error("A=true").to_string().contains("unrecognized feature gate: A"));
        assert!(error("MemoryQoS").to_string().contains("missing bool value"));
    }

    #[test]
    fn flags_of_upstream_are_all_known() {
        let unknown: Vec<_> =
            UPSTREAM.lines().filter(|flag| !Options::default().knows(flag)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    /// What `kubeadm init` writes into the static pod's manifest.
    #[test]
    fn flags_of_kubeadm_start_the_program() {
        let own = options(
            "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf \
             --authorization-kubeconfig=/etc/kubernetes/scheduler.conf --bind-address=127.0.0.1 \
             --kubeconfig=/etc/kubernetes/scheduler.conf --leader-elect=true",
        );
        assert!(own.without_effect.is_empty(), "{own:?}");
        let own = options("--vmodule=a=1 -v=2 --log-flush-frequency=1s");
        assert!(own.without_effect.is_empty());
        let log = own.logging().unwrap();
        assert_eq!((log.verbosity, log.vmodule.len(), log.flush_frequency.as_secs()), (2, 1, 1));
        let refused = options("--logging-format=xml").logging().unwrap_err().to_string();
        assert!(refused.contains("Unsupported log format"), "{refused}");
    }

    #[test]
    fn flags_that_are_not_known_or_not_valid_are_errors() {
        for (line, expected) in [
            ("--nope", "unknown flag: --nope"),
            ("--nope=1", "unknown flag: --nope"),
            ("--config", "flag needs an argument: --config"),
            ("--secure-port=x", "invalid argument \"x\" for \"--secure-port\" flag"),
            ("--profiling=x", "invalid argument \"x\" for \"--profiling\" flag"),
            ("run", "does not take any arguments"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert_eq!(parse("--help"), Ok(Parsed::Help));
        assert!(matches!(parse("--tls-min-version=VersionTLS12"), Ok(Parsed::Run(_))));
        let refused = parse("--tls-min-version=VersionTLS14").unwrap_err().to_string();
        assert!(refused.contains("unknown tls version \"VersionTLS14\""), "{refused}");
        let own = options("--tls-cipher-suites=A,B --authentication-token-webhook-cache-ttl=3s");
        assert_eq!((own.tls_cipher_suites.len(), own.token_ttl), (2, Duration::from_secs(3)));
        assert_eq!(parse("--version"), Ok(Parsed::Version));
        assert!(matches!(parse("--help=false"), Ok(Parsed::Run(_))));
    }
}
