//! One run of a program of iptables.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::lock::{self, Holder};
use super::{Backend, Limits, Variant};
use crate::Family;

/// After this long, a command probably waits for the lock.
const LOCK_LOG_DELAY: Duration = Duration::from_secs(1);
/// The exit code for want of a resource, the lock above all.
const NO_RESOURCE: i32 = 4;

/// Rules were not changed, or not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program cannot be run.
    #[error("{command}: {source}")]
    Start {
        /// What was run.
        command: String,
        /// Why it does not.
        source: io::Error,
    },
    /// The program refused.
    #[error("{command}: {}: {stderr}", exit(.code))]
    Failed {
        /// What was run.
        command: String,
        /// Its exit code; none if a signal ended it.
        code: Option<i32>,
        /// What it said.
        stderr: String,
    },
    /// The program refused its input.
    #[error("{command}: {}: line {line} of its input, {text:?}: {stderr}", exit(.code))]
    Input {
        /// What was run.
        command: String,
        /// Its exit code; none if a signal ended it.
        code: Option<i32>,
        /// The line at fault, from 1.
        line: usize,
        /// The text of the line.
        text: String,
        /// What the program said.
        stderr: String,
    },
    /// Another process kept the xtables lock.
    #[error(
        "{command}: the xtables lock {} was not free within {waited:?}: {}",
        .path.display(),
        .holder.as_ref().map_or_else(|| "its holder is unknown".into(), |it| format!("{it} holds it"))
    )]
    Locked {
        /// What was run.
        command: String,
        /// The file that is locked.
        path: PathBuf,
        /// Who holds it, according to `/proc/locks`.
        holder: Option<Holder>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The program did not end.
    #[error("{command}: did not end within {limit:?}")]
    Timeout {
        /// What was run.
        command: String,
        /// The time it had.
        limit: Duration,
    },
    /// The chains could not be read from the kernel.
    #[error("nf_tables over netlink: {0}")]
    Netlink(#[source] io::Error),
    /// Neither variant is installed.
    #[error("no iptables is installed")]
    NoPrograms,
    /// The program's version is not known.
    #[error("{command}: no version in its output {answer:?}")]
    Version {
        /// What was run.
        command: String,
        /// What it printed.
        answer: String,
    },
}

fn exit(code: &Option<i32>) -> Cow<'static, str> {
    code.map_or("ended by a signal".into(), |code| format!("exit code {code}").into())
}

impl Error {
    /// Whether the rule or chain that was to be changed is not there. The words of both variants.
    pub(super) fn is_not_found(&self) -> bool {
        const MESSAGES: [&str; 5] = [
            "No chain/target/match by that name",
            "No such file or directory",
            "does a matching rule exist",
            "does not exist",
            "is incompatible, use 'nft' tool",
        ];
        matches!(self, Self::Failed { stderr, .. } if MESSAGES.iter().any(|word| stderr.contains(word)))
    }

    /// Whether the program could not be found.
    pub(super) fn is_not_installed(&self) -> bool {
        matches!(self, Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A program of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `iptables`
    Rules,
    /// `iptables-save`
    Save,
    /// `iptables-restore`
    Restore,
}

/// The name of a program, with or without its variant in it.
pub(super) fn name(program: Program, family: Family, variant: Option<Variant>) -> String {
    let mut name = String::from(match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    });
    name += match variant {
        Some(Variant::Nft) => "-nft",
        Some(Variant::Legacy) => "-legacy",
        None => "",
    };
    name += match program {
        Program::Rules => "",
        Program::Save => "-save",
        Program::Restore => "-restore",
    };
    name
}

/// What is to be run.
pub(super) struct Command<'a> {
    program: String,
    args: Vec<&'a str>,
    input: &'a str,
    limits: Limits,
    /// Waits for the lock, where it takes it.
    locks: bool,
}

impl<'a> Command<'a> {
    /// A program of the backend.
    pub(super) fn new(backend: &Backend, family: Family, program: Program) -> Self {
        let variant = backend.suffixed.then_some(backend.variant);
        let locks = backend.variant == Variant::Legacy && program != Program::Save;
        Self { limits: backend.limits, locks, ..Self::plain(name(program, family, variant)) }
    }

    /// A program that takes no lock.
    pub(super) fn plain(program: String) -> Self {
        Self { program, args: Vec::new(), input: "", limits: Limits::default(), locks: false }
    }

    pub(super) fn arg(mut self, arg: &'a str) -> Self {
        self.args.push(arg);
        self
    }

    pub(super) fn args(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.args.extend(args);
        self
    }

    pub(super) fn input(mut self, text: &'a str) -> Self {
        self.input = text;
        self
    }

    /// Its words, for errors.
    fn words(&self) -> String {
        let mut words = self.program.clone();
        for arg in &self.args {
            words.push(' ');
            words.push_str(arg);
        }
        words
    }

    /// Run it to its end; what it printed.
    pub(super) async fn run(self) -> Result<String, Error> {
        let start = |source| Error::Start { command: self.words(), source };
        let mut command = tokio::process::Command::new(&self.program);
        let seconds = self.limits.lock.as_secs().to_string();
        if self.locks {
            command.args(["-w", &seconds]);
        }
        command
            .args(&self.args)
            .stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(start)?;
        let (stdin, process) = (child.stdin.take(), child.id());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A program that has seen enough says why; that its input broke off says nothing.
                let _ = stdin.write_all(self.input.as_bytes()).await;
            }
        };
        let ends = async { tokio::join!(write, child.wait_with_output()).1 };
        let mut holder = None;
        let output = timeout(self.limits.command, async {
            tokio::pin!(ends);
            if self.locks {
                tokio::select! {
                    output = &mut ends => return output,
                    () = sleep(LOCK_LOG_DELAY) => {}
                }
                holder = lock::holder(&lock::path()).filter(|it| Some(it.pid) != process);
                if let Some(holder) = &holder {
                    warn!(program = self.program, %holder, "waiting for the xtables lock");
                }
            }
            ends.await
        })
        .await
        .map_err(|_| Error::Timeout { command: self.words(), limit: self.limits.command })?
        .map_err(start)?;
        if output.status.success() {
            return Ok(match String::from_utf8(output.stdout) {
                Ok(text) => text,
                // A foreign comment in another encoding must not make all rules unreadable.
                Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
            });
        }
        Err(self.failure(output.status, &output.stderr, holder))
    }

    fn failure(&self, status: ExitStatus, stderr: &[u8], holder: Option<Holder>) -> Error {
        let (command, code) = (self.words(), status.code());
        let stderr = String::from_utf8_lossy(stderr).trim().to_owned();
        if self.locks && code == Some(NO_RESOURCE) && stderr.contains("xtables lock") {
            let (path, waited) = (lock::path(), self.limits.lock);
            return Error::Locked { command, path, holder, waited };
        }
        match fault(&stderr, self.input) {
            Some((line, text)) => Error::Input { command, code, line, text: text.into(), stderr },
            None => Error::Failed { command, code, stderr },
        }
    }
}

/// The line of the input that the program complains of.
pub(super) fn fault<'a>(stderr: &str, input: &'a str) -> Option<(usize, &'a str)> {
    let number = ["line ", "Error occurred at line: "].iter().find_map(|words| {
        stderr.match_indices(words).find_map(|(at, _)| {
            let rest = &stderr[at + words.len()..];
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse::<usize>().ok()
        })
    })?;
    let named = (number, input.lines().nth(number.checked_sub(1)?)?);
    if named.1 != "COMMIT" {
        return Some(named);
    }
    // nft reports a jump to a missing chain only at the end, and quotes its target.
    let target = stderr.split(['\'', '`']).nth(1).filter(|_| stderr.contains("does not exist"));
    let jump = target.and_then(|target| {
        input.lines().enumerate().find(|(_, line)| {
            let mut words = line.split_ascii_whitespace();
            words.any(|word| word == "-j" || word == "-g") && words.next() == Some(target)
        })
    });
    Some(jump.map_or(named, |(index, line)| (index + 1, line)))
}
