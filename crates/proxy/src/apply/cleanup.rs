//! `--cleanup`: what kube-proxy left in the kernel is removed, whichever variant and mode it used.

use tracing::{info, warn};

use super::detect::legacy_has;
use super::{Backend, CANARY, Error, Iptables, Limits, Table, Variant, chains_of};
use crate::Family;

/// Chains by name, the userspace mode's too. KUBE-FIREWALL and the hints are the kubelet's.
const NAT: [&str; 9] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-PORTALS-CONTAINER",
    "KUBE-PORTALS-HOST",
    "KUBE-NODEPORT-CONTAINER",
    "KUBE-NODEPORT-HOST",
    CANARY,
];
const FILTER: [&str; 7] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    "KUBE-NODEPORT-NON-LOCAL",
    CANARY,
];
/// Chains of services and endpoints, those of old versions (XLB) too.
const PREFIXES: [&str; 6] =
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-"];
/// Chains a transaction: the time that nft takes grows with their square.
const GROUP: usize = 500;

/// Remove all that is kube-proxy's, and nothing else, from all tables of this network namespace.
/// What fails is told, the rest done all the same; the first failure is returned.
pub async fn cleanup(limits: Limits) -> Result<(), Error> {
    let mut backends = Vec::new();
    for variant in [Variant::Nft, Variant::Legacy] {
        match Backend::of(variant, limits).await {
            Err(error) if error.is_not_installed() => {}
            backend => backends.push(backend?),
        }
    }
    if backends.is_empty() {
        backends.push(Backend::detect(limits).await?);
    }
    let mut result = Ok(());
    for backend in backends {
        for family in Family::ALL {
            for table in Table::ALL {
                // To look into a table of old would make it.
                if backend.variant == Variant::Legacy && !legacy_has(family, Some(table.name())) {
                    continue;
                }
                if let Err(error) = clear(&backend.family(family), table).await {
                    warn!(%family, %table, %error, "rules of kube-proxy are left");
                    result = result.and(Err(error));
                }
            }
        }
    }
    result
}

async fn clear(iptables: &Iptables, table: Table) -> Result<(), Error> {
    let texts = removal(table, &iptables.save(table).await?);
    if !texts.is_empty() {
        info!(family = %iptables.family(), %table, "removing rules of kube-proxy");
    }
    for text in texts {
        iptables.restore(&text, false).await?;
    }
    Ok(())
}

/// The transactions that remove what is ours from a table, given as `iptables-save` prints it:
/// jumps first, then rules, then chains, which nothing refers to by then.
pub(super) fn removal(table: Table, save: &str) -> Vec<String> {
    let chains: Vec<&str> = chains_of(save).filter(|chain| is_ours(table, chain)).collect();
    let jumps: Vec<String> = save
        .lines()
        .filter_map(|line| line.strip_prefix("-A "))
        .filter(|rule| {
            let mut words = rule.split_ascii_whitespace();
            let inside = words.next().is_some_and(|chain| is_ours(table, chain));
            // The target comes last but for its options; a comment is no target.
            let target = words.skip_while(|word| !matches!(*word, "-j" | "-g")).nth(1);
            !inside && target.is_some_and(|chain| is_ours(table, chain))
        })
        .map(|rule| format!("-D {rule}"))
        .collect();
    let transaction = |lines: &[String]| format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
    let of_chains = |line: fn(&&str) -> String| {
        let lines: Vec<String> = chains.iter().map(line).collect();
        lines.chunks(GROUP).map(transaction).collect::<Vec<_>>()
    };
    let mut texts: Vec<String> = jumps.chunks(GROUP).map(transaction).collect();
    texts.extend(of_chains(|chain| format!(":{chain} - [0:0]")));
    texts.extend(of_chains(|chain| format!("-X {chain}")));
    texts
}

fn is_ours(table: Table, chain: &str) -> bool {
    match table {
        Table::Nat => {
            NAT.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
        }
        Table::Filter => FILTER.contains(&chain),
        Table::Mangle => chain == CANARY,
    }
}
