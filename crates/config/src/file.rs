//! Configuration files: YAML or JSON, a main file with `*.conf` drop-ins. They are merged as untyped
//! trees: maps are merged, lists replaced, and a null resets a field to its default.
//!
//! Unknown or duplicate fields are warnings, as upstream, for files of other releases; wrong types are
//! errors.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use longshore_json::decode::{Path as FieldPath, Step};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use serde_saphyr::DuplicateKeyPolicy;

use super::kubelet::{KubeletConfiguration, default_eviction_hard};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// Maximum size of a configuration file.
const MAX_BYTES: u64 = 3 << 20;
/// Maximum number of unknown fields in a file.
const MAX_UNKNOWN: usize = 100;

/// Fields with paths relative to the directory of the file.
const PATH_FIELDS: [&str; 7] = [
    "/staticPodPath",
    "/authentication/x509/clientCAFile",
    "/tlsCertFile",
    "/tlsPrivateKeyFile",
    "/resolvConf",
    "/volumePluginDir",
    "/podLogsDir",
];

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content is not a configuration.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file at fault.
        path: PathBuf,
        /// The field at fault and why.
        reason: String,
    },
}

impl FileError {
    fn read(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Read { path: path.to_owned(), source }
    }

    pub(super) fn invalid(path: &Path, reason: impl ToString) -> Self {
        Self::Invalid { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Loads the main file, if given, and all drop-ins below `drop_ins`, if given. Returns
/// the settings and warnings.
pub(super) fn load(
    main: Option<&Path>,
    drop_ins: Option<&Path>,
) -> Result<(KubeletConfiguration, Vec<String>), FileError> {
    let (mut tree, mut warnings) = (Value::Object(Map::new()), Vec::new());
    if let Some(path) = main {
        tree = read(path, &mut warnings)?;
        anchor_paths(&mut tree, path);
    }
    let drop_in_files = drop_ins.map(conf_files).transpose()?.unwrap_or_default();
    // a drop-in with one signal keeps the thresholds of others, as upstream
    if !drop_in_files.is_empty() && tree.get("evictionHard").is_none_or(Value::is_null) {
        tree["evictionHard"] = default_eviction_hard().into_iter().collect();
    }
    for path in drop_in_files {
        json_patch::merge(&mut tree, &read(&path, &mut warnings)?);
    }
    let blamed = main.or(drop_ins).unwrap_or(Path::new("-"));
    let settings = complete(tree).map_err(|reason| FileError::invalid(blamed, reason))?;
    Ok((settings, warnings))
}

/// Every `*.conf` below the directory in lexical order of its path.
fn conf_files(directory: &Path) -> Result<Vec<PathBuf>, FileError> {
    let mut entries = fs::read_dir(directory)
        .and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
        })
        .map_err(FileError::read(directory))?;
    entries.sort();
    let mut files = Vec::new();
    for path in entries {
        // links to directories are not followed, because of loops
        if path.is_dir() && !path.is_symlink() {
            files.extend(conf_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Reads one file into a tree, and checks its fields and types.
fn read(path: &Path, warnings: &mut Vec<String>) -> Result<Value, FileError> {
    let text = read_text(path)?;
    let (tree, faults) = parse(&text).map_err(|reason| FileError::invalid(path, reason))?;
    warnings.extend(faults.iter().map(|fault| format!("{}: {fault}, passed over", path.display())));
    Ok(tree)
}

/// Reads a configuration file.
pub(super) fn read_text(path: &Path) -> Result<String, FileError> {
    let size = fs::metadata(path).map_err(FileError::read(path))?.len();
    if size > MAX_BYTES {
        return Err(FileError::invalid(
            path,
            format!("{size} bytes are more than a configuration may have"),
        ));
    }
    fs::read_to_string(path).map_err(FileError::read(path))
}

/// Parses YAML or JSON; returns the tree, and what was passed over.
///
/// # Errors
/// Says where the text is neither.
pub fn parse_tree(text: &str) -> Result<(Value, Vec<String>), String> {
    if text.trim().is_empty() {
        return Err("the file is empty".to_owned());
    }
    let mut options = serde_saphyr::options! { with_snippet: false };
    // a limited number of aliases, against alias bombs
    options.alias_limits.max_total_replayed_events = 10_000;
    let mut faults = Vec::new();
    let tree: Value = match serde_saphyr::from_str_with_options(text, options.clone()) {
        Ok(tree) => tree,
        Err(strict) => {
            options.duplicate_keys = DuplicateKeyPolicy::LastWins;
            // other errors are returned as at first
            let tree = serde_saphyr::from_str_with_options(text, options)
                .map_err(|_| strict.to_string())?;
            faults.push(format!("{strict}: the last one counts, the others are"));
            tree
        }
    };
    Ok((tree, faults))
}

/// The tree of a text, and warnings.
fn parse(text: &str) -> Result<(Value, Vec<String>), String> {
    let (mut tree, mut faults) = parse_tree(text)?;
    let Value::Object(fields) = &mut tree else {
        return Err(format!("expected a {KIND} object"));
    };
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match fields.remove(field) {
            Some(Value::String(found)) if found == expected => {}
            Some(found) => return Err(format!("{field}: expected {expected:?}, found {found}")),
            None => return Err(format!("{field}: missing, expected {expected:?}")),
        }
    }
    // each file is checked before it is merged; nulls stay, as they reset a field to its default in a merge
    let mut checked = tree.clone();
    prune_nulls(&mut checked);
    while let Err(fault) = decode::<KubeletConfiguration>(checked.clone()) {
        let Some(unknown) = fault.unknown.as_ref().filter(|_| faults.len() < MAX_UNKNOWN) else {
            return Err(fault.text);
        };
        remove(&mut checked, unknown);
        remove(&mut tree, unknown);
        faults.push(fault.text);
    }
    Ok((tree, faults))
}

/// Removes the value at a path from a tree.
fn remove(tree: &mut Value, path: &FieldPath) {
    let mut parents = path.clone();
    if let Some(Step::Field(name)) = parents.0.pop()
        && let Some(Value::Object(fields)) = parents.find_in(tree)
    {
        fields.remove(&name);
    }
}

/// Removes nulls.
fn prune_nulls(tree: &mut Value) {
    match tree {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

/// A decoding error.
struct Fault {
    /// The message; begins with the path of the field.
    text: String,
    /// The path of an unknown field, if that is the error.
    unknown: Option<FieldPath>,
}

fn decode<T: DeserializeOwned>(tree: Value) -> Result<T, Fault> {
    serde_path_to_error::deserialize(tree).map_err(|error| {
        let mut path: Vec<Step> = error.path().iter().filter_map(step).collect();
        let shown = error.path().to_string();
        let reason = error.into_inner().to_string();
        let Some(rest) = reason.strip_prefix("unknown field ") else {
            return Fault { text: format!("{shown}: {reason}"), unknown: None };
        };
        // without the list of known fields that serde appends
        let field = rest.split(", expected").next().unwrap_or(rest).trim_matches('`');
        let parent = shown.strip_suffix(field).unwrap_or(&shown).trim_end_matches('.');
        let dot = if parent.is_empty() { "" } else { "." };
        if !matches!(path.last(), Some(Step::Field(last)) if last == field) {
            path.push(Step::Field(field.to_owned()));
        }
        Fault {
            text: format!("unknown field \"{parent}{dot}{field}\""),
            unknown: Some(FieldPath(path)),
        }
    })
}

/// Decodes a tree in which nulls are as good as nothing, for types that refuse unknown fields. The error names
/// the field and no value.
///
/// # Errors
/// A field is unknown, or has another type.
pub fn decode_strict<T: DeserializeOwned>(mut tree: Value) -> Result<T, String> {
    prune_nulls(&mut tree);
    decode(tree).map_err(|fault| fault.text)
}

fn step(segment: &Segment) -> Option<Step> {
    match segment {
        Segment::Map { key } => Some(Step::Field(key.clone())),
        Segment::Seq { index } => Some(Step::Item(*index)),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// The typed settings, with upstream's defaults for missing fields.
fn complete(mut tree: Value) -> Result<KubeletConfiguration, String> {
    prune_nulls(&mut tree);
    let is_set = |tree: &Value, field: &str| tree.get(field).is_some_and(|value| *value != "0s");
    // two defaults follow another field
    if !is_set(&tree, "nodeStatusReportFrequency") && is_set(&tree, "nodeStatusUpdateFrequency") {
        tree["nodeStatusReportFrequency"] = tree["nodeStatusUpdateFrequency"].clone();
    }
    if tree.get("serializeImagePulls").is_none() {
        let parallel = tree.get("maxParallelImagePulls").and_then(Value::as_i64);
        tree["serializeImagePulls"] = parallel.is_none_or(|pulls| pulls < 2).into();
    }
    let mut settings: KubeletConfiguration = decode(tree).map_err(|fault| fault.text)?;
    settings.fill_zeroes();
    if settings.merge_default_eviction_settings {
        for (signal, value) in default_eviction_hard() {
            settings.eviction_hard.entry(signal).or_insert(value);
        }
    }
    Ok(settings)
}

fn anchor_paths(tree: &mut Value, file: &Path) {
    let Some(directory) =
        std::path::absolute(file).ok().and_then(|file| file.parent().map(Path::to_owned))
    else {
        return;
    };
    for field in PATH_FIELDS {
        if let Some(Value::String(path)) = tree.pointer_mut(field)
            && !path.is_empty()
            && Path::new(path.as_str()).is_relative()
        {
            *path = directory.join(path.as_str()).to_string_lossy().into_owned();
        }
    }
}
