//! `make bench`: how quick and how small a node is. On one test host (`bed`), in turns: the floor (the calls of the
//! container runtime that the pods need, with no daemon), then the same pods through apiserver and node.
//!
//! Flow: `bench` plays the phases (`floor`, `burst`, `idle`, `restart`, `death`, `deletion`,
//! `probes`, `pressure`), each of which gives a plain struct of results → `report` shows them as a
//! table and as JSON. With `--services` it is `proxy` that is played, with `--nodes` `control_plane`, with
//! `--config-maps` `api`, with `--replicas` `deployment`, with `--one-node` `one_node`, with `--up` `up`, and
//! nothing else.
//!
//! Current limitations: one node, pods without volumes, images already on the machine.

#![allow(clippy::arithmetic_side_effects, reason = "a tool of tests, on numbers of its own")]
mod api;
mod bed;
mod bench;
mod burst;
mod cluster;
mod control_plane;
mod death;
mod deletion;
mod deployment;
mod device;
mod floor;
mod functions;
mod gates;
mod idle;
mod one_node;
mod pods;
mod pressure;
mod probes;
mod process;
mod proxy;
mod report;
mod restart;
mod server;
mod statistics;
mod up;
mod volumes;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Measures a node beside the floor of its container runtime.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// One-container pods in a burst.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=110))]
    pods: u16,
    /// Rounds of floor and burst; the table shows medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// How long the idle node is watched, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    idle: u16,
    /// How many containers are killed, one after the other, each in another pod.
    #[arg(long, default_value_t = 30)]
    kills: u16,
    /// How often a pod is turned from Ready to not and back, by what its probe finds.
    #[arg(long, default_value_t = 30)]
    turns: u16,
    /// How often a pod takes so much memory that the node ends it.
    #[arg(long, default_value_t = 20)]
    hogs: u16,
    /// The container runtime of the host: CRI over Docker is in the node's process.
    #[arg(long, value_enum, default_value_t = bed::Runtime::Containerd, conflicts_with_all =
        ["server", "volumes", "nodes", "replicas", "one_node", "up", "config_maps", "services"])]
    runtime: bed::Runtime,
    /// Give each pod of the burst a device of a plugin, which the node then has to keep.
    #[arg(long)]
    device_plugin: bool,
    /// Measure the node's ports, and nothing else.
    #[arg(long)]
    server: bool,
    /// Measure what volumes cost, so many with data on one node, and nothing else.
    #[arg(long, value_name = "COUNT")]
    volumes: Option<usize>,
    /// Files of the volume that is given to a group.
    #[arg(long, default_value_t = 200_000)]
    files: usize,
    /// Measure scheduler and controllers with so many simulated nodes, and nothing else.
    #[arg(long, value_name = "COUNT")]
    nodes: Option<usize>,
    /// Pods that are bound to simulated nodes.
    #[arg(long, default_value_t = 5000)]
    bound_pods: usize,
    /// Services beside those of the pod that changes on a simulated node.
    #[arg(long, default_value_t = 1000)]
    other_services: usize,
    /// How often that pod changes.
    #[arg(long, default_value_t = 200)]
    changes: usize,
    /// Measure how soon a deployment of so many replicas is ready, and nothing else.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=100))]
    replicas: Option<u16>,
    /// Measure what a whole cluster of one node uses that only keeps so many pods, and nothing else.
    #[arg(long, value_name = "PODS", value_parser = clap::value_parser!(u16).range(1..=100))]
    one_node: Option<u16>,
    /// Write a linker's script of the functions that the programs of `--one-node` execute within `--idle` seconds to
    /// this file, and measure nothing.
    #[arg(long, value_name = "FILE", requires = "one_node")]
    functions: Option<PathBuf>,
    /// Measure how soon `longshore up` has a node that is Ready, and nothing else.
    #[arg(long)]
    up: bool,
    /// Measure the apiserver with so many config maps, and nothing else.
    #[arg(long, value_name = "COUNT")]
    config_maps: Option<usize>,
    /// Pods that fill the store of that apiserver.
    #[arg(long, default_value_t = 10_000)]
    stored_pods: usize,
    /// Who watches that apiserver.
    #[arg(long, default_value_t = 100)]
    watchers: usize,
    /// A folder with upstream's programs, measured in the same way: kube-scheduler and
    /// kube-controller-manager, or kube-apiserver and etcd.
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    /// Write all results to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure kube-proxy and not the node, with so many services: one number or several.
    #[arg(long, value_delimiter = ',')]
    services: Vec<usize>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longshore-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    // One thread: what measures must leave the machine to what is measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (table, json) = runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            results = measure(args) => results,
            _ = interrupt.recv() => bail!("interrupted"),
            _ = terminate.recv() => bail!("interrupted"),
        }
    })?;
    print!("{table}");
    if let Some(path) = &args.json {
        fs::write(path, json + "\n").with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The results, as a table and as JSON.
async fn measure(args: &Args) -> Result<(String, String)> {
    if let (Some(pods), Some(path)) = (args.one_node, &args.functions) {
        let script = one_node::functions(pods, args.idle).await?;
        fs::write(path, &script).with_context(|| path.display().to_string())?;
        return Ok((String::new(), script));
    }
    if args.server {
        let results = server::run(args).await?;
        return Ok((results.to_string(), serde_json::to_string_pretty(&results)?));
    }
    if let Some(count) = args.volumes {
        let results = volumes::run(args, count).await?;
        return Ok((results.to_string(), serde_json::to_string_pretty(&results)?));
    }
    if let Some(nodes) = args.nodes {
        let settings = control_plane::Settings {
            nodes,
            pods: args.bound_pods,
            idle: args.idle,
            services: args.other_services,
            changes: args.changes,
            peers: args.peers.clone(),
        };
        let results = control_plane::run(&settings).await?;
        return Ok((results.to_string(), serde_json::to_string_pretty(&results)?));
    }
    if let Some(replicas) = args.replicas {
        let results = deployment::run(replicas, args.repeat).await?;
        return Ok((results.to_string(), serde_json::to_string_pretty(&results)?));
    }
    if let Some(pods) = args.one_node {
        let results = one_node::run(pods, args.idle).await?;
        return Ok((results.to_string(), serde_json::to_string_pretty(&results)?));
    }
    if args.up {
        let results = up::run(args.repeat).await?;
        return Ok((results.to_string(), serde_json::to_string_pretty(&results)?));
    }
    if let Some(maps) = args.config_maps {
        let settings = api::Settings {
            maps,
            pods: args.stored_pods,
            watchers: args.watchers,
            changes: args.changes,
            peers: args.peers.clone(),
        };
        let results = api::run(&settings).await?;
        return Ok((results.to_string(), serde_json::to_string_pretty(&results)?));
    }
    if args.services.is_empty() {
        let results = bench::run(args).await?;
        return Ok((report::table(&results), serde_json::to_string_pretty(&results)?));
    }
    let results = proxy::run(args).await?;
    Ok((proxy::table(&results), serde_json::to_string_pretty(&results)?))
}
