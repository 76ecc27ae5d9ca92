//! Gives each node its part of `--cluster-cidr`, with `--allocate-node-cidrs`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, SyncError, WorkQueue, key_of, run_workers};
use serde_json::json;
use tracing::error;

use crate::Context;
use crate::writes::{reference, unless_gone, unless_stopped};

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
    /// The first address, in the low bits.
    base: u128,
    is_v6: bool,
    prefix: u8,
    mask: u8,
    used: BTreeSet<u128>,
}

fn parse(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    Some((address.parse().ok()?, prefix.parse().ok()?))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

impl Range {
    fn new(text: &str, mask_v4: u8, mask_v6: u8) -> Result<Self, CidrError> {
        let (address, prefix) = parse(text).ok_or_else(|| CidrError::Syntax(text.to_owned()))?;
        let is_v6 = address.is_ipv6();
        let (width, mask) = if is_v6 { (128, mask_v6) } else { (32, mask_v4) };
        // More than 16 bits between them are more nodes than any cluster has.
        if prefix > width || mask < prefix || mask > width || mask - prefix > 16 {
            return Err(CidrError::Mask { cidr: text.to_owned(), mask });
        }
        let host = u32::from(width - prefix);
        let base = bits(address).checked_shr(host).unwrap_or(0).checked_shl(host).unwrap_or(0);
        Ok(Self { base, is_v6, prefix, mask, used: BTreeSet::new() })
    }

    fn shift(&self) -> u32 {
        u32::from(if self.is_v6 { 128 } else { 32 } - self.mask)
    }

    fn part(&self, index: u128) -> String {
        let address = self.base | index.checked_shl(self.shift()).unwrap_or(0);
        let address = match (self.is_v6, u32::try_from(address)) {
            (false, Ok(address)) => IpAddr::V4(Ipv4Addr::from(address)),
            _ => IpAddr::V6(Ipv6Addr::from(address)),
        };
        format!("{address}/{}", self.mask)
    }

    /// The number of the part that has the address.
    fn index(&self, text: &str) -> Option<u128> {
        let (address, _) = parse(text)?;
        let index = bits(address).checked_sub(self.base)?.checked_shr(self.shift()).unwrap_or(0);
        (address.is_ipv6() == self.is_v6 && index < self.size()).then_some(index)
    }

    fn size(&self) -> u128 {
        1_u128.checked_shl(u32::from(self.mask - self.prefix)).unwrap_or(u128::MAX)
    }

    fn occupy(&mut self, text: &str) {
        self.used.extend(self.index(text));
    }

    fn release(&mut self, text: &str) {
        if let Some(index) = self.index(text) {
            self.used.remove(&index);
        }
    }

    fn allocate(&mut self) -> Result<String, CidrError> {
        let free = (0..self.size()).find(|index| !self.used.contains(index));
        let index = free.ok_or(CidrError::Exhausted)?;
        self.used.insert(index);
        Ok(self.part(index))
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
    let ranges = match ranges {
        Ok(ranges) if !ranges.is_empty() => ranges,
        Ok(_) => return error!("--allocate-node-cidrs needs --cluster-cidr"),
        Err(error) => return error!("--cluster-cidr: {error}"),
    };
    let queue: WorkQueue<String> = WorkQueue::new("node_ipam", &context.queues);
    let nodes = context.informers.get::<Node>();
    if !unless_stopped(&context, nodes.synced()).await {
        return;
    }
    let controller = std::sync::Arc::new(Controller {
        client: context.client.clone(),
        nodes: nodes.clone(),
        ranges: Mutex::new(ranges),
        recorder: context.recorder("cidrAllocator"),
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
    fn ranges(&self) -> std::sync::MutexGuard<'_, Vec<Range>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn occupy(&self, node: &Node) {
        let mut ranges = self.ranges();
        for cidr in cidrs(node) {
            ranges.iter_mut().for_each(|range| range.occupy(&cidr));
        }
    }

    fn release(&self, cidrs: &[String]) {
        let mut ranges = self.ranges();
        for cidr in cidrs {
            ranges.iter_mut().for_each(|range| range.release(cidr));
        }
    }

    fn allocate(&self) -> Result<Vec<String>, CidrError> {
        let mut ranges = self.ranges();
        let mut parts = Vec::new();
        for at in 0..ranges.len() {
            match ranges.get_mut(at).map(Range::allocate) {
                Some(Ok(part)) => parts.push(part),
                Some(Err(error)) => {
                    for (range, part) in ranges.iter_mut().zip(&parts) {
                        range.release(part);
                    }
                    return Err(error);
                }
                None => {}
            }
        }
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
    use super::{CidrError, Range};

    #[test]
    fn node_ipam_gives_each_node_another_part() {
        let mut range = Range::new("10.1.7.9/22", 24, 64).unwrap();
        range.occupy("10.1.5.0/24");
        range.occupy("192.168.0.0/24");
        assert_eq!(range.allocate().unwrap(), "10.1.4.0/24");
        assert_eq!(range.allocate().unwrap(), "10.1.6.0/24");
        assert_eq!(range.allocate().unwrap(), "10.1.7.0/24");
        assert_eq!(range.allocate(), Err(CidrError::Exhausted));
        range.release("10.1.6.0/24");
        assert_eq!(range.allocate().unwrap(), "10.1.6.0/24");
        let mut v6 = Range::new("fd00:1::/56", 24, 64).unwrap();
        assert_eq!(v6.allocate().unwrap(), "fd00:1::/64");
        assert_eq!(v6.allocate().unwrap(), "fd00:1:0:1::/64");
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
