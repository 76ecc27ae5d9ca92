//! The command line of `longshore up`, `join`, `token`, `down`, `reset`, `check`, `status` and `top`.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::Ipv4Net;
use longshore_duration::GoDuration;

/// Makes a machine a cluster or a node of one, looks after its tokens, and takes all of it away again.
#[derive(Debug, Parser)]
#[command(name = "longshore", bin_name = "longshore", version, disable_help_subcommand = true)]
pub struct Cli {
    /// The directory under which all files of the cluster are
    #[arg(long, value_name = "DIR", default_value = "/", global = true, value_parser = absolute)]
    pub root: PathBuf,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A path from `/` on: units, and later commands, have another working directory.
fn absolute(text: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(text)
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make this machine a cluster, or start the one that it is
    Up(UpArgs),
    /// Make this machine a node of a cluster, or start the node that it is
    Join(JoinArgs),
    /// Create, list and delete the tokens by which machines join
    #[command(subcommand)]
    Token(TokenCommand),
    /// Stop what up or join has started; pods go on running
    Down(DownArgs),
    /// Remove everything of the cluster and of its node from this machine
    Reset(ResetArgs),
    /// Check whether this machine can be a node
    Check(CheckArgs),
    /// Show what runs on this node: pods, what they use, pressure, events
    Status(StatusArgs),
    /// Show the same on the whole terminal, each second anew; logs of pods too
    Top(ViewArgs),
    /// Keep the network configuration of this node and its routes to others
    #[command(hide = true)]
    Network(NetworkArgs),
    /// Run a program that ends with the process that started it
    #[command(hide = true)]
    Child(ChildArgs),
}

/// What up and join share: the node that this machine is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct NodeArgs {
    /// The name of the node [default: the name of the machine]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The address by which others reach this machine [default: that of the default route]
    #[arg(long, value_name = "IP")]
    pub address: Option<Ipv4Addr>,
    /// The socket of the container runtime, or a Docker Engine as docker:///var/run/docker.sock [default: that of containerd or CRI-O, whichever is there]
    #[arg(long, value_name = "URL")]
    pub container_runtime_endpoint: Option<String>,
    /// Where the runtime reads its network configuration; one is written if there is none
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    pub cni_conf_dir: Option<PathBuf>,
    /// A KubeletConfiguration whose fields are used in place of the usual ones
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    pub node_config: Option<PathBuf>,
    /// A KubeProxyConfiguration whose fields are used in place of the usual ones
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    pub proxy_config: Option<PathBuf>,
    /// A further flag of the node, such as --node-arg=--node-labels=disk=ssd; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub node_arg: Vec<String>,
    /// Run and supervise all programs in this process, without systemd
    #[arg(long)]
    pub foreground: bool,
}

/// Flags of up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct UpArgs {
    /// The node that this machine is.
    #[command(flatten)]
    pub node: NodeArgs,
    /// The port of the apiserver [default: 6443]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// The servers of an etcd, instead of the embedded store
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// The CA of the etcd
    #[arg(long, value_name = "FILE", requires = "etcd", value_parser = absolute)]
    pub etcd_cafile: Option<PathBuf>,
    /// The certificate to show to the etcd
    #[arg(long, value_name = "FILE", requires_all = ["etcd", "etcd_keyfile"], value_parser = absolute)]
    pub etcd_certfile: Option<PathBuf>,
    /// The key of --etcd-certfile
    #[arg(long, value_name = "FILE", requires_all = ["etcd", "etcd_certfile"], value_parser = absolute)]
    pub etcd_keyfile: Option<PathBuf>,
    /// The addresses of pods [default: 10.244.0.0/16]
    #[arg(long, value_name = "CIDR")]
    pub pod_network_cidr: Option<Ipv4Net>,
    /// The addresses of services [default: 10.96.0.0/12]
    #[arg(long, value_name = "CIDR")]
    pub service_cidr: Option<Ipv4Net>,
    /// The domain of the names of services [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    pub service_dns_domain: Option<String>,
}

/// Flags of join.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct JoinArgs {
    /// The apiserver, as HOST:PORT; not needed by a machine that has joined
    #[arg(value_name = "HOST:PORT")]
    pub server: Option<String>,
    /// The token, from longshore token create
    #[arg(long, value_name = "TOKEN", requires = "server")]
    pub token: Option<String>,
    /// The hash of the public key of the cluster's CA, as sha256:HEX; may be repeated
    #[arg(long, value_name = "HASH", requires = "token", value_delimiter = ',')]
    pub discovery_token_ca_cert_hash: Vec<String>,
    /// The node that this machine is.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token, and print the line with which a machine joins
    Create(TokenCreateArgs),
    /// List the tokens
    List(TokenListArgs),
    /// Delete tokens
    Delete(TokenDeleteArgs),
}

/// How tokens are reached.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// The kubeconfig of an administrator [default: that of the cluster on this machine]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Flags of token create.
#[derive(Debug, Clone, Args)]
pub struct TokenCreateArgs {
    /// The token, as abcdef.0123456789abcdef [default: a random one]
    #[arg(value_name = "TOKEN")]
    pub token: Option<String>,
    /// How long it is valid; 0: for ever
    #[arg(long, value_name = "DURATION", default_value = "24h0m0s", value_parser = duration)]
    pub ttl: Duration,
    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub description: String,
    /// Print the token alone
    #[arg(long)]
    pub quiet: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of token list.
#[derive(Debug, Clone, Args)]
pub struct TokenListArgs {
    /// The form of the list
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of token delete.
#[derive(Debug, Clone, Args)]
pub struct TokenDeleteArgs {
    /// Tokens, or what is before their dots
    #[arg(value_name = "TOKEN", required = true)]
    pub tokens: Vec<String>,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct DownArgs {
    /// Stop all pods of the node, too
    #[arg(long)]
    pub pods: bool,
}

/// Flags of reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct ResetArgs {
    /// Do not wait for an answer
    #[arg(short, long)]
    pub yes: bool,
    /// Show what would be removed, and remove nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// The socket of the container runtime; empty: its pods stay [default: that of the cluster]
    #[arg(long, value_name = "URL")]
    pub container_runtime_endpoint: Option<String>,
}

/// Flags of check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct CheckArgs {
    /// The form of the answer
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// The socket of the container runtime, or a Docker Engine as docker:///var/run/docker.sock [default: that of containerd or CRI-O, whichever is there]
    #[arg(long, value_name = "URL")]
    pub container_runtime_endpoint: Option<String>,
    /// Where the runtime reads its network configuration
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// The kubeconfig of the node
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Where status and top look.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct ViewArgs {
    /// The name of the node [default: that of the cluster on this machine, or the name of the machine]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// With which the apiserver is asked [default: that of an administrator or of the node, whichever is there]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The socket of the container runtime [default: that of the cluster, of containerd or CRI-O]
    #[arg(long, value_name = "URL")]
    pub container_runtime_endpoint: Option<String>,
    /// The node's health port; 0: it is not asked
    #[arg(long, value_name = "PORT", default_value_t = 10248)]
    pub healthz_port: u16,
}

/// Flags of status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct StatusArgs {
    /// The form of the answer
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Where it looks.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Flags of the network's keeper.
#[derive(Debug, Clone, Args)]
pub struct NetworkArgs {
    /// The node's kubeconfig
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// The node's name
    #[arg(long, value_name = "NAME")]
    pub node_name: String,
    /// The addresses of all pods
    #[arg(long, value_name = "CIDR")]
    pub cluster_cidr: Ipv4Net,
    /// Where the runtime reads its network configuration
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: PathBuf,
    /// Where addresses that are given out are kept
    #[arg(long, value_name = "DIR")]
    pub cni_data_dir: PathBuf,
}

/// A program with its arguments.
#[derive(Debug, Clone, Args)]
pub struct ChildArgs {
    /// The process that it ends with
    #[arg(long)]
    pub parent: u32,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    text.parse::<GoDuration>().map(GoDuration::get).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn args_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn args_are_kubeadms_where_it_has_them() {
        let line = "longshore join 198.18.1.2:6443 --token abcdef.0123456789abcdef \
                    --discovery-token-ca-cert-hash sha256:00 --node-name n2 --node-arg=--v=4 --root /x";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        assert_eq!(cli.root, PathBuf::from("/x"));
        let Command::Join(join) = cli.command else { panic!("not join") };
        assert_eq!(join.server.as_deref(), Some("198.18.1.2:6443"));
        assert_eq!(join.discovery_token_ca_cert_hash, ["sha256:00"]);
        assert_eq!(join.node.node_arg, ["--v=4"]);
        let line =
            "longshore up --pod-network-cidr 10.1.0.0/16 --service-cidr 10.2.0.0/16 --foreground";
        assert!(Cli::try_parse_from(line.split_whitespace()).is_ok());
        let here = std::env::current_dir().unwrap();
        let cli = Cli::try_parse_from(["longshore", "up", "--node-config=a/b"]).unwrap();
        let Command::Up(up) = cli.command else { panic!("not up") };
        assert_eq!(up.node.node_config, Some(here.join("a/b")));
        for (ttl, seconds) in [("0", 0), ("1h", 3600), ("24h0m0s", 86_400)] {
            let cli = Cli::try_parse_from(["longshore", "token", "create", "--ttl", ttl]).unwrap();
            let Command::Token(TokenCommand::Create(create)) = cli.command else { panic!() };
            assert_eq!(create.ttl.as_secs(), seconds);
        }
    }

    #[test]
    fn args_that_are_wrong_are_refused() {
        for line in [
            "longshore",
            "longshore up --port=70000",
            "longshore up --etcd-cafile=x",
            "longshore up --etcd=http://x --etcd-certfile=x",
            "longshore up --pod-network-cidr=10.0.0.0",
            "longshore up --pod-network-cidr=fd00::/64",
            "longshore up --address=nowhere",
            "longshore join --token=x",
            "longshore join a:1 --discovery-token-ca-cert-hash=sha256:00",
            "longshore token delete",
            "longshore token create --ttl=soon",
            "longshore reset --yes --dry-run",
            "longshore check -o yaml",
            "longshore status -o yaml",
            "longshore top -o json",
            "longshore top --healthz-port=70000",
        ] {
            assert!(Cli::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
