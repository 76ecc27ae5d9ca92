//! What the engine says of itself and its machine, asked for again once a minute at most.

use std::sync::Arc;
use std::time::Duration;

use bollard::models::SystemInfo;
use longshore_cri::v1::{RuntimeHandler, RuntimeHandlerFeatures};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::resources::CgroupDriver;
use crate::{Error, Result};

/// How long an answer holds: the engine is configured when it starts.
const AGE: Duration = Duration::from_secs(60);
/// How long the engine may take to say it again, and for the first time.
const PATIENCE: Duration = Duration::from_secs(2);
const FIRST_PATIENCE: Duration = Duration::from_secs(15);
/// The handler that always is the engine's default.
const DOCKER: &str = "docker";
/// Where an engine from API 1.44 on tells what its runtimes can.
const FEATURES: &str = "org.opencontainers.runtime-spec.features";

/// An engine and its machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Info {
    pub(crate) driver: CgroupDriver,
    /// The folder of all that the engine keeps.
    pub(crate) root_dir: String,
    /// Bytes of the machine's memory.
    pub(crate) memory: u64,
    pub(crate) handlers: Vec<RuntimeHandler>,
}

/// The last answer.
#[derive(Debug, Default)]
pub(crate) struct InfoCache(Mutex<Option<(Instant, Arc<Info>)>>);

impl InfoCache {
    /// The engine may be another one now.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }

    /// What the engine says of itself, by a request that is made if it is due. An engine may take its time with it,
    /// as Docker 20.10 does while it looks up the address of a registry: what it said before holds then.
    ///
    /// # Errors
    /// Of the engine, if it has not said it before.
    pub(crate) async fn get(
        &self,
        request: impl Future<Output = std::result::Result<SystemInfo, bollard::errors::Error>>,
    ) -> Result<Arc<Info>> {
        const ACTION: &str = "ask the Docker Engine for its settings";
        let known = self.0.lock().clone();
        if let Some((at, info)) = &known
            && at.elapsed() < AGE
        {
            return Ok(Arc::clone(info));
        }
        let limit = if known.is_some() { PATIENCE } else { FIRST_PATIENCE };
        let late = |_| Error::Deadline { action: ACTION.to_owned(), seconds: limit.as_secs() };
        let answer = timeout(limit, request).await.map_err(late);
        match answer.and_then(|info| info.map_err(|error| Error::docker(ACTION, error))) {
            Ok(info) => {
                let info = Arc::new(Info::new(info));
                *self.0.lock() = Some((Instant::now(), Arc::clone(&info)));
                Ok(info)
            }
            Err(error) => {
                let Some((_, info)) = known else { return Err(error) };
                // It is not waited for by each caller.
                if let Some((at, _)) = &mut *self.0.lock() {
                    *at = Instant::now();
                }
                Ok(info)
            }
        }
    }
}

impl Info {
    fn new(info: SystemInfo) -> Self {
        let systemd = info.cgroup_driver.is_some_and(|driver| driver.to_string() == "systemd");
        let default = info.default_runtime.unwrap_or_default();
        let mut handlers = Vec::new();
        for (name, runtime) in info.runtimes.unwrap_or_default() {
            let status = runtime.status.unwrap_or_default();
            let features = RuntimeHandlerFeatures {
                recursive_read_only_mounts: status.get(FEATURES).is_some_and(|text| has_rro(text)),
                user_namespaces: false,
            };
            if name == default {
                handlers.push(RuntimeHandler { name: String::new(), features: Some(features) });
            }
            handlers.push(RuntimeHandler { name, features: Some(features) });
        }
        handlers.sort_by(|one, other| one.name.cmp(&other.name));
        Self {
            driver: if systemd { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs },
            root_dir: info.docker_root_dir.unwrap_or_default(),
            memory: info.mem_total.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
            handlers,
        }
    }

    /// The runtime of a handler; `None` is the engine's default.
    ///
    /// # Errors
    /// When the engine has no such runtime.
    pub(crate) fn runtime<'a>(&self, handler: &'a str) -> Result<Option<&'a str>> {
        if handler.is_empty() || handler == DOCKER {
            return Ok(None);
        }
        if self.handlers.iter().any(|known| known.name == handler) {
            return Ok(Some(handler));
        }
        Err(Error::Invalid(format!("no runtime for {handler:?} is configured")))
    }
}

/// Whether a runtime that has these features knows mounts that are read-only all the way down.
fn has_rro(features: &str) -> bool {
    let features = serde_json::from_str::<serde_json::Value>(features).unwrap_or_default();
    let options = features.get("mountOptions").and_then(|options| options.as_array());
    options.is_some_and(|options| options.iter().any(|option| option == "rro"))
}

#[cfg(test)]
mod tests {
    use bollard::models::Runtime;

    use super::*;

    fn with_memory(bytes: i64) -> SystemInfo {
        SystemInfo { mem_total: Some(bytes), ..SystemInfo::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn settings_hold_while_the_engine_does_not_answer() {
        let cache = InfoCache::default();
        let begin = Instant::now();
        assert!(cache.get(std::future::pending()).await.is_err(), "nothing is known");
        assert_eq!(begin.elapsed(), FIRST_PATIENCE);
        assert_eq!(cache.get(async { Ok(with_memory(1)) }).await.unwrap().memory, 1);
        assert_eq!(cache.get(std::future::pending()).await.unwrap().memory, 1);
        tokio::time::advance(AGE).await;
        let begin = Instant::now();
        assert_eq!(cache.get(std::future::pending()).await.unwrap().memory, 1);
        assert_eq!(cache.get(std::future::pending()).await.unwrap().memory, 1);
        assert_eq!(begin.elapsed(), PATIENCE, "one caller has waited");
        tokio::time::advance(AGE).await;
        assert_eq!(cache.get(async { Ok(with_memory(2)) }).await.unwrap().memory, 2);
        cache.forget();
        assert!(cache.get(std::future::pending()).await.is_err(), "it may be another engine");
    }

    #[test]
    fn handlers_are_the_engines_runtimes() {
        let rro = [(FEATURES.to_owned(), r#"{"mountOptions": ["ro", "rro"]}"#.to_owned())];
        let runtimes = [
            ("runc".to_owned(), Runtime { status: Some(rro.into()), ..Runtime::default() }),
            ("kata".to_owned(), Runtime::default()),
        ];
        let info = Info::new(SystemInfo {
            runtimes: Some(runtimes.into()),
            default_runtime: Some("runc".into()),
            mem_total: Some(-1),
            ..SystemInfo::default()
        });
        let found: Vec<_> = info
            .handlers
            .iter()
            .map(|h| (h.name.as_str(), h.features.is_some_and(|f| f.recursive_read_only_mounts)))
            .collect();
        assert_eq!(found, [("", true), ("kata", false), ("runc", true)]);
        assert_eq!(info.memory, 0);
        for handler in ["", "docker"] {
            assert_eq!(info.runtime(handler).unwrap(), None);
        }
        assert_eq!(info.runtime("kata").unwrap(), Some("kata"));
        assert!(info.runtime("other").is_err());
    }

    #[test]
    fn broken_features_are_none() {
        for text in ["", "{", "[]", r#"{"mountOptions": "rro"}"#] {
            assert!(!has_rro(text), "{text}");
        }
    }
}
