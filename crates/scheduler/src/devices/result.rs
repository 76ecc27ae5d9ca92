//! Allocations as the API has them.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult,
    DeviceRequestAllocationResult,
};

use super::AllocationError;
use super::capacity::quantity;
use super::request::Request;
use super::search::{Choice, Plan};
use crate::model::{DeviceNodes, Node};

/// The allocation of a claim whose devices are chosen.
pub(super) fn of(plan: &Plan<'_>, node: &Node) -> Result<AllocationResult, AllocationError> {
    let results: Vec<_> = plan
        .choices
        .iter()
        .enumerate()
        .filter_map(|(index, choice)| device(plan, index, choice))
        .collect();
    let config = configuration(plan);
    let devices = DeviceAllocationResult {
        config: (!config.is_empty()).then_some(config),
        results: Some(results),
    };
    Ok(AllocationResult {
        // set when it is written
        allocation_timestamp: None,
        devices: Some(devices),
        node_selector: node_selector(plan, node)?,
    })
}

fn device(
    plan: &Plan<'_>,
    index: usize,
    choice: &Choice<'_>,
) -> Option<DeviceRequestAllocationResult> {
    let request = plan.requests.get(choice.request)?.get(choice.alternative)?;
    let id = &choice.candidate.device.id;
    let consumed = choice.share.as_ref().filter(|share| !share.is_empty());
    Some(DeviceRequestAllocationResult {
        admin_access: request.has_admin_access.then_some(true),
        consumed_capacity: consumed.map(|share| {
            share.iter().map(|(name, amount)| (name.clone(), quantity(*amount))).collect()
        }),
        device: id.name.to_string(),
        driver: id.driver.to_string(),
        pool: id.pool.to_string(),
        request: request.name.full(),
        share_id: choice.share.as_ref().map(|_| share_id(&plan.claim.uid, index)),
        tolerations: request.tolerations.cloned(),
        binding_conditions: choice.candidate.device.api.binding_conditions.clone(),
        binding_failure_conditions: choice.candidate.device.api.binding_failure_conditions.clone(),
    })
}

/// The ID of a share: a UUID that belongs to a claim and the place of the device in it.
fn share_id(claim: &str, index: usize) -> String {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let (high, low) = (hasher.hash_one((claim, index, 0)), hasher.hash_one((claim, index, 1)));
    let bits = (u128::from(high) << 64) | u128::from(low);
    // version 4, variant 1
    let bits = (bits & !(0xf000 << 64) & !(0b11 << 62)) | (0x4000 << 64) | (0b10 << 62);
    let text = format!("{bits:032x}");
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// The alternatives that are chosen.
fn selected<'p, 'a>(plan: &'p Plan<'a>) -> impl Iterator<Item = &'p Request<'a>> {
    let all = plan.requests.iter().zip(&plan.selected);
    all.filter_map(|(alternatives, selected)| alternatives.get(*selected))
}

/// Configuration for drivers: by classes, each once, then by the claim.
fn configuration(plan: &Plan<'_>) -> Vec<DeviceAllocationConfiguration> {
    let mut all: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut classes: Vec<(&str, std::ops::Range<usize>)> = Vec::new();
    for request in selected(plan) {
        let name = request.name.full();
        let class = request.class.name.as_str();
        if let Some((_, range)) = classes.iter().find(|(known, _)| *known == class) {
            for own in all.get_mut(range.clone()).into_iter().flatten() {
                own.requests.get_or_insert_default().push(name.clone());
            }
            continue;
        }
        let start = all.len();
        all.extend(request.class.config.iter().map(|config| DeviceAllocationConfiguration {
            source: "FromClass".to_owned(),
            requests: Some(vec![name.clone()]),
            opaque: config.opaque.clone(),
        }));
        classes.push((class, start..all.len()));
    }
    for config in plan.claim.devices.config.iter().flatten() {
        let requests = config.requests.as_deref().unwrap_or_default();
        let of_claim = || DeviceAllocationConfiguration {
            source: "FromClaim".to_owned(),
            requests: config.requests.clone(),
            opaque: config.opaque.clone(),
        };
        if requests.is_empty() {
            all.push(of_claim());
            continue;
        }
        let named = selected(plan)
            .filter(|request| requests.iter().any(|name| request.name.is_named(name)));
        all.extend(named.map(|_| of_claim()));
    }
    all
}

/// The nodes that reach all devices of an allocation; `None`: all nodes.
fn node_selector(plan: &Plan<'_>, node: &Node) -> Result<Option<NodeSelector>, AllocationError> {
    let mut term = NodeSelectorTerm::default();
    for choice in &plan.choices {
        let candidate = &choice.candidate;
        let nodes = candidate.device.nodes.as_ref().unwrap_or(&candidate.slice.nodes);
        let is_bound = candidate.device.api.binds_to_node == Some(true);
        match nodes {
            _ if is_bound => return Ok(Some(only(node))),
            DeviceNodes::Node(_) => return Ok(Some(only(node))),
            DeviceNodes::Selected(_, api) => match api.node_selector_terms.as_slice() {
                [] => {}
                [own] => {
                    merge(own.match_fields.as_ref(), &mut term.match_fields);
                    merge(own.match_expressions.as_ref(), &mut term.match_expressions);
                }
                terms => {
                    return Err(AllocationError::Claim(format!(
                        "create NodeSelector for claim {}: unsupported ResourceSlice.NodeSelector with {} terms",
                        plan.claim.key.name,
                        terms.len()
                    )));
                }
            },
            DeviceNodes::All | DeviceNodes::PerDevice | DeviceNodes::Unknown => {}
        }
    }
    let is_empty = term.match_fields.is_none() && term.match_expressions.is_none();
    Ok((!is_empty).then(|| NodeSelector { node_selector_terms: vec![term] }))
}

fn only(node: &Node) -> NodeSelector {
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.name.to_string()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), match_expressions: None };
    NodeSelector { node_selector_terms: vec![term] }
}

/// Adds requirements that are not there yet.
fn merge(
    from: Option<&Vec<NodeSelectorRequirement>>,
    to: &mut Option<Vec<NodeSelectorRequirement>>,
) {
    for more in from.into_iter().flatten() {
        let known = to.get_or_insert_default();
        let is_same = |own: &NodeSelectorRequirement| {
            let sorted = |values: &Option<Vec<String>>| {
                let mut values = values.clone().unwrap_or_default();
                values.sort();
                values.dedup();
                values
            };
            own.key == more.key
                && own.operator == more.operator
                && sorted(&own.values) == sorted(&more.values)
        };
        if !known.iter().any(is_same) {
            known.push(more.clone());
        }
    }
}
