//! What version this is.

use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use serde_json::json;

use super::{Command, ConfigError};

/// The commit that was built, where the build had it (`make install` and packages pass it), and `-dirty` when files
/// differ.
const COMMIT: Option<&str> = option_env!("LONGSHORE_COMMIT");

/// `longshore version`; with `-o json` as kubeadm and kubectl print theirs.
pub(super) fn command(args: &[String]) -> Result<Command, ConfigError> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let format = match args[..] {
        [] => None,
        ["-o" | "--output", format] => Some(format),
        [one] => match one.strip_prefix("--output=").or_else(|| one.strip_prefix("-o=")) {
            Some(format) => Some(format),
            None => {
                return Err(ConfigError::CommandLine(format!("version: unknown argument {one}")));
            }
        },
        _ => {
            return Err(ConfigError::CommandLine(
                "version takes -o json and nothing else".to_owned(),
            ));
        }
    };
    match format {
        None => Ok(Command::Print(version_text("true"))),
        Some("json") => Ok(Command::Print(version_json())),
        Some(other) => {
            Err(ConfigError::CommandLine(format!("version: -o {other}: the format is json")))
        }
    }
}

/// For `--version=WANTED`.
pub(super) fn version_text(wanted: &str) -> String {
    let (major, minor) = major_and_minor();
    let (commit, tree) = commit_and_tree(COMMIT);
    match wanted {
        // as Go prints its structure, without what only a build of Go has
        "raw" => format!(
            "version.Info{{Major:\"{major}\", Minor:\"{minor}\", EmulationMajor:\"\", EmulationMinor:\"\", \
             MinCompatibilityMajor:\"\", MinCompatibilityMinor:\"\", GitVersion:\"{KUBERNETES_VERSION}\", \
             GitCommit:\"{commit}\", GitTreeState:\"{tree}\", BuildDate:\"\", GoVersion:\"\", Compiler:\"\", \
             Platform:\"linux/{}\"}}",
            go_arch()
        ),
        _ => format!("Kubernetes {KUBERNETES_VERSION}"),
    }
}

/// The time of the build is left out: two builds of a commit are the same.
fn version_json() -> String {
    let (major, minor) = major_and_minor();
    let (commit, tree) = commit_and_tree(COMMIT);
    let version = json!({
        "clientVersion": {
            "major": major,
            "minor": minor,
            "gitVersion": KUBERNETES_VERSION,
            "gitCommit": commit,
            "gitTreeState": tree,
            "buildDate": "",
            "goVersion": "",
            "compiler": "rustc",
            "platform": format!("linux/{}", go_arch()),
        },
        "longshoreVersion": env!("CARGO_PKG_VERSION"),
    });
    format!("{version:#}")
}

fn major_and_minor() -> (&'static str, &'static str) {
    let version = KUBERNETES_VERSION.trim_start_matches('v');
    let (major, rest) = version.split_once('.').unwrap_or_default();
    (major, rest.split('.').next().unwrap_or_default())
}

/// The commit and the state of its files as Kubernetes has them: `clean` or `dirty`; empty when they are not known.
fn commit_and_tree(commit: Option<&str>) -> (&str, &str) {
    match commit.unwrap_or_default() {
        "" => ("", ""),
        commit => match commit.strip_suffix("-dirty") {
            Some(commit) => (commit, "dirty"),
            None => (commit, "clean"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_says_whether_files_differ() {
        assert_eq!(commit_and_tree(None), ("", ""));
        assert_eq!(commit_and_tree(Some("")), ("", ""));
        assert_eq!(commit_and_tree(Some("ab12")), ("ab12", "clean"));
        assert_eq!(commit_and_tree(Some("ab12-dirty")), ("ab12", "dirty"));
    }
}
