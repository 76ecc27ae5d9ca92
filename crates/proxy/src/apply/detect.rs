//! Which iptables this machine uses. A wrong guess would put rules where the other's are not seen,
//! so the indications are those of upstream's images: the kubelet's chains, else which has more
//! rules.

use std::fs;
use std::sync::Arc;

use tokio::sync::Mutex;
use tracing::info;

use super::command::{Command, Error, Program, name};
use super::{Backend, Limits, chains_of};
use crate::Family;

/// Chains in `mangle` that show which iptables variant the kubelet uses.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// Which part of the kernel keeps the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// nf_tables.
    Nft,
    /// The tables of old, one blob each.
    Legacy,
}

/// A version of iptables: major, minor, patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

/// Indications that a variant is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Detected {
    pub(super) installed: bool,
    pub(super) hint: bool,
    pub(super) rules: usize,
}

/// The variant to use, of those that are installed.
pub(super) fn choose_variant(nft: Detected, legacy: Detected) -> Option<Variant> {
    match (nft.installed, legacy.installed) {
        (false, false) => None,
        (true, false) => Some(Variant::Nft),
        (false, true) => Some(Variant::Legacy),
        _ if nft.hint => Some(Variant::Nft),
        _ if legacy.hint || legacy.rules > nft.rules => Some(Variant::Legacy),
        _ => Some(Variant::Nft),
    }
}

impl Backend {
    /// Find out which iptables is in use here. Changes nothing.
    pub async fn detect(limits: Limits) -> Result<Arc<Self>, Error> {
        let nft = hint(Variant::Nft).await?;
        let legacy = if nft.hint { Detected::default() } else { hint(Variant::Legacy).await? };
        let (nft, legacy) = if nft.hint || legacy.hint || !nft.installed || !legacy.installed {
            (nft, legacy)
        } else {
            // Only now all rules: of many they take seconds.
            (rules(Variant::Nft, nft).await?, rules(Variant::Legacy, legacy).await?)
        };
        let backend = match choose_variant(nft, legacy) {
            Some(variant) => Self::of(variant, limits).await?,
            None => Self::unnamed(limits).await?,
        };
        let Version(major, minor, patch) = backend.version;
        info!(variant = ?backend.variant, version = %format_args!("{major}.{minor}.{patch}"), "iptables");
        Ok(backend)
    }

    /// The programs that this machine's administrator has chosen, whatever others use.
    pub async fn chosen(limits: Limits) -> Result<Arc<Self>, Error> {
        Self::unnamed(limits).await
    }

    /// The programs of a variant, whatever this machine uses.
    pub async fn of(variant: Variant, limits: Limits) -> Result<Arc<Self>, Error> {
        let (_, version) = version(Some(variant)).await?;
        Ok(Self::new(variant, version, true, limits))
    }

    /// Programs whose variant is known only from `--version`.
    async fn unnamed(limits: Limits) -> Result<Arc<Self>, Error> {
        match version(None).await {
            Ok((variant, version)) => Ok(Self::new(variant, version, false, limits)),
            Err(error) if error.is_not_installed() => Err(Error::NoPrograms),
            Err(error) => Err(error),
        }
    }

    fn new(variant: Variant, version: Version, suffixed: bool, limits: Limits) -> Arc<Self> {
        Arc::new(Self { variant, version, suffixed, limits, commands: Mutex::new(()) })
    }
}

async fn version(variant: Option<Variant>) -> Result<(Variant, Version), Error> {
    let program = name(Program::Rules, Family::V4, variant);
    let answer = Command::plain(program.clone()).arg("--version").run().await?;
    parse_version(&answer).ok_or(Error::Version { command: program, answer })
}

/// `iptables v1.8.9 (nf_tables)`; those without a word in parentheses are of old.
pub(super) fn parse_version(answer: &str) -> Option<(Variant, Version)> {
    let number = answer.split_ascii_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut parts = number.split('.').map(str::parse);
    let mut part = || parts.next().transpose().ok();
    let (major, minor, patch) = (part()??, part()??, part()?.unwrap_or(0));
    let variant = if answer.contains("(nf_tables)") { Variant::Nft } else { Variant::Legacy };
    Some((variant, Version(major, minor, patch)))
}

/// Whether a variant is installed, and whether the kubelet has left a hint in it.
async fn hint(variant: Variant) -> Result<Detected, Error> {
    let mut detected = Detected::default();
    for family in Family::ALL {
        let Some(save) = save(variant, family, Some("mangle"), &mut detected).await? else {
            continue;
        };
        detected.hint |= chains_of(&save).any(|chain| HINTS.contains(&chain));
    }
    Ok(detected)
}

/// How many rules a variant has.
async fn rules(variant: Variant, mut detected: Detected) -> Result<Detected, Error> {
    for family in Family::ALL {
        let Some(save) = save(variant, family, None, &mut detected).await? else { continue };
        detected.rules += save.lines().filter(|line| line.starts_with('-')).count();
    }
    Ok(detected)
}

/// What a variant has, if it has tables at all. A family that the kernel does not have is empty.
async fn save(
    variant: Variant,
    family: Family,
    table: Option<&str>,
    detected: &mut Detected,
) -> Result<Option<String>, Error> {
    let program = name(Program::Save, family, Some(variant));
    let command = if variant == Variant::Legacy && !legacy_has(family, table) {
        // To print a table of old would make it.
        Command::plain(program).arg("--version")
    } else {
        Command::plain(program).args(table.map(|table| ["-t", table]).into_iter().flatten())
    };
    match command.run().await {
        Err(error) if error.is_not_installed() => Ok(None),
        Err(Error::Failed { .. }) => {
            detected.installed = true;
            Ok(None)
        }
        result => {
            detected.installed = true;
            result.map(Some)
        }
    }
}

/// Whether the kernel has made a table of old, or any.
pub(super) fn legacy_has(family: Family, table: Option<&str>) -> bool {
    // Of this thread: the process may have others, in other network namespaces.
    let names = fs::read_to_string(match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    });
    names.is_ok_and(|names| names.lines().any(|name| table.is_none_or(|table| table == name)))
}
