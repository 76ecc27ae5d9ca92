//! What a cluster has before anybody writes to it: namespaces, priority classes, and the service `default/kubernetes`, which
//! leads to the servers (`endpoints`).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::admission::namespaces;
use crate::api_types::Resource;
use crate::auth::FrontProxyConfig;
use crate::kinds::flow_control::{CATCH_ALL, EXEMPT, bootstrap as flow_control_objects};
use crate::kinds::priority_class::SYSTEM;
use crate::kinds::{core, known};
use crate::object;
use crate::operations::{Api, DeleteOptions};
use crate::pki;
use crate::schema::value::{same, text};
use crate::status::StatusError;
use crate::user::User;

const NAME: &str = "kubernetes";
/// How often the service `kubernetes` and what else a cluster always has are reconciled.
const CHECK: Duration = Duration::from_secs(10);
/// The annotation of flow schemas and priority levels that follow the version of the server.
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Makes what is missing.
pub(crate) async fn run(api: &Api) -> Result<(), StatusError> {
    for name in namespaces::SYSTEM {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        api.ensure(core("namespaces")?, namespace).await?;
    }
    for (name, value, description) in SYSTEM {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
        });
        api.ensure(known("scheduling.k8s.io", "priorityclasses")?, class).await?;
    }
    reconcile(api).await?;
    let service = api.registry.get(core("services")?, "default", NAME).await?;
    let (has, wanted) = (&service["spec"]["clusterIP"], address(api));
    if *has != wanted.as_str() {
        tracing::warn!(
            %has,
            wanted,
            "the service default/kubernetes keeps the address of an earlier service range"
        );
    }
    let (cidr, wanted) = (find_service_cidr(api).await?, json!(ranges(api)));
    if !object::is_deleting(&cidr) && cidr["spec"]["cidrs"] != wanted {
        tracing::warn!(has = %cidr["spec"]["cidrs"], %wanted, "the ServiceCIDR kubernetes has other ranges");
    }
    Ok(())
}

/// Restores the service `kubernetes`, and what else a cluster always has, when it was deleted or edited,
/// until `stop`.
pub(crate) async fn keep(api: &Api, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(CHECK) => {}
        }
        if let Err(error) = reconcile(api).await {
            tracing::warn!(%error, "cannot reconcile what the cluster always has");
        }
        if let Err(error) = api.services.release_abandoned(&api.registry).await {
            tracing::warn!(%error, "cannot release what was taken for services");
        }
    }
}

async fn reconcile(api: &Api) -> Result<(), StatusError> {
    service(api).await?;
    authentication(api).await?;
    service_cidr(api).await?;
    flow_control(api).await
}

/// The configured ranges of services.
fn ranges(api: &Api) -> Vec<String> {
    api.services.configured().iter().map(|range| range.to_string()).collect()
}

async fn find_service_cidr(api: &Api) -> Result<Value, StatusError> {
    let cidrs = known("networking.k8s.io", "servicecidrs")?;
    Ok(api.registry.find(cidrs, "", NAME).await?.unwrap_or_default())
}

/// The configured ranges as the ServiceCIDR `kubernetes`, which is ready.
async fn service_cidr(api: &Api) -> Result<(), StatusError> {
    let cidrs = known("networking.k8s.io", "servicecidrs")?;
    let ranges = ranges(api);
    let cidr = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": NAME, "finalizers": ["networking.k8s.io/service-cidr-finalizer"]},
        "spec": {"cidrs": ranges},
    });
    api.ensure(cidrs, cidr).await?;
    let mut own = find_service_cidr(api).await?;
    if object::is_deleting(&own) {
        return Ok(());
    }
    // A cluster of one family gets a second one.
    if ranges.len() == 2 && own["spec"]["cidrs"] == json!([ranges[0]]) {
        let written = api.amend(cidrs, "", NAME, |cidr| {
            if cidr["spec"]["cidrs"] == json!([ranges[0]]) {
                cidr["spec"]["cidrs"] = json!(ranges);
            }
            Ok(())
        });
        written.await?;
        own = find_service_cidr(api).await?;
    }
    let has = own["status"]["conditions"].as_array().is_some_and(|all| !all.is_empty());
    if has || own["spec"]["cidrs"] != json!(ranges) {
        return Ok(());
    }
    let ready = json!([{
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": object::now().to_string(),
        "reason": "",
        "message": "Kubernetes default Service CIDR is ready",
    }]);
    api.amend(cidrs, "", NAME, |cidr| {
        object::child_mut(cidr, "status").insert("conditions".into(), ready.clone());
        Ok(())
    })
    .await
    .map(drop)
}

/// The flow schemas and priority levels of every cluster. Mandatory ones are what they have to be, and the
/// others as long as their annotation or their generation says that nobody has made them his own.
async fn flow_control(api: &Api) -> Result<(), StatusError> {
    const GROUP: &str = "flowcontrol.apiserver.k8s.io";
    let bootstrap = flow_control_objects();
    for (plural, kind) in [
        ("prioritylevelconfigurations", "PriorityLevelConfiguration"),
        ("flowschemas", "FlowSchema"),
    ] {
        let resource = known(GROUP, plural)?;
        let mut existing: BTreeMap<String, Value> = BTreeMap::new();
        for object in api.list_all(resource, "").await? {
            existing.insert(object::name(&object).to_owned(), object);
        }
        for wanted in bootstrap.iter().filter(|object| object["kind"] == kind) {
            let name = object::name(wanted);
            match existing.remove(name) {
                None => api.ensure(resource, wanted.clone()).await?,
                Some(current) if revised(&current, wanted).is_some() => {
                    let written = api.amend(resource, "", name, |current| {
                        if let Some(revised) = revised(current, wanted) {
                            *current = revised;
                        }
                        Ok(())
                    });
                    match written.await {
                        Err(error) if error.code != 404 => return Err(error),
                        _ => tracing::info!(kind, name, "restored what every cluster has"),
                    }
                }
                Some(_) => {}
            }
        }
        // what an earlier version had
        for (name, _) in existing.iter().filter(|(_, object)| updates_itself(object) == Some(true))
        {
            let options = DeleteOptions::default();
            match api.delete(&User::apiserver(), resource, "", name, &options).await {
                Err(error) if error.code != 404 => return Err(error),
                _ => tracing::info!(kind, name, "deleted what clusters no longer have"),
            }
        }
    }
    Ok(())
}

/// Whether an object's annotation says that it follows the version of the server; `None`: it does not say.
fn updates_itself(object: &Value) -> Option<bool> {
    match object["metadata"]["annotations"][AUTOUPDATE].as_str()? {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// A schema or level with the spec and the annotation that it has to have; `None`: it has them.
fn revised(current: &Value, wanted: &Value) -> Option<Value> {
    let name = object::name(wanted);
    // without a word about it, one that was never changed
    let is_untouched = || current["metadata"]["generation"] == 1;
    let updates =
        matches!(name, EXEMPT | CATCH_ALL) || updates_itself(current).unwrap_or_else(is_untouched);
    let mut expected = wanted["spec"].clone();
    if name == EXEMPT && !current["spec"]["exempt"].is_null() {
        // how many seats it lends is for administrators to say
        expected["exempt"] = current["spec"]["exempt"].clone();
    }
    let has_spec = !updates || same(&current["spec"], &expected);
    if has_spec && updates_itself(current) == Some(updates) {
        return None;
    }
    let mut revised = current.clone();
    if !has_spec {
        revised["spec"] = wanted["spec"].clone();
    }
    let metadata = object::metadata_mut(&mut revised);
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    annotations[AUTOUPDATE] = updates.to_string().into();
    Some(revised)
}

/// What other servers need to verify clients, and front proxies, as this one does: the data of the
/// config map `extension-apiserver-authentication`.
pub(crate) fn authentication_data(
    client_ca: &Path,
    front_proxy: Option<&FrontProxyConfig>,
) -> pki::Result<Map<String, Value>> {
    let mut data = Map::new();
    let mut put = |key: &str, value: String| drop(data.insert(key.to_owned(), value.into()));
    put("client-ca-file", pki::read_authority(client_ca)?);
    if let Some(known) = front_proxy {
        put("requestheader-client-ca-file", pki::read_authority(&known.ca_file)?);
        for (key, list) in [
            ("requestheader-allowed-names", &known.headers.allowed_names),
            ("requestheader-username-headers", &known.headers.username_headers),
            ("requestheader-uid-headers", &known.headers.uid_headers),
            ("requestheader-group-headers", &known.headers.group_headers),
            ("requestheader-extra-headers-prefix", &known.headers.extra_prefixes),
        ] {
            put(key, json!(list).to_string());
        }
    }
    Ok(data)
}

async fn authentication(api: &Api) -> Result<(), StatusError> {
    const MAP: &str = "extension-apiserver-authentication";
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": MAP, "namespace": "kube-system"},
        "data": api.authentication_data,
    });
    api.ensure(core("configmaps")?, map).await?;
    api.amend(core("configmaps")?, "kube-system", MAP, |map| {
        let joined = joined(&map["data"], &api.authentication_data);
        map["data"] = joined.into();
        Ok(())
    })
    .await
    .map(drop)
}

/// What the servers of a cluster verify clients with: each of them adds its own to what the others have
/// written, as upstream's do.
fn joined(known: &Value, own: &Map<String, Value>) -> Map<String, Value> {
    let mut joined = known.as_object().cloned().unwrap_or_default();
    for (key, own) in own {
        let before = joined.get(key).map(text).unwrap_or_default();
        let value = match key.ends_with("-ca-file") {
            true => pki::joined_authorities(before, text(own)),
            false => {
                let list =
                    |json: &str| serde_json::from_str::<Vec<Value>>(json).unwrap_or_default();
                let mut all = list(before);
                for name in list(text(own)) {
                    if !all.contains(&name) {
                        all.push(name);
                    }
                }
                json!(all).to_string()
            }
        };
        joined.insert(key.clone(), value.into());
    }
    joined
}

/// The first address of the first range of services.
fn address(api: &Api) -> String {
    api.services.configured().primary().address(0).to_string()
}

async fn service(api: &Api) -> Result<(), StatusError> {
    let services = core("services")?;
    if api.registry.find(services, "default", NAME).await?.is_some() {
        return Ok(());
    }
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address(api),
            "ports": [{
                "name": "https",
                "port": 443,
                "protocol": "TCP",
                "targetPort": api.advertised.port(),
            }],
            "sessionAffinity": "None",
        },
    });
    api.ensure_service(service).await
}

/// Makes the object, or gives these fields of the existing one the values that they should have.
pub(super) async fn settle(
    api: &Api,
    resource: &Resource,
    object: Value,
    fields: &[&str],
) -> Result<(), StatusError> {
    api.ensure(resource, object.clone()).await?;
    let (namespace, name) = (object::namespace(&object), object::name(&object));
    api.amend(resource, namespace, name, |existing| {
        for field in fields {
            existing[*field] = object[*field].clone();
        }
        Ok(())
    })
    .await
    .map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn authentication_data_of_servers_are_joined() {
        let certificate = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            rcgen::CertificateParams::new(vec![name.to_owned()])
                .unwrap()
                .self_signed(&key)
                .unwrap()
                .pem()
        };
        let (first, second) = (certificate("first"), certificate("second"));
        let data = |ca: &str, names: &str| json!({"client-ca-file": ca, "requestheader-allowed-names": names});
        let own = data(&second, "[\"b\",\"a\"]");
        let own = own.as_object().unwrap();
        let joined_once = joined(&data(&first, "[\"a\"]"), own);
        let certificates = text(&joined_once["client-ca-file"]);
        let count = certificates.matches("BEGIN CERTIFICATE").count();
        assert_eq!((count, certificates.starts_with(first.trim_end())), (2, true));
        assert_eq!(joined_once["requestheader-allowed-names"], "[\"a\",\"b\"]");
        let again = joined(&Value::Object(joined_once.clone()), own);
        assert_eq!(again, joined_once, "nothing more to add");
        let other = joined(&json!({"client-ca-file": "no PEM", "other": "x"}), own);
        assert_eq!(
            (&other["client-ca-file"], &other["other"]),
            (&json!(second.replace("\r", "")), &json!("x"))
        );
    }

    #[test]
    fn flow_control_objects_are_restored_unless_somebody_owns_them() {
        let wanted = |name: &str| json!({"metadata": {"name": name}, "spec": {"limited": {"nominalConcurrencyShares": 20}}});
        let current = |name: &str, shares: i64, annotation: Value, generation: i64| {
            let annotations = json!({AUTOUPDATE: annotation, "own": "x"});
            json!({
                "metadata": {"name": name, "annotations": annotations, "generation": generation},
                "spec": {"limited": {"nominalConcurrencyShares": shares}},
            })
        };
        for (name, shares, annotation, generation, expected) in [
            ("low", 20, json!("true"), 1, None),
            ("low", 99, json!("true"), 5, Some((20, "true"))),
            ("low", 99, json!("false"), 1, None),
            ("low", 99, Value::Null, 1, Some((20, "true"))),
            ("low", 99, Value::Null, 2, Some((99, "false"))),
            ("low", 99, json!("perhaps"), 2, Some((99, "false"))),
            (CATCH_ALL, 99, json!("false"), 2, Some((20, "true"))),
            (CATCH_ALL, 20, json!("false"), 2, Some((20, "true"))),
        ] {
            let current = current(name, shares, annotation, generation);
            let found = revised(&current, &wanted(name)).map(|object| {
                assert_eq!(object["metadata"]["annotations"]["own"], "x");
                let annotation = object["metadata"]["annotations"][AUTOUPDATE].clone();
                (object["spec"]["limited"]["nominalConcurrencyShares"].clone(), annotation)
            });
            let expected = expected.map(|(shares, annotation)| (json!(shares), json!(annotation)));
            assert_eq!(found, expected, "{current}");
        }
        let wanted = json!({"metadata": {"name": EXEMPT}, "spec": {
            "type": "Exempt", "exempt": {"nominalConcurrencyShares": 0}}});
        let mut own = wanted.clone();
        own["metadata"]["annotations"] = json!({AUTOUPDATE: "true"});
        own["spec"]["exempt"]["nominalConcurrencyShares"] = 7.into();
        assert_eq!(revised(&own, &wanted), None);
    }
}
