//! Flags of upstream's kube-apiserver that this server does not implement. One that concerns security
//! is refused, unless its value asks for what is in force anyway; any other is accepted, and has no
//! effect but a warning.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// What is done with a flag that is not implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    /// It is accepted, with a warning that says why nothing comes of it.
    Ignored(&'static str),
    /// The server does not start, for this reason.
    Refused(&'static str),
}

use Treatment::{Ignored, Refused};

/// How a flag takes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// `--flag` or `--flag=BOOL`.
    Switch,
    /// `--flag VALUE` or `--flag=VALUE`.
    Text,
}

use Value::{Switch, Text};

/// A flag: its name, its value, the values that ask for what is in force anyway, and what is done with others.
type Flag = (&'static str, Value, &'static [&'static str], Treatment);

const DEFAULTS: Treatment = Ignored("the server's own limit is in force");
const TUNING: Treatment = Ignored("there is nothing that it tunes");
const METRICS: Treatment = Ignored("the metrics are what they are");
const VERSIONS: Treatment = Ignored("the server serves one version");
const AGGREGATION: Treatment = Ignored("redirects of aggregated servers are never followed");

/// All of them, by name.
const FLAGS: &[Flag] = &[
    (
        "admission-control",
        Text,
        &[""],
        Refused("use --enable-admission-plugins and --disable-admission-plugins"),
    ),
    ("aggregator-reject-forwarding-redirect", Switch, &["true"], AGGREGATION),
    ("allow-metric-labels", Text, &[""], METRICS),
    ("allow-metric-labels-manifest", Text, &[""], METRICS),
    ("contention-profiling", Switch, &["false"], Ignored("contention is not recorded")),
    ("coordinated-leadership-lease-duration", Text, &[], TUNING),
    ("coordinated-leadership-renew-deadline", Text, &[], TUNING),
    ("coordinated-leadership-retry-period", Text, &[], TUNING),
    ("cors-allowed-origins", Text, &[""], Ignored("no other origin is allowed")),
    ("debug-socket-path", Text, &[""], Ignored("profiles are served on the secure port alone")),
    ("default-not-ready-toleration-seconds", Text, &["300"], Ignored("it is 300")),
    ("default-unreachable-toleration-seconds", Text, &["300"], Ignored("it is 300")),
    ("delete-collection-workers", Text, &["1"], Ignored("objects are deleted one by one")),
    ("disabled-metrics", Text, &[""], METRICS),
    ("egress-selector-config-file", Text, &[""], Refused("connections would be made directly")),
    ("emulated-version", Text, &[""], VERSIONS),
    ("emulation-forward-compatible", Switch, &["false"], VERSIONS),
    (
        "enable-garbage-collector",
        Switch,
        &["true"],
        Ignored("finalizers of dependents are always honoured"),
    ),
    ("etcd-count-metric-poll-period", Text, &[], METRICS),
    ("etcd-db-metric-poll-interval", Text, &[], METRICS),
    ("etcd-healthcheck-timeout", Text, &[], DEFAULTS),
    ("etcd-readycheck-timeout", Text, &[], DEFAULTS),
    ("etcd-servers-overrides", Text, &[""], Refused("all objects are in one store")),
    ("external-hostname", Text, &[""], Ignored("clients are answered by the name that they use")),
    ("goaway-chance", Text, &["0"], Ignored("connections stay with one server")),
    ("http2-max-streams-per-connection", Text, &["0"], DEFAULTS),
    ("kubelet-timeout", Text, &[], DEFAULTS),
    (
        "kubernetes-service-node-port",
        Text,
        &["0"],
        Ignored("the service kubernetes has no port of nodes"),
    ),
    ("lease-reuse-duration-seconds", Text, &[], DEFAULTS),
    ("livez-grace-period", Text, &["0", "0s"], Ignored("it is live once it serves")),
    ("max-connection-bytes-per-sec", Text, &["0"], Ignored("connections are not slowed down")),
    ("min-compatibility-version", Text, &[""], VERSIONS),
    ("min-request-timeout", Text, &["1800"], Ignored("watches last for 30 to 60 minutes")),
    ("peer-advertise-ip", Text, &[""], Ignored("requests are not passed on to other servers")),
    ("peer-advertise-port", Text, &[""], Ignored("requests are not passed on to other servers")),
    ("peer-ca-file", Text, &[""], Ignored("requests are not passed on to other servers")),
    ("permit-address-sharing", Switch, &["false"], Ignored("the port is opened as on a node")),
    ("permit-port-sharing", Switch, &["false"], Ignored("the port is opened as on a node")),
    ("runtime-config-emulation-forward-compatible", Switch, &["false"], VERSIONS),
    (
        "send-retry-after-while-not-ready-once",
        Switch,
        &["false"],
        Ignored("it listens when it is ready"),
    ),
    ("service-account-lookup", Switch, &["true"], Ignored("tokens always end with their objects")),
    (
        "service-account-signing-endpoint",
        Text,
        &[""],
        Refused("tokens would be signed by another key"),
    ),
    ("show-hidden-metrics-for-version", Text, &[""], METRICS),
    (
        "shutdown-delay-duration",
        Text,
        &["0", "0s"],
        Ignored("it stops at once, and lets requests end"),
    ),
    (
        "shutdown-send-retry-after",
        Switch,
        &["false"],
        Ignored("it stops at once, and lets requests end"),
    ),
    ("shutdown-watch-termination-grace-period", Text, &["0", "0s"], Ignored("watches end at once")),
    ("storage-backend", Text, &["", "etcd3"], Refused("objects are in etcd v3 or in a file")),
    ("storage-initialization-timeout", Text, &[], DEFAULTS),
    ("watch-cache", Switch, &["true"], Ignored("watches are served from memory")),
    ("watch-cache-sizes", Text, &[""], DEFAULTS),
];

/// Whether a flag is one of these.
#[cfg(test)]
pub(super) fn is_without_effect(flag: &str) -> bool {
    FLAGS.iter().any(|(name, ..)| *name == flag)
}

/// The flags of this kind that were given and have no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamArgs {
    ignored: Vec<(&'static str, &'static str)>,
}

impl UpstreamArgs {
    /// Logs what was given and has no effect.
    pub fn warn(&self) {
        for (flag, why) in &self.ignored {
            tracing::warn!(flag, "the flag has no effect: {why}");
        }
    }
}

impl Args for UpstreamArgs {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, (name, value, ..)| {
            let arg = Arg::new(*name).long(*name).hide(true).action(ArgAction::Append);
            command.arg(match value {
                Text => arg.num_args(1).allow_hyphen_values(true),
                Switch => arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true")
                    .value_parser(["true", "false"]),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for UpstreamArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = UpstreamArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (name, _, in_force, treatment) in FLAGS {
            if matches.value_source(name) != Some(ValueSource::CommandLine) {
                continue;
            }
            let mut given = matches.get_many::<String>(name).into_iter().flatten();
            if given.all(|value| in_force.contains(&value.as_str())) {
                continue;
            }
            match treatment {
                Ignored(why) => self.ignored.push((name, why)),
                Refused(why) => {
                    let kind = clap::error::ErrorKind::InvalidValue;
                    return Err(clap::Error::raw(kind, format!("--{name} is refused: {why}\n")));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::Cli;

    /// Every flag of kube-apiserver 1.36, from its `--help`.
    const UPSTREAM: &str = include_str!("../../tests/data/flags-1.36.txt");

    fn parse(line: &str) -> Result<UpstreamArgs, String> {
        Cli::try_parse_from(std::iter::once("kube-apiserver").chain(line.split_whitespace()))
            .map(|cli| cli.serve.upstream)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_of_upstream_are_all_classified() {
        let names = || FLAGS.iter().map(|(name, ..)| *name);
        assert!(names().is_sorted());
        let command = Cli::command();
        let known: BTreeSet<&str> =
            command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        let upstream: BTreeSet<&str> = UPSTREAM.lines().collect();
        assert!(upstream.len() > 170, "{}", upstream.len());
        let unclassified: Vec<_> =
            upstream.iter().filter(|name| !known.contains(**name) && **name != "version").collect();
        assert!(unclassified.is_empty(), "{unclassified:?}");
        let unknown: Vec<_> = names().filter(|name| !upstream.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    /// Each flag with its default and another value, of kube-apiserver 1.36.
    const VALUES: &str = include_str!("../../tests/data/flag-values-1.36.tsv");

    #[test]
    fn flags_of_upstream_take_their_defaults_and_other_values() {
        for line in VALUES.lines() {
            let [name, default, other] = line.split('\t').collect::<Vec<_>>()[..] else {
                unreachable!("{line}")
            };
            let parse = |value: &str| {
                let given = ["x".into(), format!("--{name}={value}").into()];
                Cli::try_parse_from(crate::args::given(given)).map_err(|error| error.to_string())
            };
            parse(default).unwrap_or_else(|error| unreachable!("{error}"));
            if let Err(error) = parse(other) {
                // half of a pair, or a protection that is not there
                let is_half = error.contains("the following required arguments were not provided");
                let is_refused = error.contains(&format!("--{name} is refused"));
                assert!(is_half || is_refused, "{name}={other}: {error}");
            }
        }
    }

    #[test]
    fn flags_that_are_not_implemented_are_documented() {
        let page = include_str!("../../../../docs/flags.md");
        for (name, ..) in FLAGS {
            assert!(page.contains(&format!("| `--{name}` |")), "{name}");
        }
    }

    #[test]
    fn flags_that_are_not_implemented_are_refused_or_warned_about() {
        for (name, value, in_force, treatment) in FLAGS {
            let other = if *value == Switch { "true" } else { "/other" };
            let given = parse(&format!("--{name}={other}"));
            let is_in_force = in_force.contains(&other);
            match (treatment, is_in_force) {
                (_, true) => assert_eq!(given, Ok(UpstreamArgs::default()), "{name}"),
                (Ignored(why), false) => {
                    assert_eq!(given.unwrap().ignored, [(*name, *why)], "{name}");
                }
                (Refused(why), false) => {
                    let error = given.unwrap_err();
                    assert!(error.contains(name) && error.contains(why), "{error}");
                }
            }
            for value in *in_force {
                let given = parse(&format!("--{name}={value}"));
                assert_eq!(given, Ok(UpstreamArgs::default()), "{name}={value}");
            }
        }
        assert!(parse("--contention-profiling=perhaps").is_err());
        assert_eq!(parse("--contention-profiling").unwrap().ignored.len(), 1);
        let repeated = "--etcd-servers-overrides= --etcd-servers-overrides=a";
        assert!(parse(repeated).is_err());
    }

    /// What `kubeadm init` writes into the static pod's manifest, and the conformance script gives.
    #[test]
    fn flags_of_kubeadm_start_the_server() {
        let kubeadm = "--advertise-address=192.0.2.1 --allow-privileged=true \
            --authorization-mode=Node,RBAC --client-ca-file=/etc/kubernetes/pki/ca.crt \
            --enable-admission-plugins=NodeRestriction --enable-bootstrap-token-auth=true \
            --etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt \
            --etcd-certfile=/etc/kubernetes/pki/apiserver-etcd-client.crt \
            --etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key \
            --etcd-servers=https://127.0.0.1:2379 \
            --kubelet-client-certificate=/etc/kubernetes/pki/apiserver-kubelet-client.crt \
            --kubelet-client-key=/etc/kubernetes/pki/apiserver-kubelet-client.key \
            --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname \
            --proxy-client-cert-file=/etc/kubernetes/pki/front-proxy-client.crt \
            --proxy-client-key-file=/etc/kubernetes/pki/front-proxy-client.key \
            --requestheader-allowed-names=front-proxy-client \
            --requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt \
            --requestheader-extra-headers-prefix=X-Remote-Extra- \
            --requestheader-group-headers=X-Remote-Group \
            --requestheader-username-headers=X-Remote-User --secure-port=6443 \
            --service-account-issuer=https://kubernetes.default.svc.cluster.local \
            --service-account-key-file=/etc/kubernetes/pki/sa.pub \
            --service-account-signing-key-file=/etc/kubernetes/pki/sa.key \
            --service-cluster-ip-range=10.96.0.0/12 \
            --tls-cert-file=/etc/kubernetes/pki/apiserver.crt \
            --tls-private-key-file=/etc/kubernetes/pki/apiserver.key";
        let ignored: Vec<_> =
            parse(kubeadm).unwrap().ignored.into_iter().map(|(name, _)| name).collect();
        assert!(ignored.is_empty(), "{ignored:?}");
        assert!(parse("--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112").is_ok());
    }
}
