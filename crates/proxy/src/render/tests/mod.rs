mod golden;
mod kernel;
mod random;
mod syncs;
mod walker;
mod walks;

use std::collections::BTreeSet;

use crate::model::{Family, State};

use super::{Accounting, Existing, Full, JUMPS, LocalDetector, NodePorts, Settings, Table, Totals};
use kernel::Kernel;

/// As kube-proxy has them with `clusterCIDR` 10.244.0.0/16 on a node with the address 192.168.0.2.
fn settings() -> Settings {
    Settings {
        family: Family::V4,
        masquerade_all: false,
        masquerade_bit: 14,
        random_fully: true,
        detector: LocalDetector::Cidr("10.244.0.0/16".parse().unwrap()),
        node_ip: "192.168.0.2".parse().unwrap(),
        node_ports: NodePorts::All,
        localhost_node_ports: true,
        drop_invalid: true,
        accounting: Accounting::default(),
    }
}

fn addresses(texts: &[&str]) -> NodePorts {
    NodePorts::Addresses(texts.iter().map(|ip| ip.parse().unwrap()).collect::<BTreeSet<_>>())
}

/// A kernel with the rules of a state.
fn synced(state: &State, settings: &Settings) -> Kernel {
    let mut kernel = Kernel::default();
    let (_, totals) = full_sync(&mut kernel, state, settings);
    let jumps = |table| JUMPS.iter().filter(|jump| jump.table == table).count();
    assert_eq!(kernel.count("filter"), totals.filter + jumps(Table::Filter));
    assert_eq!(kernel.count("nat"), totals.nat + jumps(Table::Nat));
    kernel
}

/// Syncs a kernel; how many transactions it took, and its counts.
fn full_sync(kernel: &mut Kernel, state: &State, settings: &Settings) -> (usize, Totals) {
    let saved = kernel.save();
    let existing = Existing::read(saved.lines());
    let mut full = Full::new(state, settings, &existing);
    let mut count = 0;
    for text in full.by_ref() {
        kernel.restore(&text).unwrap();
        count += 1;
    }
    let (totals, mut stale) = full.finish();
    for text in stale.take() {
        kernel.restore(&text).unwrap();
        count += 1;
    }
    (count, totals)
}
