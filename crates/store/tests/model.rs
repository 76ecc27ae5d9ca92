//! The embedded store against a model that keeps a whole copy of the keys for every revision.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use longshore_store::{
    EmbeddedStore, Error, Event, Expect, KeyValue, ListOptions, Page, Revision, Store, WatchItem,
};
use proptest::prelude::*;

/// Keys that are each other's prefixes and neighbours.
const KEYS: [&str; 6] = ["/a", "/a/", "/a/b", "/a/c", "/ab", "/b"];
const PREFIXES: [&str; 5] = ["", "/a", "/a/", "/a/b", "/none"];

/// Which revision a step names.
#[derive(Clone, Copy, Debug)]
enum At {
    Newest,
    Back(i64),
}

#[derive(Clone, Debug)]
enum Step {
    /// Write with the expectation that holds, or one off.
    Put {
        key: usize,
        value: Vec<u8>,
        right: bool,
        ttl: bool,
    },
    Delete {
        key: usize,
        right: bool,
    },
    Get {
        key: usize,
    },
    List {
        prefix: usize,
        start: Option<usize>,
        limit: usize,
        at: At,
    },
    Watch {
        prefix: usize,
        back: i64,
    },
    Compact {
        at: At,
    },
    Reopen,
}

fn at() -> impl Strategy<Value = At> {
    prop_oneof![Just(At::Newest), (-1i64..12).prop_map(At::Back)]
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS.len();
    let prefix = 0..PREFIXES.len();
    let right = prop::bool::weighted(0.8);
    let value = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        8 => (key.clone(), value, right, prop::bool::weighted(0.2))
            .prop_map(|(key, value, right, ttl)| Step::Put { key, value, right, ttl }),
        4 => (key.clone(), right).prop_map(|(key, right)| Step::Delete { key, right }),
        2 => key.clone().prop_map(|key| Step::Get { key }),
        4 => (prefix.clone(), prop::option::of(key), 0usize..4, at())
            .prop_map(|(prefix, start, limit, at)| Step::List { prefix, start, limit, at }),
        3 => (prefix, -1i64..12).prop_map(|(prefix, back)| Step::Watch { prefix, back }),
        2 => at().prop_map(|at| Step::Compact { at }),
        1 => Just(Step::Reopen),
    ]
}

type Keys = BTreeMap<String, KeyValue>;

/// `states[r]` is the store at revision `r`; 0 and 1 are before the first write.
struct Model {
    states: Vec<Keys>,
    compacted: Revision,
}

impl Model {
    fn newest(&self) -> Revision {
        self.states.len() as Revision - 1
    }

    fn now(&self) -> &Keys {
        self.states.last().unwrap()
    }

    fn check(&self, revision: Revision) -> Result<Revision, String> {
        match revision {
            0 => Ok(self.newest()),
            r if r < self.compacted => Err(format!("compacted {r} {}", self.compacted)),
            r if r > self.newest() => Err(format!("future {r} {}", self.newest())),
            r => Ok(r),
        }
    }

    fn list(
        &self,
        prefix: &str,
        options: &ListOptions,
    ) -> Result<(Vec<KeyValue>, Revision, u64), String> {
        let revision = self.check(options.revision)?;
        let start = options.start.clone().unwrap_or_default();
        let keys = self.states[revision as usize].values();
        let mut items: Vec<_> =
            keys.filter(|kv| kv.key.starts_with(prefix) && *kv.key >= *start).cloned().collect();
        let limit = if options.limit == 0 { usize::MAX } else { options.limit };
        let remaining = items.len().saturating_sub(limit) as u64;
        items.truncate(limit);
        Ok((items, revision, remaining))
    }

    /// What happened after a revision, from the difference of the states.
    fn events(&self, prefix: &str, after: Revision) -> Vec<Event> {
        let happened = (after + 1..=self.newest()).map(|revision| {
            let (before, then) =
                (&self.states[revision as usize - 1], &self.states[revision as usize]);
            match then.values().find(|kv| kv.mod_revision == revision) {
                Some(kv) => {
                    Event::Put { current: kv.clone(), previous: before.get(&*kv.key).cloned() }
                }
                None => {
                    let previous =
                        before.values().find(|kv| !then.contains_key(&*kv.key)).unwrap().clone();
                    Event::Delete { previous, revision }
                }
            }
        });
        happened.filter(|event| event.key().starts_with(prefix)).collect()
    }
}

fn name(error: &Error) -> String {
    match error {
        Error::Compacted { requested, oldest } => format!("compacted {requested} {oldest}"),
        Error::Future { requested, newest } => format!("future {requested} {newest}"),
        other => panic!("unexpected: {other}"),
    }
}

fn resolve(at: At, model: &Model) -> Revision {
    match at {
        At::Newest => 0,
        At::Back(back) => (model.newest() - back).max(1),
    }
}

async fn run(steps: Vec<Step>, path: &Path) {
    let mut store = EmbeddedStore::open(path).await.unwrap();
    let mut model = Model { states: vec![Keys::new(), Keys::new()], compacted: 0 };
    for step in steps {
        match step.clone() {
            Step::Put { key, value, right, ttl } => {
                let (key, current) = (KEYS[key], model.now().get(KEYS[key]).cloned());
                let expect = match (&current, right) {
                    (None, true) => Expect::Absent,
                    (Some(_), false) => Expect::Absent,
                    (Some(kv), true) => Expect::Revision(kv.mod_revision),
                    (None, false) => Expect::Revision(model.newest()),
                };
                let ttl = ttl.then_some(Duration::from_secs(3600));
                match store.put(key, value.clone().into(), expect, ttl).await {
                    Ok(written) => {
                        assert!(right, "{step:?}");
                        let revision = model.newest() + 1;
                        let create_revision = current.map_or(revision, |kv| kv.create_revision);
                        let kv = KeyValue {
                            key: key.into(),
                            value: value.into(),
                            create_revision,
                            mod_revision: revision,
                            is_stale: false,
                        };
                        assert_eq!(written, kv);
                        let mut keys = model.now().clone();
                        keys.insert(key.to_owned(), kv);
                        model.states.push(keys);
                    }
                    Err(Error::Conflict { key: of, current: found }) => {
                        assert!(!right, "{step:?}");
                        assert_eq!((of.as_str(), found), (key, current));
                    }
                    Err(error) => panic!("{step:?}: {error}"),
                }
            }
            Step::Delete { key, right } => {
                let (key, current) = (KEYS[key], model.now().get(KEYS[key]).cloned());
                let expect = current.as_ref().map_or(1, |kv| kv.mod_revision) + i64::from(!right);
                match store.delete(key, expect).await {
                    Ok((deleted, revision)) => {
                        assert!(right, "{step:?}");
                        assert_eq!((Some(deleted), revision), (current, model.newest() + 1));
                        let mut keys = model.now().clone();
                        keys.remove(key);
                        model.states.push(keys);
                    }
                    Err(Error::Conflict { current: found, .. }) => {
                        assert!(!right || current.is_none(), "{step:?}");
                        assert_eq!(found, current);
                    }
                    Err(error) => panic!("{step:?}: {error}"),
                }
            }
            Step::Get { key } => {
                assert_eq!(
                    store.get(KEYS[key]).await.unwrap().as_ref(),
                    model.now().get(KEYS[key])
                );
            }
            Step::List { prefix, start, limit, at } => {
                let start = start.map(|key| KEYS[key].to_owned());
                let options =
                    ListOptions { start, limit, revision: resolve(at, &model), uncounted: false };
                let expected = model.list(PREFIXES[prefix], &options);
                let found = store.list(PREFIXES[prefix], options).await;
                let found =
                    found.map(|Page { items, revision, remaining }| (items, revision, remaining));
                assert_eq!(found.map_err(|error| name(&error)), expected, "{step:?}");
            }
            Step::Watch { prefix, back } => {
                let after = (model.newest() - back).max(1);
                let watch = store.watch(PREFIXES[prefix], after).await;
                let mut watch = match (watch, model.check(after)) {
                    (Ok(watch), Ok(_)) => watch,
                    (watch, expected) => {
                        let error = watch.map(drop).map_err(|error| name(&error));
                        assert_eq!(error, expected.map(drop), "{step:?}");
                        continue;
                    }
                };
                for expected in model.events(PREFIXES[prefix], after) {
                    assert_eq!(
                        watch.next().await.unwrap().unwrap(),
                        WatchItem::Event(expected),
                        "{step:?}"
                    );
                }
                let more = futures::poll!(watch.next());
                assert!(more.is_pending(), "{step:?}: {more:?}");
            }
            Step::Compact { at } => {
                let revision = resolve(at, &model);
                let expected = model.check(revision);
                let compacted = store.compact(revision).await.map_err(|error| name(&error));
                assert_eq!(compacted, expected.clone().map(drop), "{step:?}");
                model.compacted = expected.unwrap_or(model.compacted);
            }
            Step::Reopen => {
                drop(store);
                store = EmbeddedStore::open(path).await.unwrap();
            }
        }
        assert_eq!(store.revision().await.unwrap(), model.newest(), "{step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn store_behaves_as_its_model(steps in prop::collection::vec(step(), 1..80)) {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps, &folder.path().join("store")));
    }
}
