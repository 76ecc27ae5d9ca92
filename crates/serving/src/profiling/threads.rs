//! The threads of this process, as the kernel knows them.

use std::fs;
use std::time::Duration;

/// What the kernel counts CPU time in: a hundredth of a second on every architecture that is supported.
pub(super) const TICK: Duration = Duration::from_millis(10);
const TASKS: &str = "/proc/self/task";

/// CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// In the program.
    pub(super) user: Duration,
    /// In the kernel, for the program.
    pub(super) kernel: Duration,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) id: u32,
    pub(super) name: String,
    /// `R`: it runs; `S`: it waits.
    pub(super) state: char,
    /// The function of the kernel; `0`: none.
    pub(super) waits_in: String,
    pub(super) usage: Usage,
}

/// All threads by number. One that ends meanwhile is left out.
pub(super) fn threads() -> Vec<Thread> {
    let entries = fs::read_dir(TASKS).into_iter().flatten().flatten();
    let mut all: Vec<Thread> = entries
        .filter_map(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let waits_in = fs::read_to_string(entry.path().join("wchan")).unwrap_or_default();
            Some(Thread { waits_in: waits_in.trim().to_owned(), ..parse(&stat)? })
        })
        .collect();
    all.sort_by_key(|thread| thread.id);
    all
}

/// PURE: a line of `/proc/PID/task/TID/stat`.
fn parse(stat: &str) -> Option<Thread> {
    // a name may have spaces and brackets
    let (before, after) = stat.rsplit_once(')')?;
    let (id, name) = before.split_once('(')?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<u32>().ok();
    let time = |field| ticks(field).map(|count| TICK.saturating_mul(count));
    Some(Thread {
        id: id.trim().parse().ok()?,
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        waits_in: String::new(),
        // the fields 14 and 15, of which three are before
        usage: Usage { user: time(11)?, kernel: time(12)? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiling_threads_are_read_from_their_stat() {
        let line =
            "77 (tokio) rt (w) S 1 77 77 0 -1 4194368 100 0 0 0 250 30 0 0 20 0 5 0 900 0 0\n";
        let thread = parse(line).unwrap();
        assert_eq!((thread.id, thread.name.as_str(), thread.state), (77, "tokio) rt (w", 'S'));
        assert_eq!(thread.usage.user, Duration::from_millis(2500));
        assert_eq!(thread.usage.kernel, Duration::from_millis(300));
        for broken in ["", "1 (a", "1 (a)", "x (a) S 1 2 3", "1 (a) S 1 2 3 4 5 6 7 8 9 10 x 1"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
        assert!(threads().iter().any(|thread| thread.id == std::process::id()));
    }
}
