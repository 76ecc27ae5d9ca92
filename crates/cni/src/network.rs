//! Configurations of networks: `*.conflist`, and `*.conf` or `*.json` of one plugin.

use std::fs;
use std::path::{Path, PathBuf};

use longshore_base::files::{self, if_present};
use serde_json::{Map, Value, json};

use crate::attachment::{Attachment, is_identifier};
use crate::version::{self, Version};
use crate::{Error, Result, plugin};

/// No configuration is larger.
const MAX_CONFIG: u64 = 1 << 20;

/// A network and its plugins.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    name: String,
    version: Version,
    version_text: String,
    disable_check: bool,
    plugins: Vec<Value>,
    /// As it was read: it is kept with results.
    text: String,
}

impl Network {
    /// Reads a list of plugins.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let list = value.as_object().ok_or("not a JSON object")?;
        let plugins = match list.get("plugins") {
            Some(plugins) => plugins.as_array().cloned().ok_or("plugins is not a list")?,
            None => return Err("no 'plugins' key".into()),
        };
        Self::new(list, plugins, text)
    }

    /// Reads a configuration of one plugin, which becomes a list of it.
    fn parse_single(text: &str) -> std::result::Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let plugin = value.as_object().ok_or("not a JSON object")?;
        let mut list = Map::new();
        for key in ["name", "cniVersion"] {
            plugin.get(key).map(|given| list.insert(key.to_owned(), given.clone()));
        }
        list.insert("plugins".to_owned(), json!([value]));
        let text = Value::Object(list.clone()).to_string();
        Self::new(&list, vec![value], &text)
    }

    fn new(
        list: &Map<String, Value>,
        plugins: Vec<Value>,
        text: &str,
    ) -> std::result::Result<Self, String> {
        let name = list.get("name").and_then(Value::as_str).unwrap_or_default();
        if !is_identifier(name) {
            return Err(format!("invalid network name {name:?}"));
        }
        let version_text = match list.get("cniVersion").and_then(Value::as_str) {
            Some(text) if !text.is_empty() => text,
            _ => version::OLDEST,
        };
        let version = Version::parse(version_text)
            .ok_or_else(|| format!("invalid cniVersion {version_text:?}"))?;
        if plugins.is_empty() {
            return Err("no plugins in list".into());
        }
        if plugins.iter().any(|plugin| !plugin::is_type(type_of(plugin))) {
            return Err("a plugin has no valid type".into());
        }
        Ok(Self {
            name: name.to_owned(),
            version,
            version_text: version_text.to_owned(),
            disable_check: list.get("disableCheck").is_some_and(is_true),
            plugins,
            text: text.to_owned(),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a plugin of it has a capability.
    #[must_use]
    pub fn has_capability(&self, capability: &str) -> bool {
        self.plugins.iter().any(|plugin| has_capability(plugin, capability))
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn plugins(&self) -> &[Value] {
        &self.plugins
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn has_check(&self) -> bool {
        self.version >= version::WITH_CHECK && !self.disable_check
    }

    /// What a plugin gets: its own part, with name and version of the network, the arguments of its
    /// capabilities, and the result before it.
    pub(crate) fn plugin_config(
        &self,
        plugin: &Value,
        attachment: &Attachment,
        previous: Option<&Value>,
    ) -> Value {
        let mut config = plugin.as_object().cloned().unwrap_or_default();
        config.insert("name".to_owned(), json!(self.name));
        config.insert("cniVersion".to_owned(), json!(self.version_text));
        let given: Map<String, Value> = attachment
            .capability_args
            .iter()
            .filter(|(capability, _)| has_capability(plugin, capability))
            .map(|(capability, value)| (capability.clone(), value.clone()))
            .collect();
        if !given.is_empty() {
            config.insert("runtimeConfig".to_owned(), Value::Object(given));
        }
        if let Some(previous) = previous {
            config.insert("prevResult".to_owned(), previous.clone());
        }
        Value::Object(config)
    }
}

/// The type of a plugin, which is the name of its program.
pub(crate) fn type_of(plugin: &Value) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn has_capability(plugin: &Value, capability: &str) -> bool {
    plugin.get("capabilities").and_then(|all| all.get(capability)).is_some_and(is_true)
}

/// Versions up to 1.0 had `"true"` in some configurations, and libcni takes it.
fn is_true(value: &Value) -> bool {
    value.as_bool() == Some(true) || value.as_str() == Some("true")
}

/// The first valid network of a folder whose plugins all exist.
pub(crate) fn first(folder: &Path, bin_dirs: &[PathBuf]) -> Result<Network> {
    let mut rejected = Vec::new();
    for path in configurations(folder)? {
        match read(&path, bin_dirs) {
            Ok(network) => return Ok(network),
            Err(reason) => rejected.push(format!("{}: {reason}", path.display())),
        }
    }
    Err(Error::NoNetwork { folder: folder.to_owned(), rejected })
}

/// The configurations of a folder, by name. A folder that does not exist has none.
fn configurations(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::file("read", folder, source);
    let entries = if_present(fs::read_dir(folder)).map_err(failed)?;
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten() {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("conf" | "conflist" | "json")) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path, bin_dirs: &[PathBuf]) -> std::result::Result<Network, String> {
    let text = files::read_at_most(path, MAX_CONFIG).map_err(|error| error.to_string())?;
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    let list = path.extension().is_some_and(|extension| extension == "conflist");
    let network = if list { Network::parse(&text) } else { Network::parse_single(&text) }?;
    for plugin in network.plugins() {
        plugin::find(bin_dirs, type_of(plugin)).map_err(|error| error.to_string())?;
    }
    Ok(network)
}
