//! Runs the programs of a machine as children, where systemd does not: starts one again that ends, and
//! ends with all of them. `longshore-host child` is between: it has the kernel end the program when this
//! process is killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::error::At;
use crate::services::Service;
use crate::tokens::printable;
use crate::{Error, Result};

/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(25);
/// The delay before a program that ended is started again: the shortest, and the longest when it ends again
/// and again.
const DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
/// A program that has run for this long starts with the shortest delay again.
const STEADY: Duration = Duration::from_secs(60);
/// An end of a program's command line that is wrong: it would end again.
const USAGE: i32 = 2;
/// After so many ends in a row a start is not waited for.
const HOPELESS: u32 = 3;

/// How a program has ended.
#[derive(Debug, Clone)]
struct End {
    count: u32,
    text: String,
    is_final: bool,
}

/// PURE: the delay after `count` ends in a row.
fn delay(count: u32) -> Duration {
    let [least, most] = DELAYS;
    let factor = 2_u32.checked_pow(count.saturating_sub(1)).unwrap_or(u32::MAX);
    least.checked_mul(factor).unwrap_or(most).min(most)
}

/// Programs that run, until [`Supervisor::stop`].
#[derive(Debug)]
pub struct Supervisor {
    programs: PathBuf,
    logs: PathBuf,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    ends: Ends,
}

type Ends = Arc<Mutex<BTreeMap<&'static str, End>>>;

impl Supervisor {
    /// Nothing runs yet. Programs are in the folder `programs`, and log to files in the folder `logs`.
    ///
    /// # Errors
    /// The folder of logs cannot be made.
    pub fn new(programs: &Path, logs: &Path) -> Result<Self> {
        std::fs::create_dir_all(logs).at("create", logs)?;
        Ok(Self {
            programs: programs.to_owned(),
            logs: logs.to_owned(),
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
            ends: Ends::default(),
        })
    }

    /// Starts a service and keeps it running.
    pub fn start(&mut self, service: &Service) {
        let keeper = Keeper {
            service: service.clone(),
            program: self.programs.join(service.program),
            child: self.programs.join("longshore-host"),
            log: self.logs.join(format!("{}.log", service.name)),
            stop: self.stop.child_token(),
            ends: self.ends.clone(),
        };
        self.tasks.spawn(keeper.run());
    }

    /// Why it is of no use to wait for a service, if it ends at once again and again.
    pub fn hopeless(&self) -> Option<Error> {
        let ends = self.ends.lock();
        let found = ends.iter().find(|(_, end)| end.is_final || end.count >= HOPELESS);
        found.map(|(name, end)| Error::program(&format!("longshore {name}"), &end.text))
    }

    /// Ends all services, the nodes' pods excepted, and waits for that.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

struct Keeper {
    service: Service,
    program: PathBuf,
    child: PathBuf,
    log: PathBuf,
    stop: CancellationToken,
    ends: Ends,
}

impl Keeper {
    async fn run(self) {
        let name = self.service.name;
        let mut count = 0_u32;
        while !self.stop.is_cancelled() {
            let start = Instant::now();
            let (text, is_final) = match self.spawn() {
                Ok(mut child) => {
                    info!(program = name, pid = child.id(), "started");
                    match self.wait(&mut child).await {
                        Some(status) => (self.describe(status), status.code() == Some(USAGE)),
                        None => return,
                    }
                }
                Err(error) => (error.to_string(), false),
            };
            count = if start.elapsed() > STEADY { 1 } else { count.saturating_add(1) };
            let end = End { count, text: text.clone(), is_final };
            self.ends.lock().insert(name, end);
            if is_final {
                error!(program = name, "{text}; it is not started again");
                return self.stop.cancelled().await;
            }
            let pause = delay(count);
            warn!(program = name, ?pause, "{text}; it is started again");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    fn spawn(&self) -> Result<Child> {
        let out =
            File::options().create(true).append(true).open(&self.log).at("open", &self.log)?;
        let err = out.try_clone().at("open", &self.log)?;
        let mut command = Command::new(&self.child);
        command.args(["child", "--parent", &std::process::id().to_string(), "--"]);
        command.arg(&self.program).args(self.service.role).args(&self.service.args);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        // Ctrl-C at the terminal is for this process, which ends the others in order.
        command.process_group(0).kill_on_drop(true);
        command.spawn().map_err(|error| Error::program(&self.program.display().to_string(), error))
    }

    /// Waits for its end; `None`: it was stopped.
    async fn wait(&self, child: &mut Child) -> Option<ExitStatus> {
        tokio::select! {
            ended = child.wait() => return ended.ok(),
            () = self.stop.cancelled() => {}
        }
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
            warn!(program = self.service.name, "it did not end in {GRACE:?}, and is killed");
            let _ = child.kill().await;
        }
        None
    }

    /// The end of a program with the last line of its log.
    fn describe(&self, status: ExitStatus) -> String {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("ended with code {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        match last_line(&self.log) {
            Some(line) => format!("{how}: {line}"),
            None => how,
        }
    }
}

/// The last line of a log that says something, for a message of one line.
fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(4096))).ok()?;
    let mut tail = Vec::new();
    file.take(4096).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(printable(line).chars().take(400).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisor_delays_grow_to_a_limit() {
        let table = [
            (0, 500),
            (1, 500),
            (2, 1000),
            (3, 2000),
            (7, 30_000),
            (64, 30_000),
            (u32::MAX, 30_000),
        ];
        for (count, milliseconds) in table {
            assert_eq!(delay(count), Duration::from_millis(milliseconds), "{count}");
        }
    }

    #[test]
    fn supervisor_shows_the_last_line_of_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        assert_eq!(last_line(&log), None);
        std::fs::write(&log, "").unwrap();
        assert_eq!(last_line(&log), None);
        std::fs::write(&log, format!("{}\nError: a\x1b[2Jb\n\n", "x".repeat(9000))).unwrap();
        assert_eq!(last_line(&log).as_deref(), Some("Error: a [2Jb"));
        std::fs::write(&log, [0xff; 5000]).unwrap();
        assert!(last_line(&log).unwrap().chars().count() <= 400);
    }

    /// Programs here are scripts; the one between runs its arguments.
    fn folder(script: &str) -> tempfile::TempDir {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("longshore-host", "#!/bin/sh\nshift 4\nexec \"$@\"\n".to_owned()),
            ("program", format!("#!/bin/sh\n{script}\n")),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    fn service() -> Service {
        Service {
            name: "x",
            unit: "x.service",
            program: "program",
            args: vec!["a b".into()],
            role: None,
        }
    }

    async fn until(check: impl Fn() -> bool) {
        while !check() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn supervisor_starts_again_what_ends_and_gives_up_on_usage_errors() {
        let dir = folder("echo \"$1\"; echo failed; exit 1");
        let mut supervisor = Supervisor::new(dir.path(), &dir.path().join("logs")).unwrap();
        supervisor.start(&service());
        until(|| supervisor.hopeless().is_some()).await;
        let why = supervisor.hopeless().unwrap().to_string();
        assert_eq!(why, "longshore x: ended with code 1: failed");
        supervisor.stop().await;
        let log = std::fs::read_to_string(dir.path().join("logs/x.log")).unwrap();
        assert!(log.starts_with("a b\nfailed\na b\n"), "{log}");

        let dir = folder("exit 2");
        let mut supervisor = Supervisor::new(dir.path(), &dir.path().join("logs")).unwrap();
        supervisor.start(&service());
        until(|| supervisor.hopeless().is_some()).await;
        assert_eq!(supervisor.ends.lock()["x"].count, 1);
        supervisor.stop().await;
    }

    #[tokio::test]
    async fn supervisor_ends_programs_when_it_stops() {
        let dir =
            folder("trap 'echo ended; exit 0' TERM; echo started; while :; do sleep 0.05; done");
        let log = dir.path().join("logs/x.log");
        let mut supervisor = Supervisor::new(dir.path(), &dir.path().join("logs")).unwrap();
        supervisor.start(&service());
        let text = || std::fs::read_to_string(&log).unwrap_or_default();
        until(|| text().contains("started")).await;
        supervisor.stop().await;
        assert_eq!(text(), "started\nended\n");
    }
}
