//! Aggregated cluster roles: their rules are those of all roles that their selectors
//! match. A stand-in for the controller of a full cluster.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::roles::resource;
use crate::object;
use crate::operations::Api;
use crate::schema::value::{items, same};
use crate::selector::LabelSelector;
use crate::status::StatusError;

const RETRY: Duration = Duration::from_secs(5);

/// Keeps them up to date until `stop`.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = async {
            loop {
                if let Err(error) = follow(api).await {
                    tracing::warn!(%error, "cannot reconcile aggregated cluster roles");
                }
                sleep(RETRY).await;
            }
        } => {}
    }
}

/// Ends when the changes break off.
async fn follow(api: &Api) -> Result<(), StatusError> {
    // Subscribed before the lists, so that no change in between is missed.
    let after = api.registry.store().revision().await.map_err(StatusError::internal)?;
    let mut changes = api.registry.feeds().subscribe(resource("clusterroles")?, after).await?;
    loop {
        sweep(api).await?;
        if changes.next().await?.is_none() {
            return Ok(());
        }
    }
}

/// Brings every such role up to date once.
pub(super) async fn sweep(api: &Api) -> Result<(), StatusError> {
    let had = api.list_all(resource("clusterroles")?, "").await?;
    let mut roles = had.clone();
    complete(&mut roles);
    for (role, had) in roles.iter().zip(&had).filter(|(role, had)| role != had) {
        let change = |current: &mut Value| {
            // It may have been changed meanwhile.
            if current["aggregationRule"] == had["aggregationRule"] {
                current["rules"] = role["rules"].clone();
            }
            Ok(())
        };
        match api.amend(resource("clusterroles")?, "", object::name(role), change).await {
            Err(error) if error.code == 404 => {}
            result => drop(result?),
        }
    }
    Ok(())
}

/// Updates the rules of each aggregated role. Its sources may be aggregated in turn, so it
/// goes on until nothing changes, which takes as many rounds as there are roles at most.
pub(crate) fn complete(roles: &mut [Value]) {
    for _ in 0..roles.len() {
        let mut is_done = true;
        for i in 0..roles.len() {
            if !roles[i]["aggregationRule"].is_object() {
                continue;
            }
            let rules = rules(&roles[i], roles);
            if !same(&rules, &roles[i]["rules"]) {
                roles[i]["rules"] = rules;
                is_done = false;
            }
        }
        if is_done {
            return;
        }
    }
}

/// The rules of all roles (sorted by name) that the role's selectors match, each once.
fn rules(role: &Value, roles: &[Value]) -> Value {
    let mut rules: Vec<&Value> = Vec::new();
    for selector in items(&role["aggregationRule"]["clusterRoleSelectors"]) {
        let Ok(selector) = LabelSelector::of(selector) else { continue };
        let others = roles.iter().filter(|other| object::name(other) != object::name(role));
        for rule in others.filter(|other| selector.matches(other)).flat_map(|o| items(&o["rules"]))
        {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    rules.into_iter().cloned().collect()
}
