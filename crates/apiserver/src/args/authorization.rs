//! `--authorization-config`: the modes as a file, of apiserver.config.k8s.io.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Mode;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Invalid { path: PathBuf, reason: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    authorizers: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    r#type: String,
    #[serde(default)]
    name: String,
}

/// The modes that the file names, in order. Webhooks are refused.
pub(super) fn modes(path: &Path) -> Result<Vec<Mode>, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&text).map_err(|reason| Error::Invalid { path: path.to_owned(), reason })
}

fn parse(text: &str) -> Result<Vec<Mode>, String> {
    const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
    let file: File = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let version = file.api_version.strip_prefix("apiserver.config.k8s.io/");
    if file.kind != "AuthorizationConfiguration" || !version.is_some_and(|v| VERSIONS.contains(&v))
    {
        return Err(format!(
            "{}, {} is not an AuthorizationConfiguration",
            file.api_version, file.kind
        ));
    }
    if file.authorizers.is_empty() {
        return Err("authorizers: at least one authorization mode must be defined".into());
    }
    let mut modes = Vec::new();
    for (i, Entry { r#type, name }) in file.authorizers.iter().enumerate() {
        let mode = r#type.parse::<Mode>();
        let mode = mode.map_err(|why| format!("authorizers[{i}] {name:?}: type: {why}"))?;
        if modes.contains(&mode) {
            return Err(format!("authorizers[{i}]: type: {type:?} is given twice", type = r#type));
        }
        modes.push(mode);
    }
    Ok(modes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn authorization_config_names_the_modes() {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";
        let with = |rest: &str| parse(&format!("{head}{rest}"));
        let both = "authorizers: [{type: Node, name: node}, {type: RBAC, name: rbac}]";
        assert_eq!(with(both).unwrap(), [Mode::Node, Mode::Rbac]);
        for (rest, expected) in [
            (
                "authorizers: [{type: Webhook, name: w, webhook: {timeout: 3s}}]",
                "authorizers[0] \"w\"",
            ),
            ("authorizers: [{type: RBAC, name: a}, {type: RBAC, name: b}]", "twice"),
            ("authorizers: []", "at least one"),
            ("", "at least one"),
            ("modes: []", "modes"),
        ] {
            let error = with(rest).unwrap_err();
            assert!(error.contains(expected), "{rest}: {error}");
        }
        assert!(parse("apiVersion: v1\nkind: Pod").unwrap_err().contains("v1, Pod"));
        assert!(modes(Path::new("/nowhere/at/all")).unwrap_err().to_string().contains("/nowhere"));
    }
}
