//! Runs a plugin: the request on its standard input, the response on its standard output, for a minute at
//! most.
//!
//! What it writes to its standard error is counted and dropped: it may hold secrets.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::config::EnvVar;
use crate::error::Error;
use crate::metrics::PluginMetrics;
use crate::protocol::{Request, Response};

/// How long a plugin may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How much it may answer (bytes).
const MAX_OUTPUT: usize = 1 << 20;

/// Something that answers requests for credentials.
pub(crate) trait Plugin: Send + Sync {
    fn answer(&self, request: Request) -> BoxFuture<'static, Result<Response, Error>>;
}

/// A program that does.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) api_version: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) timeout: Duration,
    pub(crate) metrics: PluginMetrics,
}

impl Program {
    pub(crate) const TIMEOUT: Duration = TIMEOUT;

    async fn run(self, request: Request) -> Result<Response, Error> {
        let image = request.image.clone();
        tracing::debug!(plugin = self.name, image, "getting image credentials from plugin");
        let measured = self.metrics.start(&self.name);
        let output = match timeout(self.timeout, self.output(&request)).await {
            Ok(ended) => ended,
            Err(_) => Err("context deadline exceeded".to_owned()),
        };
        measured.finish(output.is_err());
        let output = output.map_err(|why| Error::Exec { plugin: self.name.clone(), image, why })?;
        Response::parse(&output, &self.api_version)
    }

    /// What the program writes to its standard output, once it has ended well.
    async fn output(&self, request: &Request) -> Result<Vec<u8>, String> {
        let failed = |error: io::Error| error.to_string();
        let child = Command::new(&self.path)
            .args(&self.args)
            .envs(self.env.iter().map(|variable| (&variable.name, &variable.value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let mut running = Running { child, ended: false };
        let document = request.document(&self.api_version);
        let (stdin, stdout, stderr) =
            (running.child.stdin.take(), running.child.stdout.take(), running.child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // a program that does not read it may still answer
                let _ = stdin.write_all(&document).await;
            }
            Ok(())
        };
        let (_, output, errors) =
            tokio::try_join!(write, read_bounded(stdout), count(stderr)).map_err(failed)?;
        let status = running.child.wait().await.map_err(failed)?;
        running.ended = true;
        match status.success() {
            true => Ok(output),
            false => Err(format!("{}{}", exit_text(status), errors_text(errors))),
        }
    }
}

impl Plugin for Program {
    fn answer(&self, request: Request) -> BoxFuture<'static, Result<Response, Error>> {
        self.clone().run(request).boxed()
    }
}

/// As Go prints it.
fn exit_text(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => match signal {
            6 => "signal: aborted".to_owned(),
            9 => "signal: killed".to_owned(),
            11 => "signal: segmentation fault".to_owned(),
            15 => "signal: terminated".to_owned(),
            other => format!("signal: {other}"),
        },
        (None, None) => status.to_string(),
    }
}

fn errors_text(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        _ => format!(" ({bytes} bytes on its standard error, not logged)"),
    }
}

async fn read_bounded(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    let Some(stream) = stream else { return Ok(output) };
    let limit = u64::try_from(MAX_OUTPUT + 1).unwrap_or(u64::MAX);
    stream.take(limit).read_to_end(&mut output).await?;
    match output.len() > MAX_OUTPUT {
        true => Err(io::Error::other(format!("it wrote more than {MAX_OUTPUT} bytes"))),
        false => Ok(output),
    }
}

/// Reads to the end; returns how much it was.
async fn count(stream: Option<impl AsyncRead + Unpin>) -> io::Result<u64> {
    match stream {
        Some(mut stream) => copy(&mut stream, &mut sink()).await,
        None => Ok(0),
    }
}

/// A program that is ended, with all that it started, if it is not waited for.
struct Running {
    child: Child,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // until it has been waited for, nothing else has its number
        if let Some(id) = id.filter(|_| !self.ended) {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longshore_metrics::Registry;

    use super::*;
    use crate::metrics::Metrics;
    use crate::protocol::V1;

    /// A plugin that is this script. The shell reads it: a file that a fork of another test holds open for
    /// writing cannot be executed.
    fn plugin(dir: &Path, script: &str) -> Program {
        let path = dir.join("script");
        std::fs::write(&path, script).unwrap();
        Program {
            name: "helper".to_owned(),
            path: "/bin/sh".into(),
            api_version: V1.to_owned(),
            args: vec![path.display().to_string(), "first".to_owned()],
            env: vec![
                EnvVar { name: "DIR".to_owned(), value: dir.display().to_string() },
                EnvVar { name: "OWN".to_owned(), value: "own".to_owned() },
            ],
            timeout: Program::TIMEOUT,
            metrics: Metrics::new(&Registry::default()).plugins,
        }
    }

    fn request() -> Request {
        Request { image: "reg.example/a".to_owned(), ..Request::default() }
    }

    const ANSWER: &str = r#"echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image","auth":{"reg.example":{"username":"u","password":"s3cret"}}}'"#;

    #[tokio::test]
    async fn credential_plugin_reads_the_request_and_writes_the_response() {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("cat >$DIR/request; echo \"$1 $OWN $PATH\" >$DIR/seen; {ANSWER}");
        let response = plugin(dir.path(), &script).answer(request()).await;
        let Ok(response) = response else { panic!("{:?}", response.err()) };
        assert_eq!(response.auth["reg.example"].username, "u");
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        assert_eq!(read("request"), request().document(V1));
        let seen = String::from_utf8(read("seen")).unwrap();
        assert_eq!(seen.trim_end(), format!("first own {}", std::env::var("PATH").unwrap()));
        // one that does not read its input
        assert!(plugin(dir.path(), ANSWER).answer(request()).await.is_ok());
    }

    #[tokio::test]
    async fn credential_plugin_that_misbehaves_is_named_without_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let start = "error execing credential provider plugin helper for image reg.example/a: ";
        for (script, expected) in [
            (
                "echo s3cret >&2; exit 3",
                "exit status 3 (7 bytes on its standard error, not logged)",
            ),
            ("exit 1", "exit status 1"),
            ("kill -9 $$", "signal: killed"),
            ("head -c 10485760 /dev/zero", "it wrote more than 1048576 bytes"),
        ] {
            let error = plugin(dir.path(), script).answer(request()).await.err().unwrap();
            assert_eq!(error.to_string(), format!("{start}{expected}"), "{script}");
        }
        // much on the standard error does not hinder an answer
        let script = format!("head -c 10485760 /dev/zero >&2; {ANSWER}");
        assert!(plugin(dir.path(), &script).answer(request()).await.is_ok());
        let missing = Program { path: dir.path().join("missing"), ..plugin(dir.path(), "") };
        let error = missing.answer(request()).await.err().unwrap().to_string();
        assert!(error.starts_with(start) && error.contains("No such file"), "{error}");
    }

    #[tokio::test]
    async fn credential_plugin_that_hangs_is_ended_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let mut hanging =
            plugin(dir.path(), "sleep 1000 & echo $! >$DIR/draft; mv $DIR/draft $DIR/child; wait");
        // long enough that the script has begun
        hanging.timeout = Duration::from_secs(2);
        let error = hanging.answer(request()).await.err().unwrap().to_string();
        assert!(error.ends_with(": context deadline exceeded"), "{error}");
        let child = std::fs::read_to_string(dir.path().join("child")).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        // gone, or not yet reaped by whoever is its parent now
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
