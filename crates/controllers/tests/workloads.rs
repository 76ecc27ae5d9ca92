//! The controllers of workloads over a real apiserver, with kubelets that run no containers.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Cluster, eventually};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::{
    ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet,
};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Event, Node, Pod, ReplicationController};
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::{Api, Client, ResourceExt as _};
use longshore_controllers::{Context, Settings, all, program};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const WORKLOADS: [&str; 7] = [
    "replicaset-controller",
    "replicationcontroller-controller",
    "deployment-controller",
    "daemonset-controller",
    "statefulset-controller",
    "job-controller",
    "cronjob-controller",
];

/// Tasks that end with the test.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// A copy of the controllers.
fn controllers(client: &Client) -> Tasks {
    let context = Context::new(client.clone(), Settings::default());
    let chosen = all().into_iter().filter(|one| WORKLOADS.contains(&one.name)).collect();
    Tasks(vec![tokio::spawn(program::run_all(context, chosen))])
}

/// A cluster with a kubelet for all pods, whether they have a node or not.
async fn cluster() -> (Cluster, Tasks) {
    let cluster = Cluster::start(&[], |_| {}).await;
    let kubelet = tokio::spawn(kubelet(cluster.client.clone()));
    (cluster, Tasks(vec![kubelet]))
}

/// Pods of the image `done` succeed, those of `fail` fail, and others are ready a little later.
async fn kubelet(client: Client) {
    let pods: Api<Pod> = Api::all(client.clone());
    loop {
        for pod in pods.list(&ListParams::default()).await.map(|it| it.items).unwrap_or_default() {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let name = pod.metadata.name.clone().unwrap_or_default();
            let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
                continue;
            }
            if matches!(phase.as_deref(), Some("Running" | "Succeeded" | "Failed")) {
                continue;
            }
            let now = Timestamp::now().to_string();
            let image = image(&pod);
            let (phase, ready) = match image.as_str() {
                "done" => ("Succeeded", "False"),
                "fail" => ("Failed", "False"),
                _ => ("Running", "True"),
            };
            let status = json!({"status": {"phase": phase, "conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": now}]}});
            let _ =
                api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn image(pod: &Pod) -> String {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.and_then(|container| container.image.clone()).unwrap_or_default()
}

fn template(app: &str, image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"terminationGracePeriodSeconds": 1, "restartPolicy": "Always",
            "containers": [{"name": "c", "image": image}]},
    })
}

fn deployment(replicas: usize, image: &str) -> Value {
    json!({
        "metadata": {"name": "web", "annotations": {"note": "n"}},
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
            "template": template("web", image),
        },
    })
}

async fn pods(client: &Client, app: &str) -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let labels = ListParams::default().labels(&format!("app={app}"));
    pods.list(&labels).await.unwrap().items
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
}

async fn images(client: &Client, app: &str) -> BTreeMap<String, usize> {
    let mut images = BTreeMap::new();
    for pod in pods(client, app).await {
        *images.entry(image(&pod)).or_default() += 1;
    }
    images
}

async fn set_image<K>(api: &Api<K>, name: &str, image: &str)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
}

fn is_rolled_out(deployment: &Deployment, replicas: i32) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    status.observed_generation == deployment.metadata.generation
        && status.updated_replicas == Some(replicas)
        && status.replicas == Some(replicas)
        && status.available_replicas == Some(replicas)
}

async fn rolled_out(cluster: &Cluster, replicas: i32) -> Deployment {
    let api = cluster.api::<Deployment>("default");
    eventually(
        "a rollout",
        async || api.get("web").await.unwrap(),
        |it| is_rolled_out(it, replicas),
    )
    .await
}

/// How many pods of `web` are ready, after each change of one.
struct Availability {
    fewest: Arc<Mutex<(usize, Vec<String>)>>,
    _tasks: Tasks,
}

impl Availability {
    /// Watches pods, and replica sets to show what was decided when.
    async fn watch(client: &Client) -> Availability {
        let fewest = Arc::new(Mutex::new((usize::MAX, Vec::new())));
        let of_web = ListParams::default().labels("app=web");
        let params = WatchParams::default().labels("app=web");
        let api: Api<Pod> = Api::namespaced(client.clone(), "default");
        let known = api.list(&of_web).await.unwrap();
        let version = known.metadata.resource_version.clone().unwrap();
        let pods = api.watch(&params, &version).await.unwrap();
        let seen = fewest.clone();
        let pods = async move {
            let mut ready: BTreeMap<String, bool> =
                known.items.iter().map(|pod| (pod.name_any(), is_ready(pod))).collect();
            let mut pods = std::pin::pin!(pods);
            while let Some(Ok(event)) = pods.next().await {
                let (kind, pod) = match event {
                    WatchEvent::Added(pod) => ("added", pod),
                    WatchEvent::Modified(pod) => ("modified", pod),
                    WatchEvent::Deleted(pod) => ("deleted", pod),
                    _ => continue,
                };
                ready.insert(pod.name_any(), kind != "deleted" && is_ready(&pod));
                let count = ready.values().filter(|ready| **ready).count();
                let mut seen = seen.lock().unwrap();
                seen.0 = seen.0.min(count);
                seen.1.push(format!(
                    "{} {} {kind} ready={} deleted={}: {count} ready",
                    pod.resource_version().unwrap_or_default(),
                    pod.name_any(),
                    is_ready(&pod),
                    pod.metadata.deletion_timestamp.is_some(),
                ));
            }
        };
        let api: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
        let sets = api.watch(&WatchParams::default(), &version).await.unwrap();
        let seen = fewest.clone();
        let sets = async move {
            let mut sets = std::pin::pin!(sets);
            while let Some(Ok(event)) = sets.next().await {
                if let WatchEvent::Added(set) | WatchEvent::Modified(set) = event {
                    let (spec, status) = (set.spec.clone().unwrap(), set.status.clone());
                    seen.lock().unwrap().1.push(format!(
                        "{} {} wants {:?}, status {:?}",
                        set.resource_version().unwrap_or_default(),
                        set.name_any(),
                        spec.replicas,
                        status.map(|it| (it.replicas, it.available_replicas)),
                    ));
                }
            }
        };
        let tasks = Tasks(vec![tokio::spawn(pods), tokio::spawn(sets)]);
        Availability { fewest, _tasks: tasks }
    }

    fn assert_at_least(&self, count: usize) {
        let seen = self.fewest.lock().unwrap();
        assert!(seen.0 >= count, "{} ready:\n{}", seen.0, seen.1.join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deployment_rolls_out_and_back() {
    let (cluster, _kubelet) = cluster().await;
    let _controllers = controllers(&cluster.client);
    cluster.create::<Deployment>("default", deployment(4, "one")).await;
    rolled_out(&cluster, 4).await;
    let availability = Availability::watch(&cluster.client).await;
    let api = cluster.api::<Deployment>("default");
    set_image(&api, "web", "two").await;
    let deployment = rolled_out(&cluster, 4).await;
    assert_eq!(images(&cluster.client, "web").await, BTreeMap::from([("two".to_owned(), 4)]));
    let annotations = deployment.metadata.annotations.unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "2");
    let progress = deployment.status.unwrap().conditions.unwrap();
    let progress = progress.iter().find(|condition| condition.type_ == "Progressing").unwrap();
    assert_eq!(progress.reason.as_deref(), Some("NewReplicaSetAvailable"));

    // back, as kubectl does it
    set_image(&api, "web", "one").await;
    rolled_out(&cluster, 4).await;
    assert_eq!(images(&cluster.client, "web").await, BTreeMap::from([("one".to_owned(), 4)]));
    // at most one of four is unavailable at any time
    availability.assert_at_least(3);
    let sets = cluster.api::<ReplicaSet>("default").list(&ListParams::default()).await.unwrap();
    let revisions: BTreeSet<_> = sets
        .items
        .iter()
        .map(|set| {
            set.metadata.annotations.clone().unwrap()["deployment.kubernetes.io/revision"].clone()
        })
        .collect();
    assert_eq!(revisions, BTreeSet::from(["2".to_owned(), "3".to_owned()]));
    assert!(sets.items.iter().all(|set| set.metadata.annotations.clone().unwrap()["note"] == "n"));
    let events = async || {
        let events = cluster.api::<Event>("default").list(&ListParams::default()).await.unwrap();
        events.items.iter().filter_map(|event| event.message.clone()).collect::<Vec<_>>()
    };
    eventually("events", events, |messages| {
        let has = |text: &str| messages.iter().any(|message| message.contains(text));
        has("Scaled up replica set web-")
            && has("Scaled down replica set web-")
            && has("Created pod: web-")
    })
    .await;

    let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    rolled_out(&cluster, 1).await;
    let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    eventually("no pods", async || pods(&cluster.client, "web").await.len(), |pods| *pods == 0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deployment_is_finished_by_another_copy() {
    let (cluster, _kubelet) = cluster().await;
    let first = controllers(&cluster.client);
    cluster.create::<Deployment>("default", deployment(6, "one")).await;
    rolled_out(&cluster, 6).await;
    set_image(&cluster.api::<Deployment>("default"), "web", "two").await;
    eventually(
        "a rollout on its way",
        async || images(&cluster.client, "web").await,
        |images| images.get("two").is_some_and(|count| *count >= 2),
    )
    .await;
    drop(first);
    let _second = controllers(&cluster.client);
    rolled_out(&cluster, 6).await;
    assert_eq!(images(&cluster.client, "web").await, BTreeMap::from([("two".to_owned(), 6)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn deployment_recreates_its_pods() {
    let (cluster, _kubelet) = cluster().await;
    let _controllers = controllers(&cluster.client);
    let mut object = deployment(3, "one");
    object["spec"]["strategy"] = json!({"type": "Recreate"});
    cluster.create::<Deployment>("default", object).await;
    rolled_out(&cluster, 3).await;
    set_image(&cluster.api::<Deployment>("default"), "web", "two").await;
    rolled_out(&cluster, 3).await;
    assert_eq!(images(&cluster.client, "web").await, BTreeMap::from([("two".to_owned(), 3)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_adopted_released_and_replaced() {
    let (cluster, _kubelet) = cluster().await;
    let orphan = json!({"metadata": {"name": "orphan", "labels": {"app": "rc"}},
        "spec": template("rc", "one")["spec"]});
    cluster.create::<Pod>("default", orphan).await;
    let _controllers = controllers(&cluster.client);
    let object = json!({
        "metadata": {"name": "rc"},
        "spec": {"replicas": 3, "selector": {"app": "rc"}, "template": template("rc", "one")},
    });
    cluster.create::<ReplicationController>("default", object).await;
    let api = cluster.api::<ReplicationController>("default");
    let ready = async || api.get("rc").await.unwrap().status.unwrap_or_default().ready_replicas;
    eventually("three pods", ready, |ready| *ready == Some(3)).await;
    let all = pods(&cluster.client, "rc").await;
    assert!(all.iter().any(|pod| pod.metadata.name.as_deref() == Some("orphan")), "adopted");
    assert_eq!(all.len(), 3);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    let of_pods = cluster.api::<Pod>("default");
    of_pods.patch("orphan", &PatchParams::default(), &patch).await.unwrap();
    eventually(
        "a release",
        async || of_pods.get("orphan").await.unwrap(),
        |pod| pod.metadata.owner_references.as_ref().is_none_or(Vec::is_empty),
    )
    .await;
    let count = async || pods(&cluster.client, "rc").await.len();
    eventually("a replacement", count, |count| *count == 3).await;
}

fn job(name: &str, image: &str, more: Value) -> Value {
    let mut job = json!({
        "metadata": {"name": name},
        "spec": {
            "parallelism": 2, "completions": 3, "backoffLimit": 0, "completionMode": "NonIndexed",
            "manualSelector": true,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, image),
        },
    });
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    for (key, value) in more.as_object().unwrap() {
        job["spec"][key] = value.clone();
    }
    job
}

fn is_true(job: &Job, kind: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|it| it.type_ == kind && it.status == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_complete_and_fail() {
    let (cluster, _kubelet) = cluster().await;
    let _controllers = controllers(&cluster.client);
    let api = cluster.api::<Job>("default");
    cluster.create::<Job>("default", job("plain", "done", json!({}))).await;
    cluster
        .create::<Job>("default", job("indexed", "done", json!({"completionMode": "Indexed"})))
        .await;
    cluster.create::<Job>("default", job("bad", "fail", json!({}))).await;
    let suspended = job("later", "done", json!({"suspend": true}));
    cluster.create::<Job>("default", suspended).await;
    let finished = async |name: &str, kind: &str| {
        eventually(name, async || api.get(name).await.unwrap(), |job| is_true(job, kind)).await
    };
    let plain = finished("plain", "Complete").await;
    assert!(is_true(&plain, "SuccessCriteriaMet"));
    let status = plain.status.unwrap();
    assert_eq!((status.succeeded, status.failed.unwrap_or_default()), (Some(3), 0));
    assert!(status.completion_time.is_some() && status.start_time.is_some());
    let pods_of_plain = pods(&cluster.client, "plain").await;
    assert_eq!(pods_of_plain.len(), 3);
    eventually(
        "no finalizers",
        async || pods(&cluster.client, "plain").await,
        |pods| pods.iter().all(|pod| pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)),
    )
    .await;
    let indexed = finished("indexed", "Complete").await;
    assert_eq!(indexed.status.unwrap().completed_indexes.as_deref(), Some("0-2"));
    let hosts: BTreeSet<_> = pods(&cluster.client, "indexed")
        .await
        .into_iter()
        .filter_map(|pod| pod.spec.unwrap().hostname)
        .collect();
    assert_eq!(hosts.len(), 3, "{hosts:?}");
    let bad = finished("bad", "Failed").await;
    assert!(is_true(&bad, "FailureTarget"));
    let conditions = bad.status.unwrap().conditions.unwrap();
    let failed = conditions.iter().find(|condition| condition.type_ == "Failed").unwrap();
    assert_eq!(failed.reason.as_deref(), Some("BackoffLimitExceeded"));
    finished("later", "Suspended").await;
    assert!(pods(&cluster.client, "later").await.is_empty());
    let patch = Patch::Merge(json!({"spec": {"suspend": false}}));
    api.patch("later", &PatchParams::default(), &patch).await.unwrap();
    finished("later", "Complete").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cronjobs_start_jobs_that_are_due() {
    let (cluster, _kubelet) = cluster().await;
    let mut template = job("x", "done", json!({"completions": 1}));
    // the apiserver makes those of each job
    let spec = template["spec"].as_object_mut().unwrap();
    spec.remove("selector");
    spec.remove("manualSelector");
    let cron = json!({
        "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Allow",
            "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1, "suspend": false,
            "jobTemplate": {"metadata": {"labels": {"of": "tick"}}, "spec": template["spec"]}},
    });
    cluster.create::<CronJob>("default", cron).await;
    let api = cluster.api::<CronJob>("default");
    let past = Timestamp::from_second(Timestamp::now().as_second() - 180).unwrap().to_string();
    let patch = Patch::Merge(json!({"status": {"lastScheduleTime": past}}));
    api.patch_status("tick", &PatchParams::default(), &patch).await.unwrap();
    let _controllers = controllers(&cluster.client);
    let jobs = cluster.api::<Job>("default");
    let list = async || jobs.list(&ListParams::default()).await.unwrap().items;
    let found = eventually("a finished job", list, |jobs| {
        jobs.first().is_some_and(|job| is_true(job, "Complete"))
    })
    .await;
    let first = found.first().unwrap();
    assert!(first.metadata.name.as_ref().unwrap().starts_with("tick-"));
    assert_eq!(first.metadata.labels.as_ref().unwrap()["of"], "tick");
    eventually(
        "the success",
        async || api.get("tick").await.unwrap(),
        |cron| {
            let status = cron.status.clone().unwrap_or_default();
            status.last_successful_time.is_some()
                && status.active.is_none_or(|active| active.is_empty())
        },
    )
    .await;
}

async fn add_node(client: &Client, name: &str) {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    // what the node lifecycle controller does once the node is ready
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    nodes.patch(name, &PatchParams::default(), &untainted).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn daemonset_has_a_pod_on_each_node_and_rolls() {
    let (cluster, _kubelet) = cluster().await;
    let _controllers = controllers(&cluster.client);
    for name in ["n1", "n2", "n3"] {
        add_node(&cluster.client, name).await;
    }
    let object = json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "revisionHistoryLimit": 10,
            "updateStrategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "template": template("agent", "one"),
        },
    });
    cluster.create::<DaemonSet>("default", object).await;
    let api = cluster.api::<DaemonSet>("default");
    let status = async || {
        let set = api.get("agent").await.unwrap();
        let status = set.status.unwrap_or_default();
        let updated = status.updated_number_scheduled.unwrap_or_default();
        (set.metadata.generation == status.observed_generation, updated, status.number_ready)
    };
    eventually("three pods", status, |status| *status == (true, 3, 3)).await;
    add_node(&cluster.client, "n4").await;
    eventually("four pods", status, |status| *status == (true, 4, 4)).await;
    let bound: BTreeSet<String> = pods(&cluster.client, "agent")
        .await
        .into_iter()
        .map(|pod| serde_json::to_value(pod.spec.unwrap().affinity).unwrap().to_string())
        .collect();
    assert_eq!(bound.len(), 4, "each is bound to another node");
    set_image(&api, "agent", "two").await;
    eventually("the update", status, |status| *status == (true, 4, 4)).await;
    eventually(
        "new pods",
        async || images(&cluster.client, "agent").await,
        |images| *images == BTreeMap::from([("two".to_owned(), 4)]),
    )
    .await;
    let revisions = cluster.names::<ControllerRevision>("default").await;
    assert_eq!(revisions.len(), 2, "{revisions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn statefulset_is_in_order() {
    let (cluster, _kubelet) = cluster().await;
    let _controllers = controllers(&cluster.client);
    let object = json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 3, "serviceName": "db", "podManagementPolicy": "OrderedReady",
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "db"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "template": template("db", "one"),
        },
    });
    cluster.create::<StatefulSet>("default", object).await;
    let api = cluster.api::<StatefulSet>("default");
    let ready = async || {
        let status = api.get("db").await.unwrap().status.unwrap_or_default();
        (status.ready_replicas.unwrap_or_default(), status.current_replicas.unwrap_or_default())
    };
    eventually("three pods", ready, |status| *status == (3, 3)).await;
    let mut created: Vec<(u64, String)> = pods(&cluster.client, "db")
        .await
        .into_iter()
        .map(|pod| {
            let ready = pod.metadata.resource_version.unwrap().parse().unwrap();
            (ready, pod.metadata.name.unwrap())
        })
        .collect();
    created.sort();
    let names: Vec<_> = created.into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["db-0", "db-1", "db-2"], "each was ready before the next was made");
    set_image(&api, "db", "two").await;
    eventually(
        "the update",
        async || api.get("db").await.unwrap(),
        |set| {
            let status = set.status.clone().unwrap_or_default();
            status.current_revision == status.update_revision
                && status.updated_replicas == Some(3)
                && status.observed_generation == set.metadata.generation
        },
    )
    .await;
    assert_eq!(images(&cluster.client, "db").await, BTreeMap::from([("two".to_owned(), 3)]));
    let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
    api.patch("db", &PatchParams::default(), &patch).await.unwrap();
    let names = async || {
        pods(&cluster.client, "db")
            .await
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect::<Vec<_>>()
    };
    eventually("one pod", names, |names| *names == ["db-0"]).await;
}
