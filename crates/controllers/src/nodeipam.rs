//! Gives each node its part of `--cluster-cidr`, with `--allocate-node-cidrs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, SyncError, WorkQueue, key_of, run_workers};
use parking_lot::Mutex;
use serde_json::json;
use tracing::error;

use crate::writes::{reference, unless_gone, unless_stopped};
use crate::{Context, Metrics};

/// Why the ranges cannot be used, or one is exhausted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum CidrError {
    #[error("{0}: not a CIDR")]
    Syntax(String),
    #[error("{cidr}: nodes cannot have parts of {mask} bits")]
    Mask { cidr: String, mask: u8 },
    #[error(
        "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range"
    )]
    Exhausted,
}

/// PURE: a range that is divided into parts of one size.
#[derive(Debug)]
struct Range {
    net: IpNet,
    /// The prefix length of the parts.
    mask: u8,
    used: BTreeSet<IpNet>,
}

/// A range in CIDR notation; the address may be any of it.
fn parse(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    IpNet::new(address.parse().ok()?, prefix.parse().ok()?).ok()
}

impl Range {
    fn new(text: &str, mask_v4: u8, mask_v6: u8) -> Result<Self, CidrError> {
        let net = parse(text).ok_or_else(|| CidrError::Syntax(text.to_owned()))?.trunc();
        let mask = if net.addr().is_ipv6() { mask_v6 } else { mask_v4 };
        // More than 16 bits between them are more nodes than any cluster has.
        let bits = mask.checked_sub(net.prefix_len());
        if mask > net.max_prefix_len() || bits.is_none_or(|bits| bits > 16) {
            return Err(CidrError::Mask { cidr: text.to_owned(), mask });
        }
        Ok(Self { net, mask, used: BTreeSet::new() })
    }

    /// The parts that a range has something of: a node may have been given a larger or smaller one by
    /// another configuration.
    fn parts(&self, net: IpNet) -> Vec<IpNet> {
        let common = if net.contains(&self.net) { self.net } else { net.trunc() };
        if !self.net.contains(&common) {
            return Vec::new();
        }
        match common.subnets(self.mask) {
            Ok(parts) => parts.collect(),
            // It is smaller than a part.
            Err(_) => {
                IpNet::new(common.addr(), self.mask).map(|net| net.trunc()).into_iter().collect()
            }
        }
    }

    /// The number of its parts.
    fn most(&self) -> f64 {
        let bits = self.mask.saturating_sub(self.net.prefix_len());
        f64::from(1_u32.checked_shl(u32::from(bits)).unwrap_or(u32::MAX))
    }

    fn occupy(&mut self, net: IpNet) {
        let parts = self.parts(net);
        self.used.extend(parts);
    }

    fn release(&mut self, net: IpNet) {
        for part in self.parts(net) {
            self.used.remove(&part);
        }
    }

    fn allocate(&mut self) -> Result<String, CidrError> {
        let mut parts = self.net.subnets(self.mask).map_err(|_| CidrError::Exhausted)?;
        let free = parts.find(|part| !self.used.contains(part)).ok_or(CidrError::Exhausted)?;
        self.used.insert(free);
        Ok(free.to_string())
    }
}

fn cidrs(node: &Node) -> Vec<String> {
    let Some(spec) = &node.spec else { return Vec::new() };
    match spec.pod_cidrs.as_ref().filter(|cidrs| !cidrs.is_empty()) {
        Some(cidrs) => cidrs.clone(),
        None => spec.pod_cidr.iter().filter(|cidr| !cidr.is_empty()).cloned().collect(),
    }
}

struct Controller {
    client: Client,
    nodes: Informer<Node>,
    ranges: Mutex<Vec<Range>>,
    recorder: Recorder,
    metrics: Arc<Metrics>,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let settings = &context.settings.cluster;
    if !settings.allocate_node_cidrs {
        return;
    }
    let ranges: Result<Vec<Range>, CidrError> = settings
        .cluster_cidrs
        .iter()
        .map(|text| Range::new(text.trim(), settings.node_mask_v4, settings.node_mask_v6))
        .collect();
    let mut ranges = match ranges {
        Ok(ranges) if !ranges.is_empty() => ranges,
        Ok(_) => return error!("--allocate-node-cidrs needs --cluster-cidr"),
        Err(error) => return error!("--cluster-cidr: {error}"),
    };
    // Addresses of services are no pods'.
    for services in &settings.service_ranges {
        ranges.iter_mut().for_each(|range| range.occupy(*services));
    }
    let queue: WorkQueue<String> = WorkQueue::new("cidrallocator_node", &context.queues);
    let nodes = context.informers.get::<Node>();
    if !unless_stopped(&context, nodes.synced()).await {
        return;
    }
    let controller = std::sync::Arc::new(Controller {
        client: context.client.clone(),
        nodes: nodes.clone(),
        ranges: Mutex::new(ranges),
        recorder: context.recorder("cidrAllocator"),
        metrics: context.metrics.clone(),
    });
    // What nodes have is occupied before any gets a part.
    nodes.store().list().iter().for_each(|node| controller.occupy(node));
    nodes.subscribe({
        let (queue, controller) = (queue.clone(), std::sync::Arc::downgrade(&controller));
        move |event: &Event<Node>| match event {
            Event::Deleted(node) => {
                if let Some(controller) = controller.upgrade() {
                    controller.release(&cidrs(node));
                }
            }
            _ => queue.add(key_of(&**event.latest())),
        }
    });
    run_workers("node-ipam-controller", &queue, 1, &context.stop, |name| controller.sync(name))
        .await;
}

/// Why a node is tried again.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error(transparent)]
    Cidr(#[from] CidrError),
}

impl SyncError for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_conflict())
    }
}

impl Controller {
    fn ranges(&self) -> parking_lot::MutexGuard<'_, Vec<Range>> {
        self.ranges.lock()
    }

    fn occupy(&self, node: &Node) {
        let mut ranges = self.ranges();
        for net in cidrs(node).iter().filter_map(|cidr| parse(cidr)) {
            ranges.iter_mut().for_each(|range| range.occupy(net));
        }
        self.report(&ranges);
    }

    /// Shows how much of the ranges is given out; how much was added since the last time is counted.
    fn report(&self, ranges: &[Range]) {
        let metrics = &self.metrics.node_ipam;
        for range in ranges {
            let label = range.net.to_string();
            let (used, most) = (range.used.len() as f64, range.most());
            metrics.most.with([&label]).set(most);
            metrics.usage.with([&label]).set(used / most);
            let (allocations, releases) =
                (metrics.allocations.with([&label]), metrics.releases.with([&label]));
            let before = allocations.get().saturating_sub(releases.get());
            let after = u64::try_from(range.used.len()).unwrap_or(u64::MAX);
            allocations.add(after.saturating_sub(before));
            releases.add(before.saturating_sub(after));
        }
    }

    fn release(&self, cidrs: &[String]) {
        let mut ranges = self.ranges();
        for net in cidrs.iter().filter_map(|cidr| parse(cidr)) {
            ranges.iter_mut().for_each(|range| range.release(net));
        }
        self.report(&ranges);
    }

    fn allocate(&self) -> Result<Vec<String>, CidrError> {
        let mut ranges = self.ranges();
        let mut parts = Vec::new();
        for at in 0..ranges.len() {
            match ranges.get_mut(at).map(Range::allocate) {
                Some(Ok(part)) => parts.push(part),
                Some(Err(error)) => {
                    for (range, part) in ranges.iter_mut().zip(&parts) {
                        parse(part).into_iter().for_each(|net| range.release(net));
                    }
                    return Err(error);
                }
                None => {}
            }
        }
        self.report(&ranges);
        Ok(parts)
    }

    async fn sync(&self, name: String) -> Result<(), Error> {
        let Some(node) = self.nodes.store().get(&name) else { return Ok(()) };
        if !cidrs(&node).is_empty() {
            self.occupy(&node);
            return Ok(());
        }
        let api: Api<Node> = Api::all(self.client.clone());
        // The informer may not show yet what the last sync wrote.
        let Some(latest) = api.get_opt(&name).await? else { return Ok(()) };
        if !cidrs(&latest).is_empty() {
            self.occupy(&latest);
            return Ok(());
        }
        let parts = match self.allocate() {
            Ok(parts) => parts,
            Err(error) => {
                let message = format!("Node {name} status is now: CIDRNotAvailable");
                let about = reference(&*node);
                self.recorder.event(about, EventType::Normal, "CIDRNotAvailable", &message);
                return Err(error.into());
            }
        };
        let patch = Patch::Merge(json!({
            "metadata": {"uid": latest.metadata.uid},
            "spec": {"podCIDR": parts.first(), "podCIDRs": parts},
        }));
        let patched = unless_gone(api.patch(&name, &PatchParams::default(), &patch).await);
        if !matches!(patched, Ok(Some(_))) {
            self.release(&parts);
        }
        patched?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{CidrError, Range, parse};

    #[test]
    fn node_ipam_gives_each_node_another_part() {
        let mut range = Range::new("10.1.7.9/22", 24, 64).unwrap();
        range.occupy(parse("10.1.5.0/24").unwrap());
        range.occupy(parse("192.168.0.0/24").unwrap());
        assert_eq!(range.allocate().unwrap(), "10.1.4.0/24");
        assert_eq!(range.allocate().unwrap(), "10.1.6.0/24");
        assert_eq!(range.allocate().unwrap(), "10.1.7.0/24");
        assert_eq!(range.allocate(), Err(CidrError::Exhausted));
        range.release(parse("10.1.6.0/24").unwrap());
        assert_eq!(range.allocate().unwrap(), "10.1.6.0/24");
        let mut v6 = Range::new("fd00:1::/56", 24, 64).unwrap();
        assert_eq!(v6.allocate().unwrap(), "fd00:1::/64");
        assert_eq!(v6.allocate().unwrap(), "fd00:1:0:1::/64");
    }

    #[test]
    fn node_ipam_leaves_out_what_overlaps() {
        for (occupied, expected) in [
            // Ranges of services, inside, around and elsewhere.
            ("10.1.4.0/23", "10.1.6.0/24"),
            ("10.1.4.7/32", "10.1.5.0/24"),
            ("10.1.9.0/24", "10.1.4.0/24"),
            ("fd00::/64", "10.1.4.0/24"),
        ] {
            let mut range = Range::new("10.1.4.0/22", 24, 64).unwrap();
            range.occupy(parse(occupied).unwrap());
            assert_eq!(range.allocate().unwrap(), expected, "{occupied}");
            range.release(parse(occupied).unwrap());
            range.release(parse(expected).unwrap());
            assert_eq!(range.allocate().unwrap(), "10.1.4.0/24", "{occupied}");
        }
        let mut range = Range::new("10.1.4.0/22", 24, 64).unwrap();
        range.occupy(parse("10.0.0.0/8").unwrap());
        assert_eq!(range.allocate(), Err(CidrError::Exhausted));
    }

    #[test]
    fn node_ipam_refuses_odd_ranges() {
        for text in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/25", "10.0.0.0/7", "::/0"] {
            assert!(Range::new(text, 24, 64).is_err(), "{text}");
        }
        assert!(Range::new("::/112", 24, 128).is_ok());
        assert!(Range::new("0.0.0.0/0", 16, 64).is_ok());
    }
}
