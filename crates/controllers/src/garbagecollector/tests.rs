//! The collector over a cluster in memory: tables, and random graphs of owners.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use futures::executor::block_on;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::Value;

use super::collector::{Cluster, Collector, Error};
use super::graph::{FOREGROUND, Graph, Identity, ORPHAN, OwnerState, Policy, Step, Work, decide};

fn identity(uid: &str) -> Identity {
    Identity {
        api_version: "v1".into(),
        kind: "Thing".into(),
        namespace: "ns".into(),
        name: uid.into(),
        uid: uid.into(),
    }
}

fn owner(uid: &str, blocks: bool) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Thing".into(),
        name: uid.into(),
        uid: uid.into(),
        controller: None,
        block_owner_deletion: Some(blocks),
    }
}

/// What an apiserver does with deletions and finalizers.
#[derive(Default)]
struct Fake(Mutex<State>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, ObjectMeta>,
    /// Changes that no watch has delivered yet: the object, or that it is gone.
    events: VecDeque<(String, Option<ObjectMeta>)>,
    version: u64,
    /// The owners that events have reported to be elsewhere.
    reports: Vec<(String, String)>,
}

impl State {
    fn put(&mut self, uid: &str, mut object: ObjectMeta) {
        self.version += 1;
        object.resource_version = Some(self.version.to_string());
        let is_held = object.finalizers.as_ref().is_some_and(|own| !own.is_empty());
        if object.deletion_timestamp.is_some() && !is_held {
            self.objects.remove(uid);
            self.events.push_back((uid.to_owned(), None));
        } else {
            self.objects.insert(uid.to_owned(), object.clone());
            self.events.push_back((uid.to_owned(), Some(object)));
        }
    }

    fn delete(&mut self, uid: &str, policy: Policy) {
        let Some(mut object) = self.objects.get(uid).cloned() else { return };
        let finalizers = object.finalizers.get_or_insert_default();
        finalizers.retain(|own| own != FOREGROUND && own != ORPHAN);
        match policy {
            Policy::Background => {}
            Policy::Foreground => finalizers.push(FOREGROUND.into()),
            Policy::Orphan => finalizers.push(ORPHAN.into()),
        }
        object.deletion_timestamp.get_or_insert(Time(Timestamp::UNIX_EPOCH));
        self.put(uid, object);
    }
}

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

#[async_trait]
impl Cluster for Fake {
    fn is_namespaced(&self, _: &str, _: &str) -> Result<bool, Error> {
        Ok(true)
    }

    async fn get(&self, object: &Identity) -> Result<Option<ObjectMeta>, Error> {
        Ok(self.state().objects.get(&object.name).cloned())
    }

    async fn delete(
        &self,
        object: &Identity,
        resource_version: Option<&str>,
        policy: Policy,
    ) -> Result<(), Error> {
        let mut state = self.state();
        let Some(found) = state.objects.get(&object.name) else { return Ok(()) };
        if resource_version.is_some() && resource_version != found.resource_version.as_deref() {
            return Err(Error::Changed(Box::new(object.clone())));
        }
        state.delete(&object.name, policy);
        Ok(())
    }

    fn report(&self, object: &Identity, owner: &Identity) {
        self.state().reports.push((object.to_string(), owner.to_string()));
    }

    async fn patch(&self, object: &Identity, patch: Value) -> Result<(), Error> {
        let mut state = self.state();
        let Some(mut found) = state.objects.get(&object.name).cloned() else { return Ok(()) };
        let patch = &patch["metadata"];
        if patch["resourceVersion"] != found.resource_version.clone().unwrap().as_str() {
            return Err(Error::Changed(Box::new(object.clone())));
        }
        if let Some(owners) = patch.get("ownerReferences") {
            found.owner_references = serde_json::from_value(owners.clone()).unwrap();
        }
        if let Some(finalizers) = patch.get("finalizers") {
            found.finalizers = serde_json::from_value(finalizers.clone()).unwrap();
        }
        state.put(&object.name, found);
        Ok(())
    }
}

/// A collector with its watches and its queue.
struct World {
    collector: Collector<Fake>,
    queue: BTreeSet<Work>,
}

impl World {
    fn new(objects: &[(String, Vec<OwnerReference>)]) -> Self {
        let mut world =
            World { collector: Collector::new(Fake::default()), queue: BTreeSet::new() };
        for (uid, owners) in objects {
            let object = ObjectMeta {
                uid: Some(uid.clone()),
                name: Some(uid.clone()),
                namespace: Some("ns".into()),
                owner_references: Some(owners.clone()),
                ..ObjectMeta::default()
            };
            world.collector.cluster.state().put(uid, object);
        }
        world.settle(&mut || true);
        world
    }

    /// Delivers events and works until nothing is left, in the order that `watch_first` says.
    fn settle(&mut self, watch_first: &mut dyn FnMut() -> bool) {
        for turn in 0..10_000 {
            let has_events = !self.collector.cluster.state().events.is_empty();
            if has_events && (self.queue.is_empty() || watch_first() || turn % 7 == 0) {
                let (uid, object) = self.collector.cluster.state().events.pop_front().unwrap();
                let work = match object {
                    Some(object) => self.collector.graph().observe(identity(&uid), &object),
                    None => self.collector.graph().remove(&uid),
                };
                self.queue.extend(work);
            } else if let Some(work) = self.queue.pop_first() {
                match block_on(self.collector.work(&work)) {
                    Ok(next) => {
                        self.queue.extend(next.work);
                        if next.is_unobserved {
                            self.queue.insert(work);
                        }
                    }
                    Err(Error::Changed(_)) => {
                        self.queue.insert(work);
                    }
                    Err(error) => panic!("{error}"),
                }
            } else {
                return;
            }
        }
        panic!("it never ends: {:?}", self.queue);
    }

    fn delete(&mut self, uid: &str, policy: Policy, watch_first: &mut dyn FnMut() -> bool) {
        self.collector.cluster.state().delete(uid, policy);
        self.settle(watch_first);
    }

    fn left(&self) -> BTreeSet<String> {
        self.collector.cluster.state().objects.keys().cloned().collect()
    }
}

fn objects(list: &[(&str, &[(&str, bool)])]) -> Vec<(String, Vec<OwnerReference>)> {
    let owners =
        |owners: &[(&str, bool)]| owners.iter().map(|(uid, blocks)| owner(uid, *blocks)).collect();
    list.iter().map(|(uid, list)| ((*uid).to_owned(), owners(list))).collect()
}

fn left_after(list: &[(&str, &[(&str, bool)])], deletions: &[(&str, Policy)]) -> Vec<String> {
    let mut world = World::new(&objects(list));
    for (uid, policy) in deletions {
        world.delete(uid, *policy, &mut || true);
    }
    world.left().into_iter().collect()
}

#[test]
fn gc_deletes_dependents_of_dependents() {
    use Policy::{Background, Foreground, Orphan};
    let chain: &[(&str, &[(&str, bool)])] =
        &[("d", &[]), ("rs", &[("d", true)]), ("p1", &[("rs", true)]), ("p2", &[("rs", true)])];
    assert_eq!(left_after(chain, &[("d", Background)]), [""; 0]);
    assert_eq!(left_after(chain, &[("d", Foreground)]), [""; 0]);
    assert_eq!(left_after(chain, &[("d", Orphan)]), ["p1", "p2", "rs"]);
    assert_eq!(left_after(chain, &[("rs", Orphan)]), ["d", "p1", "p2"]);
    assert_eq!(left_after(chain, &[("p1", Background)]), ["d", "p2", "rs"]);
}

#[test]
fn gc_keeps_what_another_owner_keeps() {
    use Policy::{Background, Foreground};
    let two: &[(&str, &[(&str, bool)])] =
        &[("a", &[]), ("b", &[]), ("p", &[("a", true), ("b", true)])];
    for policy in [Background, Foreground] {
        assert_eq!(left_after(two, &[("a", policy)]), ["b", "p"]);
        assert_eq!(left_after(two, &[("a", policy), ("b", policy)]), [""; 0]);
    }
}

#[test]
fn gc_deletes_objects_whose_owner_never_was() {
    assert_eq!(left_after(&[("p", &[("gone", true)])], &[]), [""; 0]);
    // of one that exists, the others keep it
    assert_eq!(left_after(&[("a", &[]), ("p", &[("gone", true), ("a", true)])], &[]), ["a", "p"]);
}

#[test]
fn gc_is_not_blocked_by_cycles() {
    use Policy::{Background, Foreground};
    let cycle: &[(&str, &[(&str, bool)])] =
        &[("p1", &[("p3", true)]), ("p2", &[("p1", true)]), ("p3", &[("p2", true)])];
    for policy in [Background, Foreground] {
        assert_eq!(left_after(cycle, &[("p1", policy)]), [""; 0], "{policy:?}");
    }
    // an object that owns itself
    assert_eq!(left_after(&[("a", &[("a", true)])], &[("a", Foreground)]), [""; 0]);
}

#[test]
fn gc_decides_by_the_states_of_owners() {
    use OwnerState::{Absent, Solid, Waiting};
    let latest = ObjectMeta {
        owner_references: Some(vec![owner("a", true), owner("b", true)]),
        ..ObjectMeta::default()
    };
    let background = Step::Delete { policy: Policy::Background, unblock: false };
    for (states, has_dependents, waits, expected) in [
        (vec![], false, false, Step::Keep),
        (vec![Solid, Solid], false, false, Step::Keep),
        (vec![Solid, Absent], true, false, Step::Disown(vec!["b".into()])),
        (vec![Waiting, Solid], true, false, Step::Disown(vec!["a".into()])),
        (vec![Absent, Absent], true, false, background.clone()),
        (vec![Waiting, Absent], false, false, background),
        (
            vec![Waiting, Absent],
            true,
            true,
            Step::Delete { policy: Policy::Foreground, unblock: true },
        ),
    ] {
        assert_eq!(decide(&latest, &states, has_dependents, waits), expected, "{states:?}");
    }
    let orphaning = ObjectMeta { finalizers: Some(vec![ORPHAN.into()]), ..latest };
    assert_eq!(
        decide(&orphaning, &[Absent], false, false),
        Step::Delete { policy: Policy::Orphan, unblock: false }
    );
}

/// What is to be left: an object goes when it is deleted, or when it has owners and all of them are
/// gone. Orphans lose their reference.
fn expected(owners: &mut BTreeMap<String, BTreeSet<String>>, deletion: Option<(&str, Policy)>) {
    if let Some((uid, policy)) = deletion {
        owners.remove(uid);
        if policy == Policy::Orphan {
            owners.values_mut().for_each(|owners| {
                owners.remove(uid);
            });
        }
    }
    loop {
        let existing: BTreeSet<String> = owners.keys().cloned().collect();
        // a reference to an object that is gone does not come back
        let before = owners.len();
        owners.retain(|_, owners| owners.is_empty() || !owners.is_disjoint(&existing));
        if owners.len() == before {
            owners.values_mut().for_each(|owners| owners.retain(|owner| existing.contains(owner)));
            return;
        }
    }
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Background), Just(Policy::Foreground), Just(Policy::Orphan)]
}

proptest! {
    /// On random graphs of owners, with cycles and absent owners, exactly what should go goes, in
    /// whatever order watches deliver and work is done.
    #[test]
    fn gc_deletes_exactly_what_it_should(
        graph in prop::collection::vec(
            prop::collection::btree_map(0..9usize, any::<bool>(), 0..3), 1..8),
        deletions in prop::collection::vec((0..8usize, policy()), 1..4),
        order in prop::collection::vec(any::<bool>(), 1..30),
    ) {
        let list: Vec<(String, Vec<OwnerReference>)> = graph
            .iter()
            .enumerate()
            .map(|(at, owners)| {
                let owners = owners.iter().map(|(of, blocks)| owner(&format!("o{of}"), *blocks));
                (format!("o{at}"), owners.collect())
            })
            .collect();
        let mut model: BTreeMap<String, BTreeSet<String>> = list
            .iter()
            .map(|(uid, owners)| {
                (uid.clone(), owners.iter().map(|owner| owner.uid.clone()).collect())
            })
            .collect();
        expected(&mut model, None);
        let mut world = World::new(&list);
        prop_assert_eq!(&world.left(), &model.keys().cloned().collect());
        let mut turns = order.into_iter().cycle();
        let mut watch_first = move || turns.next().unwrap_or(true);
        for (at, policy) in deletions {
            let uid = format!("o{at}");
            if !model.contains_key(&uid) {
                continue;
            }
            world.delete(&uid, policy, &mut watch_first);
            expected(&mut model, Some((&uid, policy)));
            prop_assert_eq!(&world.left(), &model.keys().cloned().collect());
        }
    }
}

/// An author may give an object tens of thousands of owners, and write it again and again.
#[test]
fn graph_of_many_owners_is_indexed() {
    let owners = (0..50_000).map(|number| owner(&number.to_string(), true)).collect();
    let many = ObjectMeta { owner_references: Some(owners), ..ObjectMeta::default() };
    let mut graph = Graph::default();
    assert_eq!(graph.observe(identity("many"), &many).len(), 50_000, "each is looked for");
    assert_eq!(graph.observe(identity("many"), &many), []);
    assert_eq!(graph.observe(identity("many"), &ObjectMeta::default()), []);
    assert!(graph.get("0").is_none() && graph.get("many").is_some());
}

/// Whichever of the two is seen first.
#[test]
fn gc_reports_owners_of_other_namespaces() {
    fn place(namespace: &str, uid: &str) -> Identity {
        Identity { namespace: namespace.into(), ..identity(uid) }
    }
    let table = [("ns", "other", true), ("ns", "ns", false), ("ns", "", false), ("", "ns", true)];
    for (dependent, above, is_wrong) in table {
        for is_owner_first in [true, false] {
            let collector = Collector::new(Fake::default());
            let owned = ObjectMeta {
                owner_references: Some(vec![owner("a", false)]),
                ..ObjectMeta::default()
            };
            let mut objects =
                vec![(place(above, "a"), ObjectMeta::default()), (place(dependent, "b"), owned)];
            if !is_owner_first {
                objects.reverse();
            }
            let mut work: Vec<Work> = Vec::new();
            for (identity, metadata) in objects {
                work.extend(collector.graph().observe(identity, &metadata));
            }
            work.retain(|work| matches!(work, Work::Report(..)));
            for work in &work {
                block_on(collector.work(work)).unwrap();
            }
            let about = |uid: &str| place(dependent, uid).to_string();
            let expected = if is_wrong { vec![(about("b"), about("a"))] } else { Vec::new() };
            let reports = &collector.cluster.state().reports;
            assert_eq!(*reports, expected, "{dependent} {above} {is_owner_first}");
        }
    }
}
