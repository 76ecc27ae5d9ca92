//! Has priority and fairness follow the store, and says on each FlowSchema whether its level exists.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::keep;
use crate::api_types::Resource;
use crate::flow_control::{FlowControl, FlowSchema, PriorityLevel};
use crate::kinds::flow_control::{dangling, set_condition};
use crate::kinds::known;
use crate::object;
use crate::operations::Api;
use crate::registry::{Change, Stored, refusal};
use crate::status::StatusError;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// Changes are taken together that come within this time of each other.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How many schemas are written at the same time: the store commits them together.
const AT_ONCE: usize = 64;

/// What is stored.
#[derive(Default)]
struct Objects {
    /// By name; `None` for those that are broken.
    levels: BTreeMap<String, Option<PriorityLevel>>,
    schemas: BTreeMap<String, Known>,
}

/// A schema, and what it says about its level.
#[derive(PartialEq)]
struct Known {
    schema: FlowSchema,
    says_there: bool,
    says_missing: bool,
}

impl Objects {
    fn put_level(&mut self, level: &Value) -> bool {
        let name = object::name(level).to_owned();
        let new = PriorityLevel::read(level);
        if self.levels.get(&name) == Some(&new) {
            return false;
        }
        self.levels.insert(name, new);
        true
    }

    fn put_schema(&mut self, schema: &Value) -> bool {
        let new = Known {
            schema: FlowSchema::read(schema),
            says_there: dangling(schema, true, "").is_none(),
            says_missing: dangling(schema, false, "").is_none(),
        };
        let name = new.schema.name().to_owned();
        if self.schemas.get(&name) == Some(&new) {
            return false;
        }
        self.schemas.insert(name, new);
        true
    }

    /// Whether anything changes.
    fn apply(&mut self, change: &Change, resource: &Resource, is_level: bool) -> bool {
        match change.current.as_ref().map(Stored::value) {
            Some(Some(current)) if is_level => self.put_level(current),
            Some(Some(current)) => self.put_schema(current),
            // one that cannot be read is as good as none
            Some(None) | None => {
                let stored = change.current.as_ref().or(change.previous.as_ref());
                let name = stored.map_or("", |stored| stored.names(resource).1);
                match is_level {
                    true => self.levels.remove(name).is_some(),
                    false => self.schemas.remove(name).is_some(),
                }
            }
        }
    }

    fn has_level(&self, name: &str) -> bool {
        self.levels.get(name).is_some_and(Option::is_some)
    }

    fn configure(&self, flow_control: &FlowControl) {
        let levels = self.levels.values().flatten().cloned().collect();
        let schemas = self.schemas.values().map(|known| known.schema.clone()).collect();
        flow_control.configure(levels, schemas);
    }

    /// Schemas whose conditions are wrong, and whether their levels are there.
    fn wrong(&self) -> Vec<(String, bool)> {
        let schemas = self.schemas.iter();
        schemas
            .map(|(name, known)| (name, known, self.has_level(known.schema.level())))
            .filter(|(_, known, is_there)| match is_there {
                true => !known.says_there,
                false => !known.says_missing,
            })
            .map(|(name, _, is_there)| (name.clone(), is_there))
            .collect()
    }
}

fn resources() -> Result<(&'static Resource, &'static Resource), StatusError> {
    Ok((known(GROUP, "prioritylevelconfigurations")?, known(GROUP, "flowschemas")?))
}

async fn read(api: &Api) -> Result<Objects, StatusError> {
    let (levels, schemas) = resources()?;
    let mut objects = Objects::default();
    for level in api.list_all(levels, "").await? {
        objects.put_level(&level);
    }
    for schema in api.list_all(schemas, "").await? {
        objects.put_schema(&schema);
    }
    Ok(objects)
}

/// Takes what is stored, before the first request.
pub(crate) async fn load(api: &Api, flow_control: &FlowControl) -> Result<(), StatusError> {
    let objects = read(api).await?;
    objects.configure(flow_control);
    settle(api, &objects).await
}

/// Follows the store until `stop`.
pub(crate) async fn run(api: &Api, flow_control: &FlowControl, stop: CancellationToken) {
    keep(stop, "cannot follow flow schemas and priority levels", || follow(api, flow_control))
        .await;
}

async fn follow(api: &Api, flow_control: &FlowControl) -> Result<(), StatusError> {
    let (levels, schemas) = resources()?;
    // Subscribed before the list, so that no change in between is missed.
    let after = api.registry.store().revision().await.map_err(refusal)?;
    let mut level_changes = api.registry.feeds().subscribe(levels, after).await?;
    let mut schema_changes = api.registry.feeds().subscribe(schemas, after).await?;
    let mut objects = read(api).await?;
    loop {
        let began = Instant::now();
        objects.configure(flow_control);
        let took = began.elapsed();
        settle(api, &objects).await?;
        // Ten thousand schemas that are written one after the other are not all read for each of them.
        let pause = took.saturating_mul(10).clamp(PAUSE, LONGEST_PAUSE);
        let mut is_changed = false;
        while !is_changed {
            tokio::select! {
                change = level_changes.next() => {
                    let Some(change) = change? else { return Ok(()) };
                    is_changed |= objects.apply(&change, levels, true);
                }
                change = schema_changes.next() => {
                    let Some(change) = change? else { return Ok(()) };
                    is_changed |= objects.apply(&change, schemas, false);
                }
            }
        }
        sleep(pause).await;
        while let Some(change) = level_changes.next().now_or_never() {
            let Some(change) = change? else { return Ok(()) };
            objects.apply(&change, levels, true);
        }
        while let Some(change) = schema_changes.next().now_or_never() {
            let Some(change) = change? else { return Ok(()) };
            objects.apply(&change, schemas, false);
        }
    }
}

/// Has all schemas say whether their levels are there.
async fn settle(api: &Api, objects: &Objects) -> Result<(), StatusError> {
    let (_, schemas) = resources()?;
    let wrong = objects.wrong().into_iter();
    let written = wrong.map(|(name, is_there)| settle_one(api, schemas, name, is_there));
    stream::iter(written).buffer_unordered(AT_ONCE).try_collect().await
}

async fn settle_one(
    api: &Api,
    schemas: &Resource,
    name: String,
    is_there: bool,
) -> Result<(), StatusError> {
    let now = object::now().to_string();
    let written = api
        .amend(schemas, "", &name, |schema| {
            if let Some(condition) = dangling(schema, is_there, &now) {
                set_condition(schema, condition);
            }
            Ok(())
        })
        .await;
    match written {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}
