//! Running helper programs (`ip`, `ctr`, …) to their end, and finding our own.
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, io};

use crate::error::{Error, Result};

/// Where system programs live; a shell without `sbin` in its PATH must not matter.
pub(crate) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// PATH as given, with the system folders behind it.
pub(crate) fn search_path() -> String {
    match env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{SYSTEM_PATH}"),
        _ => SYSTEM_PATH.into(),
    }
}

/// Runs `command` to its end and gives its standard output.
pub(crate) fn run(command: Command) -> Result<String> {
    run_with_input(command, "")
}

/// [`run`] with a text as standard input.
pub(crate) fn run_with_input(mut command: Command, input: &str) -> Result<String> {
    command.env("PATH", search_path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A Ctrl-C must not end a step of somebody's orderly tear-down.
    command.process_group(0);
    let fail = |command: &Command, message: String| Error::Command {
        command: line_of(command),
        message: message.trim_end().into(),
    };
    let mut child = command.spawn().map_err(|e| fail(&command, start_failure(&command, &e)))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read to the end says why by its exit status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| fail(&command, e.to_string()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(fail(&command, format!("{}: {stderr}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program with arguments given as one string, parted by blanks.
pub(crate) fn run_split(program: &str, args: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    run(command)
}

/// The command line as a person would type it.
pub(crate) fn line_of(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn start_failure(command: &Command, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        let program = command.get_program().to_string_lossy();
        format!("{program} is not installed (scripts/install-deps.sh installs it)")
    } else {
        error.to_string()
    }
}

/// The path of one of this project's own programs.
///
/// Cargo gives a test only the programs of its own package, so we look beside the running
/// executable: tests lie in `target/<profile>/deps`, programs in `target/<profile>`.
/// `LONGSHORE_BIN_DIR` overrides the folder.
///
/// # Errors
/// [`Error::NotBuilt`] when it is not there.
pub fn program(name: &str) -> Result<PathBuf> {
    let folder = match env::var_os("LONGSHORE_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let own = env::current_exe().unwrap_or_default();
            let folder = own.parent().unwrap_or(&own);
            let in_deps = folder.file_name().is_some_and(|name| name == "deps");
            if in_deps { folder.parent().unwrap_or(folder).into() } else { folder.into() }
        }
    };
    let path = folder.join(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::NotBuilt { name: name.into(), looked_in: folder })
    }
}
