//! Tours of the API with clients that others wrote: every verb over one object of every kind
//! (`data/objects.yaml`), and what else each client offers. `kube` always goes; Python's and JavaScript's clients
//! where their packages are: `kubernetes` for the Python of `TOUR_PYTHON` (or `python3`), and
//! `@kubernetes/client-node` in a folder of `NODE_PATH`. `scripts/fetch-clients.sh` gets both.

use crate::common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Cluster, eventually};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::core::params::ValidationDirective;
use kube::discovery::{Discovery, Scope, verbs};
use serde_json::{Value, json};

const NAMESPACE: &str = "default";

async fn cluster() -> Cluster {
    Cluster::start_with(|config| {
        config.compaction_interval = Duration::from_secs(1);
        // that of the service in the file
        config.service_ranges = "10.202.0.0/16".parse().unwrap();
    })
    .await
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Whether a program ends with success.
fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Runs a tour in another language on a cluster of its own.
async fn tour(mut command: Command, script: &str) {
    let cluster = cluster().await;
    command.arg(tests().join("tours").join(script)).arg(cluster.kubeconfig());
    command.arg(tests().join("data/objects.yaml"));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{text}");
    println!("{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tour_of_pythons_client() {
    let python = std::env::var_os("TOUR_PYTHON").unwrap_or_else(|| "python3".into());
    if !succeeds(Command::new(&python).args(["-c", "import kubernetes, yaml"])) {
        eprintln!("SKIPPED: no Python with the package kubernetes (scripts/fetch-clients.sh)");
        return;
    }
    tour(Command::new(python), "tour.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tour_of_javascripts_client() {
    let find = "require.resolve('@kubernetes/client-node')";
    if !succeeds(Command::new("node").args(["-e", find])) {
        eprintln!("SKIPPED: no @kubernetes/client-node in NODE_PATH (scripts/fetch-clients.sh)");
        return;
    }
    tour(Command::new("node"), "tour.mjs").await;
}

/// The page at `/openapi/ui` in a browser, as one that the server knows without credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tour_of_the_api_browser() {
    if !succeeds(Command::new("chromium").arg("--version")) {
        eprintln!("SKIPPED: no chromium");
        return;
    }
    let cluster = Cluster::start_with(|config| {
        config.authorization = vec![longshore_apiserver::Mode::AlwaysAllow].into();
    })
    .await;
    let profile = tempfile::tempdir().unwrap();
    let mut browser = Command::new("chromium");
    browser
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--ignore-certificate-errors", "--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("https://{}/openapi/ui#apis/apps/v1", cluster.address));
    let output = common::outside(&mut browser);
    let page = String::from_utf8_lossy(&output.stdout);
    for text in [
        // the groups, the paths and the schemas of one of them
        "title=\"apis/batch/v1\"",
        "<code>/apis/apps/v1/namespaces/{namespace}/deployments</code>",
        "<code>io.k8s.api.apps.v1.Deployment</code>",
        " documents</span>",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

/// What goes wrong in a tour; it goes on.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    /// The result of a step, if it is one.
    fn of<T>(&mut self, what: &str, result: Result<T, kube::Error>) -> Option<T> {
        result.map_err(|error| self.0.push(format!("{what}: {error:?}"))).ok()
    }

    fn check(&mut self, what: &str, holds: bool) {
        if !holds {
            self.0.push(what.to_owned());
        }
    }

    /// The step must be refused with that code and reason.
    fn refused<T>(&mut self, what: &str, result: Result<T, kube::Error>, code: u16, reason: &str) {
        match result {
            Err(kube::Error::Api(status)) if status.code == code && status.reason == reason => {}
            Err(error) => self.0.push(format!("{what}: not {code} {reason}: {error:?}")),
            Ok(_) => self.0.push(format!("{what}: not refused with {code} {reason}")),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tour_of_rusts_client_over_every_kind() {
    let cluster = cluster().await;
    let client = cluster.admin.0.clone();
    let discovery = Discovery::new(client.clone()).run_aggregated().await.unwrap();
    let plain = Discovery::new(client.clone()).run().await.unwrap();
    let kinds = |discovery: &Discovery| -> BTreeSet<String> {
        let groups = discovery.groups().flat_map(|group| {
            group.versions().flat_map(|version| group.versioned_resources(version))
        });
        let described = groups.map(|(resource, capabilities)| {
            let subresources = capabilities.subresources.iter();
            let below: Vec<_> =
                subresources.map(|(own, can)| (&own.plural, &own.kind, &can.operations)).collect();
            format!("{resource:?} {:?} {:?} {below:?}", capabilities.scope, capabilities.operations)
        });
        described.collect()
    };
    assert_eq!(kinds(&discovery), kinds(&plain), "both kinds of discovery say the same");
    let mut failures = Failures::default();
    let mut count = 0;
    for text in include_str!("data/objects.yaml").split("\n---\n") {
        let document: Value = serde_saphyr::from_str(text).unwrap();
        let (version, kind) = (document["apiVersion"].as_str(), document["kind"].as_str());
        let (version, kind) = (version.unwrap(), kind.unwrap());
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let gvk = kube::api::GroupVersionKind::gvk(group, version, kind);
        let Some((resource, capabilities)) = discovery.resolve_gvk(&gvk) else { continue };
        if !capabilities.supports_operation(verbs::GET) {
            continue;
        }
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Namespaced => Api::namespaced_with(client.clone(), NAMESPACE, &resource),
            Scope::Cluster => Api::all_with(client.clone(), &resource),
        };
        tour_kind(&api, &cluster, document, &mut failures).await;
        count += 1;
    }
    assert!(failures.0.is_empty(), "{}", failures.0.join("\n"));
    assert!(count > 55, "{count} kinds");
}

async fn tour_kind(
    api: &Api<DynamicObject>,
    cluster: &Cluster,
    document: Value,
    failures: &mut Failures,
) {
    let kind = format!("{} {}", document["apiVersion"], document["kind"]);
    let at = |what: &str| format!("{kind}: {what}");
    let head = json!({"apiVersion": document["apiVersion"], "kind": document["kind"]});
    let object: DynamicObject = serde_json::from_value(document).unwrap();
    let Some(name) = object.metadata.name.clone() else { return };
    let post = PostParams { field_manager: Some("tour".to_owned()), ..PostParams::default() };
    let dry = PostParams { dry_run: true, ..post.clone() };
    if failures.of(&at("create (dry run)"), api.create(&dry, &object).await).is_none() {
        return;
    }
    failures.refused(&at("nothing is stored"), api.get(&name).await, 404, "NotFound");
    let Some(created) = failures.of(&at("create"), api.create(&post, &object).await) else {
        return;
    };
    // an address that a service asks for is looked at first
    let (code, reason) = match object.data["spec"]["clusterIP"].as_str() {
        None | Some("None") => (409, "AlreadyExists"),
        Some(_) => (422, "Invalid"),
    };
    failures.refused(&at("create again"), api.create(&post, &object).await, code, reason);
    if let Some(read) = failures.of(&at("get"), api.get(&name).await) {
        failures.check(&at("another UID"), read.metadata.uid == created.metadata.uid);
    }
    if let Some(read) = failures.of(&at("metadata"), api.get_metadata(&name).await) {
        failures.check(&at("metadata's UID"), read.metadata.uid == created.metadata.uid);
    }
    let one = ListParams::default().fields(&format!("metadata.name={name}"));
    let revision = match failures.of(&at("list"), api.list(&one).await) {
        Some(list) => {
            failures.check(&at("one is listed"), list.items.len() == 1);
            list.metadata.resource_version.unwrap_or_default()
        }
        None => "0".to_owned(),
    };
    let labels = |name: &str| json!({"metadata": {"labels": {name: "yes"}}});
    let mut applied = head.clone();
    applied["metadata"] = json!({"name": name, "labels": {"applied": "yes"}});
    let json_patch = json!([{"op": "add", "path": "/metadata/labels/added", "value": "yes"}]);
    let by = PatchParams::apply("other");
    let patches = [
        ("merged", PatchParams::default(), Patch::Merge(labels("merged"))),
        ("strategic", PatchParams::default(), Patch::Strategic(labels("strategic"))),
        ("added", PatchParams::default(), Patch::Json(serde_json::from_value(json_patch).unwrap())),
        ("applied", by.force(), Patch::Apply(applied)),
    ];
    for (label, params, patch) in patches {
        let patched = api.patch(&name, &params, &patch).await;
        if let Some(patched) = failures.of(&at(&format!("patch {label}")), patched) {
            let labels = patched.metadata.labels.unwrap_or_default();
            failures.check(&at(label), labels.get(label).is_some_and(|value| value == "yes"));
        }
    }
    let watch = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(5);
    match failures.of(&at("watch"), api.watch(&watch, &revision).await) {
        Some(events) => {
            let first = events.boxed().try_next().await;
            let is_change = matches!(first, Ok(Some(WatchEvent::Modified(_))));
            failures.check(&at(&format!("the event {first:?}")), is_change);
        }
        None => return,
    }
    if let Some(mut own) = failures.of(&at("get for replace"), api.get(&name).await) {
        let stale = own.clone();
        // the server writes conditions of some kinds at the same time
        for _ in 0..20 {
            let annotations = own.metadata.annotations.get_or_insert_default();
            annotations.insert("tour".into(), "replaced".into());
            match api.replace(&name, &post, &own).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    own = api.get(&name).await.unwrap();
                }
                replaced => {
                    failures.of(&at("replace"), replaced);
                    break;
                }
            }
        }
        let late = api.replace(&name, &post, &stale).await;
        // annotations of the two differ, so that it is a change
        failures.refused(&at("replace what is stale"), late, 409, "Conflict");
    }
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    failures.of(&at("finalizers"), api.patch(&name, &PatchParams::default(), &none).await);
    let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
    failures.of(&at("delete (dry run)"), api.delete(&name, &dry).await);
    failures.of(&at("it is still there"), api.get(&name).await);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    failures.of(&at("delete"), api.delete(&name, &now).await);
    if kind.ends_with("\"Namespace\"") {
        let body = json!({"metadata": {"name": name}, "spec": {"finalizers": []}});
        let path = format!("/api/v1/namespaces/{name}/finalize");
        assert_eq!(cluster.admin.call("PUT", &path, Some(body)).await.0, 200);
    } else if api.get(&name).await.is_ok() {
        // what protects objects in use gives its finalizer at their creation
        let _ = api.patch(&name, &PatchParams::default(), &none).await;
    }
    failures.refused(&at("it is gone"), api.get(&name).await, 404, "NotFound");
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tour_of_rusts_client_over_subresources_and_pages() {
    let cluster = cluster().await;
    let client = cluster.admin.0.clone();
    let post = PostParams::default();

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    for i in 0..5 {
        let map = json!({"metadata": {"name": format!("page-{i}"), "labels": {"tour": "pages"}}});
        maps.create(&post, &typed(map)).await.unwrap();
    }
    let pages = ListParams::default().labels("tour=pages").limit(2);
    let first = maps.list(&pages).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (2, None));
    let token = first.metadata.continue_.clone().unwrap();
    let second = maps.list(&pages.clone().continue_token(&token)).await.unwrap();
    assert_eq!(second.items[0].metadata.name.as_deref(), Some("page-2"));
    // until the revision is compacted
    eventually("compaction", async || {
        let change =
            Patch::Merge(json!({"data": {"a": format!("{:?}", std::time::Instant::now())}}));
        maps.patch("page-0", &PatchParams::default(), &change).await.unwrap();
        matches!(
            maps.list(&pages.clone().continue_token(&token)).await,
            Err(kube::Error::Api(status)) if status.code == 410 && status.reason == "Expired"
        )
    })
    .await;
    let validated = PostParams::default();
    let unknown: DynamicObject = typed(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "dat": {}}),
    );
    let resource = kube::api::ApiResource::erase::<ConfigMap>(&());
    let dynamic: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let strict = PatchParams {
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply("tour")
    };
    let refused = dynamic.patch("x", &strict, &Patch::Apply(&unknown)).await.unwrap_err();
    assert!(refused.to_string().contains("dat"), "{refused}");
    let deleted = maps.delete_collection(&DeleteParams::default(), &pages).await.unwrap();
    assert!(deleted.is_left() || deleted.is_right());

    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]}});
    let deployment = json!({"metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    deployments.create(&validated, &typed(deployment)).await.unwrap();
    let scale = deployments.get_scale("web").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(1));
    let three = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let scale = deployments.patch_scale("web", &PatchParams::default(), &three).await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    let status = Patch::Merge(json!({"status": {"replicas": 2}}));
    let changed = deployments.patch_status("web", &PatchParams::default(), &status).await.unwrap();
    assert_eq!(changed.status.unwrap().replicas, Some(2));
    deployments.restart("web").await.unwrap();

    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&post, &typed(json!({"metadata": {"name": "n9"}}))).await.unwrap();
    nodes.cordon("n9").await.unwrap();
    assert_eq!(nodes.get("n9").await.unwrap().spec.unwrap().unschedulable, Some(true));
    nodes.uncordon("n9").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]}});
    pods.create(&post, &typed(pod)).await.unwrap();
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "busybox"}]}});
    let params = PatchParams::default();
    let changed =
        pods.patch_ephemeral_containers("p", &params, &Patch::Strategic(debug)).await.unwrap();
    assert_eq!(changed.spec.unwrap().ephemeral_containers.unwrap()[0].name, "d");
    pods.evict("p", &kube::api::EvictParams::default()).await.unwrap();
    assert!(pods.get_opt("p").await.unwrap().is_none(), "a pod on no node is gone at once");
}
