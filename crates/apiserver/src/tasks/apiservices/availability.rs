//! Whether aggregated servers are available: their condition `Available`.

use std::collections::HashMap;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::aggregator::{self, ApiService, Backend};
use crate::kinds;
use crate::object;
use crate::operations::Api;
use crate::schema::value::{items, text};
use crate::status::StatusError;

/// How often services and endpoints are looked at, and servers that fail are called.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often a server that answers is called.
const CALL_INTERVAL: Duration = Duration::from_secs(10);
/// The time that a server has to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How many are looked at at once.
const PARALLEL: usize = 8;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Finding {
    fn passed() -> Finding {
        Finding { status: "True", reason: "Passed", message: "all checks passed".to_owned() }
    }

    fn failed(reason: &'static str, message: String) -> Finding {
        Finding { status: "False", reason, message }
    }

    fn is_passed(&self) -> bool {
        self.status == "True"
    }

    /// Sets the condition; `false` if it is so already.
    fn set(&self, api: &mut Value) -> bool {
        let conditions =
            object::child_mut(api, "status").entry("conditions").or_insert_with(|| json!([]));
        let mut condition = json!({
            "type": "Available",
            "status": self.status,
            "lastTransitionTime": object::now().to_string(),
            "reason": self.reason,
            "message": self.message,
        });
        let Some(list) = conditions.as_array_mut() else { return false };
        let Some(had) = list.iter_mut().find(|had| had["type"] == "Available") else {
            list.push(condition);
            return true;
        };
        if had["status"] == condition["status"] {
            condition["lastTransitionTime"] = had["lastTransitionTime"].clone();
        }
        let differs = *had != condition;
        *had = condition;
        differs
    }
}

/// When a server was last called and answered, and for which spec.
type Called = HashMap<String, (Instant, Backend)>;

/// Keeps the conditions as they are found, for ever.
pub(super) async fn run(api: &Api) {
    let aggregator = &api.aggregator;
    let mut called = Called::new();
    loop {
        let mut remote = aggregator.all();
        remote.retain(|service| service.backend.is_some());
        called.retain(|name, _| remote.iter().any(|service| service.name == *name));
        aggregator.forget_documents(&remote);
        let due = |service: &ApiService| match called.get(&service.name) {
            Some((last, backend)) => {
                last.elapsed() >= CALL_INTERVAL || service.backend.as_ref() != Some(backend)
            }
            None => true,
        };
        let checks = remote.iter().filter_map(|service| {
            let backend = service.backend.as_ref()?;
            let is_due = due(service);
            Some(async move { (service, backend, check(api, service, backend, is_due).await) })
        });
        let checks: Vec<_> =
            stream::iter(checks.collect::<Vec<_>>()).buffer_unordered(PARALLEL).collect().await;
        for (service, backend, (finding, is_called)) in checks {
            match finding.is_passed() {
                true if is_called => {
                    called.insert(service.name.clone(), (Instant::now(), backend.clone()));
                }
                true => {}
                false => drop(called.remove(&service.name)),
            }
            aggregator.metrics.set(&service.name, finding.is_passed(), finding.reason);
            if let Err(error) = publish(api, service, &finding).await {
                tracing::warn!(%error, api = service.name, "cannot write the condition of an APIService");
            }
        }
        sleep(INTERVAL).await;
    }
}

/// Checks one server, with a call only where one is due. Returns whether it was called.
async fn check(
    api: &Api,
    service: &ApiService,
    backend: &Backend,
    is_due: bool,
) -> (Finding, bool) {
    match endpoints(api, backend).await {
        Ok(None) => {}
        Ok(Some(finding)) => return (finding, false),
        Err(error) => {
            let Backend { namespace, service, .. } = backend;
            let message =
                format!("service/{service} in {namespace:?} cannot be checked due to: {error}");
            return (Finding { status: "Unknown", reason: "ServiceAccessError", message }, false);
        }
    }
    if !is_due {
        return (Finding::passed(), false);
    }
    let path = format!("/apis/{}/{}", service.group, service.version);
    match api.aggregator.client.get(&api.registry, backend, &path, CALL_TIMEOUT).await {
        Ok(document) => {
            api.aggregator.put_document(&service.name, &document);
            (Finding::passed(), true)
        }
        Err(error) => {
            let url = format!("https://{}:{}{path}", backend.server_name(), backend.port);
            let message = format!("failing or missing response from {url}: {error}");
            (Finding::failed("FailedDiscoveryCheck", message), true)
        }
    }
}

/// What is wrong with the service or its endpoints.
async fn endpoints(api: &Api, backend: &Backend) -> Result<Option<Finding>, StatusError> {
    let (namespace, name) = (backend.namespace.as_str(), backend.service.as_str());
    let service = api.registry.find(kinds::core("services")?, namespace, name).await?;
    let slices = kinds::known("discovery.k8s.io", "endpointslices")?;
    let is_its = |slice: &Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name;
    let select = |slice: Value| is_its(&slice).then_some(slice);
    let slices = api.registry.select(slices, namespace, select).await?;
    Ok(problem(backend, service.as_ref(), &slices))
}

fn problem(backend: &Backend, service: Option<&Value>, slices: &[Value]) -> Option<Finding> {
    let Backend { namespace, service: name, port, .. } = backend;
    let Some(service) = service else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return Some(Finding::failed("ServiceNotFound", message));
    };
    if text(&service["spec"]["type"]) != "ClusterIP" {
        return None;
    }
    let mut ports = items(&service["spec"]["ports"]).iter();
    let Some(found) = ports.find(|own| own["port"] == *port) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return Some(Finding::failed("ServicePortError", message));
    };
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Finding::failed("EndpointsNotFound", message));
    }
    let port_name = text(&found["name"]);
    let has_ready = slices.iter().any(|slice| {
        let has_port = items(&slice["ports"]).iter().any(|own| text(&own["name"]) == port_name);
        has_port && items(&slice["endpoints"]).iter().any(|e| e["conditions"]["ready"] != false)
    });
    (!has_ready).then(|| {
        let message = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        Finding::failed("MissingEndpoints", message)
    })
}

async fn publish(api: &Api, service: &ApiService, finding: &Finding) -> Result<(), StatusError> {
    let resource = aggregator::resource()?;
    let Some(mut stored) = api.registry.find(resource, "", &service.name).await? else {
        return Ok(());
    };
    if !finding.set(&mut stored) {
        return Ok(());
    }
    let backend = service.backend.clone();
    let set = |new: &mut Value| {
        // What was found of another service is not about this one.
        if ApiService::of(new).backend == backend {
            finding.set(new);
        }
        Ok(())
    };
    match api.amend(resource, "", &service.name, set).await {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend() -> Backend {
        Backend {
            namespace: "n".into(),
            service: "s".into(),
            port: 443,
            ca_bundle: None,
            insecure: true,
        }
    }

    #[test]
    fn aggregator_says_what_is_wrong_with_a_service() {
        let service = |port: u16| json!({"spec": {"type": "ClusterIP", "ports": [{"name": "web", "port": port}]}});
        let slice = |port: &str, ready: bool| {
            json!({
                "ports": [{"name": port, "port": 1}],
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}],
            })
        };
        for (service, slices, expected) in [
            (None, vec![], Some(("ServiceNotFound", "service/s in \"n\" is not present"))),
            (
                Some(service(80)),
                vec![],
                Some(("ServicePortError", "service/s in \"n\" is not listening on port 443")),
            ),
            (
                Some(service(443)),
                vec![],
                Some(("EndpointsNotFound", "cannot find endpointslices for service/s in \"n\"")),
            ),
            (
                Some(service(443)),
                vec![slice("web", false), slice("other", true)],
                Some((
                    "MissingEndpoints",
                    "endpointslices for service/s in \"n\" have no addresses with port name \"web\"",
                )),
            ),
            (Some(service(443)), vec![slice("web", true)], None),
            (Some(json!({"spec": {"type": "ExternalName"}})), vec![], None),
        ] {
            let found = problem(&backend(), service.as_ref(), &slices);
            let found = found.as_ref().map(|f| (f.reason, f.message.as_str()));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn aggregator_writes_a_condition_once() {
        let mut api = json!({"metadata": {"name": "v1.g"}});
        let failed = Finding::failed("ServiceNotFound", "gone".into());
        assert!(failed.set(&mut api));
        assert!(!failed.set(&mut api));
        assert!(Finding::passed().set(&mut api));
        let conditions = &api["status"]["conditions"];
        assert_eq!(
            (conditions.as_array().map(Vec::len), &conditions[0]["reason"]),
            (Some(1), &json!("Passed"))
        );
    }
}
