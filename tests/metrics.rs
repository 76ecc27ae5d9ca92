//! Metrics of the node, as Prometheus scrapes them: they follow the pods, have a valid format, and
//! include what the dashboards and alerts of the kubernetes-mixin query.

use crate::common;

use axum::http::Request;
use common::{Cluster, FOREVER, TIMEOUT, run_of, script};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use longshore_metrics::parse::{Page, parse};
use longshore_testkit::wait_until;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Head and body of an answer of the read-only port.
async fn get(cluster: &Cluster, path: &str) -> (String, String) {
    let mut connection = TcpStream::connect((cluster.host.node_ip(), 10255)).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: node\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    (head.to_lowercase(), body.to_owned())
}

async fn scrape(cluster: &Cluster, path: &str) -> Page {
    let (head, body) = get(cluster, path).await;
    assert!(head.starts_with("http/1.0 200"), "{path}: {head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{path}: {head}");
    parse(&body).unwrap_or_else(|error| panic!("{path}: {error}\n{body}"))
}

/// Until the page at `path` says so.
async fn until_metrics(
    cluster: &Cluster,
    path: &str,
    what: &str,
    check: impl Fn(&Page) -> Result<(), String>,
) -> Page {
    wait_until(TIMEOUT, what, async || {
        let page = scrape(cluster, path).await;
        check(&page).map(|()| page)
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn at_least(page: &Page, name: &str, labels: &[(&str, &str)], least: f64) {
    let found = page.sum(name, labels);
    assert!(found.is_some_and(|found| found >= least), "{name} {labels:?}: {found:?}");
}

/// A pod that is ready, with a probe and two volumes.
fn web() -> Value {
    let mut spec = script(FOREVER);
    spec["volumes"] = json!([{"name": "own", "emptyDir": {}}, {"name": "info", "downwardAPI": {}}]);
    spec["containers"][0]["volumeMounts"] =
        json!([{"name": "own", "mountPath": "/own"}, {"name": "info", "mountPath": "/info"}]);
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    spec["containers"][0]["readinessProbe"] = probe;
    spec["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1000});
    spec
}

/// A pod whose image cannot be pulled, with a volume that cannot be mounted.
fn broken(image: bool) -> Value {
    let mut spec = script(FOREVER);
    match image {
        true => {
            spec["containers"][0]["image"] = json!("127.0.0.1:1/none:1");
            spec["containers"][0]["imagePullPolicy"] = json!("Always");
        }
        false => {
            let file = json!({"path": "/nonexistent/file", "type": "File"});
            spec["volumes"] = json!([{"name": "none", "hostPath": file}]);
            spec["containers"][0]["volumeMounts"] = json!([{"name": "none", "mountPath": "/none"}]);
        }
    }
    spec
}

async fn start() -> Cluster {
    Cluster::start_with(json!({"readOnlyPort": 10255})).await
}

#[tokio::test]
async fn metrics_follow_the_pods() {
    let cluster = start().await;
    cluster.create("web", web()).await;
    cluster.create("unpulled", broken(true)).await;
    cluster.create("unmounted", broken(false)).await;
    cluster.create("restarts", script("exit 3")).await;
    cluster.until_ready("web").await;
    cluster
        .until("restarts", "a restart", |pod| match run_of(pod).0 {
            0 => Err("not yet".to_owned()),
            _ => Ok(()),
        })
        .await;
    cluster.until_event("FailedMount", "").await;
    cluster.until_event("Failed", "").await;

    let page = until_metrics(&cluster, "/metrics", "pods", |page| {
        let runs = page.sum("kubelet_running_containers", &[("container_state", "running")]);
        let failed = page.sum("storage_operation_errors_total", &[]);
        let pulls = [("operation_type", "pull_image")];
        let unpulled = page.sum("kubelet_runtime_operations_errors_total", &pulls);
        match (runs, failed, unpulled) {
            (Some(runs), Some(_), Some(_)) if runs >= 1.0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let node = cluster.host.name();
    assert_eq!(page.sum("kubelet_node_name", &[("node", &node)]), Some(1.0));
    assert_eq!(page.sum("kubelet_desired_pods", &[("static", "")]), Some(4.0));
    assert_eq!(page.sum("kubelet_desired_pods", &[("static", "true")]), Some(0.0));
    assert_eq!(page.sum("kubelet_working_pods", &[]), Some(4.0));
    at_least(&page, "kubelet_running_pods", &[], 2.0);
    for operation in ["version", "run_podsandbox", "create_container", "start_container"] {
        let labels = [("operation_type", operation)];
        at_least(&page, "kubelet_runtime_operations_total", &labels, 1.0);
        at_least(&page, "kubelet_runtime_operations_duration_seconds_count", &labels, 1.0);
    }
    at_least(&page, "kubelet_started_pods_total", &[], 2.0);
    let regular = [("container_type", "container")];
    at_least(&page, "kubelet_started_containers_total", &regular, 3.0);
    let unpulled = [("container_type", "container"), ("code", "ErrImagePull")];
    at_least(&page, "kubelet_started_containers_errors_total", &unpulled, 1.0);
    at_least(&page, "kubelet_pod_start_duration_seconds_count", &[], 1.0);
    at_least(&page, "kubelet_pod_start_sli_duration_seconds_count", &[], 1.0);
    let slow = page.sum("kubelet_pod_start_sli_duration_seconds_sum", &[]).unwrap();
    assert!(slow < 300.0, "{slow}");
    for why in ["create", "sync"] {
        let labels = [("operation_type", why)];
        at_least(&page, "kubelet_pod_worker_duration_seconds_count", &labels, 1.0);
    }
    until_metrics(&cluster, "/metrics", "relists", |page| {
        match page.sum("kubelet_pleg_relist_duration_seconds_count", &[]) {
            Some(relists) if relists >= 2.0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    at_least(&page, "kubelet_pleg_last_seen_seconds", &[], 1.7e9);
    at_least(&page, "kubelet_pleg_pod_relist_duration_seconds_count", &[], 0.0);
    let failed = [("container_type", "container"), ("exit_code", "3"), ("reason", "Error")];
    at_least(&page, "kubelet_terminated_containers_total", &failed, 1.0);
    let images = |policy, present, pull| {
        [("pull_policy", policy), ("present_locally", present), ("pull_required", pull)]
    };
    let (there, absent) = (images("never", "true", "false"), images("always", "unknown", "true"));
    at_least(&page, "kubelet_image_manager_ensure_image_requests_total", &there, 2.0);
    at_least(&page, "kubelet_image_manager_ensure_image_requests_total", &absent, 1.0);
    let mounts = [("operation_name", "overall_volume_mount")];
    at_least(&page, "volume_operation_total_seconds_count", &mounts, 1.0);
    for none in
        ["kubelet_restarted_pods_total", "kubelet_cpu_manager_exclusive_cpu_allocation_count"]
    {
        assert_eq!(page.sum(none, &[]), Some(0.0), "{none}");
    }
    let parts = ["pre_kubelet_", "pre_registration_", "registration_", "post_registration_", ""];
    let [sum, whole] = [&parts[..4], &parts[4..]].map(|parts| {
        let name = |part: &&str| format!("kubelet_node_startup_{part}duration_seconds");
        parts.iter().map(|part| page.sum(&name(part), &[]).unwrap()).sum::<f64>()
    });
    assert!(whole > 0.0 && (whole - sum).abs() < 0.01, "{whole} {sum}");
    let create = [("operation_type", "create")];
    at_least(&page, "kubelet_cgroup_manager_duration_seconds_count", &create, 2.0);
    at_least(&page, "kubelet_cgroup_version", &[], 1.0);
    for state in ["desired_state_of_world", "actual_state_of_world"] {
        let labels = [("plugin_name", "kubernetes.io/empty-dir"), ("state", state)];
        assert_eq!(page.sum("volume_manager_total_volumes", &labels), Some(1.0), "{state}");
    }
    let unmounted =
        [("volume_plugin", "kubernetes.io/host-path"), ("operation_name", "volume_mount")];
    at_least(&page, "storage_operation_errors_total", &unmounted, 1.0);
    at_least(&page, "rest_client_requests_total", &[("code", "200"), ("method", "GET")], 1.0);
    at_least(&page, "kubelet_http_requests_total", &[("path", "metrics")], 1.0);
    for size in ["rest_client_request_size_bytes", "rest_client_response_size_bytes"] {
        at_least(&page, &format!("{size}_sum"), &[("verb", "POST")], 100.0);
    }
    until_metrics(&cluster, "/metrics", "sizes of logs", |page| {
        let labels = [("namespace", "default"), ("pod", "web"), ("container", "c")];
        match page.sum("kubelet_container_log_filesystem_used_bytes", &labels) {
            Some(bytes) if bytes > 0.0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    // probes, by their pod
    let of = |result| {
        [("probe_type", "Readiness"), ("result", result), ("pod", "web"), ("namespace", "default")]
    };
    let probes = scrape(&cluster, "/metrics/probes").await;
    at_least(&probes, "prober_probe_total", &of("successful"), 1.0);
    assert_eq!(probes.sum("prober_probe_total", &of("failed")), None);
    let liveness = [("probe_type", "Liveness"), ("container", "c"), ("result", "failed")];
    at_least(&probes, "prober_probe_total", &liveness, 1.0);
    at_least(&probes, "prober_probe_duration_seconds_count", &[("pod", "web")], 1.0);

    // health checks
    assert_eq!(get(&cluster, "/healthz").await.1, "ok");
    let slis = scrape(&cluster, "/metrics/slis").await;
    for check in ["ping", "syncloop"] {
        let labels = [("name", check), ("type", "healthz")];
        assert_eq!(slis.sum("kubernetes_healthcheck", &labels), Some(1.0), "{check}");
    }

    // what is asked for makes no series
    let before = scrape(&cluster, "/metrics").await.families["kubelet_http_requests_total"].clone();
    for n in 0..200 {
        get(&cluster, &format!("/x{n}/y?z={n}")).await;
    }
    let after = scrape(&cluster, "/metrics").await.families["kubelet_http_requests_total"].clone();
    assert!(after.samples.len() <= before.samples.len() + 1, "{after:?}");

    for pod in ["web", "unpulled", "unmounted", "restarts"] {
        cluster.delete(pod).await;
    }
    for pod in ["web", "unpulled", "unmounted", "restarts"] {
        cluster.until_gone(pod).await;
    }
    until_metrics(&cluster, "/metrics", "no pods", |page| {
        let names = [
            "kubelet_running_pods",
            "kubelet_desired_pods",
            "kubelet_working_pods",
            "volume_manager_total_volumes",
        ];
        let left = names.map(|name| page.sum(name, &[]).unwrap_or(0.0));
        if left == [0.0; 4] { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let probes = scrape(&cluster, "/metrics/probes").await;
    let left = probes.families.iter().filter(|(name, _)| name.starts_with("prober_"));
    assert_eq!(left.count(), 0);
}

/// What the panels and alerts of the kubernetes-mixin ask of the job `kubelet`, with the labels that
/// they group or choose by. `kubelet_evictions` and `kubelet_volume_stats_*` come with an eviction
/// and with claims, as upstream's do.
const MIXIN: &[(&str, &[&str])] = &[
    ("kubelet_node_name", &["node"]),
    ("kubelet_running_pods", &[]),
    ("kubelet_running_containers", &["container_state"]),
    ("volume_manager_total_volumes", &["state", "plugin_name"]),
    ("kubelet_node_config_error", &[]),
    ("kubelet_runtime_operations_total", &["operation_type"]),
    ("kubelet_runtime_operations_errors_total", &["operation_type"]),
    ("kubelet_runtime_operations_duration_seconds_bucket", &["operation_type", "le"]),
    ("kubelet_pod_start_duration_seconds_bucket", &["le"]),
    ("kubelet_pod_start_duration_seconds_count", &[]),
    ("kubelet_pod_worker_duration_seconds_bucket", &["operation_type", "le"]),
    ("kubelet_pod_worker_duration_seconds_count", &["operation_type"]),
    ("storage_operation_duration_seconds_bucket", &["operation_name", "volume_plugin", "le"]),
    ("storage_operation_duration_seconds_count", &["operation_name", "volume_plugin"]),
    ("storage_operation_errors_total", &["operation_name", "volume_plugin"]),
    ("kubelet_cgroup_manager_duration_seconds_bucket", &["operation_type", "le"]),
    ("kubelet_cgroup_manager_duration_seconds_count", &["operation_type"]),
    ("kubelet_pleg_relist_duration_seconds_bucket", &["le"]),
    ("kubelet_pleg_relist_duration_seconds_count", &[]),
    ("kubelet_pleg_relist_interval_seconds_bucket", &["le"]),
    ("kubelet_certificate_manager_client_ttl_seconds", &[]),
    ("kubelet_certificate_manager_server_ttl_seconds", &[]),
    ("kubelet_certificate_manager_client_expiration_renew_errors", &[]),
    ("kubelet_server_expiration_renew_errors", &[]),
    ("rest_client_requests_total", &["code", "method", "host"]),
    ("rest_client_request_duration_seconds_bucket", &["verb", "host", "le"]),
    ("process_resident_memory_bytes", &[]),
    ("process_cpu_seconds_total", &[]),
    ("go_goroutines", &[]),
    ("go_threads", &[]),
    ("apiserver_client_certificate_expiration_seconds_bucket", &["le"]),
    ("kubelet_imagemanager_ondisk_pullintents", &[]),
    ("kubelet_imagemanager_ondisk_pulledrecords", &[]),
    ("kubernetes_build_info", &["git_version"]),
    ("kubernetes_feature_enabled", &["name", "stage"]),
];

/// Kinds that rates and quantiles are taken of.
const COUNTERS: [&str; 5] = [
    "kubelet_runtime_operations_total",
    "storage_operation_errors_total",
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "rest_client_requests_total",
    "process_cpu_seconds_total",
];

#[tokio::test]
async fn metrics_have_the_names_of_dashboards() {
    let cluster = start().await;
    cluster.create("web", web()).await;
    cluster.create("unpulled", broken(true)).await;
    cluster.create("unmounted", broken(false)).await;
    cluster.until_ready("web").await;
    let page = until_metrics(&cluster, "/metrics", "all names", |page| {
        let lacks = |(name, labels): &&(&str, &[&str])| {
            let mut samples = page.samples(name, &[]);
            !samples.any(|sample| labels.iter().all(|label| sample.labels.contains_key(*label)))
        };
        match MIXIN.iter().find(lacks) {
            None => Ok(()),
            Some(lacking) => Err(format!("{lacking:?} is not there")),
        }
    })
    .await;
    for name in COUNTERS {
        assert_eq!(page.families[name].kind, "counter", "{name}");
    }
}

/// A client of port 10250 that has a token of that service account, as metrics-server has.
async fn with_token(cluster: &Cluster, account: &str) -> Client {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "kube-system");
    let named = json!({"metadata": {"name": account}});
    let named: ServiceAccount = serde_json::from_value(named).unwrap();
    accounts.create(&PostParams::default(), &named).await.unwrap();
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
    let token = accounts.create_token_request(account, &PostParams::default(), &request).await;
    let url = format!("https://{}:10250", cluster.host.node_ip());
    let mut config = kube::Config::new(url.parse().unwrap());
    // --kubelet-insecure-tls, as the node's certificate is of its own making
    config.accept_invalid_certs = true;
    let token = token.unwrap().status.and_then(|status| status.token).expect("a token");
    config.auth_info.token = Some(token.into());
    Client::try_from(config).unwrap()
}

async fn request(client: &Client, path: &str) -> Result<String, u16> {
    let request = Request::get(path).body(Vec::new()).unwrap();
    client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{path}: {other}"),
    })
}

/// What metrics-server keeps of a page: a container's working set, and its CPU time with the timestamp.
fn point(page: &str, pod: &str) -> Result<(f64, f64, i64), String> {
    let page = parse(page).unwrap_or_else(|error| panic!("{error}\n{page}"));
    let labels = [("container", "c"), ("namespace", "default"), ("pod", pod)];
    let one = |name: &str| {
        let mut samples = page.samples(name, &labels);
        let sample = samples.next().ok_or_else(|| format!("no {name} of {pod}"))?;
        assert!(samples.next().is_none(), "{name} of {pod} twice");
        Ok::<_, String>((sample.value, sample.at))
    };
    let (cpu, at) = one("container_cpu_usage_seconds_total")?;
    let (memory, _) = one("container_memory_working_set_bytes")?;
    let (started, _) = one("container_start_time_seconds")?;
    let at = at.ok_or("no timestamp")?;
    assert!(started * 1e3 <= at as f64, "read at {at}, started at {started}");
    Ok((memory, cpu, at))
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_server_reads_with_its_token() {
    let webhook = json!({"cacheUnauthorizedTTL": "1s"});
    let cluster = Cluster::start_with(json!({
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}},
        "authorization": {"mode": "Webhook", "webhook": webhook},
    }))
    .await;
    let kubectl = cluster.apiserver.kubectl();
    cluster.create("busy", script("trap 'exit 0' TERM; while :; do :; done")).await;
    cluster.until_ready("busy").await;
    let [scraper, unauthorized] =
        ["metrics-server", "unauthorized"].map(|name| with_token(&cluster, name));
    let (scraper, unauthorized) = (scraper.await, unauthorized.await);
    let role = ["create", "clusterrole", "scrape", "--verb=get", "--resource=nodes/metrics"];
    kubectl.run(role).unwrap();
    let account = "--serviceaccount=kube-system:metrics-server";
    kubectl
        .run(["create", "clusterrolebinding", "scrape", "--clusterrole=scrape", account])
        .unwrap();

    let path = "/metrics/resource";
    let read = async || {
        let page = request(&scraper, path).await.map_err(|code| code.to_string())?;
        point(&page, "busy")
    };
    let (_, before, since) = wait_until(TIMEOUT, "the pod's metrics", read).await.unwrap();
    let later = async || {
        let point = read().await?;
        let (_, _, at) = point;
        if at > since + 1_000 { Ok(point) } else { Err("the same reading".to_owned()) }
    };
    let (memory, after, at) = wait_until(TIMEOUT, "another reading", later).await.unwrap();
    let cores = (after - before) / ((at - since) as f64 / 1e3);
    assert!((0.02..1.5).contains(&cores), "{cores} cores of one that is busy");
    assert!((1e4..1e8).contains(&memory), "{memory} bytes");

    // leave to scrape is no leave for anything else, and a token alone is none at all
    for path in ["/pods", "/stats/summary", "/logs/", "/exec/default/busy/c?output=1&command=id"] {
        assert_eq!(request(&scraper, path).await.unwrap_err(), 403, "{path}");
    }
    assert_eq!(request(&unauthorized, path).await.unwrap_err(), 403);
    for path in ["/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/slis"] {
        let page = request(&scraper, path).await.unwrap_or_else(|code| panic!("{path}: {code}"));
        let page = parse(&page).unwrap_or_else(|error| panic!("{path}: {error}"));
        if path == "/metrics" {
            for kind in ["authn", "authz"] {
                let name = format!("apiserver_delegated_{kind}_request_total");
                at_least(&page, &name, &[("code", "201")], 2.0);
            }
        }
    }
}
