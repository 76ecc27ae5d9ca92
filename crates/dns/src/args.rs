//! The command line.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::zone::PodNames;

/// The DNS server of a cluster.
#[derive(Debug, Clone, Parser)]
#[command(name = "longshore-dns", version)]
pub struct Args {
    /// The kubeconfig [default: the service account of the pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The domain of the cluster's names
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Where to answer, over UDP and TCP: address and port, or a port of all addresses; may be repeated
    #[arg(long, value_name = "ADDRESS", default_value = ":53", value_delimiter = ',',
        value_parser = address)]
    pub listen: Vec<SocketAddr>,
    /// Servers to ask about other names, before those of --upstream-resolv-conf; may be repeated
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = server)]
    pub forward: Vec<SocketAddr>,
    /// The resolv.conf with the servers to ask about other names, unless --forward names them
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    pub upstream_resolv_conf: PathBuf,
    /// The time to live of the cluster's records in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub ttl: u32,
    /// Which names of pods are answered
    #[arg(long, value_name = "MODE", value_enum, default_value_t = PodNames::Insecure)]
    pub pods: PodNames,
    /// Where /metrics is; empty: nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":9153", value_parser = maybe_address)]
    pub metrics_addr: MaybeAddress,
    /// Where /health is; empty: nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", value_parser = maybe_address)]
    pub health_addr: MaybeAddress,
    /// Where /ready is; empty: nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":8181", value_parser = maybe_address)]
    pub ready_addr: MaybeAddress,
    /// How long it goes on answering after SIGTERM, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub lameduck: u64,
    /// Log verbosity
    #[arg(short, long, default_value_t = 2)]
    pub verbosity: u32,
}

/// An address, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaybeAddress(pub Option<SocketAddr>);

impl Args {
    /// How long it goes on answering after SIGTERM.
    #[must_use]
    pub fn lameduck(&self) -> Duration {
        Duration::from_secs(self.lameduck)
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':') {
        let port = port.parse().map_err(|error| format!("port {port:?}: {error}"))?;
        return Ok(SocketAddr::new(any(), port));
    }
    text.parse().map_err(|_| format!("{text:?} is not an address with a port"))
}

fn maybe_address(text: &str) -> Result<MaybeAddress, String> {
    if text.is_empty() {
        return Ok(MaybeAddress(None));
    }
    address(text).map(Some).map(MaybeAddress)
}

fn server(text: &str) -> Result<SocketAddr, String> {
    crate::forward::server(text).ok_or_else(|| format!("{text:?} is not the address of a server"))
}

/// All addresses: of both families, unless the machine has no IPv6.
fn any() -> IpAddr {
    match std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn args_defaults_are_those_of_coredns() {
        let args = Args::parse_from(["longshore-dns"]);
        assert_eq!(args.cluster_domain, "cluster.local");
        assert_eq!(args.listen.iter().map(SocketAddr::port).collect::<Vec<_>>(), [53]);
        assert_eq!(args.metrics_addr.0.unwrap().port(), 9153);
        assert_eq!((args.pods, args.ttl), (PodNames::Insecure, 30));
    }

    #[test]
    fn args_addresses() {
        let parse = |words: &[&str]| Args::try_parse_from([&["longshore-dns"], words].concat());
        let args = parse(&[
            "--listen=127.0.0.1:5353,[::1]:5353",
            "--forward=8.8.8.8,[::1]:54",
            "--metrics-addr=",
            "--pods=verified",
        ])
        .unwrap();
        assert_eq!(args.listen.len(), 2);
        let ports: Vec<u16> = args.forward.iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [53, 54]);
        assert_eq!(args.metrics_addr, MaybeAddress(None));
        for bad in ["--listen=127.0.0.1", "--listen=:x", "--forward=a.b", "--pods=x", "--ttl=-1"] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }
}
