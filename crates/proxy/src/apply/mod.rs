//! Rules into the kernel and back: the one place that runs iptables. Text comes from `render`;
//! which of the two variants (nft, legacy) is in use on this machine is found out once
//! ([`Backend::detect`]) and both families keep to it. [`watch`] detects when somebody flushes
//! tables, [`cleanup`] removes all that is kube-proxy's.
//!
//! Current limitations: the legacy variant has no change notifications, so flushes are detected by polling.

mod cleanup;
mod command;
mod detect;
mod lock;
mod nftables;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::Family;
pub use cleanup::{CleanupMode, cleanup, cleanup_mode, cleanup_nftables};
pub use command::Error;
use command::{Command, Program};
pub use detect::{Variant, Version};
pub use lock::Holder;
pub use watch::{CANARY, watch};

/// A table of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// `filter`
    Filter,
    /// `mangle`
    Mangle,
    /// `nat`
    Nat,
}

impl Table {
    /// Those that kube-proxy has something in.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Nat, Self::Filter];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where in a chain a rule goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Before all others.
    First,
    /// After all others.
    Last,
}

/// How long commands may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest wait for the xtables lock, in whole seconds.
    pub lock: Duration,
    /// The longest time of a command.
    pub command: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lock: Duration::from_secs(30), command: Duration::from_secs(300) }
    }
}

/// The iptables of this machine.
#[derive(Debug)]
pub struct Backend {
    /// Whose rules the kernel keeps.
    pub variant: Variant,
    /// Of the programs.
    pub version: Version,
    /// Programs are named with their variant: `iptables-nft-save`.
    suffixed: bool,
    limits: Limits,
    /// Changes one at a time, both families: the kernel makes one that overlaps another begin again
    /// (nft), or wait (legacy).
    commands: Mutex<()>,
}

impl Backend {
    /// The handle for a family.
    pub fn family(self: &Arc<Self>, family: Family) -> Iptables {
        Iptables { backend: self.clone(), family }
    }

    /// Whether `MASQUERADE` takes `--random-fully`.
    pub fn random_fully(&self) -> bool {
        self.version >= Version(1, 6, 2)
    }
}

/// The tables of one family.
#[derive(Clone, Debug)]
pub struct Iptables {
    backend: Arc<Backend>,
    family: Family,
}

impl Iptables {
    /// Whose tables these are.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The programs in use.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Fails if the kernel has no tables of this family, or there is no program for them.
    pub async fn supported(&self) -> Result<(), Error> {
        self.command(Program::Rules).args(["-S", "POSTROUTING", "1", "-t", "nat"]).run().await?;
        Ok(())
    }

    /// A table as `iptables-save` prints it.
    pub async fn save(&self, table: Table) -> Result<String, Error> {
        self.command(Program::Save).args(["-t", table.name()]).run().await
    }

    /// The names of a table's chains, the built-in ones only as far as they are in use: far cheaper
    /// than all of its rules, where the kernel can list them separately.
    pub async fn chains(&self, table: Table) -> Result<Vec<String>, Error> {
        match self.backend.variant {
            Variant::Nft => nftables::chains(self.family, table).await.map_err(Error::Netlink),
            Variant::Legacy => Ok(chains_of(&self.save(table).await?).map(str::to_owned).collect()),
        }
    }

    /// Carry out the text of `iptables-restore`, a table all or nothing. Chains that it does not
    /// name stay as they are. With `counters`, those of the text are taken over.
    pub async fn restore(&self, text: &str, counters: bool) -> Result<(), Error> {
        let counters = counters.then_some("--counters");
        let _running = self.backend.commands.lock().await;
        let mut command = self.command(Program::Restore).arg("--noflush").input(text);
        command = command.args(counters);
        command.run().await?;
        Ok(())
    }

    /// Whether a chain exists.
    pub async fn has_chain(&self, table: Table, chain: &str) -> Result<bool, Error> {
        match self.backend.variant {
            Variant::Nft => {
                nftables::has_chain(self.family, table, chain).await.map_err(Error::Netlink)
            }
            Variant::Legacy => {
                let command = self.on(table, ["-S", chain]);
                Ok(command.run().await.found()?.is_some())
            }
        }
    }

    /// Make a chain, unless it exists; whether it did.
    pub async fn ensure_chain(&self, table: Table, chain: &str) -> Result<bool, Error> {
        let _running = self.backend.commands.lock().await;
        match self.on(table, ["-N", chain]).run().await {
            // The reason, not the exit code: 1 stands for more than one.
            Err(Error::Failed { stderr, .. }) if stderr.contains("Chain already exists") => {
                Ok(true)
            }
            result => result.map(|_| false),
        }
    }

    /// Take all rules out of a chain; whether it exists.
    pub async fn flush_chain(&self, table: Table, chain: &str) -> Result<bool, Error> {
        let _running = self.backend.commands.lock().await;
        Ok(self.on(table, ["-F", chain]).run().await.found()?.is_some())
    }

    /// Remove a chain that is empty and that no rule jumps to; whether it existed.
    pub async fn delete_chain(&self, table: Table, chain: &str) -> Result<bool, Error> {
        let _running = self.backend.commands.lock().await;
        Ok(self.on(table, ["-X", chain]).run().await.found()?.is_some())
    }

    /// Put a rule into a chain, unless it is there, wherever; whether it was.
    pub async fn ensure_rule(
        &self,
        position: Position,
        table: Table,
        chain: &str,
        rule: &[&str],
    ) -> Result<bool, Error> {
        let _running = self.backend.commands.lock().await;
        let check = self.on(table, ["-C", chain]).args(rule.iter().copied());
        match check.run().await {
            Ok(_) => return Ok(true),
            Err(Error::Failed { code: Some(1), .. }) => {}
            Err(error) => return Err(error),
        }
        let operation = match position {
            Position::First => "-I",
            Position::Last => "-A",
        };
        self.on(table, [operation, chain]).args(rule.iter().copied()).run().await?;
        Ok(false)
    }

    /// Take a rule out of a chain; whether it was there.
    pub async fn delete_rule(
        &self,
        table: Table,
        chain: &str,
        rule: &[&str],
    ) -> Result<bool, Error> {
        let _running = self.backend.commands.lock().await;
        let command = self.on(table, ["-D", chain]).args(rule.iter().copied());
        Ok(command.run().await.found()?.is_some())
    }

    fn on<'a>(&self, table: Table, operation: [&'a str; 2]) -> Command<'a> {
        self.command(Program::Rules).args(operation).args(["-t", table.name()])
    }

    fn command<'a>(&self, program: Program) -> Command<'a> {
        Command::new(&self.backend, self.family, program)
    }
}

/// "There is no such thing" is an answer.
trait Found<T> {
    fn found(self) -> Result<Option<T>, Error>;
}

impl<T> Found<T> for Result<T, Error> {
    fn found(self) -> Result<Option<T>, Error> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The names of chains in what `iptables-save` printed.
fn chains_of(save: &str) -> impl Iterator<Item = &str> {
    save.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next())
}
