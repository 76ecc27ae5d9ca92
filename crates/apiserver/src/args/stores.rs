//! Flags about stores: where etcd is, snapshots, and moving from one store to another.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use longshore_store::{EtcdStore, EtcdTls};

use super::{DATA_DIR, STORE_FILE};

/// Where etcd is.
#[derive(Debug, Args)]
pub struct EtcdArgs {
    /// etcd servers that hold the objects (http://host:port,… or https://host:port,…)
    #[arg(long, value_name = "URLS")]
    pub etcd_servers: Option<String>,
    /// The CA of the etcd servers
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub etcd_cafile: String,
    /// The client certificate for etcd
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub etcd_certfile: String,
    /// The key of --etcd-certfile
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub etcd_keyfile: String,
    /// What the keys of all objects begin with
    #[arg(long, value_name = "PREFIX", default_value = longshore_store::PREFIX)]
    pub etcd_prefix: String,
}

impl EtcdArgs {
    /// The URLs of the servers.
    pub fn servers(&self) -> Option<Vec<String>> {
        let servers = self.etcd_servers.as_ref()?.split(',').map(|server| {
            let server = server.trim().trim_end_matches('/');
            match server.split_once("://") {
                Some(("etcd", host)) => format!("http://{host}"),
                Some(_) => server.to_owned(),
                None => format!("http://{server}"),
            }
        });
        Some(servers.collect())
    }

    /// Connects to them. Errors name the flag.
    pub async fn connect(&self, servers: &[String]) -> anyhow::Result<EtcdStore> {
        let is_tls = servers.iter().any(|server| server.starts_with("https://"));
        let tls = is_tls.then(|| self.etcd_tls()).transpose()?;
        EtcdStore::connect_with(servers, tls.as_ref()).await.context("--etcd-servers")
    }

    fn etcd_tls(&self) -> anyhow::Result<EtcdTls> {
        let read = |flag: &str, path: &str| {
            std::fs::read(path).with_context(|| format!("{flag}: read {path}"))
        };
        let (certificate, key) = (&self.etcd_certfile, &self.etcd_keyfile);
        anyhow::ensure!(
            !self.etcd_cafile.is_empty(),
            "--etcd-cafile: missing, though --etcd-servers has servers with TLS"
        );
        anyhow::ensure!(
            certificate.is_empty() == key.is_empty(),
            "--etcd-certfile and --etcd-keyfile: one needs the other"
        );
        let identity = match certificate.is_empty() {
            true => None,
            false => Some((read("--etcd-certfile", certificate)?, read("--etcd-keyfile", key)?)),
        };
        Ok(EtcdTls { authority: read("--etcd-cafile", &self.etcd_cafile)?, identity })
    }
}

/// What is done to the embedded store.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Write all objects into a file, also while an apiserver has the store open
    Save {
        /// The file, which must not be there yet
        file: PathBuf,
        /// The directory of the embedded store
        #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Make a store of a snapshot
    Restore {
        /// The snapshot
        file: PathBuf,
        /// The directory of the new store, in which there must be none yet
        #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
        data_dir: PathBuf,
        /// By how much the revision is raised: more than there have been writes since the snapshot was made
        #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
        bump_revision: u32,
    },
    /// Verify a snapshot, or the embedded store while no apiserver has it open
    Check {
        /// The snapshot [default: the store in --data-dir]
        file: Option<PathBuf>,
        /// The directory of the embedded store
        #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Make the file of the embedded store as small as it can be, while no apiserver has it open
    Defrag {
        /// The directory of the embedded store
        #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
}

/// The file of the embedded store in a directory.
pub(crate) fn store_file(data_dir: &std::path::Path) -> PathBuf {
    data_dir.join(STORE_FILE)
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// An etcd.
    Etcd,
    /// The embedded store.
    Embedded,
}

/// Flags of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The store that has the objects; nothing may write to it meanwhile
    #[arg(long, value_name = "STORE")]
    pub from: Place,
    /// The store that gets them, and has none yet
    #[arg(long, value_name = "STORE")]
    pub to: Place,
    /// Where etcd is.
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// The directory of the embedded store
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    pub data_dir: PathBuf,
}
