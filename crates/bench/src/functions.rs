//! Which functions a program executes while nothing happens, and the linker's script that puts them next to each other
//! (crate `layout`).
//!
//! Each function begins with a breakpoint, which goes when it is hit: after the first moments a program is as fast as
//! without.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use procfs::process::Process;

/// `int3`.
const BREAKPOINT: u8 = 0xcc;
const PAUSE: Duration = Duration::from_micros(200);

/// The symbols of the functions that a process executes from now on, for so long. Blocks.
pub(crate) fn executed(pid: u32, time: Duration) -> Result<BTreeSet<String>> {
    let process = Process::new(i32::try_from(pid)?)?;
    let mut all = symbols(&process.exe()?)?;
    let maps = process.maps()?;
    // Programs are position-independent, with their first byte at the start of their first mapping.
    let base = maps.iter().map(|map| map.address.0).next().context("no mappings")?;
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let mut trace = Trace { memory, base, replaced: HashMap::new(), executed: BTreeSet::new() };
    let threads = attach(&process)?;
    trace.set(all.keys())?;
    threads.into_iter().try_for_each(|thread| ptrace::cont(thread, None))?;
    trace.follow(time)?;
    let executed = trace.executed.iter().filter_map(|function| all.remove(function));
    Ok(executed.flatten().collect())
}

/// The script that puts these functions before all others.
pub(crate) fn script(functions: impl IntoIterator<Item = String>) -> String {
    let patterns: BTreeSet<String> = functions.into_iter().map(|name| pattern(&name)).collect();
    let mut text =
        "/* Functions that idle programs execute: `make layout` writes it. */\n".to_owned();
    text += "SECTIONS {\n  .text.idle : {\n";
    for pattern in patterns {
        let _ = writeln!(text, "    *(.text.{pattern})");
    }
    text + "  }\n}\nINSERT BEFORE .text;\n"
}

/// A symbol without what another compiler, or another version of a crate, changes: hashes of crates (`Cs…_`), and
/// references to what was said before (`B…_`), which count the hashes' letters.
fn pattern(symbol: &str) -> String {
    let mut pattern = String::with_capacity(symbol.len());
    let mut rest = symbol;
    while let Some(at) = rest.find(['C', 'B']) {
        let (before, from) = rest.split_at(at);
        let kind = if from.starts_with("Cs") { "Cs" } else { &from[..1] };
        let number = &from[kind.len()..];
        let end = number.find(|letter: char| !letter.is_ascii_alphanumeric());
        let end = end.filter(|end| number[*end..].starts_with('_') && kind != "C");
        pattern += before;
        pattern += kind;
        if end.is_some() {
            pattern.push('*');
        }
        rest = &number[end.unwrap_or(0)..];
    }
    pattern + rest
}

/// The functions of a program by their addresses, from its table of symbols.
fn symbols(program: &Path) -> Result<BTreeMap<u64, Vec<String>>> {
    let listed = Command::new("nm").arg("--defined-only").arg(program).output();
    let listed = listed.context("nm (package binutils)")?;
    ensure!(listed.status.success(), "nm: {}", String::from_utf8_lossy(&listed.stderr));
    let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8(listed.stdout)?.lines() {
        let mut words = line.split(' ');
        let (Some(address), Some("t" | "T" | "w" | "W"), Some(name)) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        found.entry(u64::from_str_radix(address, 16)?).or_default().push(name.to_owned());
    }
    ensure!(!found.is_empty(), "{} has no symbols", program.display());
    Ok(found)
}

/// A process with breakpoints.
struct Trace {
    memory: File,
    base: u64,
    /// The byte that is at the address of a function when there is no breakpoint.
    replaced: HashMap<u64, u8>,
    executed: BTreeSet<u64>,
}

impl Trace {
    fn set<'a>(&mut self, functions: impl Iterator<Item = &'a u64>) -> Result<()> {
        for function in functions {
            let mut byte = [0];
            self.memory.read_exact_at(&mut byte, self.base + function)?;
            self.memory.write_all_at(&[BREAKPOINT], self.base + function)?;
            self.replaced.insert(*function, byte[0]);
        }
        Ok(())
    }

    /// Lets the process run, and takes away the breakpoints that it hits; in the end all others.
    fn follow(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        // Children of other threads are not this one's.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG | WaitPidFlag::__WNOTHREAD;
        while Instant::now() < end {
            let gone_on = match waitpid(None, Some(flags))? {
                WaitStatus::Stopped(thread, Signal::SIGTRAP) => self.hit(thread),
                WaitStatus::Stopped(thread, signal) => ptrace::cont(thread, signal),
                WaitStatus::PtraceEvent(thread, ..) => ptrace::cont(thread, None),
                WaitStatus::StillAlive => {
                    thread::sleep(PAUSE);
                    Ok(())
                }
                _ => Ok(()),
            };
            match gone_on {
                // A thread that has ended meanwhile.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (function, byte) in &self.replaced {
            self.memory.write_all_at(&[*byte], self.base + function)?;
        }
        Ok(())
    }

    #[cfg(target_arch = "x86_64")]
    fn hit(&mut self, thread: Pid) -> nix::Result<()> {
        let mut registers = ptrace::getregs(thread)?;
        // The breakpoint itself is executed.
        let at = registers.rip - 1;
        let function = at.wrapping_sub(self.base);
        if let Some(byte) = self.replaced.get(&function) {
            self.memory.write_all_at(&[*byte], at).map_err(|_| Errno::EIO)?;
            self.executed.insert(function);
            registers.rip = at;
            ptrace::setregs(thread, registers)?;
        }
        ptrace::cont(thread, None)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn hit(&mut self, _: Pid) -> nix::Result<()> {
        Err(Errno::ENOSYS)
    }
}

/// Attaches to all threads, new ones included, and stops them.
fn attach(process: &Process) -> Result<Vec<Pid>> {
    let mut known = BTreeSet::new();
    loop {
        let threads = process.tasks()?.flatten().map(|task| Pid::from_raw(task.tid));
        let new: Vec<Pid> = threads.filter(|thread| known.insert(*thread)).collect();
        if new.is_empty() {
            break;
        }
        for thread in new {
            ptrace::seize(thread, Options::PTRACE_O_TRACECLONE)?;
        }
    }
    for thread in &known {
        ptrace::interrupt(*thread)?;
        waitpid(*thread, Some(WaitPidFlag::__WALL))?;
    }
    Ok(known.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_leaves_hashes_open() {
        let names = [
            "_RNvNtCs1Xb_5tokio4time5sleep",
            "_RINvNtCsaZ_4core3ptr13drop_in_placeNtBC_4BoolE",
            "memcpy",
        ];
        let script = script(names.map(str::to_owned));
        let lines: Vec<_> = script.lines().filter(|line| line.contains("*(")).collect();
        assert_eq!(
            lines,
            [
                "    *(.text._RINvNtCs*_4core3ptr13drop_in_placeNtB*_4BoolE)",
                "    *(.text._RNvNtCs*_5tokio4time5sleep)",
                "    *(.text.memcpy)",
            ]
        );
    }
}
