//! Definitions of custom kinds, brought into effect: names are accepted or found taken, kinds are served,
//! and the objects of a definition that is deleted go first. Each copy of the apiserver follows the store;
//! what they write of a definition is the same, so it does not matter who is first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use longshore_base::panics;
use longshore_structural::{Schema, check};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{RETRY, keep};
use crate::api_types::Resource;
use crate::definitions::{Entry, is_built_in, is_in_effect};
use crate::kinds::custom::cause;
use crate::kinds::custom_resource_definition::{
    FINALIZER, GROUP, PLURAL, approval, has_condition, has_valid_ca_bundle, is_protected,
    set_condition,
};
use crate::kinds::known;
use crate::object;
use crate::operations::{Api, DeleteOptions};
use crate::registry::Change;
use crate::schema::value::{items, text};
use crate::status::{MODIFIED, StatusError};
use crate::user::User;

/// How often it is looked whether the objects of a definition are gone.
const POLL: Duration = Duration::from_secs(1);

fn resource() -> Result<&'static Resource, StatusError> {
    known(GROUP, PLURAL)
}

/// Serves the definitions that are stored.
pub(crate) async fn load(api: &Api) -> Result<(), StatusError> {
    State::read(api).await?.serve(api).await;
    Ok(())
}

/// Follows the store until `stop`.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    keep(stop, "cannot follow definitions of custom kinds", || follow(api)).await;
}

async fn follow(api: &Api) -> Result<(), StatusError> {
    // Subscribed before the list, so that no change in between is missed.
    let after = api.registry.store().revision().await.map_err(crate::registry::refusal)?;
    let mut changes = api.registry.feeds().subscribe(resource()?, after).await?;
    let mut state = State::read(api).await?;
    let mut ending = FuturesUnordered::new();
    let mut endings = Endings::default();
    loop {
        let decided = state.decide();
        // Whoever sees that a kind is established finds it.
        state.serve(api).await;
        for decided in decided {
            write_status(api, &decided).await?;
        }
        ending.extend(endings.begin(&state.stored).into_iter().map(|name| finish(api, name)));
        tokio::select! {
            change = changes.next() => match change? {
                Some(change) => state.apply(&change)?,
                None => return Ok(()),
            },
            Some((name, result)) = ending.next() => {
                endings.end(&name, result.is_ok());
                if let Err(error) = result {
                    let error: StatusError = error;
                    tracing::warn!(%error, name, "cannot finish the deletion of a definition");
                    sleep(RETRY).await;
                }
            }
        }
    }
}

/// Which definitions are brought to their end. Each is once for each version that is seen of it: another
/// server may have ended it already, and the change that says so comes only when this task waits.
#[derive(Default)]
struct Endings {
    running: BTreeSet<String>,
    /// By name, the version with which it was begun.
    begun: BTreeMap<String, String>,
}

impl Endings {
    /// The names of those to begin with.
    fn begin(&mut self, stored: &BTreeMap<String, Value>) -> Vec<String> {
        self.begun.retain(|name, _| stored.contains_key(name));
        let mut all = Vec::new();
        for (name, definition) in stored.iter().filter(|(_, definition)| is_ending(definition)) {
            let version = object::resource_version(definition);
            let is_known = self.begun.get(name).is_some_and(|begun| begun == version);
            if !is_known && !self.running.contains(name) {
                self.begun.insert(name.clone(), version.to_owned());
                self.running.insert(name.clone());
                all.push(name.clone());
            }
        }
        all
    }

    /// One has ended; if it failed, it is begun again.
    fn end(&mut self, name: &str, is_done: bool) {
        self.running.remove(name);
        if !is_done {
            self.begun.remove(name);
        }
    }
}

/// What is known of the stored definitions.
#[derive(Default)]
struct State {
    /// By name.
    stored: BTreeMap<String, Value>,
    /// What was read of those that are in effect, by name.
    entries: BTreeMap<String, Entry>,
}

impl State {
    async fn read(api: &Api) -> Result<State, StatusError> {
        let stored = api.list_all(resource()?, "").await?;
        let named = |definition: Value| (object::name(&definition).to_owned(), definition);
        Ok(State { stored: stored.into_iter().map(named).collect(), entries: BTreeMap::new() })
    }

    fn apply(&mut self, change: &Change) -> Result<(), StatusError> {
        let resource = resource()?;
        match (&change.current, &change.previous) {
            (Some(current), _) => {
                let (_, name) = current.names(resource);
                match current.value() {
                    Some(definition) => self.stored.insert(name.to_owned(), definition.clone()),
                    None => self.stored.remove(name),
                };
            }
            (None, Some(previous)) => {
                let (_, name) = previous.names(resource);
                self.stored.remove(name);
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Decides the status of every definition, and takes it as if it was stored. Returns the definitions
    /// whose status changes, with the version for which that was decided.
    fn decide(&mut self) -> Vec<Value> {
        let mut decided = Vec::new();
        let names: Vec<String> = self.stored.keys().cloned().collect();
        for name in names {
            let Some(definition) = self.stored.get(&name) else { continue };
            let taken = Taken::of(self.stored.values(), definition);
            let mut next = definition.clone();
            settle(&mut next, &taken, &object::now().to_string());
            if next["status"] != definition["status"] {
                decided.push(next.clone());
                self.stored.insert(name, next);
            }
        }
        decided
    }

    /// Serves what is in effect.
    async fn serve(&mut self, api: &Api) {
        let stored = &self.stored;
        self.entries.retain(|name, _| stored.get(name).is_some_and(is_in_effect));
        for (name, definition) in stored.iter().filter(|(_, definition)| is_in_effect(definition)) {
            // A status that is decided and not stored yet has the version of the object before.
            let known = self.entries.get(name);
            if known.is_some_and(|entry| entry.version == object::resource_version(definition)) {
                continue;
            }
            match Entry::read(definition) {
                Ok(entry) => drop(self.entries.insert(name.clone(), entry)),
                Err(error) => {
                    tracing::error!(name, %error, "a definition cannot be served");
                    self.entries.remove(name);
                }
            }
        }
        let entries: Vec<&Entry> = self.entries.values().collect();
        for gone in api.definitions.replace(&entries) {
            api.registry.feeds().close(gone).await;
        }
    }
}

/// The names that other definitions of a group have.
#[derive(Default)]
struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    fn of<'a>(all: impl Iterator<Item = &'a Value>, definition: &Value) -> Taken {
        let mut taken = Taken::default();
        let own = object::name(definition);
        let group = &definition["spec"]["group"];
        for other in all.filter(|other| other["spec"]["group"] == *group) {
            if object::name(other) == own {
                continue;
            }
            let names = &other["status"]["acceptedNames"];
            let short = items(&names["shortNames"]).iter().map(text);
            let resources = [text(&names["plural"]), text(&names["singular"])];
            taken.resources.extend(resources.into_iter().chain(short).map(str::to_owned));
            let kinds = [text(&names["kind"]), text(&names["listKind"])];
            taken.kinds.extend(kinds.map(str::to_owned));
        }
        taken.resources.remove("");
        taken.kinds.remove("");
        taken
    }
}

/// Decides the status of a definition, given the names that others have.
fn settle(definition: &mut Value, taken: &Taken, now: &str) {
    accept_names(definition, taken, now);
    let structure = violations(&definition["spec"]);
    match structure.is_empty() {
        true => remove_condition(definition, "NonStructuralSchema"),
        false => {
            let message = match &structure[..] {
                [one] => one.clone(),
                many => format!("[{}]", many.join(", ")),
            };
            let condition = ("NonStructuralSchema", "True", "Violations", message.as_str());
            set_condition(definition, condition, now);
        }
    }
    if is_protected(text(&definition["spec"]["group"])) {
        let (is_approved, reason, message) = approval(definition);
        let status = if is_approved { "True" } else { "False" };
        let kind = "KubernetesAPIApprovalPolicyConformant";
        set_condition(definition, (kind, status, reason, &message), now);
    }
}

fn accept_names(definition: &mut Value, taken: &Taken, now: &str) {
    let wanted = definition["spec"]["names"].clone();
    let accepted = definition["status"]["acceptedNames"].clone();
    let is_settled = has_condition(definition, "NamesAccepted", "True")
        && has_condition(definition, "Established", "True");
    if wanted == accepted && is_settled {
        return;
    }
    let mut next = accepted.clone();
    let mut conflict: Option<(&str, String)> = None;
    let in_use = |name: &str| format!("{name:?} is already in use");
    for (field, reason, names) in [
        ("plural", "PluralConflict", &taken.resources),
        ("singular", "SingularConflict", &taken.resources),
        ("shortNames", "ShortNamesConflict", &taken.resources),
        ("kind", "KindConflict", &taken.kinds),
        ("listKind", "ListKindConflict", &taken.kinds),
    ] {
        let is_taken = |name: &&str| names.contains(*name);
        let complaints: Vec<String> = match &wanted[field] {
            Value::Array(list) => {
                let own = items(&accepted[field]);
                let new = list.iter().filter(|name| !own.contains(name)).map(text);
                new.filter(is_taken).map(in_use).collect()
            }
            name if *name == accepted[field] => Vec::new(),
            name => Some(text(name)).filter(is_taken).map(in_use).into_iter().collect(),
        };
        match &complaints[..] {
            [] => put(&mut next, field, &wanted),
            [one] => conflict = Some((reason, one.clone())),
            many => conflict = Some((reason, format!("[{}]", many.join(", ")))),
        }
    }
    put(&mut next, "categories", &wanted);
    object::child_mut(definition, "status").insert("acceptedNames".into(), next);
    match conflict {
        Some((reason, message)) => {
            set_condition(definition, ("NamesAccepted", "False", reason, &message), now);
            if !has_condition(definition, "Established", "True") {
                let why = "not all names are accepted";
                set_condition(definition, ("Established", "False", "NotAccepted", why), now);
            }
        }
        None => {
            let accepted = ("NamesAccepted", "True", "NoConflicts", "no conflicts found");
            set_condition(definition, accepted, now);
            if !has_condition(definition, "Established", "True") {
                let established = match has_valid_ca_bundle(definition) {
                    true => {
                        ("True", "InitialNamesAccepted", "the initial names have been accepted")
                    }
                    false => {
                        ("False", "InvalidCABundle", "The conversion webhook CABundle is invalid")
                    }
                };
                let (status, reason, why) = established;
                set_condition(definition, ("Established", status, reason, why), now);
            }
        }
    }
}

fn put(names: &mut Value, field: &str, from: &Value) {
    if !names.is_object() {
        *names = json!({});
    }
    let Some(map) = names.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => drop(map.insert(field.to_owned(), value.clone())),
        None => drop(map.remove(field)),
    }
}

fn remove_condition(definition: &mut Value, kind: &str) {
    if let Some(conditions) = definition["status"]["conditions"].as_array_mut() {
        conditions.retain(|condition| condition["type"] != kind);
    }
}

/// What keeps schemas from being structural. Those of definitions that this server takes are.
fn violations(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (i, version) in items(&spec["versions"]).iter().enumerate() {
        let path = format!("spec.versions[{i}].schema.openAPIV3Schema");
        match Schema::read(&version["schema"]["openAPIV3Schema"]) {
            Ok(schema) => found.extend(check(&schema, &path).into_iter().map(|error| {
                let cause = cause(error);
                format!("{}: {}", cause.field, cause.message)
            })),
            Err(error) => found.push(format!("{path}: {error}")),
        }
    }
    found.truncate(20);
    found
}

/// Writes a status that was decided, unless the definition is another one by now: it is decided again then.
/// Other servers decide too, and one that is behind must not undo what they have written since.
async fn write_status(api: &Api, decided: &Value) -> Result<(), StatusError> {
    let (name, status) = (object::name(decided), &decided["status"]);
    let written = api
        .amend(resource()?, "", name, |definition| {
            if object::resource_version(definition) != object::resource_version(decided) {
                return Err(StatusError::conflict(resource()?, name, MODIFIED));
            }
            let map = object::child_mut(definition, "status");
            for field in ["acceptedNames", "conditions"] {
                map.insert(field.into(), status[field].clone());
            }
            Ok(())
        })
        .await;
    match written {
        Err(error) if error.code != 404 && error.code != 409 => Err(error),
        _ => Ok(()),
    }
}

fn is_ending(definition: &Value) -> bool {
    let finalizers = items(&definition["metadata"]["finalizers"]);
    object::is_deleting(definition) && finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}

/// Deletes the objects of a definition, waits until they are gone, and lets it go.
async fn finish(api: &Api, name: String) -> (String, Result<(), StatusError>) {
    // Objects pass through the kind's webhook here: what goes wrong is the kind's alone.
    let result = panics::contained(finish_named(api, &name), || {
        Err(StatusError::internal("the end of the kind panicked"))
    })
    .await;
    (name, result)
}

async fn finish_named(api: &Api, name: &str) -> Result<(), StatusError> {
    let definition = match api.registry.find(resource()?, "", name).await? {
        Some(definition) if is_ending(&definition) => definition,
        _ => return Ok(()),
    };
    let last = match objects_of(api, &definition) {
        Some(objects) if has_condition(&definition, "Established", "True") => {
            let why = "CustomResource deletion is in progress";
            condition(api, name, ("Terminating", "True", "InstanceDeletionInProgress", why), false)
                .await?;
            delete_objects(api, objects).await?;
            ("Terminating", "False", "InstanceDeletionCompleted", "removed all instances")
        }
        _ if is_built_in(&definition) => {
            let why = "instances overlap with built-in resources in storage";
            ("Terminating", "False", "OverlappingBuiltInResource", why)
        }
        _ => ("Terminating", "False", "NeverEstablished", "resource was never established"),
    };
    condition(api, name, last, true).await
}

/// The resource of the objects of a definition.
fn objects_of(api: &Api, definition: &Value) -> Option<&'static Resource> {
    let spec = &definition["spec"];
    let snapshot = api.definitions.snapshot();
    let mut served = snapshot.resources().iter().filter(|resource| {
        resource.custom.is_some()
            && resource.group == text(&spec["group"])
            && resource.plural == text(&spec["names"]["plural"])
    });
    let stored = |resource: &&&'static Resource| {
        resource.definition().is_some_and(|definition| definition.stored == resource.version)
    };
    served.clone().find(stored).or_else(|| served.next()).copied()
}

async fn delete_objects(api: &Api, resource: &'static Resource) -> Result<(), StatusError> {
    let user = User::apiserver();
    loop {
        let mut left = api
            .registry
            .select(resource, "", |object| {
                let name =
                    (object::namespace(&object).to_owned(), object::name(&object).to_owned());
                Some((name, object::is_deleting(&object)))
            })
            .await?;
        if left.is_empty() {
            return Ok(());
        }
        left.retain(|(_, is_deleting)| !is_deleting);
        let had_some = !left.is_empty();
        for ((namespace, name), _) in left {
            let options = DeleteOptions::default();
            match api.delete(&user, resource, &namespace, &name, &options).await {
                Err(error) if error.code != 404 => return Err(error),
                _ => {}
            }
        }
        if !had_some {
            sleep(POLL).await;
        }
    }
}

/// Sets a condition of a definition, and takes its finalizer away if that is the last one.
async fn condition(
    api: &Api,
    name: &str,
    condition: (&str, &str, &str, &str),
    is_last: bool,
) -> Result<(), StatusError> {
    let amended = api
        .amend(resource()?, "", name, |definition| {
            set_condition(definition, condition, &object::now().to_string());
            if let Some(list) = definition["metadata"]["finalizers"].as_array_mut()
                && is_last
            {
                list.retain(|finalizer| finalizer != FINALIZER);
            }
            Ok(())
        })
        .await;
    match amended {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Two servers on one store: what the other one has ended is begun once, and not again and again
    /// until its change comes, which nobody would read meanwhile.
    #[test]
    fn definitions_end_once_for_each_version() {
        let ending = |version: &str| {
            json!({"metadata": {
                "name": "a", "resourceVersion": version, "finalizers": [FINALIZER],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            }})
        };
        let stored = |version: &str| BTreeMap::from([("a".to_owned(), ending(version))]);
        let mut endings = Endings::default();
        assert_eq!(endings.begin(&stored("1")), ["a"]);
        assert!(endings.begin(&stored("2")).is_empty(), "it is running");
        endings.end("a", true);
        assert_eq!(endings.begin(&stored("2")), ["a"]);
        endings.end("a", true);
        assert!(endings.begin(&stored("2")).is_empty(), "nothing has changed");
        endings.end("a", false);
        assert_eq!(endings.begin(&stored("2")), ["a"], "it has failed");
        endings.end("a", true);
        assert!(endings.begin(&BTreeMap::new()).is_empty() && endings.begun.is_empty());
        assert_eq!(endings.begin(&stored("2")), ["a"], "another one of that name");
    }

    fn definition(plural: &str, kind: &str, short: &[&str]) -> Value {
        json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind,
                          "listKind": format!("{kind}List"), "shortNames": short},
                "versions": [{"name": "v1", "served": true, "storage": true,
                              "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
            "status": {"acceptedNames": {"plural": "", "kind": ""}, "conditions": []},
        })
    }

    fn reasons(definition: &Value) -> Vec<(String, String, String)> {
        let part = |condition: &Value, field: &str| text(&condition[field]).to_owned();
        items(&definition["status"]["conditions"])
            .iter()
            .map(|c| (part(c, "type"), part(c, "status"), part(c, "reason")))
            .collect()
    }

    fn settled(all: &[Value]) -> Vec<Value> {
        let named = |definition: &Value| (object::name(definition).to_owned(), definition.clone());
        let mut state = State { stored: all.iter().map(named).collect(), ..State::default() };
        state.decide();
        state.stored.into_values().collect()
    }

    #[test]
    fn definitions_accept_names_that_are_free() {
        let settled = settled(&[definition("foos", "Foo", &["f"])]);
        assert_eq!(
            reasons(&settled[0]),
            [
                ("NamesAccepted".into(), "True".into(), "NoConflicts".into()),
                ("Established".into(), "True".into(), "InitialNamesAccepted".into()),
            ]
        );
        assert_eq!(settled[0]["status"]["acceptedNames"], settled[0]["spec"]["names"]);
        let again = self::settled(&settled);
        assert_eq!(again, settled, "nothing is left to decide");
    }

    #[test]
    fn definitions_conflict_over_names() {
        for (second, reason, message) in [
            (definition("goos", "Foo", &[]), "ListKindConflict", "\"FooList\" is already in use"),
            (definition("goos", "Goo", &["f"]), "ShortNamesConflict", "\"f\" is already in use"),
            (
                definition("goos", "Goo", &["f", "foos"]),
                "ShortNamesConflict",
                "[\"f\" is already in use, \"foos\" is already in use]",
            ),
        ] {
            let all = settled(&[definition("foos", "Foo", &["f"]), second]);
            let condition = &all[1]["status"]["conditions"][0];
            assert_eq!(condition["reason"], reason);
            assert_eq!(condition["message"], message);
            assert!(!is_in_effect(&all[1]), "{reason}");
            // The name is free once the other is gone.
            let freed = settled(&all[1..]);
            assert!(is_in_effect(&freed[0]), "{reason}");
        }
    }

    #[test]
    fn definitions_of_built_in_kinds_are_not_served() {
        let mut own = definition("customresourcedefinitions", "CustomResourceDefinition", &[]);
        own["spec"]["group"] = GROUP.into();
        let settled = settled(&[own]);
        assert!(has_condition(&settled[0], "Established", "True"));
        assert!(!is_in_effect(&settled[0]), "deleting it would delete every definition");
    }

    #[test]
    fn definitions_whose_webhook_has_wrong_certificates_are_not_established() {
        let mut converted = definition("foos", "Foo", &[]);
        converted["spec"]["conversion"] =
            json!({"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": "bm9uZQ=="}}});
        let settled = settled(&[converted]);
        let found = reasons(&settled[0]).pop().unwrap();
        assert_eq!(found, ("Established".into(), "False".into(), "InvalidCABundle".into()));
        let mut repaired = settled[0].clone();
        repaired["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = Value::Null;
        let repaired = self::settled(&[repaired]);
        assert!(has_condition(&repaired[0], "Established", "True"));
    }

    #[test]
    fn definitions_of_the_community_need_approval() {
        let mut protected = definition("foos", "Foo", &[]);
        protected["spec"]["group"] = "x.k8s.io".into();
        for (annotation, status, reason) in [
            (Value::Null, "False", "MissingAnnotation"),
            (json!("unapproved, experimental"), "False", "UnapprovedAnnotation"),
            (json!("https://example.com/pull/1"), "True", "ApprovedAnnotation"),
            (json!("yes"), "False", "InvalidAnnotation"),
        ] {
            protected["metadata"]["annotations"] =
                json!({"api-approved.kubernetes.io": annotation});
            let settled = settled(&[protected.clone()]);
            let found = reasons(&settled[0]).pop().unwrap();
            assert_eq!((found.1.as_str(), found.2.as_str()), (status, reason));
        }
    }
}
