//! What a person has chosen in the live view, and what keys do to it. Pure.

use crate::snapshot::{PodSample, Snapshot};

/// The order of pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    Name,
    Cpu,
    Memory,
    Restarts,
}

/// A key, whatever the terminal calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Interrupt,
}

/// What is to be done after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing but to draw.
    Draw,
    /// To leave.
    Quit,
    /// To read the log of a container.
    Log { id: String },
    /// To run a shell in a container.
    Shell { id: String, title: String },
}

/// A log that is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogView {
    /// Pod and container.
    pub(crate) title: String,
    /// The runtime's identifier.
    pub(crate) id: String,
    pub(crate) lines: Vec<String>,
    /// Lines below what is shown; 0 shows the end, also when it grows.
    pub(crate) below: usize,
}

/// The choices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) order: Order,
    /// The name of the pod that is looked at: it stays the same when the order changes.
    pub(crate) selected: Option<String>,
    /// Which of its containers, of those that `l` goes through.
    pub(crate) container: usize,
    pub(crate) log: Option<LogView>,
    /// What went wrong at the last key.
    pub(crate) message: Option<String>,
}

/// How far a page is.
const PAGE: usize = 10;

impl State {
    /// The pods of a snapshot, in order.
    pub(crate) fn pods<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a PodSample> {
        let mut pods: Vec<&PodSample> = snapshot.pods.iter().collect();
        let most_first = |number: u64| std::cmp::Reverse(number);
        match self.order {
            Order::Name => {}
            Order::Cpu => pods.sort_by_key(|pod| most_first(pod.millicores().unwrap_or(0))),
            Order::Memory => pods.sort_by_key(|pod| most_first(pod.memory().unwrap_or(0))),
            Order::Restarts => pods.sort_by_key(|pod| most_first(pod.restarts.into())),
        }
        pods
    }

    /// What a key does.
    pub(crate) fn press(&mut self, key: Key, snapshot: &Snapshot) -> Action {
        self.message = None;
        match key {
            Key::Interrupt | Key::Char('q') => return Action::Quit,
            Key::Char('s') => return self.open_shell(snapshot),
            Key::Escape if self.log.is_some() => self.log = None,
            Key::Escape => self.selected = None,
            _ => match &mut self.log {
                Some(log) if matches!(key, Key::Char('l') | Key::Enter) => {
                    let of_other = log.id.clone();
                    self.container += 1;
                    return self.open_log(snapshot, Some(of_other));
                }
                Some(log) => log.below = scrolled(key, log.below, log.lines.len()),
                None => return self.press_in_list(key, snapshot),
            },
        }
        Action::Draw
    }

    fn press_in_list(&mut self, key: Key, snapshot: &Snapshot) -> Action {
        match key {
            Key::Char('P' | 'C') => self.order = Order::Cpu,
            Key::Char('M') => self.order = Order::Memory,
            Key::Char('R') => self.order = Order::Restarts,
            Key::Char('N') => self.order = Order::Name,
            Key::Char('l') | Key::Enter => {
                self.container = 0;
                return self.open_log(snapshot, None);
            }
            key => self.select(key, snapshot),
        }
        Action::Draw
    }

    fn select(&mut self, key: Key, snapshot: &Snapshot) {
        let pods = self.pods(snapshot);
        let last = pods.len().saturating_sub(1);
        let at = pods.iter().position(|pod| Some(&pod.name) == self.selected.as_ref());
        let to = match (key, at) {
            (Key::Down | Key::Char('j') | Key::PageDown | Key::Home, None) => 0,
            (Key::Up | Key::Char('k') | Key::PageUp | Key::End, None) => last,
            (Key::Down | Key::Char('j'), Some(at)) => at + 1,
            (Key::Up | Key::Char('k'), Some(at)) => at.saturating_sub(1),
            (Key::PageDown, Some(at)) => at + PAGE,
            (Key::PageUp, Some(at)) => at.saturating_sub(PAGE),
            (Key::Home, Some(_)) => 0,
            (Key::End, Some(_)) => last,
            _ => return,
        };
        self.selected = pods.get(to.min(last)).map(|pod| pod.name.clone());
    }

    /// The log of the selected pod's container, or of the next one when that of `shown` was looked at.
    fn open_log(&mut self, snapshot: &Snapshot, shown: Option<String>) -> Action {
        let selected = self.selected.as_ref();
        let pod = snapshot.pods.iter().find(|pod| Some(&pod.name) == selected);
        let Some(pod) = pod.filter(|pod| !pod.containers.is_empty()) else { return Action::Draw };
        let container = pod.containers.get(self.container % pod.containers.len());
        let Some(container) = container.filter(|one| Some(&one.id) != shown.as_ref()) else {
            return Action::Draw;
        };
        self.log = Some(LogView {
            title: format!("{} {}", pod.name, container.name),
            id: container.id.clone(),
            ..LogView::default()
        });
        Action::Log { id: container.id.clone() }
    }

    /// A shell in the container whose log is looked at, or in the first of the selected pod that runs.
    fn open_shell(&mut self, snapshot: &Snapshot) -> Action {
        if let Some(LogView { id, title, .. }) = &self.log {
            return Action::Shell { id: id.clone(), title: title.clone() };
        }
        let selected = self.selected.as_ref();
        let Some(pod) = snapshot.pods.iter().find(|pod| Some(&pod.name) == selected) else {
            return Action::Draw;
        };
        match pod.containers.iter().find(|container| container.state == "Running") {
            Some(running) => Action::Shell {
                id: running.id.clone(),
                title: format!("{} {}", pod.name, running.name),
            },
            None => {
                self.message = Some(format!("{}: no container runs", pod.name));
                Action::Draw
            }
        }
    }

    /// Takes the lines of a log, if it is still looked at.
    pub(crate) fn show_log(&mut self, id: &str, lines: Result<Vec<String>, String>) {
        let Some(log) = self.log.as_mut().filter(|log| log.id == id) else { return };
        let lines = lines.unwrap_or_else(|why| vec![why]);
        // What a person has scrolled to stays where it is.
        if log.below > 0 {
            log.below += lines.len().saturating_sub(log.lines.len());
        }
        log.lines = lines;
    }
}

fn scrolled(key: Key, below: usize, lines: usize) -> usize {
    let to = match key {
        Key::Up | Key::Char('k') => below + 1,
        Key::Down | Key::Char('j') => below.saturating_sub(1),
        Key::PageUp => below + PAGE,
        Key::PageDown => below.saturating_sub(PAGE),
        Key::Home => lines,
        Key::End => 0,
        _ => below,
    };
    to.min(lines.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ContainerSample;

    fn snapshot() -> Snapshot {
        let container = |name: &str, millicores, memory| ContainerSample {
            name: name.into(),
            id: format!("id of {name}"),
            state: if name == "x" { "Exited" } else { "Running" },
            millicores: Some(millicores),
            memory: Some(memory),
            ..ContainerSample::default()
        };
        let pod = |name: &str, restarts, containers| PodSample {
            name: name.into(),
            restarts,
            containers,
            ..PodSample::default()
        };
        Snapshot {
            pods: vec![
                pod("a", 1, vec![container("x", 1, 30), container("y", 1, 1)]),
                pod("b", 0, vec![container("z", 9, 5)]),
                pod("c", 2, vec![]),
            ],
            ..Snapshot::default()
        }
    }

    #[test]
    fn node_view_orders_pods_by_what_a_person_asks() {
        let mut state = State::default();
        for (key, expected) in
            [('N', "abc"), ('P', "bac"), ('M', "abc"), ('R', "cab"), ('C', "bac"), ('?', "bac")]
        {
            assert_eq!(state.press(Key::Char(key), &snapshot()), Action::Draw);
            let names: String =
                state.pods(&snapshot()).iter().map(|pod| pod.name.as_str()).collect();
            assert_eq!(names, expected, "{key}");
        }
    }

    #[test]
    fn node_view_selects_pods_and_leaves() {
        let mut state = State::default();
        let all = snapshot();
        for (key, expected) in [
            (Key::Down, Some("a")),
            (Key::Char('j'), Some("b")),
            (Key::PageDown, Some("c")),
            (Key::Down, Some("c")),
            (Key::Char('k'), Some("b")),
            (Key::Home, Some("a")),
            (Key::Up, Some("a")),
            (Key::End, Some("c")),
            (Key::Escape, None),
            (Key::Up, Some("c")),
        ] {
            state.press(key, &all);
            assert_eq!(state.selected.as_deref(), expected, "{key:?}");
        }
        // The pod is gone, and so are all.
        state.press(Key::Down, &Snapshot::default());
        assert_eq!(state.selected, None);
        assert_eq!(state.press(Key::Char('q'), &all), Action::Quit);
        assert_eq!(state.press(Key::Interrupt, &all), Action::Quit);
    }

    #[test]
    fn node_view_goes_through_the_logs_of_a_pod() {
        let (mut state, all) = (State::default(), snapshot());
        assert_eq!(state.press(Key::Enter, &all), Action::Draw);
        state.press(Key::Down, &all);
        let of = |name: &str| Action::Log { id: format!("id of {name}") };
        assert_eq!(state.press(Key::Char('l'), &all), of("x"));
        state.show_log("id of x", Ok((0..50).map(|n| n.to_string()).collect()));
        for (key, below) in
            [(Key::Up, 1), (Key::PageUp, 11), (Key::Home, 49), (Key::PageDown, 39), (Key::End, 0)]
        {
            state.press(key, &all);
            assert_eq!(state.log.as_ref().unwrap().below, below, "{key:?}");
        }
        state.press(Key::Up, &all);
        state.show_log("id of x", Ok((0..55).map(|n| n.to_string()).collect()));
        assert_eq!(state.log.as_ref().unwrap().below, 6);
        state.show_log("another", Ok(vec![]));
        assert_eq!(state.log.as_ref().unwrap().lines.len(), 55);
        assert_eq!(state.press(Key::Enter, &all), of("y"));
        state.show_log("id of y", Err("no log".into()));
        assert_eq!(state.log.as_ref().unwrap().lines, ["no log"]);
        assert_eq!(state.press(Key::Escape, &all), Action::Draw);
        assert!(state.log.is_none() && state.selected.is_some());
        // A pod without containers has no log, and one with a single one has no other.
        state.press(Key::End, &all);
        assert_eq!(state.press(Key::Enter, &all), Action::Draw);
        state.press(Key::Up, &all);
        assert_eq!(state.press(Key::Enter, &all), of("z"));
        assert_eq!(state.press(Key::Enter, &all), Action::Draw);
    }

    #[test]
    fn node_view_opens_a_shell_in_a_container_that_runs() {
        let (mut state, all) = (State::default(), snapshot());
        let of = |name: &str, title: &str| Action::Shell {
            id: format!("id of {name}"),
            title: title.into(),
        };
        assert_eq!(state.press(Key::Char('s'), &all), Action::Draw);
        state.press(Key::Down, &all);
        assert_eq!(state.press(Key::Char('s'), &all), of("y", "a y"));
        // In a log it is the container of the log, whatever the runtime says to it.
        state.press(Key::Char('l'), &all);
        assert_eq!(state.press(Key::Char('s'), &all), of("x", "a x"));
        state.press(Key::Escape, &all);
        state.press(Key::End, &all);
        assert_eq!(state.press(Key::Char('s'), &all), Action::Draw);
        assert_eq!(state.message.as_deref(), Some("c: no container runs"));
        state.press(Key::Up, &all);
        assert_eq!(state.message, None);
    }
}
