//! FlexVolume drivers: programs below `volumePluginDir`, at `<vendor>~<driver>/<driver>`, that are called
//! with a command and arguments and answer in JSON.
//!
//! A driver is initialised when it is first used, and again after its program has changed; one that is
//! installed or removed counts from the next use on, so nothing is watched.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::sleep;

use crate::error::{Error, if_exists};
use crate::host::blocking;
use crate::host::tools::{Output, Tools};
use crate::layout;
use crate::persistent::{Persistent, PersistentSource};

const SUCCESS: &str = "Success";
const NOT_SUPPORTED: &str = "Not supported";
/// What errors of the program itself are about.
const PROGRAM: &str = "FlexVolume driver";

/// The drivers of the node.
pub(crate) struct FlexDrivers {
    dir: PathBuf,
    /// The name of the node, which attaching drivers are given.
    pub(crate) node_name: String,
    known: Mutex<BTreeMap<String, Arc<Driver>>>,
    /// By driver: locked while it is initialised. One that hangs delays no other.
    init: Mutex<BTreeMap<String, Arc<AsyncMutex<()>>>>,
}

/// A driver as it was initialised.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) name: String,
    program: PathBuf,
    version: Version,
    pub(crate) capabilities: Capabilities,
    /// Commands that it has answered not to support.
    unsupported: Mutex<BTreeSet<&'static str>>,
}

/// What a replaced program differs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    inode: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

/// What a driver can do; everything but metrics unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Whether its volumes are attached, and mounted once for all their pods.
    pub(crate) attach: bool,
    pub(crate) relabel: bool,
    pub(crate) metrics: bool,
    pub(crate) fs_group: bool,
    /// Whether file systems are made larger on the node.
    pub(crate) requires_resize: bool,
}

/// A successful answer of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The path of the device, if it names one.
    pub(crate) device: String,
    capabilities: Map<String, Value>,
}

/// The directory of a driver below `volumePluginDir`, and of its volumes below that of a pod.
pub(crate) fn dir_name(driver: &str) -> String {
    driver.replace('/', "~")
}

/// The driver of a directory.
pub(crate) fn of_dir(dir: &str) -> String {
    dir.replace('~', "/")
}

/// The path of a driver's program, below `volumePluginDir`.
fn program(driver: &str) -> Result<PathBuf, Error> {
    let dir = dir_name(driver);
    layout::component("FlexVolume driver", &dir)?;
    let program = driver.rsplit('/').next().unwrap_or_default();
    layout::component("FlexVolume driver", program)?;
    if dir.starts_with('.') {
        let (what, path, reason) =
            ("FlexVolume driver", driver.to_owned(), "must not start with a dot");
        return Err(Error::InvalidPath { what, path, reason });
    }
    Ok(Path::new(&dir).join(program))
}

impl FlexDrivers {
    pub(crate) fn new(dir: PathBuf, node_name: String) -> Self {
        Self { dir, node_name, known: Mutex::default(), init: Mutex::default() }
    }

    /// Whether the stats of a volume are reported. A FlexVolume driver has to say that they can be.
    pub(crate) fn reports_stats(&self, persistent: Option<&Persistent>) -> bool {
        match persistent.map(|persistent| &persistent.source) {
            Some(PersistentSource::Flex(source)) => {
                let known = self.known.lock();
                known.get(&source.driver).is_some_and(|driver| driver.capabilities.metrics)
            }
            _ => true,
        }
    }

    /// A driver, initialised.
    pub(crate) async fn get(&self, tools: &Tools, name: &str) -> Result<Arc<Driver>, Error> {
        let fail = |message: String| Error::Flex { driver: name.to_owned(), message };
        let program = self.dir.join(program(name)?);
        let path = program.clone();
        let version = blocking(move || {
            let found = fs::metadata(&path).map_err(|error| Error::io("look at", &path, error));
            let found = if_exists(found)?.filter(|file| file.is_file());
            Ok(found.map(|file| Version {
                inode: (file.dev(), file.ino()),
                size: file.size(),
                changed: (file.ctime(), file.ctime_nsec()),
            }))
        });
        let missing = || fail(format!("there is no program {}", program.display()));
        let version = version.await?.ok_or_else(missing)?;
        let init = Arc::clone(self.init.lock().entry(name.to_owned()).or_default());
        let _turn = init.lock().await;
        let current = |driver: &&Arc<Driver>| driver.version == version;
        if let Some(known) = self.known.lock().get(name).filter(current) {
            return Ok(known.clone());
        }
        let mut driver = Driver {
            name: name.to_owned(),
            program,
            version,
            capabilities: Capabilities::of(&Map::new()),
            unsupported: Mutex::default(),
        };
        let answer = driver.call(tools, "init", &[], sleep(tools.limit())).await?;
        let answer = answer.ok_or_else(|| fail(format!("init: {NOT_SUPPORTED}")))?;
        driver.capabilities = Capabilities::of(&answer.capabilities);
        let driver = Arc::new(driver);
        self.known.lock().insert(name.to_owned(), driver.clone());
        Ok(driver)
    }
}

impl Driver {
    /// Calls the driver; `None` if it does not support the command. It is killed when `limit` ends. Arguments
    /// may be confidential, and are not part of errors.
    pub(crate) async fn call(
        &self,
        tools: &Tools,
        command: &'static str,
        args: &[&OsStr],
        limit: impl Future<Output = ()>,
    ) -> Result<Option<Answer>, Error> {
        if self.unsupported.lock().contains(command) {
            return Ok(None);
        }
        let args = std::iter::once(OsStr::new(command)).chain(args.iter().copied());
        // As its own processes of the daemon, drivers have its environment.
        let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let output = tools.run_program(PROGRAM, &self.program, args, env, limit).await?;
        match answer(command, &output.text) {
            Ok(Some(_)) if output.code() != Some(0) => Err(self.failed(command, &output)),
            Ok(Some(answer)) => Ok(Some(answer)),
            Ok(None) => {
                self.unsupported.lock().insert(command);
                Ok(None)
            }
            Err(message) => Err(Error::Flex { driver: self.name.clone(), message }),
        }
    }

    fn failed(&self, command: &str, output: &Output) -> Error {
        let message =
            format!("{command} command ended with {:?} but reported success", output.code());
        Error::Flex { driver: self.name.clone(), message }
    }
}

impl Capabilities {
    fn of(fields: &Map<String, Value>) -> Self {
        let is_on = |name: &str, default: bool| match field(fields, name) {
            Some(value) => value.as_bool().unwrap_or(default),
            None => default,
        };
        Self {
            attach: is_on("attach", true),
            relabel: is_on("selinuxRelabel", true),
            metrics: is_on("supportsMetrics", false),
            fs_group: is_on("fsGroup", true),
            requires_resize: is_on("requiresFSResize", true),
        }
    }
}

/// A field, whose name may be in any case, as Go reads it.
fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let same = |(key, _): &(&String, &Value)| key.eq_ignore_ascii_case(name);
    fields.get(name).or_else(|| fields.iter().find(same).map(|(_, value)| value))
}

/// Reads what a driver has printed; `None`: it does not support the command.
fn answer(command: &str, text: &str) -> Result<Option<Answer>, String> {
    let fields: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| format!("{command} command printed no valid answer: {error}"))?;
    let word =
        |name: &str| field(&fields, name).and_then(Value::as_str).unwrap_or_default().to_owned();
    match word("status").as_str() {
        SUCCESS => {
            let capabilities = field(&fields, "capabilities").and_then(Value::as_object).cloned();
            let capabilities = capabilities.unwrap_or_default();
            Ok(Some(Answer { device: word("device"), capabilities }))
        }
        NOT_SUPPORTED => Ok(None),
        status => {
            Err(format!("{command} command failed, status: {status}, reason: {}", word("message")))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flex_driver_is_below_the_plugin_dir() {
        for (driver, expected) in [
            ("vendor/cifs", Some("vendor~cifs/cifs")),
            ("cifs", Some("cifs/cifs")),
            ("a.b/c/d", Some("a.b~c~d/d")),
            ("", None),
            ("/", None),
            ("..", None),
            ("../x", None),
            (".hidden", None),
            ("vendor/..", None),
            ("vendor/", None),
            ("a\0/b", None),
        ] {
            let found = program(driver).ok();
            assert_eq!(found.as_deref(), expected.map(Path::new), "{driver:?}");
        }
        assert_eq!(of_dir(&dir_name("a.b/c/d")), "a.b/c/d");
    }

    #[test]
    fn flex_answers_are_read_as_go_reads_them() {
        let device = |text: &str| answer("x", text).map(|one| one.map(|one| one.device));
        assert_eq!(device(r#"{"status":"Success","device":"/dev/x"}"#), Ok(Some("/dev/x".into())));
        assert_eq!(device(r#"{"Status":"Success"}"#), Ok(Some(String::new())));
        assert_eq!(device(r#"{"status":"Not supported"}"#), Ok(None));
        assert_eq!(
            device(r#"{"status":"Failure","message":"no disk"}"#).unwrap_err(),
            "x command failed, status: Failure, reason: no disk"
        );
        for text in ["", "{}", "[]", "null", "warning\n{\"status\":\"Success\"}", "{\"status\":1}"]
        {
            assert!(device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn flex_capabilities_have_defaults() {
        let of =
            |text: &str| Capabilities::of(&answer("init", text).unwrap().unwrap().capabilities);
        let all = Capabilities {
            attach: true,
            relabel: true,
            metrics: false,
            fs_group: true,
            requires_resize: true,
        };
        assert_eq!(of(r#"{"status":"Success"}"#), all);
        assert_eq!(of(r#"{"status":"Success","capabilities":{"attach":"no"}}"#), all);
        let text = r#"{"status":"Success","Capabilities":{"attach":false,"SELinuxRelabel":false,
                       "supportsMetrics":true,"fsGroup":false,"requiresFSResize":false}}"#;
        let none = Capabilities {
            attach: false,
            relabel: false,
            metrics: true,
            fs_group: false,
            requires_resize: false,
        };
        assert_eq!(of(text), none);
    }

    proptest! {
        /// Whatever a driver prints, it is read to an end.
        #[test]
        fn any_bytes_are_read_to_an_end(text in any::<String>(), value in any::<i64>()) {
            let _ = answer("x", &text);
            let _ = answer("x", &format!("{{\"status\":\"Success\",\"capabilities\":{value}}}"));
        }
    }
}
