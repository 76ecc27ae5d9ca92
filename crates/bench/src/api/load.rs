//! What clients do.
use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use hyper::Request;
use kube::Client;
use serde_json::{Value, json};

pub(super) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
/// The name that the policy refuses.
const REFUSED: &str = "refused";
/// How long an event may take.
const LATE: Duration = Duration::from_secs(30);

/// Sends a request and reads its answer to the end.
pub(super) async fn send(
    client: &Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<String> {
    let type_ = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(hyper::header::CONTENT_TYPE, type_)
        .body(body)?;
    client.request_text(request).await.with_context(|| format!("{method} {path}"))
}

/// Does something for each number, one after the other in each client; gives the seconds it took.
pub(super) async fn for_each<F: Future<Output = Result<()>>>(
    clients: &[Client],
    count: usize,
    request: impl Fn(Client, usize) -> F,
) -> Result<f64> {
    let (began, next) = (Instant::now(), Cell::new(0));
    let work = clients.iter().map(|client| async {
        while next.get() < count {
            let number = next.replace(next.get() + 1);
            request(client.clone(), number).await?;
        }
        Ok::<_, anyhow::Error>(())
    });
    futures::future::try_join_all(work).await?;
    Ok(began.elapsed().as_secs_f64())
}

/// A config map of one KiB.
fn map(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"text": "x".repeat(1024)},
    })
}

pub(super) async fn create_map(client: &Client, name: &str) -> Result<()> {
    send(client, "POST", MAPS, Some(&map(name))).await.map(drop)
}

/// A pod as a deployment makes it, on a node.
pub(super) async fn create_pod(client: &Client, number: usize) -> Result<()> {
    let variables: Vec<Value> =
        (0..5).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "a value"})).collect();
    let probe = json!({"httpGet": {"path": "/healthz", "port": 80}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("web-5d59d67564-{number:05}"),
            "labels": {"app": format!("app-{}", number % 100), "pod-template-hash": "5d59d67564"},
        },
        "spec": {
            "nodeName": format!("node-{}", number % 1000),
            "containers": [{
                "name": "web", "image": "registry.example/web:1.0", "env": variables,
                "ports": [{"containerPort": 80}], "readinessProbe": probe, "livenessProbe": probe,
                "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}},
            }],
        },
    });
    send(client, "POST", PODS, Some(&pod)).await.map(drop)
}

pub(super) async fn create_lease(client: &Client, number: usize) -> Result<()> {
    let name = format!("node-{number}");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40},
    });
    send(client, "POST", LEASES, Some(&lease)).await.map(drop)
}

/// Creates what upstream makes only a moment after it is ready, and the service account of pods, which a
/// controller would make.
pub(super) async fn create_namespaces(client: &Client) -> Result<()> {
    let namespace =
        |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"},
        "automountServiceAccountToken": false,
    });
    let wanted = [
        ("/api/v1/namespaces", namespace("default")),
        ("/api/v1/namespaces", namespace("kube-node-lease")),
        ("/api/v1/namespaces/default/serviceaccounts", account),
    ];
    for (path, object) in wanted {
        match send(client, "POST", path, Some(&object)).await {
            Err(error) if !format!("{error:#}").contains("already exists") => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Makes a policy that looks at each config map, and waits until it has effect.
pub(super) async fn create_policy(client: &Client) -> Result<()> {
    let meta = json!({"name": "bench"});
    let rules = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps"],
    }]);
    let checks = json!([
        {"expression": format!("object.metadata.name != '{REFUSED}'")},
        {"expression": "object.data.all(key, key.size() < 64 && object.data[key].size() < 4096)"},
    ]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": meta,
        "spec": {"matchConstraints": {"resourceRules": rules}, "validations": checks},
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": meta,
        "spec": {"policyName": "bench", "validationActions": ["Deny"]},
    });
    send(client, "POST", POLICIES, Some(&policy)).await?;
    send(client, "POST", BINDINGS, Some(&binding)).await?;
    let (began, path) = (Instant::now(), format!("{MAPS}?dryRun=All"));
    while send(client, "POST", &path, Some(&map(REFUSED))).await.is_ok() {
        if began.elapsed() > LATE {
            bail!("the policy has no effect");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Changes a config map again and again.
pub(super) async fn change_map(client: &Client, name: &str, number: usize) -> Result<()> {
    let body = json!({"data": {"number": number.to_string()}});
    send(client, "PATCH", &format!("{MAPS}/{name}"), Some(&body)).await.map(drop)
}

/// The version of the list of config maps.
pub(super) async fn version(client: &Client) -> Result<String> {
    let list: Value =
        serde_json::from_str(&send(client, "GET", &format!("{MAPS}?limit=1"), None).await?)?;
    Ok(list["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?.to_owned())
}

/// Watches config maps from a version on until so many events have come; gives when each came.
pub(super) async fn watch(client: Client, version: String, events: usize) -> Result<Vec<Instant>> {
    let path = format!("{MAPS}?watch=1&resourceVersion={version}");
    let stream = client.request_stream(Request::get(path).body(Vec::new())?).await?;
    let lines = stream.lines().take(events).map(|line| {
        let line = line?;
        match line.starts_with(r#"{"type":"ERROR""#) {
            true => bail!("watch: {line}"),
            false => Ok(Instant::now()),
        }
    });
    tokio::time::timeout(LATE.saturating_mul(4), lines.try_collect()).await.context("watch")?
}
