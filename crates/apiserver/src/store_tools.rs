//! What is done to stores as a whole: snapshots of the embedded one, also while it is served, checks,
//! and moves between it and etcd.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use longshore_base::panics;
use longshore_store::backup::{self, Entry, Summary};
use longshore_store::{Checked, EmbeddedStore, EtcdStore, Expect, ListOptions, NewFile, Store};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::args::{MigrateArgs, Place, SnapshotCommand, store_file};
use crate::registry::check_stored;
use crate::snapshots::{Export, SNAPSHOT_SOCKET};

/// How long an apiserver may send nothing of a snapshot.
const STALL: Duration = Duration::from_secs(60);
/// The key by whose writes the revision of an etcd is raised.
const RAISING: &str = "longshore-migration";
/// How many entries are written to etcd at a time.
const WRITES: usize = 32;

/// Carries out `snapshot`; returns what to say of it.
///
/// # Errors
///
/// As of each of the commands; a check fails when something is wrong.
pub async fn snapshot(command: &SnapshotCommand) -> anyhow::Result<String> {
    match command {
        SnapshotCommand::Save { file, data_dir } => {
            let Summary { revision, entries } = save(file, data_dir).await?;
            Ok(format!("Saved {entries} keys at revision {revision} in {}\n", file.display()))
        }
        SnapshotCommand::Restore { file, data_dir, bump_revision } => {
            std::fs::create_dir_all(data_dir)
                .with_context(|| format!("--data-dir: create {}", data_dir.display()))?;
            let (from, to, bump) = (file.clone(), store_file(data_dir), *bump_revision);
            let Summary { revision, entries } =
                panics::blocking(move || backup::restore(&from, &to, bump)).await??;
            let store = store_file(data_dir);
            Ok(format!("Restored {entries} keys in {}, at revision {revision}\n", store.display()))
        }
        SnapshotCommand::Check { file, data_dir } => {
            let file = file.clone().unwrap_or_else(|| store_file(data_dir));
            let path = file.clone();
            let checked = panics::blocking(move || check(&path)).await??;
            let (path, Checked { revision, keys, faults, total_faults }) =
                (file.display(), checked);
            ensure!(
                total_faults == 0,
                "{path}: {total_faults} faults in {keys} keys\n{}",
                faults.join("\n")
            );
            Ok(format!("{path} is in order: {keys} keys at revision {revision}\n"))
        }
        SnapshotCommand::Defrag { data_dir } => {
            let path = store_file(data_dir);
            let file = path.clone();
            let (before, after) =
                panics::blocking(move || longshore_store::defragment_file(&file)).await??;
            Ok(format!("{}: {before} bytes before, {after} after\n", path.display()))
        }
    }
}

/// A snapshot from the apiserver that has the store open, or from its file if none has.
async fn save(file: &Path, data_dir: &Path) -> anyhow::Result<Summary> {
    let mut draft = Draft::create(file)?;
    match UnixStream::connect(data_dir.join(SNAPSHOT_SOCKET)).await {
        Ok(mut server) => {
            let mut part = vec![0; 64 << 10];
            loop {
                let read = timeout(STALL, server.read(&mut part)).await;
                let length = read.context("the apiserver stalls")?.context("from the apiserver")?;
                let Some(bytes) = part.get(..length).filter(|bytes| !bytes.is_empty()) else {
                    break;
                };
                draft.write(bytes)?;
            }
        }
        Err(_) => {
            let path = store_file(data_dir);
            ensure!(path.try_exists()?, "{}: there is no such file", path.display());
            let store = EmbeddedStore::open(&path).await?;
            let mut export = Export::begin(&store).await?;
            while let Some(bytes) = export.next().await? {
                draft.write(&bytes)?;
            }
        }
    }
    draft.finish().await
}

/// A file that gets its name when it is whole.
struct Draft {
    path: PathBuf,
    draft: PathBuf,
    file: File,
}

impl Draft {
    fn create(path: &Path) -> anyhow::Result<Draft> {
        let shown = path.display();
        ensure!(!path.try_exists()?, "{shown}: is there already, and is not replaced");
        let mut name = path.file_name().with_context(|| format!("{shown}: no name"))?.to_owned();
        name.push(format!(".{}.draft", std::process::id()));
        let draft = path.with_file_name(name);
        // secrets are in it
        let options = File::options().write(true).create_new(true).mode(0o600).open(&draft);
        let file = options.with_context(|| format!("create {}", draft.display()))?;
        Ok(Draft { path: path.to_owned(), draft, file })
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = io::Write::write_all(&mut self.file, bytes);
        written.with_context(|| format!("write {}", self.draft.display()))
    }

    /// Reads it again, and gives it its name.
    async fn finish(self) -> anyhow::Result<Summary> {
        self.file.sync_all().with_context(|| format!("write {}", self.draft.display()))?;
        let draft = self.draft.clone();
        let summary = panics::blocking(move || -> anyhow::Result<Summary> {
            Ok(backup::read_snapshot(File::open(&draft)?, &mut |_| Ok(()))?)
        });
        let summary = summary.await??;
        // unlike a rename, this replaces nothing
        std::fs::hard_link(&self.draft, &self.path)
            .with_context(|| format!("create {}", self.path.display()))?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(summary)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.draft);
    }
}

/// Verifies a snapshot or the file of a store.
fn check(path: &Path) -> anyhow::Result<Checked> {
    let open = || File::open(path).with_context(|| format!("open {}", path.display()));
    let mut first = Vec::new();
    let length = u64::try_from(backup::MAGIC.len()).unwrap_or_default();
    open()?.take(length).read_to_end(&mut first)?;
    if first != backup::MAGIC {
        return Ok(longshore_store::check_file(path, |_, value| check_stored(value))?);
    }
    let mut checked = Checked::default();
    let summary = backup::read_snapshot(open()?, &mut |Entry { key, value, .. }| {
        if let Err(why) = check_stored(&value) {
            checked.fault(format!("{key}: {why}"));
        }
        Ok(())
    })?;
    (checked.revision, checked.keys) = (summary.revision, summary.entries);
    Ok(checked)
}

/// Carries out `migrate`; returns what to say of it.
///
/// # Errors
///
/// The source cannot be read, or the destination has something or cannot be written.
pub async fn migrate(args: &MigrateArgs) -> anyhow::Result<String> {
    let servers = args.etcd.servers().context("--etcd-servers is missing")?;
    let file = store_file(&args.data_dir);
    let prefix = format!("/{}/", args.etcd.etcd_prefix.trim_matches('/'));
    let Summary { revision, entries } = match (args.from, args.to) {
        (Place::Etcd, Place::Embedded) => {
            std::fs::create_dir_all(&args.data_dir)
                .with_context(|| format!("--data-dir: create {}", args.data_dir.display()))?;
            let file = NewFile::create(&file)?;
            from_etcd(&args.etcd.connect(&servers).await?, &prefix, file).await?
        }
        (Place::Embedded, Place::Etcd) => {
            ensure!(file.try_exists()?, "{}: there is no such file", file.display());
            let store = EmbeddedStore::open(&file).await?;
            to_etcd(&store, &args.etcd.connect(&servers).await?, &prefix).await?
        }
        _ => bail!("--from and --to are the same kind of store"),
    };
    Ok(format!("Copied {entries} keys, the new store is at revision {revision}\n"))
}

async fn from_etcd(etcd: &EtcdStore, prefix: &str, mut file: NewFile) -> anyhow::Result<Summary> {
    let revision = etcd.revision().await?;
    let mut deadlines = std::collections::HashMap::new();
    let mut start = prefix.to_owned();
    loop {
        let page = etcd.export(prefix, &start, revision, &mut deadlines).await?;
        let Some(last) = page.last() else { break };
        start = format!("{}\0", last.key);
        file = panics::blocking(move || -> longshore_store::Result<NewFile> {
            page.into_iter().try_for_each(|entry| file.add(entry))?;
            Ok(file)
        })
        .await??;
    }
    Ok(panics::blocking(move || file.finish(revision)).await??)
}

async fn to_etcd(store: &EmbeddedStore, etcd: &EtcdStore, prefix: &str) -> anyhow::Result<Summary> {
    use futures::{StreamExt, TryStreamExt};
    let one = ListOptions { limit: 1, ..ListOptions::default() };
    let there = etcd.list(prefix, one).await?;
    if let Some(first) = there.items.first() {
        bail!("the etcd has objects already, such as {}; nothing is replaced", first.key);
    }
    let revision = store.revision().await?;
    etcd.raise_revision(RAISING, revision).await?;
    let (mut start, mut entries) = (String::new(), 0_u64);
    loop {
        let page = store.export(&start, revision).await?;
        let Some(last) = page.last() else { break };
        start = format!("{}\0", last.key);
        entries = entries.saturating_add(u64::try_from(page.len()).unwrap_or(u64::MAX));
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let writes = page.into_iter().map(|Entry { key, value, deadline, .. }| async move {
            // one whose time has come goes at once, as the store would have it
            let left = |at: Duration| at.saturating_sub(now).max(Duration::from_secs(1));
            etcd.put(&key, value, Expect::Absent, deadline.map(left)).await.map(drop)
        });
        futures::stream::iter(writes).buffer_unordered(WRITES).try_collect::<()>().await?;
    }
    Ok(Summary { revision: etcd.revision().await?, entries })
}
