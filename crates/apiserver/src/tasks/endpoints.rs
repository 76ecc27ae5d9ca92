//! The endpoints of the service `default/kubernetes`: the servers that are alive. Each of them has a key in
//! the store that goes by itself when it is not renewed, as upstream's lease endpoint reconciler
//! has, and all of them keep the endpoints to what the keys say.

use std::net::IpAddr;
use std::time::Duration;

use longshore_store::{Error, Expect, ListOptions};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::bootstrap::settle;
use crate::kinds::{core, known};
use crate::operations::Api;
use crate::registry::{decode_stored, encode_stored, refusal};
use crate::schema::value::{items, text};
use crate::status::StatusError;

const NAME: &str = "kubernetes";
/// Where the keys are, as upstream's.
const PREFIX: &str = "/registry/masterleases/";
/// How long a key lasts.
const TTL: Duration = Duration::from_secs(15);
/// How often it is renewed, and the endpoints are looked at.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long the end of the server waits for its key to go.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// A renewal that loses the race this often gives up: another server has the same address.
const MAX_ATTEMPTS: usize = 16;

/// How the endpoints are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EndpointReconciler {
    /// By keys of the servers that are alive.
    #[default]
    #[value(alias = "master-count")]
    Lease,
    /// Not at all.
    None,
}

/// The servers of a cluster, as endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoints {
    addresses: Vec<String>,
    ports: Value,
}

/// Adds this server before it serves, with its port.
pub(crate) async fn start(api: &Api, by: EndpointReconciler) -> Result<(), StatusError> {
    match by {
        EndpointReconciler::Lease => {
            renew(api).await?;
            reconcile(api, true).await
        }
        EndpointReconciler::None => Ok(()),
    }
}

/// Renews the key of this server, and keeps the endpoints, until `stop`; then it takes itself away.
pub(crate) async fn run(api: &Api, by: EndpointReconciler, stop: CancellationToken) {
    if by == EndpointReconciler::None {
        return;
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = sleep(INTERVAL) => {}
        }
        // The key is renewed, whatever comes of the endpoints.
        let renewed = renew(api).await;
        if let Err(error) = renewed.and(reconcile(api, false).await) {
            tracing::warn!(%error, "cannot reconcile the endpoints of the service kubernetes");
        }
    }
    match timeout(STOP_TIMEOUT, leave(api)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "cannot remove this server's endpoint"),
        Err(_) => tracing::warn!("cannot remove this server's endpoint in time"),
    }
}

fn key(api: &Api) -> String {
    format!("{PREFIX}{}", api.advertised.ip())
}

/// Writes this server's key anew, so that it lasts.
async fn renew(api: &Api) -> Result<(), StatusError> {
    let (store, key) = (api.registry.store(), key(api));
    let mut current = store.get(&key).await.map_err(refusal)?;
    for _ in 0..MAX_ATTEMPTS {
        let before = current.as_ref().and_then(|stored| decode_stored(&stored.value));
        let generation = before.as_ref().and_then(|it| it["metadata"]["generation"].as_i64());
        let lease = json!({
            "kind": "Endpoints",
            "apiVersion": "v1",
            // Upstream counts the renewals, or nothing would be written.
            "metadata": {"generation": generation.unwrap_or(0).saturating_add(1)},
            "subsets": [{"addresses": [{"ip": api.advertised.ip().to_string()}]}],
        });
        let value = encode_stored(api.registry.media_type(), core("endpoints")?, lease)?;
        let expect = match &current {
            Some(stored) => Expect::Revision(stored.mod_revision),
            None => Expect::Absent,
        };
        match store.put(&key, value, expect, Some(TTL)).await {
            Ok(_) => return Ok(()),
            Err(Error::Conflict { current: now, .. }) => current = now,
            Err(error) => return Err(refusal(error)),
        }
    }
    Err(StatusError::internal("others write this server's key all the time"))
}

/// The addresses of the servers that are alive.
async fn alive(api: &Api) -> Result<Vec<String>, StatusError> {
    let page = api.registry.store().list(PREFIX, ListOptions::default()).await.map_err(refusal)?;
    let leases = page.items.iter().filter_map(|stored| decode_stored(&stored.value));
    let address = |lease: Value| text(&lease["subsets"][0]["addresses"][0]["ip"]).to_owned();
    let mut addresses: Vec<IpAddr> = leases.filter_map(|it| address(it).parse().ok()).collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses.iter().map(IpAddr::to_string).collect())
}

/// Takes this server's key away, and with it its endpoint.
async fn leave(api: &Api) -> Result<(), StatusError> {
    let (store, key) = (api.registry.store(), key(api));
    let mut current = store.get(&key).await.map_err(refusal)?;
    for _ in 0..MAX_ATTEMPTS {
        let Some(stored) = current else { break };
        match store.delete(&key, stored.mod_revision).await {
            Ok(_) => break,
            Err(Error::Conflict { current: now, .. }) => current = now,
            Err(error) => return Err(refusal(error)),
        }
    }
    let addresses = alive(api).await?;
    write(api, addresses, false).await
}

/// Keeps the endpoints to what the keys say.
async fn reconcile(api: &Api, sets_ports: bool) -> Result<(), StatusError> {
    let addresses = alive(api).await?;
    if addresses.is_empty() {
        return Err(StatusError::internal(
            "no API server IP addresses were listed in storage, refusing to erase all endpoints for the kubernetes Service",
        ));
    }
    write(api, addresses, sets_ports).await
}

async fn write(api: &Api, addresses: Vec<String>, sets_ports: bool) -> Result<(), StatusError> {
    let own = json!([{"name": "https", "port": api.advertised.port(), "protocol": "TCP"}]);
    let current = api.registry.find(core("endpoints")?, "default", NAME).await?;
    let wanted = wanted(current.as_ref(), addresses, own, sets_ports);
    settle(api, core("endpoints")?, wanted.endpoints(), &["subsets"]).await?;
    let slices = known("discovery.k8s.io", "endpointslices")?;
    settle(api, slices, wanted.slice(), &["addressType", "endpoints", "ports"]).await
}

/// What the endpoints are to be. The ports of others stay: all servers have the same, and one that starts,
/// or is alone, knows best.
fn wanted(
    current: Option<&Value>,
    addresses: Vec<String>,
    own_ports: Value,
    sets_ports: bool,
) -> Endpoints {
    let ports = match current.map(|endpoints| items(&endpoints["subsets"])) {
        Some([subset]) if !sets_ports && addresses.len() > 1 => subset["ports"].clone(),
        _ => own_ports,
    };
    Endpoints { addresses, ports }
}

impl Endpoints {
    fn endpoints(&self) -> Value {
        let addresses: Vec<Value> = self.addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let subsets = match addresses.is_empty() {
            true => json!([]),
            false => json!([{"addresses": addresses, "ports": self.ports}]),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {
                "name": NAME,
                "namespace": "default",
                "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
            },
            "subsets": subsets,
        })
    }

    fn slice(&self) -> Value {
        let is_v6 = |ip: &&String| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
        let all_v6 = !self.addresses.is_empty() && self.addresses.iter().all(|ip| is_v6(&ip));
        let own = self.addresses.iter().filter(|ip| is_v6(ip) == all_v6);
        let endpoints: Vec<Value> =
            own.map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": NAME,
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": NAME},
            },
            "addressType": if all_v6 { "IPv6" } else { "IPv4" },
            "endpoints": endpoints,
            "ports": if self.addresses.is_empty() { json!([]) } else { self.ports.clone() },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::object;

    fn list(addresses: &[&str]) -> Vec<String> {
        addresses.iter().map(|&ip| ip.to_owned()).collect()
    }

    #[test]
    fn server_endpoints_have_the_ports_of_the_first_server() {
        let (own, other) = (json!([{"port": 1}]), json!([{"port": 2}]));
        let current = json!({"subsets": [{"ports": other}]});
        let broken = json!({"subsets": [{"ports": other}, {"ports": other}]});
        let one = || list(&["192.0.2.1"]);
        let two = || list(&["192.0.2.1", "192.0.2.2"]);
        for (current, addresses, sets, expected) in [
            (None, two(), false, &own),
            (Some(&current), two(), false, &other),
            (Some(&current), two(), true, &own),
            (Some(&current), one(), false, &own),
            (Some(&broken), two(), false, &own),
        ] {
            let wanted = wanted(current, addresses, own.clone(), sets);
            assert_eq!(&wanted.ports, expected);
        }
    }

    #[test]
    fn server_endpoints_are_of_one_family_in_a_slice() {
        let shown = |addresses: &[&str]| {
            let wanted = Endpoints { addresses: list(addresses), ports: json!([{"port": 1}]) };
            let slice = wanted.slice();
            let of: Vec<_> = items(&slice["endpoints"])
                .iter()
                .map(|e| text(&e["addresses"][0]).to_owned())
                .collect();
            (
                text(&slice["addressType"]).to_owned(),
                of.join(","),
                items(&wanted.endpoints()["subsets"]).len(),
            )
        };
        let is =
            |kind: &str, list: &str, subsets: usize| (kind.to_owned(), list.to_owned(), subsets);
        assert_eq!(shown(&["192.0.2.1", "192.0.2.2"]), is("IPv4", "192.0.2.1,192.0.2.2", 1));
        assert_eq!(shown(&["fd00::1"]), is("IPv6", "fd00::1", 1));
        assert_eq!(shown(&["192.0.2.1", "fd00::1"]), is("IPv4", "192.0.2.1", 1));
        assert_eq!(shown(&[]), is("IPv4", "", 0));
        assert_eq!(
            object::name(&Endpoints { addresses: Vec::new(), ports: json!([]) }.slice()),
            NAME
        );
    }
}
