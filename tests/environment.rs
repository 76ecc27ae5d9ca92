//! Environment variables of containers: services, and values from objects and files.

use crate::common;

use common::{Cluster, FOREVER, container, script};
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

async fn create<K>(cluster: &Cluster, object: Value) -> K
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    K: serde::de::DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), "default");
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.expect("it is taken")
}

/// The termination message of the container `c`.
async fn termination_message(cluster: &Cluster, name: &str) -> String {
    let pod = cluster
        .until(name, "ended", |pod| match common::phase(pod) {
            "Succeeded" => Ok(()),
            other => Err(format!("{other}: {:?}", pod.status)),
        })
        .await;
    let mut statuses = pod.status.unwrap().container_statuses.unwrap();
    statuses.remove(0).state.unwrap().terminated.unwrap().message.unwrap_or_default()
}

fn once(text: &str) -> Value {
    let mut spec = script(text);
    spec["restartPolicy"] = json!("Never");
    spec
}

#[tokio::test]
async fn environment_has_service_variables() {
    let cluster = Cluster::start().await;
    let ports = json!([{"name": "http", "port": 80}]);
    let service: Service =
        create(&cluster, json!({"metadata": {"name": "my-web"}, "spec": {"ports": ports}})).await;
    let address = service.spec.unwrap().cluster_ip.unwrap();
    let master: Service =
        Api::namespaced(cluster.client.clone(), "default").get("kubernetes").await.unwrap();
    let master = master.spec.unwrap().cluster_ip.unwrap();

    let script = "echo -n $KUBERNETES_SERVICE_HOST $MY_WEB_PORT_80_TCP_ADDR $URL $MY_WEB_SERVICE_PORT \
                > /dev/termination-log";
    let mut spec = once(script);
    spec["containers"][0]["env"] = json!([
        {"name": "URL", "value": "http://$(MY_WEB_SERVICE_HOST):$(MY_WEB_SERVICE_PORT)/$(NONE)"},
        {"name": "MY_WEB_SERVICE_PORT", "value": "own"},
    ]);
    // The service may reach the node after a pod.
    let expected = format!("{master} {address} http://{address}:80/$(NONE) own");
    let mut message = String::new();
    for attempt in 0..20 {
        let name = format!("linked-{attempt}");
        cluster.create(&name, spec.clone()).await;
        message = termination_message(&cluster, &name).await;
        if message == expected {
            break;
        }
    }
    assert_eq!(message, expected);
    spec["enableServiceLinks"] = json!(false);
    cluster.create("unlinked", spec).await;
    let expected = "http://$(MY_WEB_SERVICE_HOST):$(MY_WEB_SERVICE_PORT)/$(NONE) own";
    assert_eq!(termination_message(&cluster, "unlinked").await, format!("{master} {expected}"));
    cluster.host.assert_clean();
}

#[tokio::test]
async fn environment_waits_for_missing_keys() {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    let from = json!({"secretKeyRef": {"name": "late", "key": "k"}});
    spec["containers"][0]["env"] = json!([{"name": "K", "valueFrom": from}]);
    cluster.create("patient", spec).await;
    let waits_for = async |message: &str| {
        cluster
            .until("patient", message, |pod| {
                let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.clone());
                let waiting = statuses.and_then(|all| all.first()?.state.clone()?.waiting);
                let waiting = waiting.ok_or("not waiting")?;
                let found = (waiting.reason.as_deref(), waiting.message.as_deref());
                match found == (Some("CreateContainerConfigError"), Some(message)) {
                    true => Ok(()),
                    false => Err(format!("{found:?}")),
                }
            })
            .await
    };
    waits_for("secret \"late\" not found").await;
    cluster.until_event("Failed", "Error: secret \"late\" not found").await;
    let metadata = json!({"name": "late"});
    let mut secret: Secret =
        create(&cluster, json!({"metadata": metadata, "stringData": {"other": "x"}})).await;
    waits_for("couldn't find key k in Secret default/late").await;
    secret.string_data = Some([("k".to_owned(), "v".to_owned())].into());
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    secrets.replace("late", &PostParams::default(), &secret).await.unwrap();
    let pod = cluster.until_ready("patient").await;
    assert_eq!(common::run_of(&pod).0, 0, "it has not been restarted");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn environment_from_files_of_init_containers() {
    let cluster = Cluster::start().await;
    let script = "echo -n \"$GREETING|$NONE\" > /dev/termination-log";
    let mut spec = once(script);
    let mount = json!([{"name": "shared", "mountPath": "/shared"}]);
    let write = "echo \"GREETING='hello world' # there\" > /shared/dot.env";
    spec["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    spec["initContainers"] = json!([container("writer", write)]);
    spec["initContainers"][0]["volumeMounts"] = mount;
    let from = |key: &str, optional: bool| {
        let reference =
            json!({"volumeName": "shared", "path": "dot.env", "key": key, "optional": optional});
        json!({"name": key, "valueFrom": {"fileKeyRef": reference}})
    };
    spec["containers"][0]["env"] = json!([from("GREETING", false), from("NONE", true)]);
    cluster.create("reader", spec).await;
    assert_eq!(termination_message(&cluster, "reader").await, "hello world|");
    cluster.host.assert_clean();
}
