//! Parser of OOM kills in the kernel log. Pure.

/// A process that was killed because the machine, and not only a cgroup, is out of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SystemKill {
    /// The kernel's name of the process, at most 15 bytes.
    pub(super) process: String,
    /// Its process id in the host namespace.
    pub(super) pid: u32,
}

/// Whose memory limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Machine,
    Cgroup,
}

/// Parses the log record by record. A kill consists of several records: the call of the OOM killer, the
/// cgroup at its limit if any, and the victim.
#[derive(Debug, Default)]
pub(super) struct KernelLog {
    /// A kill without a victim so far.
    open: Option<Scope>,
}

impl KernelLog {
    /// Parses the next record of `/dev/kmsg`. Returns a kill at the record that names its first victim.
    pub(super) fn read(&mut self, record: &[u8]) -> Option<SystemKill> {
        let message = String::from_utf8_lossy(message_of(record)?);
        if message.contains("invoked oom-killer:") {
            self.open = Some(Scope::Machine);
            return None;
        }
        let scope = self.open?;
        if let Some(group) = limited_group(&message) {
            if group != "/" {
                self.open = Some(Scope::Cgroup);
            }
            return None;
        }
        let kill = victim(&message)?;
        self.open = None;
        let machine = scope == Scope::Machine && !message.contains("Memory cgroup out of memory");
        machine.then_some(kill)
    }

    /// Records are missing: discards an incomplete kill.
    pub(super) fn gap(&mut self) {
        self.open = None;
    }
}

/// The text of a record: `priority,sequence,time,flags;TEXT`, then lines of further properties.
fn message_of(record: &[u8]) -> Option<&[u8]> {
    let start = record.iter().position(|byte| *byte == b';')?.saturating_add(1);
    record.get(start..)?.split(|byte| *byte == b'\n').next()
}

/// The cgroup whose limit was reached, in the formats of kernels since 5.0 and before.
fn limited_group(message: &str) -> Option<&str> {
    if let Some((_, fields)) = message.split_once("oom-kill:constraint=") {
        let (_, from) = fields.split_once(",oom_memcg=")?;
        // A name may contain commas.
        return Some(from.rsplit_once(",task_memcg=")?.0);
    }
    let (task, group) = message.split_once(" killed as a result of limit of ")?;
    task.contains("Task in ").then_some(group)
}

/// From `Killed process 123 (name) total-vm:…`; some kernels put `, UID 0,` before the name.
fn victim(message: &str) -> Option<SystemKill> {
    let (_, rest) = message.split_once("Killed process ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (pid, rest) = rest.split_at(digits);
    // A name may contain brackets, what follows does not.
    let name = rest.split_once('(')?.1.rsplit_once(')')?.0;
    let kill = SystemKill { process: name.to_owned(), pid: pid.parse().ok()? };
    (!kill.process.is_empty() && kill.pid > 0).then_some(kill)
}
