//! Credentials that a program gives, as the `exec` of a kubeconfig's user names it: the plugins of
//! `client.authentication.k8s.io` in the versions v1 and v1beta1. Both clients of an apiserver and the
//! webhooks of ours use this.
//!
//! Current limitations: a plugin is given no terminal, as no program here has one.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::unwrap_used))]

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

const VERSIONS: [&str; 2] =
    ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The variable that tells a plugin what it is called for.
const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";
/// The extension of a cluster's entry that is handed to plugins.
const CLUSTER_EXTENSION: &str = "client.authentication.k8s.io/exec";
/// How long a plugin may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How much it may write (bytes).
const MAX_OUTPUT: u64 = 1 << 20;
/// A plugin that has failed, or whose credential the server refuses, is not called again before this.
const MIN_INTERVAL: Duration = Duration::from_secs(5);

/// Why there is no credential. The words are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The kubeconfig names a version that is not known.
    #[error("exec plugin: invalid apiVersion {0:?}")]
    Version(String),
    /// The kubeconfig names no program.
    #[error("command must be specified to use exec authentication plugin")]
    NoCommand,
    /// An environment variable has no name.
    #[error("env variable name must be specified to use exec authentication plugin")]
    NoVariable,
    /// Version v1 requires a mode.
    #[error("interactiveMode must be specified to use exec authentication plugin")]
    NoMode,
    /// A mode that does not exist.
    #[error("invalid interactiveMode: {0:?}")]
    Mode(String),
    /// The plugin requires a terminal.
    #[error("exec plugin cannot support interactive mode: standard input is not a terminal")]
    NoTerminal,
    /// There is no such program. With the hint of the kubeconfig, if it has one.
    #[error("exec: executable {command} not found{}", after_blank_line(.hint))]
    NotFound {
        /// The program.
        command: String,
        /// How it is installed.
        hint: String,
    },
    /// The program cannot be run.
    #[error("exec: {0}: {1}")]
    Run(String, String),
    /// The program has failed.
    #[error("exec: executable {0} failed with {1}")]
    Failed(String, ExitStatus),
    /// The program takes too long.
    #[error("exec: executable {0} did not end within {TIMEOUT:?}")]
    TimedOut(String),
    /// What it has written is no credential.
    #[error("decoding stdout: {0}")]
    Output(String),
    /// It is one of another version.
    #[error("exec plugin is configured to use API version {0}, plugin returned version {1}")]
    OtherVersion(String, String),
    /// It has no status.
    #[error("exec plugin didn't return a status field")]
    NoStatus,
    /// It has nothing to show.
    #[error("exec plugin didn't return a token or cert/key pair")]
    Nothing,
    /// It has half of a pair.
    #[error("exec plugin returned only certificate or key, not both")]
    Half,
}

fn after_blank_line(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("\n\n{hint}") }
}

/// What a kubeconfig says of a plugin: the field `exec` of a user.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecConfig {
    /// The version of the objects.
    pub api_version: String,
    /// The program. With a slash in it, relative to the directory of the kubeconfig.
    pub command: String,
    /// Its arguments.
    #[serde(deserialize_with = "nullable")]
    pub args: Vec<String>,
    /// Environment variables beside those of this process.
    #[serde(deserialize_with = "nullable")]
    pub env: Vec<EnvVar>,
    /// How the program is installed.
    #[serde(deserialize_with = "nullable")]
    pub install_hint: String,
    /// Whether the program gets the cluster too.
    pub provide_cluster_info: bool,
    /// `Never`, `IfAvailable` or `Always`.
    #[serde(deserialize_with = "nullable")]
    pub interactive_mode: String,
}

/// An environment variable.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

fn nullable<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The server that a credential is for, as a plugin receives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterInfo {
    /// Its URL.
    pub server: String,
    /// The name in its certificate, if it is not that of the URL.
    pub tls_server_name: String,
    /// Whether its certificate is not verified.
    pub insecure_skip_tls_verify: bool,
    /// Its CA (PEM).
    pub certificate_authority: Vec<u8>,
    /// The proxy on the way to it.
    pub proxy_url: String,
    /// Whether answers are not to be compressed.
    pub disable_compression: bool,
    /// What the extension of the cluster's entry says for plugins.
    pub config: Option<Value>,
}

impl ClusterInfo {
    /// What the extensions of a cluster's entry say for plugins: each has a name and a content.
    pub fn config_of<'a>(
        mut extensions: impl Iterator<Item = (&'a str, &'a Value)>,
    ) -> Option<Value> {
        let found = extensions.find(|(name, _)| *name == CLUSTER_EXTENSION);
        found.map(|(_, content)| content.clone())
    }

    fn document(&self) -> Value {
        let mut document = Map::new();
        let mut put = |name: &str, value: Value, is_default: bool| {
            if !is_default {
                document.insert(name.to_owned(), value);
            }
        };
        put("server", self.server.clone().into(), false);
        put(
            "tls-server-name",
            self.tls_server_name.clone().into(),
            self.tls_server_name.is_empty(),
        );
        put("insecure-skip-tls-verify", true.into(), !self.insecure_skip_tls_verify);
        let authority = STANDARD.encode(&self.certificate_authority);
        put("certificate-authority-data", authority.into(), self.certificate_authority.is_empty());
        put("proxy-url", self.proxy_url.clone().into(), self.proxy_url.is_empty());
        put("disable-compression", true.into(), !self.disable_compression);
        let config = self.config.clone().unwrap_or_default();
        put("config", config, self.config.is_none());
        document.into()
    }
}

/// What is shown to a server.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credential {
    /// A bearer token.
    pub token: Option<String>,
    /// A certificate with its chain, and its key (PEM).
    pub certificate: Option<(String, String)>,
    /// When it ends.
    pub expires: Option<Timestamp>,
}

impl fmt::Debug for Credential {
    /// Without its secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("expires", &self.expires).finish_non_exhaustive()
    }
}

impl Credential {
    /// Whether it has ended at that time.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| now > expires)
    }

    /// PURE: what a plugin of that version has written.
    fn parse(output: &[u8], version: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Document {
            #[serde(default)]
            kind: String,
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            status: Option<Status>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            expiration_timestamp: Option<Timestamp>,
            #[serde(deserialize_with = "nullable")]
            token: String,
            #[serde(deserialize_with = "nullable")]
            client_certificate_data: String,
            #[serde(deserialize_with = "nullable")]
            client_key_data: String,
        }
        let unreadable = |error: serde_json::Error| {
            // the error itself may quote what was read
            let (line, column) = (error.line(), error.column());
            Error::Output(format!("no credential: line {line}, column {column}"))
        };
        let document: Document = serde_json::from_slice(output).map_err(unreadable)?;
        if document.kind != "ExecCredential" {
            return Err(Error::Output(format!("no kind {:?} is registered", document.kind)));
        }
        if document.api_version != version {
            return Err(Error::OtherVersion(version.to_owned(), document.api_version));
        }
        let status = document.status.ok_or(Error::NoStatus)?;
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let token = given(status.token);
        let certificate =
            match (given(status.client_certificate_data), given(status.client_key_data)) {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) if token.is_none() => return Err(Error::Nothing),
                (None, None) => None,
                _ => return Err(Error::Half),
            };
        Ok(Self { token, certificate, expires: status.expiration_timestamp })
    }
}

/// A plugin, with the credential that it gave last.
pub struct ExecPlugin {
    config: ExecConfig,
    /// The program, as it is run.
    program: PathBuf,
    cluster: ClusterInfo,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    credential: Option<Arc<Credential>>,
    /// Why there is none.
    failure: Option<Error>,
    at: Option<Instant>,
}

impl Last {
    /// Whether the plugin was called a moment ago.
    fn is_recent(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < MIN_INTERVAL)
    }
}

impl ExecPlugin {
    /// The plugin of a kubeconfig in that directory. Nothing is run yet.
    ///
    /// # Errors
    /// The configuration is not valid.
    pub fn new(config: ExecConfig, directory: &Path, cluster: ClusterInfo) -> Result<Self, Error> {
        if config.command.is_empty() {
            return Err(Error::NoCommand);
        }
        if !VERSIONS.contains(&config.api_version.as_str()) {
            return Err(Error::Version(config.api_version));
        }
        if config.env.iter().any(|variable| variable.name.is_empty()) {
            return Err(Error::NoVariable);
        }
        match config.interactive_mode.as_str() {
            "Never" | "IfAvailable" => {}
            // the default of the older version
            "" if config.api_version.ends_with("/v1beta1") => {}
            "" => return Err(Error::NoMode),
            "Always" => return Err(Error::NoTerminal),
            _ => return Err(Error::Mode(config.interactive_mode)),
        }
        let program = match config.command.contains('/') {
            true => directory.join(&config.command),
            false => PathBuf::from(&config.command),
        };
        Ok(Self { config, program, cluster, last: Mutex::default() })
    }

    /// The credential that is valid now. The plugin is called if there is none; calls at the same time
    /// share one.
    ///
    /// # Errors
    /// The plugin gives none.
    pub async fn credential(&self) -> Result<Arc<Credential>, Error> {
        let mut last = self.last.lock().await;
        let valid = last.credential.as_ref().filter(|known| !known.is_expired(Timestamp::now()));
        if let Some(valid) = valid {
            return Ok(Arc::clone(valid));
        }
        if let Some(failure) = last.failure.clone().filter(|_| last.is_recent()) {
            return Err(failure);
        }
        self.renew(&mut last).await
    }

    /// The server has refused a credential: the next call has another, unless there is another already, or
    /// this one is only a moment old.
    pub async fn refused(&self, credential: &Arc<Credential>) {
        let mut last = self.last.lock().await;
        let is_same = last.credential.as_ref().is_some_and(|known| Arc::ptr_eq(known, credential));
        if is_same && !last.is_recent() {
            last.credential = None;
        }
    }

    async fn renew(&self, last: &mut Last) -> Result<Arc<Credential>, Error> {
        let made = self.run().await.map(Arc::new);
        last.at = Some(Instant::now());
        last.failure = made.as_ref().err().cloned();
        last.credential = made.as_ref().ok().cloned();
        made
    }

    async fn run(&self) -> Result<Credential, Error> {
        let ExecConfig { api_version, command, args, env, install_hint, .. } = &self.config;
        let mut spec = json!({"interactive": false});
        if self.config.provide_cluster_info {
            spec["cluster"] = self.cluster.document();
        }
        let info = json!({"kind": "ExecCredential", "apiVersion": api_version, "spec": spec});
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::NotFound { command: command.clone(), hint: install_hint.clone() }
            }
            _ => Error::Run(command.clone(), error.to_string()),
        };
        let mut child = Command::new(&self.program)
            .args(args)
            .envs(env.iter().map(|variable| (&variable.name, &variable.value)))
            .env(EXEC_INFO, info.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let written = child.stdout.take();
        let ended = async {
            let mut output = Vec::new();
            if let Some(written) = written {
                written.take(MAX_OUTPUT).read_to_end(&mut output).await?;
            }
            Ok::<_, std::io::Error>((child.wait().await?, output))
        };
        let (status, output) = timeout(TIMEOUT, ended)
            .await
            .map_err(|_| Error::TimedOut(command.clone()))?
            .map_err(failed)?;
        if !status.success() {
            return Err(Error::Failed(command.clone(), status));
        }
        tracing::debug!(command, "plugin has given a credential");
        Credential::parse(&output, api_version)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const V1: &str = "client.authentication.k8s.io/v1";

    #[test]
    fn exec_credentials_are_read_as_upstream_reads_them() {
        let parse = |status: &str| {
            let text = format!(r#"{{"kind": "ExecCredential", "apiVersion": "{V1}"{status}}}"#);
            Credential::parse(text.as_bytes(), V1)
        };
        let token =
            parse(r#", "status": {"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"}"#);
        let token = token.unwrap();
        assert_eq!((token.token.as_deref(), &token.certificate), (Some("t"), &None));
        assert!(token.is_expired("2026-01-01T00:00:01Z".parse().unwrap()));
        assert!(!token.is_expired("2025-01-01T00:00:00Z".parse().unwrap()));
        assert!(!format!("{token:?}").contains("\"t\""), "{token:?}");
        let pair =
            r#", "status": {"clientCertificateData": "c", "clientKeyData": "k", "token": null}"#;
        assert_eq!(parse(pair).unwrap().certificate, Some(("c".to_owned(), "k".to_owned())));
        for (status, expected) in [
            ("", Error::NoStatus),
            (r#", "status": {}"#, Error::Nothing),
            (r#", "status": {"token": ""}"#, Error::Nothing),
            (r#", "status": {"clientKeyData": "k"}"#, Error::Half),
            (r#", "status": {"token": "t", "clientKeyData": "k"}"#, Error::Half),
        ] {
            assert_eq!(parse(status).unwrap_err(), expected, "{status}");
        }
        let other = r#"{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1",
            "status": {"token": "t"}}"#;
        let error = Credential::parse(other.as_bytes(), V1).unwrap_err().to_string();
        assert!(
            error.starts_with("exec plugin is configured to use API version client"),
            "{error}"
        );
        for text in
            ["", "[]", "s3cret", r#"{"kind": "s3cret"#, r#"{"status": {"token": ["s3cret"]}}"#]
        {
            let error = Credential::parse(text.as_bytes(), V1).unwrap_err().to_string();
            assert!(error.starts_with("decoding stdout") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn exec_config_that_is_not_valid_is_refused() {
        let good = ExecConfig {
            api_version: V1.to_owned(),
            command: "x".to_owned(),
            interactive_mode: "Never".to_owned(),
            ..ExecConfig::default()
        };
        let check = |config: ExecConfig| {
            ExecPlugin::new(config, Path::new("/"), ClusterInfo::default()).err()
        };
        let beta = "client.authentication.k8s.io/v1beta1".to_owned();
        let with = |change: fn(&mut ExecConfig)| {
            let mut config = good.clone();
            change(&mut config);
            check(config).unwrap()
        };
        assert_eq!(check(good.clone()), None);
        let default =
            ExecConfig { api_version: beta, interactive_mode: String::new(), ..good.clone() };
        assert_eq!(check(default), None);
        assert_eq!(with(|own| own.command.clear()), Error::NoCommand);
        assert_eq!(with(|own| own.interactive_mode.clear()), Error::NoMode);
        assert_eq!(with(|own| own.interactive_mode = "Always".into()), Error::NoTerminal);
        assert_eq!(with(|own| own.interactive_mode = "x".into()), Error::Mode("x".into()));
        assert_eq!(with(|own| own.env.push(EnvVar::default())), Error::NoVariable);
        assert_eq!(with(|own| own.api_version = "v1".into()), Error::Version("v1".into()));
        let read: ExecConfig = serde_json::from_value(json!({"apiVersion": V1, "command": "a",
            "args": null, "env": [{"name": "A", "value": "b"}], "installHint": null}))
        .unwrap();
        assert_eq!((read.args.len(), read.env[0].value.as_str()), (0, "b"));
    }

    /// A plugin that is this script, in its directory.
    fn plugin(
        script: &str,
        change: impl FnOnce(&mut ExecConfig),
    ) -> (tempfile::TempDir, ExecPlugin) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin");
        // written under another name: a file that is open for writing cannot be run
        let draft = dir.path().join("draft");
        std::fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(&draft, &path).unwrap();
        // the shell reads it: a fork of another test may still hold it open for writing
        let mut config = ExecConfig {
            api_version: V1.to_owned(),
            command: "/bin/sh".to_owned(),
            args: vec![path.display().to_string()],
            env: vec![EnvVar { name: "DIR".to_owned(), value: dir.path().display().to_string() }],
            interactive_mode: "IfAvailable".to_owned(),
            ..ExecConfig::default()
        };
        change(&mut config);
        let cluster = ClusterInfo {
            server: "https://h".to_owned(),
            certificate_authority: b"ca".to_vec(),
            config: Some(json!({"audience": "x"})),
            ..ClusterInfo::default()
        };
        let plugin = ExecPlugin::new(config, dir.path(), cluster).unwrap();
        (dir, plugin)
    }

    const COUNTING: &str = r#"echo run >>"$DIR/runs"
echo "{\"kind\": \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1\",
  \"status\": {\"token\": \"t$(wc -l <"$DIR/runs" | tr -d ' ')\" $EXPIRES}}""#;

    #[tokio::test]
    async fn exec_plugin_is_called_once_until_its_credential_ends() {
        let (_dir, own) = plugin(COUNTING, |_| {});
        let (first, second) = tokio::join!(own.credential(), own.credential());
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(first.token.as_deref(), Some("t1"));
        assert!(Arc::ptr_eq(&first, &second));
        own.last.lock().await.at = Some(Instant::now());
        own.refused(&first).await;
        assert_eq!(own.credential().await.unwrap().token.as_deref(), Some("t1"), "it is new");
        own.last.lock().await.at = None;
        own.refused(&first).await;
        let third = own.credential().await.unwrap();
        assert_eq!(third.token.as_deref(), Some("t2"));
        own.last.lock().await.at = None;
        own.refused(&first).await;
        assert_eq!(own.credential().await.unwrap().token.as_deref(), Some("t2"), "of an old one");
        let (_dir, own) = plugin(COUNTING, |config| {
            let value = ", \"expirationTimestamp\": \"2020-01-01T00:00:00Z\"".to_owned();
            config.env.push(EnvVar { name: "EXPIRES".to_owned(), value });
        });
        for expected in ["t1", "t2"] {
            assert_eq!(own.credential().await.unwrap().token.as_deref(), Some(expected));
        }
    }

    #[tokio::test]
    async fn exec_plugin_gets_the_cluster() {
        let script = r#"printf %s "$KUBERNETES_EXEC_INFO" >"$DIR/info"; exit 3"#;
        let (dir, own) = plugin(script, |config| config.provide_cluster_info = true);
        let error = own.credential().await.unwrap_err().to_string();
        assert_eq!(error, "exec: executable /bin/sh failed with exit status: 3");
        let info: Value =
            serde_json::from_slice(&std::fs::read(dir.path().join("info")).unwrap()).unwrap();
        assert_eq!(
            info,
            json!({"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": false,
                "cluster": {"server": "https://h", "certificate-authority-data": "Y2E=",
                    "config": {"audience": "x"}}}})
        );
        std::fs::remove_file(dir.path().join("info")).unwrap();
        own.last.lock().await.at = Some(Instant::now());
        assert!(own.credential().await.is_err());
        assert!(!dir.path().join("info").exists(), "a failure is not repeated at once");
    }

    #[tokio::test]
    async fn exec_plugin_that_does_not_exist_has_a_hint() {
        let (_dir, own) = plugin("", |config| {
            config.command = "./missing".to_owned();
            config.install_hint = "install it".to_owned();
        });
        let error = own.credential().await.unwrap_err().to_string();
        assert_eq!(error, "exec: executable ./missing not found\n\ninstall it");
    }
}
