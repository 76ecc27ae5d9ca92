//! The state files in the root directory, and the task that writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_base::files::{self, if_present};
use longshore_base::panics;
use longshore_config::KubeletConfiguration;
use longshore_topology::checkpoint::{self, Form};
use longshore_topology::{Allocator, StateError, cpu, memory};
use tracing::warn;

use super::{Error, Shared};

const CPU_FILE: &str = "cpu_manager_state";
const MEMORY_FILE: &str = "memory_manager_state";
/// Retry interval of failed writes.
const RETRY: Duration = Duration::from_secs(1);

/// The state files and their policies.
#[derive(Clone)]
pub(super) struct Files {
    cpu: PathBuf,
    cpu_policy: String,
    memory: PathBuf,
    memory_policy: String,
    form: Form,
}

/// The content of the two files.
#[derive(Clone, PartialEq, Eq)]
struct Texts {
    cpu: String,
    memory: String,
}

impl Files {
    pub(super) fn new(root_dir: &Path, settings: &KubeletConfiguration, form: Form) -> Self {
        Self {
            cpu: root_dir.join(CPU_FILE),
            cpu_policy: settings.cpu_manager_policy.clone(),
            memory: root_dir.join(MEMORY_FILE),
            memory_policy: settings.memory_manager_policy.clone(),
            form,
        }
    }

    /// Loads the state. Missing files are written from the allocator.
    pub(super) fn load(
        &self,
        allocator: &Allocator,
    ) -> Result<(Option<cpu::State>, Option<memory::State>), Error> {
        let texts = self.texts(allocator);
        let cpu = match read(&self.cpu)? {
            Some(text) => Some(
                checkpoint::read_cpu(self.form, &self.cpu_policy, &text)
                    .map_err(|e| self.cpu_error(e))?,
            ),
            None => {
                write(&self.cpu, &texts.cpu)?;
                None
            }
        };
        let memory = match read(&self.memory)? {
            Some(text) => Some(
                checkpoint::read_memory(self.form, &self.memory_policy, &text)
                    .map_err(|e| self.memory_error(e))?,
            ),
            None => {
                write(&self.memory, &texts.memory)?;
                None
            }
        };
        Ok((cpu, memory))
    }

    pub(super) fn cpu_error(&self, source: StateError) -> Error {
        Error::State { manager: "CPU", path: self.cpu.clone(), source }
    }

    pub(super) fn memory_error(&self, source: StateError) -> Error {
        Error::State { manager: "memory", path: self.memory.clone(), source }
    }

    fn texts(&self, allocator: &Allocator) -> Texts {
        let cpu = allocator.cpu_state().cloned().unwrap_or_default();
        let memory = allocator.memory_state().cloned().unwrap_or_default();
        Texts {
            cpu: checkpoint::write_cpu(self.form, &self.cpu_policy, &cpu),
            memory: checkpoint::write_memory(self.form, &self.memory_policy, &memory),
        }
    }

    /// Writes files that have changed.
    fn store(&self, new: &Texts, old: Option<&Texts>) -> Result<(), Error> {
        if old.is_none_or(|old| old.cpu != new.cpu) {
            write(&self.cpu, &new.cpu)?;
        }
        if old.is_none_or(|old| old.memory != new.memory) {
            write(&self.memory, &new.memory)?;
        }
        Ok(())
    }
}

/// Writes the state whenever it changes.
pub(super) async fn run(shared: &Arc<Shared>) {
    let mut versions = shared.version.subscribe();
    let mut stored: Option<Texts> = None;
    loop {
        let version = *versions.borrow_and_update();
        let texts = shared.files.texts(&shared.allocator());
        let (files, old) = (shared.files.clone(), stored.take());
        let writing = panics::blocking(move || {
            let outcome = files.store(&texts, old.as_ref());
            (outcome, texts)
        });
        let error = match writing.await {
            Ok((Ok(()), texts)) => {
                stored = Some(texts);
                None
            }
            Ok((Err(error), _)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let failed = error.is_some();
        shared.persisted.send_modify(|persisted| {
            if error.is_none() {
                persisted.version = version;
            } else if persisted.error != error {
                warn!(
                    error = error.as_deref(),
                    "failed to write the state of the resource managers"
                );
            }
            persisted.error = error;
        });
        if failed {
            tokio::time::sleep(RETRY).await;
        } else if versions.changed().await.is_err() {
            return;
        }
    }
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    if_present(std::fs::read_to_string(path))
        .map_err(|source| Error::File { path: path.to_owned(), source })
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    let written = || {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        files::replace(path, text.as_bytes())
    };
    written().map_err(|source| Error::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_state_files_name_their_policy() {
        let dir = tempfile::tempdir().unwrap();
        let settings = KubeletConfiguration::default();
        let none = Files::new(dir.path(), &settings, Form::Plain);
        none.load(&Allocator::default()).unwrap();
        let persisted = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let expected = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
        assert_eq!(persisted(CPU_FILE), expected);
        let expected = r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#;
        assert_eq!(persisted(MEMORY_FILE), expected);
        none.load(&Allocator::default()).unwrap();

        let settings = KubeletConfiguration {
            cpu_manager_policy: "static".to_owned(),
            ..KubeletConfiguration::default()
        };
        let error =
            Files::new(dir.path(), &settings, Form::Plain).load(&Allocator::default()).unwrap_err();
        let path = dir.path().join(CPU_FILE);
        assert_eq!(
            error.to_string(),
            format!(
                "could not restore state from checkpoint: configured policy \"static\" differs \
                 from state checkpoint policy \"none\", please drain this node and delete the CPU \
                 manager checkpoint file \"{}\" before restarting Kubelet",
                path.display()
            )
        );
    }
}
