//! `--cleanup`: what kube-proxy left in the kernel is removed, whichever variant and mode it used;
//! and at a start what another mode left, whose rules would come before ours.

use tracing::{info, warn};

use super::detect::legacy_has;
use super::nftables;
use super::{Backend, CANARY, Error, Iptables, Limits, Table, Variant, chains_of};
use crate::Family;

/// Chains by name. KUBE-FIREWALL and the hints are the kubelet's.
const NAT: [&str; 4] = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"];
const FILTER: [&str; 5] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
];
/// Those of the userspace mode.
const NAT_USERSPACE: [&str; 4] = [
    "KUBE-PORTALS-CONTAINER",
    "KUBE-PORTALS-HOST",
    "KUBE-NODEPORT-CONTAINER",
    "KUBE-NODEPORT-HOST",
];
const FILTER_USERSPACE: [&str; 1] = ["KUBE-NODEPORT-NON-LOCAL"];
/// Chains of services and endpoints, those of old versions (XLB) too.
const PREFIXES: [&str; 6] =
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-"];
/// The table of upstream's nftables mode, one a family.
const NFTABLES_TABLE: &str = "kube-proxy";
/// Chains a transaction: the time that nft takes grows with their square.
const GROUP: usize = 500;

/// Whose rules are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupMode {
    /// Those of all modes.
    All,
    /// Those of the iptables mode.
    IpTables,
    /// Those of the userspace mode.
    Userspace,
}

/// Remove all that is kube-proxy's, and nothing else, from all tables of this network namespace.
/// Failures are logged, and the rest is still done; returns the first failure.
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
    for family in Family::ALL {
        if let Err(error) = cleanup_nftables(family).await {
            warn!(%family, %error, "cannot remove rules of kube-proxy's nftables mode");
            result = result.and(Err(error));
        }
    }
    for backend in backends {
        for family in Family::ALL {
            for table in Table::ALL {
                // Listing an old table would create it.
                if backend.variant == Variant::Legacy && !legacy_has(family, Some(table.name())) {
                    continue;
                }
                if let Err(error) = clear(&backend.family(family), table, CleanupMode::All).await {
                    warn!(%family, %table, %error, "cannot remove rules of kube-proxy");
                    result = result.and(Err(error));
                }
            }
        }
    }
    result
}

/// Remove what a mode that was in use before left. Costs little where it left nothing.
pub async fn cleanup_mode(iptables: &Iptables, mode: CleanupMode) -> Result<(), Error> {
    for table in [Table::Nat, Table::Filter] {
        let sign = match mode {
            CleanupMode::Userspace => NAT_USERSPACE[0],
            CleanupMode::All | CleanupMode::IpTables => NAT[0],
        };
        if table == Table::Nat && !iptables.has_chain(table, sign).await? {
            return Ok(());
        }
        clear(iptables, table, mode).await?;
    }
    Ok(())
}

/// Remove what upstream's nftables mode left of a family: it has a table of its own, and no program
/// of ours reads it.
pub async fn cleanup_nftables(family: Family) -> Result<(), Error> {
    match nftables::delete_table(family, NFTABLES_TABLE).await {
        Ok(true) => info!(%family, table = NFTABLES_TABLE, "removed a table of kube-proxy"),
        // A kernel without nftables has no such table.
        Ok(false) => {}
        Err(error) if is_unsupported(&error) => {}
        Err(error) => return Err(Error::Netlink(error)),
    }
    Ok(())
}

fn is_unsupported(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::OPNOTSUPP | Errno::INVAL | Errno::PROTONOSUPPORT))
}

async fn clear(iptables: &Iptables, table: Table, whose: CleanupMode) -> Result<(), Error> {
    let texts = removal(table, whose, &iptables.save(table).await?);
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
pub(super) fn removal(table: Table, whose: CleanupMode, save: &str) -> Vec<String> {
    let chains: Vec<&str> = chains_of(save).filter(|chain| is_ours(table, whose, chain)).collect();
    let jumps: Vec<String> = save
        .lines()
        .filter_map(|line| line.strip_prefix("-A "))
        .filter(|rule| {
            let mut words = rule.split_ascii_whitespace();
            let inside = words.next().is_some_and(|chain| is_ours(table, whose, chain));
            // The target comes last but for its options; a comment is no target.
            let target = words.skip_while(|word| !matches!(*word, "-j" | "-g")).nth(1);
            !inside && target.is_some_and(|chain| is_ours(table, whose, chain))
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

fn is_ours(table: Table, whose: CleanupMode, chain: &str) -> bool {
    let iptables = || match table {
        Table::Nat => {
            NAT.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
        }
        Table::Filter => FILTER.contains(&chain),
        Table::Mangle => false,
    };
    let userspace = || match table {
        Table::Nat => NAT_USERSPACE.contains(&chain),
        Table::Filter => FILTER_USERSPACE.contains(&chain),
        Table::Mangle => false,
    };
    match whose {
        CleanupMode::All => chain == CANARY || iptables() || userspace(),
        CleanupMode::IpTables => iptables(),
        CleanupMode::Userspace => userspace(),
    }
}
