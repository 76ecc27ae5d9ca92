//! `reset`: removes the cluster and its node from this machine. [`facts`] looks at what is there, [`plan`]
//! decides what goes (pure), and the steps are carried out in order. Each of them may be repeated: a reset
//! that was interrupted is run again. What says which cluster this was is removed last.

mod facts;
mod plan;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore_base::files::if_present;
use longshore_base::output;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::args::ResetArgs;
use crate::error::At;
use crate::files::remove;
use crate::settings::Settings;
use crate::setup::run;
use crate::{Error, Paths, Result, down, network, preflight, runtime, units};
use facts::Facts;
use plan::{Plan, Step};

const RUNTIME: Duration = Duration::from_secs(120);
/// How often processes that were killed are looked for again.
const ROUNDS: u32 = 50;

/// Shows what it will remove, waits for consent, and removes it.
///
/// # Errors
/// There is no consent, or something is left.
pub async fn reset(paths: &Paths, args: &ResetArgs) -> Result<()> {
    if Settings::load(paths).is_ok_and(|settings| settings.is_none()) {
        preflight::check_foreign(paths)?;
    }
    let facts = Facts::gather(paths, args.container_runtime_endpoint.as_deref()).await?;
    let found = plan::plan(&facts);
    if found.steps.is_empty() {
        tidy(paths);
        return print(&format!("{} has nothing to remove\n", paths.root().display()));
    }
    print(&found.text())?;
    if args.dry_run {
        return Ok(());
    }
    if !args.yes && !has_consent()? {
        return Err(Error::refused("nothing was removed"));
    }
    let (lock, _) = down::stop(paths)?;
    // What runs may have changed since: what was shown is still all that goes.
    let fresh = Facts::gather(paths, args.container_runtime_endpoint.as_deref()).await?;
    let failures = carry_out(&plan::plan(&fresh), paths, &fresh).await;
    for failure in &failures {
        output::report(format_args!("longshore: {failure}"));
    }
    if !failures.is_empty() {
        return Err(Error::refused(format!(
            "{} things could not be removed: mend that, and run longshore reset again",
            failures.len()
        )));
    }
    lock.remove(paths)?;
    print("removed\n")
}

/// The lock is the last file, and may be there without anything else.
fn tidy(paths: &Paths) {
    if let Ok(lock) = crate::lock::Lock::take(paths) {
        let _ = lock.remove(paths);
    }
}

fn print(text: &str) -> Result<()> {
    output::print(text)
        .map_err(|error| Error::refused(format!("cannot write to standard output: {error}")))
}

fn has_consent() -> Result<bool> {
    let mut input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Error::refused(
            "there is no terminal to answer on: give --yes, or --dry-run to look only",
        ));
    }
    print("Remove all of this? [y/N] ")?;
    let _ = std::io::stdout().flush();
    let mut answer = [0; 16];
    let length = std::io::Read::read(&mut input, &mut answer)
        .map_err(|error| Error::refused(format!("cannot read the answer: {error}")))?;
    let answer = String::from_utf8_lossy(answer.get(..length).unwrap_or_default()).to_lowercase();
    Ok(matches!(answer.trim(), "y" | "yes"))
}

/// Carries out all steps; a failure keeps nothing else from being removed but what says which cluster this
/// was.
async fn carry_out(plan: &Plan, paths: &Paths, facts: &Facts) -> Vec<Error> {
    // Without their runtime, pods cannot be removed, and what is known of them must not go.
    let unknown = facts.pods_unknown.as_ref().map(|why| {
        let what = format!(
            "the container runtime at {} does not answer (--container-runtime-endpoint= leaves its pods)",
            facts.runtime
        );
        Error::cluster(what, why)
    });
    let mut failures: Vec<Error> = unknown.into_iter().collect();
    for step in &plan.steps {
        let done = match step {
            // Stopped by now.
            Step::Services(_) => Ok(()),
            Step::Pods(pods) => remove_pods(facts, pods).await,
            Step::Mounts(mounts) => unmount(mounts),
            Step::Rules { program, input, .. } => restore(program, input),
            Step::Tables(tables) => each(tables, |table| nft(table)),
            Step::Routes(routes) => each(routes, |route| {
                network::ip(&format!("-4 route del {route} proto {}", network::PROTOCOL)).map(drop)
            }),
            Step::Link(link) => network::ip(&format!("link del {link}")).map(drop),
            Step::Cgroups(groups) => remove_cgroups(groups),
            Step::Files(files) => each(files, |file| remove(file).at("remove", file)),
            Step::State(state) => match failures.is_empty() {
                true => units::forget(paths).and_then(|()| remove(state).at("remove", state)),
                false => Ok(()),
            },
        };
        failures.extend(done.err());
    }
    let logind = Path::new(facts::LOGIND).parent().filter(|_| paths.is_machine());
    let dirs = [paths.manifests(), paths.kubernetes(), paths.cni_addresses()];
    for dir in dirs.iter().map(PathBuf::as_path).chain(logind) {
        // What others have in it keeps it.
        let _ = std::fs::remove_dir(dir);
    }
    failures
}

/// The first failure of all.
fn each<T>(all: &[T], act: impl FnMut(&T) -> Result<()>) -> Result<()> {
    let outcomes: Vec<_> = all.iter().map(act).collect();
    outcomes.into_iter().collect()
}

async fn remove_pods(facts: &Facts, pods: &[facts::Pod]) -> Result<()> {
    let runtime = runtime::connect(&facts.runtime, &facts.folders, RUNTIME).await?;
    let mut failure = None;
    for pod in pods {
        let outcome = async {
            runtime.stop_pod_sandbox(&pod.id).await?;
            runtime.remove_pod_sandbox(&pod.id).await
        };
        let outcome: std::result::Result<(), longshore_cri::Error> = outcome.await;
        failure = failure.or(outcome.err());
    }
    failure.map_or(Ok(()), |error| Err(runtime::failed(&facts.runtime, error)))
}

fn unmount(mounts: &[std::path::PathBuf]) -> Result<()> {
    each(mounts, |mount| match umount2(mount, MntFlags::UMOUNT_NOFOLLOW) {
        // Several may be at one place, and one may go with another.
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => Ok(()),
        Err(nix::Error::EBUSY) => {
            let lazy = MntFlags::UMOUNT_NOFOLLOW.union(MntFlags::MNT_DETACH);
            umount2(mount, lazy).map_err(std::io::Error::from).at("unmount", mount)
        }
        Err(error) => Err(error.into()).at("unmount", mount),
    })
}

fn restore(program: &str, input: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["--noflush", "--wait"]).stdin(network::tempfile_of(input)?);
    run(command).map(drop)
}

fn nft(table: &str) -> Result<()> {
    let mut command = Command::new("nft");
    command.args(["delete", "table"]).args(table.split_whitespace());
    run(command).map(drop)
}

/// Ends what is in the groups, and removes them, the deepest first.
fn remove_cgroups(groups: &[std::path::PathBuf]) -> Result<()> {
    if units::is_booted() && groups.iter().any(|group| group.ends_with("kubepods.slice")) {
        let mut command = Command::new("systemctl");
        command.args(["stop", "kubepods.slice"]);
        // The slice may be no unit of this systemd.
        let _ = run(command);
    }
    each(groups, |group| {
        let mut last = Ok(());
        for _ in 0..ROUNDS {
            last = try_remove_cgroup(group);
            if last.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        last.at("remove", group)
    })
}

fn try_remove_cgroup(group: &Path) -> std::io::Result<()> {
    for dir in facts::tree(group).iter().rev() {
        let processes = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for pid in
            processes.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 1)
        {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if_present(std::fs::remove_dir(dir))?;
    }
    Ok(())
}
