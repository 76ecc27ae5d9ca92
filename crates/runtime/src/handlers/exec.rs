//! Commands executed in a container by the runtime.

use std::collections::HashMap;
use std::time::Duration;

use crate::arguments::expanded_arguments;
use k8s_openapi::api::core::v1::Container;
use longshore_config::GoDuration;
use longshore_cri::{Code, Runtime};
use tokio::time::timeout;

use super::{Error, Outcome, rpc_error};

/// Limit of the output that is reported.
const MAX_OUTPUT: usize = 10 * 1024;
/// How long the runtime may take to kill a program after its timeout.
const SLACK: Duration = Duration::from_millis(500);

/// The result of a command.
pub(super) enum ExecResult {
    /// It exited.
    Exited { code: i32, output: String, stderr: String },
    /// It was killed after its timeout.
    TimedOut(String),
}

/// Run a command until it exits, or for `limit` at most.
pub(super) async fn run(
    cri: &Runtime,
    id: &str,
    command: Vec<String>,
    limit: Option<Duration>,
) -> Result<ExecResult, Error> {
    let command_text = command.join(" ");
    let exec = cri.exec_sync(id, command, limit);
    let ended = match limit {
        // Dropping the call makes the runtime kill the program as well.
        Some(limit) => timeout(limit.saturating_add(SLACK), exec).await.ok(),
        None => Some(exec.await),
    };
    match ended {
        Some(Ok(answer)) => {
            let output = [head(&answer.stdout), head(&answer.stderr)].concat();
            let stderr = text(&answer.stderr);
            return Ok(ExecResult::Exited {
                code: answer.exit_code,
                output: text(&output),
                stderr,
            });
        }
        Some(Err(error)) if !error.is_deadline_exceeded() => return Err(runtime_error(error)),
        Some(Err(_)) => {}
        // The runtime may wait for processes that the program has left behind, or may hang itself;
        // in that case the container has not failed.
        None => drop(timeout(SLACK, cri.version()).await.map_err(|_| no_response())?),
    }
    let seconds = limit.unwrap_or_default().as_secs().try_into().unwrap_or(i64::MAX);
    let limit = GoDuration::secs(seconds);
    Ok(ExecResult::TimedOut(format!("command timed out: {command_text:?} timed out after {limit}")))
}

fn no_response() -> Error {
    Error::Runtime(rpc_error(Code::DeadlineExceeded, "the runtime does not respond"))
}

/// Run the command of a probe.
pub(super) async fn probe(
    cri: &Runtime,
    id: &str,
    container: &Container,
    command: &[String],
    limit: Duration,
) -> Result<Outcome, Error> {
    // Only the values in the spec are known here, not those from other sources.
    let variables = container.env.iter().flatten();
    let variables: HashMap<&str, &str> = variables
        .map(|variable| (&*variable.name, variable.value.as_deref().unwrap_or_default()))
        .collect();
    let command = expanded_arguments("command", command, |name| variables.get(name).copied());
    let command = command.map_err(|error| Error::Runtime(error.to_string()))?;
    Ok(match run(cri, id, command, Some(limit)).await? {
        ExecResult::Exited { code: 0, .. } => Outcome::Success,
        ExecResult::Exited { output, .. } => Outcome::Failure(output),
        ExecResult::TimedOut(message) => Outcome::Failure(message),
    })
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(head(output)).into_owned()
}

fn head(output: &[u8]) -> &[u8] {
    &output[..output.len().min(MAX_OUTPUT)]
}

/// The error message of the runtime, in Go's format.
fn runtime_error(error: longshore_cri::Error) -> Error {
    Error::Runtime(match (error.code(), &error) {
        (Some(code), longshore_cri::Error::Status { message, .. }) => rpc_error(code, message),
        (Some(code), error) => rpc_error(code, &error.to_string()),
        (None, error) => error.to_string(),
    })
}
