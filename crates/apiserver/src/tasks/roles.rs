//! Makes the roles and bindings that every cluster has, and gives existing ones what they lack.
//! Additions to them stay; those with the annotation `autoupdate: "false"` are not changed.

use std::collections::HashMap;

use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use crate::api_types::Resource;
use crate::authz::policy::{self, AUTOUPDATE};
use crate::authz::{GROUP, Missing, Rule};
use crate::kinds::lookup;
use crate::object;
use crate::operations::{Api, DeleteOptions};
use crate::schema::value::{entries, items, same, text};
use crate::status::StatusError;
use crate::user::User;

/// How many objects are written at the same time: the store commits them together.
const AT_ONCE: usize = 64;

/// Makes what is missing and mends what lacks something.
pub(crate) async fn run(api: &Api) -> Result<(), StatusError> {
    let mut existing = HashMap::new();
    for plural in ["clusterroles", "roles", "clusterrolebindings", "rolebindings"] {
        for object in api.list_all(resource(plural)?, "").await? {
            existing.insert((plural, key(&object)), object);
        }
    }
    let wanted = policy::objects(&api.gates).into_iter().map(|(plural, wanted)| {
        let existing = existing.get(&(plural, key(&wanted)));
        settle(api, plural, wanted, existing)
    });
    stream::iter(wanted).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

fn key(object: &Value) -> (String, String) {
    (object::namespace(object).to_owned(), object::name(object).to_owned())
}

pub(crate) fn resource(plural: &str) -> Result<&'static Resource, StatusError> {
    lookup(GROUP, "v1", plural)
        .ok_or_else(|| StatusError::internal(format!("no resource {plural}")))
}

async fn settle(
    api: &Api,
    plural: &str,
    wanted: Value,
    existing: Option<&Value>,
) -> Result<(), StatusError> {
    let resource = resource(plural)?;
    let Some(existing) = existing else {
        return api.ensure(resource, wanted).await;
    };
    if existing["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return Ok(());
    }
    let (namespace, name) = key(&wanted);
    // A binding cannot be pointed to another role.
    if !same(&existing["roleRef"], &wanted["roleRef"]) {
        let options = DeleteOptions::default();
        match api.delete(&User::apiserver(), resource, &namespace, &name, &options).await {
            // Another server is replacing it too.
            Err(error) if error.code != 404 => return Err(error),
            _ => {}
        }
        let mut anew = wanted;
        add_subjects(&mut anew, existing);
        return api.ensure(resource, anew).await;
    }
    if complete(existing, &wanted) == *existing {
        return Ok(());
    }
    tracing::info!(resource = plural, %namespace, %name, "reconciled a default role or binding");
    let mend = |object: &mut Value| {
        *object = complete(object, &wanted);
        Ok(())
    };
    match api.amend(resource, &namespace, &name, mend).await {
        // It is gone again, perhaps to be replaced by another server.
        Err(error) if error.code == 404 => api.ensure(resource, wanted.clone()).await,
        mended => mended.map(drop),
    }
}

/// The existing object with all that is wanted of it.
pub(crate) fn complete(existing: &Value, wanted: &Value) -> Value {
    let mut object = existing.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in entries(&wanted["metadata"][field]) {
            let own = &mut object["metadata"][field][key];
            if own.is_null() {
                *own = value.clone();
            }
        }
    }
    let missing = Missing::of(&Rule::all_of(existing), &Rule::all_of(wanted), usize::MAX);
    append(&mut object, "rules", missing.rules.iter().map(Rule::to_value).collect());
    add_subjects(&mut object, wanted);
    match wanted.get("aggregationRule") {
        None => drop(object.as_object_mut().and_then(|map| map.remove("aggregationRule"))),
        Some(rule) => {
            let had = items(&existing["aggregationRule"]["clusterRoleSelectors"]);
            let wanted = items(&rule["clusterRoleSelectors"]).iter();
            let missing: Vec<Value> = wanted.filter(|one| !had.contains(one)).cloned().collect();
            append(&mut object["aggregationRule"], "clusterRoleSelectors", missing);
        }
    }
    object
}

fn add_subjects(binding: &mut Value, wanted: &Value) {
    let is_same = |a: &Value, b: &Value| {
        ["kind", "namespace", "name"].into_iter().all(|field| text(&a[field]) == text(&b[field]))
    };
    let had = items(&binding["subjects"]);
    let wanted = items(&wanted["subjects"]).iter();
    let missing: Vec<Value> =
        wanted.filter(|one| !had.iter().any(|had| is_same(had, one))).cloned().collect();
    append(binding, "subjects", missing);
}

fn append(object: &mut Value, field: &str, more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    match object[field].as_array_mut() {
        Some(list) => list.extend(more),
        None => object[field] = more.into(),
    }
}
