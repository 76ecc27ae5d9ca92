//! From a service to what is dialled for it: webhooks and aggregated servers are called through
//! services, as upstream does it (`apiserver/pkg/util/proxy`).
//!
//! A ready endpoint is dialled directly where there is one: the machine of an apiserver need not have a
//! proxy for addresses of services. Otherwise it is the address of the service, unless
//! `--enable-aggregator-routing` says that endpoints alone are used.

use std::net::IpAddr;

use serde_json::Value;

use crate::kinds;
use crate::object;
use crate::registry::Registry;
use crate::schema::value::{items, text};
use crate::status::StatusError;

/// The label of slices with the name of their service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Why a service cannot be dialled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Read(String),
    #[error("no service port {port} found for service {service:?}")]
    NoPort { service: String, port: u16 },
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
    #[error("unsupported service type {0:?}")]
    Type(String),
    #[error("cannot route to service with ClusterIP \"None\"")]
    Headless,
}

/// Finds the endpoints of services.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServiceResolver {
    /// Never dial the address of the service itself.
    pub(crate) endpoints_only: bool,
}

impl ServiceResolver {
    /// Host and port to dial for a port of a service.
    pub(crate) async fn resolve(
        self,
        registry: &Registry,
        (namespace, name): (&str, &str),
        port: u16,
    ) -> Result<(String, u16), Error> {
        let failed = |error: StatusError| Error::Read(error.message);
        let service = kinds::core("services").map_err(failed)?;
        let service = registry.get(service, namespace, name).await.map_err(failed)?;
        let slices = kinds::known("discovery.k8s.io", "endpointslices").map_err(failed)?;
        let is_its = |slice: &Value| slice["metadata"]["labels"][SERVICE_NAME] == name;
        let slices = registry
            .select(slices, namespace, |slice| is_its(&slice).then_some(slice))
            .await
            .map_err(failed)?;
        let start = getrandom::u32().unwrap_or(0) as usize;
        self.choose(&service, &slices, port, start)
    }

    /// The same for a service and its slices; `start` varies which endpoint is taken.
    fn choose(
        self,
        service: &Value,
        slices: &[Value],
        port: u16,
        start: usize,
    ) -> Result<(String, u16), Error> {
        let name = object::name(service);
        let spec = &service["spec"];
        match text(&spec["type"]) {
            "ClusterIP" | "NodePort" | "LoadBalancer" => {}
            "ExternalName" if !self.endpoints_only => {
                return Ok((text(&spec["externalName"]).to_owned(), port));
            }
            other => return Err(Error::Type(other.to_owned())),
        }
        let found = items(&spec["ports"]).iter().find(|own| own["port"] == port);
        let service_port = found.ok_or_else(|| Error::NoPort { service: name.to_owned(), port })?;
        if let Some(endpoint) = ready_endpoint(spec, slices, text(&service_port["name"]), start) {
            return Ok(endpoint);
        }
        match text(&spec["clusterIP"]) {
            _ if self.endpoints_only => Err(Error::NoEndpoints(name.to_owned())),
            "None" => Err(Error::Headless),
            "" => Err(Error::NoEndpoints(name.to_owned())),
            address => Ok((address.to_owned(), port)),
        }
    }
}

/// A ready endpoint with a port of that name, of the service's first family where it has one.
fn ready_endpoint(
    spec: &Value,
    slices: &[Value],
    port: &str,
    start: usize,
) -> Option<(String, u16)> {
    let first_family = &spec["ipFamilies"][0];
    let mut slices: Vec<&Value> = slices.iter().collect();
    slices.sort_by_key(|slice| slice["addressType"] != *first_family);
    slices.into_iter().find_map(|slice| {
        let ports = items(&slice["ports"]).iter();
        let number = ports
            .filter(|own| text(&own["name"]) == port)
            .find_map(|own| u16::try_from(own["port"].as_u64()?).ok())?;
        let endpoints = items(&slice["endpoints"]);
        let ready = |endpoint: &&Value| endpoint["conditions"]["ready"] != false;
        let skipped = start.checked_rem(endpoints.len()).unwrap_or(0);
        let mut turned = endpoints.iter().cycle().skip(skipped).take(endpoints.len()).filter(ready);
        turned.find_map(|endpoint| {
            let address = text(&endpoint["addresses"][0]);
            address.parse::<IpAddr>().ok()?;
            Some((address.to_owned(), number))
        })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(kind: &str, address: &str) -> Value {
        json!({
            "metadata": {"name": "hook"},
            "spec": {
                "type": kind,
                "clusterIP": address,
                "externalName": "hook.example.com",
                "ipFamilies": ["IPv4"],
                "ports": [{"name": "web", "port": 443, "targetPort": 8443}, {"name": "x", "port": 80}],
            },
        })
    }

    fn slice(kind: &str, addresses: &[(&str, Value)]) -> Value {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|(address, ready)| json!({"addresses": [address], "conditions": {"ready": ready}}))
            .collect();
        json!({
            "addressType": kind,
            "ports": [{"name": "other", "port": 1}, {"name": "web", "port": 8443}],
            "endpoints": endpoints,
        })
    }

    #[test]
    fn service_resolver_prefers_ready_endpoints() {
        let unready = slice("IPv4", &[("10.1.0.1", json!(false))]);
        let six = slice("IPv6", &[("fd00::1", json!(true))]);
        let two = slice("IPv4", &[("10.1.0.2", json!(null)), ("10.1.0.3", json!(true))]);
        let cluster = service("ClusterIP", "10.96.0.7");
        let choose = |only: bool, service: &Value, slices: &[Value], port, start| {
            ServiceResolver { endpoints_only: only }
                .choose(service, slices, port, start)
                .map(|(host, port)| format!("{host} {port}"))
                .map_err(|error| error.to_string())
        };
        let all = [unready.clone(), six.clone(), two];
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(choose(false, &cluster, &all, 443, 0), ok("10.1.0.2 8443"));
        assert_eq!(choose(false, &cluster, &all, 443, 1), ok("10.1.0.3 8443"));
        assert_eq!(choose(true, &cluster, &[six], 443, 5), ok("fd00::1 8443"));
        assert_eq!(
            choose(false, &cluster, std::slice::from_ref(&unready), 443, 0),
            ok("10.96.0.7 443")
        );
        let refused = |text: &str| Err(text.to_owned());
        let none = refused("no endpoints available for service \"hook\"");
        assert_eq!(choose(true, &cluster, &[unready], 443, 0), none);
        let no_port = refused("no service port 444 found for service \"hook\"");
        assert_eq!(choose(false, &cluster, &all, 444, 0), no_port);
        let headless = service("ClusterIP", "None");
        let no_address = refused("cannot route to service with ClusterIP \"None\"");
        assert_eq!(choose(false, &headless, &[], 443, 0), no_address);
        let external = service("ExternalName", "");
        assert_eq!(choose(false, &external, &[], 9443, 0), ok("hook.example.com 9443"));
        let unsupported = refused("unsupported service type \"ExternalName\"");
        assert_eq!(choose(true, &external, &[], 9443, 0), unsupported);
    }
}
