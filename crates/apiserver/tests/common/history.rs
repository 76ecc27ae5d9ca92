//! Concurrent histories of clients, and whether they can be explained by one register for each key
//! (linearizability, by the algorithm of Wing and Gong with the memory of Lowe), and by the changes
//! that watches saw.

use std::collections::{BTreeMap, HashMap, HashSet};

/// Written values are unique, so a value says which write is meant.
pub type Value = u32;
/// Time since the beginning, in nanoseconds.
pub type Time = u64;

/// What a client wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    Create(Value),
    /// Only if the first value is there.
    Update(Value, Value),
    Delete,
    /// A get, or what a list showed of the key.
    Read,
}

/// What it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A write was carried out.
    Done,
    /// There was something else: it exists already, or is another value.
    Conflict,
    /// There was nothing.
    NotFound,
    /// What a read found.
    Found(Option<Value>),
    /// Nothing: the write may happen at any time, or never.
    Unknown,
}

/// One operation on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub client: usize,
    pub key: usize,
    pub called: Time,
    pub returned: Time,
    pub input: Input,
    pub output: Output,
}

/// The register after an operation; `None`: it cannot have had that outcome.
fn apply(state: Option<Value>, input: Input, output: Output) -> Option<Option<Value>> {
    let is = |condition: bool, next: Option<Value>| condition.then_some(next);
    match (input, output) {
        (Input::Create(value), Output::Done) => is(state.is_none(), Some(value)),
        (Input::Create(_), Output::Conflict) => is(state.is_some(), state),
        (Input::Update(expected, value), Output::Done) => is(state == Some(expected), Some(value)),
        (Input::Update(expected, _), Output::Conflict) => {
            is(state.is_some() && state != Some(expected), state)
        }
        (Input::Delete, Output::Done) => is(state.is_some(), None),
        (Input::Update(..) | Input::Delete, Output::NotFound) => is(state.is_none(), state),
        (Input::Read, Output::Found(found)) => is(state == found, state),
        _ => None,
    }
}

/// Whether the operations of one key have an order, each of them within its time, in which a register
/// does what they say.
pub fn is_linearizable(operations: &[Operation]) -> bool {
    // Of unknown writes the outcome is tried, or they are left out: they never have to be placed.
    let mut operations: Vec<Operation> = operations.to_vec();
    for operation in &mut operations {
        if operation.output == Output::Unknown {
            operation.returned = Time::MAX;
        }
    }
    operations.retain(|it| it.input != Input::Read || it.output != Output::Unknown);
    operations.sort_by_key(|it| it.called);
    let count = operations.len();
    let words = count.div_ceil(64);
    let is_placed = |placed: &[u64], i: usize| placed[i / 64] & (1 << (i % 64)) != 0;
    let mut seen: HashSet<(Vec<u64>, Option<Value>)> = HashSet::new();
    let mut open = vec![(vec![0_u64; words], None)];
    while let Some((placed, state)) = open.pop() {
        let rest = || (0..count).filter(|i| !is_placed(&placed, *i));
        if rest().all(|i| operations[i].output == Output::Unknown) {
            return true;
        }
        // What has returned before another was called comes before it.
        let limit = rest().map(|i| operations[i].returned).min().unwrap_or(Time::MAX);
        for i in rest().take_while(|i| operations[*i].called <= limit) {
            let operation = &operations[i];
            let output = match operation.output {
                Output::Unknown => Output::Done,
                known => known,
            };
            let Some(next) = apply(state, operation.input, output) else { continue };
            let mut more = placed.clone();
            more[i / 64] |= 1 << (i % 64);
            if seen.insert((more.clone(), next)) {
                open.push((more, next));
            }
        }
    }
    false
}

/// One change that a watch saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub revision: i64,
    pub key: usize,
    /// `None`: it was deleted.
    pub value: Option<Value>,
}

/// What a watcher saw from a revision on, over all its connections.
#[derive(Clone, Debug)]
pub struct Watched {
    pub after: i64,
    pub changes: Vec<Change>,
}

/// What one list showed, with its revision.
#[derive(Clone, Debug)]
pub struct Listed {
    pub revision: i64,
    pub items: BTreeMap<usize, Value>,
}

/// All that clients did and saw.
#[derive(Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub watches: Vec<Watched>,
    pub lists: Vec<Listed>,
    /// Revisions that clients know of values.
    pub revisions: HashMap<Value, i64>,
}

impl History {
    /// Checks everything. The error says what is impossible.
    ///
    /// `log` is the true order of changes, from its beginning.
    pub fn check(&self, log: &[Change]) -> Result<(), String> {
        check_order("the log", log)?;
        self.check_watches(log)?;
        self.check_lists(log)?;
        self.check_revisions(log)?;
        let written: HashSet<Value> = log.iter().filter_map(|change| change.value).collect();
        let keys: HashSet<usize> = self.operations.iter().map(|it| it.key).collect();
        for key in keys {
            let of_key = self.operations.iter().filter(|it| it.key == key);
            let mut operations = Vec::new();
            for operation in of_key {
                let mut operation = operation.clone();
                match (operation.input, operation.output) {
                    // The log says what became of it.
                    (Input::Create(value) | Input::Update(_, value), Output::Unknown) => {
                        if !written.contains(&value) {
                            continue;
                        }
                        operation.returned = Time::MAX;
                        operation.output = Output::Done;
                    }
                    (Input::Create(value) | Input::Update(_, value), Output::Done)
                        if !written.contains(&value) =>
                    {
                        return Err(format!("an acknowledged write is lost: {operation:?}"));
                    }
                    _ => {}
                }
                operations.push(operation);
            }
            if !is_linearizable(&operations) {
                return Err(format!("key {key} is not linearizable: {operations:#?}"));
            }
        }
        Ok(())
    }

    /// Every watch sees every change after its beginning, once and in order, as far as it went.
    fn check_watches(&self, log: &[Change]) -> Result<(), String> {
        for (number, watched) in self.watches.iter().enumerate() {
            check_order(&format!("watch {number}"), &watched.changes)?;
            let last = watched.changes.last().map_or(watched.after, |change| change.revision);
            let expected: Vec<&Change> = log
                .iter()
                .filter(|it| it.revision > watched.after && it.revision <= last)
                .collect();
            let seen: Vec<&Change> = watched.changes.iter().collect();
            if expected != seen {
                let differs = expected.iter().zip(&seen).find(|(a, b)| a != b);
                return Err(format!(
                    "watch {number} saw {} changes and not {}; the first that differ: {differs:?}",
                    seen.len(),
                    expected.len()
                ));
            }
        }
        Ok(())
    }

    /// A list is what there was at its revision.
    fn check_lists(&self, log: &[Change]) -> Result<(), String> {
        let mut lists: Vec<&Listed> = self.lists.iter().collect();
        lists.sort_by_key(|list| list.revision);
        let (mut state, mut changes) = (BTreeMap::new(), log.iter().peekable());
        for list in lists {
            while let Some(change) = changes.next_if(|it| it.revision <= list.revision) {
                match change.value {
                    Some(value) => drop(state.insert(change.key, value)),
                    None => drop(state.remove(&change.key)),
                }
            }
            if state != list.items {
                return Err(format!("a list is not what there was: {list:?}, there was {state:?}"));
            }
        }
        Ok(())
    }

    /// A value has the revision of its write, whoever asks.
    fn check_revisions(&self, log: &[Change]) -> Result<(), String> {
        let known: HashMap<Value, i64> =
            log.iter().filter_map(|it| Some((it.value?, it.revision))).collect();
        for (value, revision) in &self.revisions {
            if known.get(value) != Some(revision) {
                return Err(format!(
                    "value {value} was seen at {revision}, it was written at {:?}",
                    known.get(value)
                ));
            }
        }
        Ok(())
    }
}

fn check_order(name: &str, changes: &[Change]) -> Result<(), String> {
    match changes.windows(2).find(|pair| pair[0].revision >= pair[1].revision) {
        Some(pair) => Err(format!("{name} is out of order: {pair:?}")),
        None => Ok(()),
    }
}
