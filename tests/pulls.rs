//! Image pulls from a real registry: pull policies, retries, credentials, and a remote registry.

use crate::common;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Cluster, FOREVER, script};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use longshore_testkit::{Host, Image, Registry, wait_until};
use serde_json::{Value, json};

/// A host that has no image but the sandbox's: what else runs on it was pulled.
fn host(prepare: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::bare().expect("a host");
    prepare(&mut host);
    host.start_containerd().expect("containerd");
    host.import(&Image::pause().unwrap()).expect("the sandbox image");
    host
}

fn runs(image: &str, policy: &str) -> Value {
    let mut spec = script(FOREVER);
    spec["containers"][0]["image"] = json!(image);
    spec["containers"][0]["imagePullPolicy"] = json!(policy);
    spec
}

/// Why the container waits: reason and message.
fn waiting(pod: &Pod) -> (String, String) {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let state = statuses.unwrap_or_default().iter().find_map(|status| status.state.as_ref());
    let waiting = state.and_then(|state| state.waiting.clone()).unwrap_or_default();
    (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
}

/// Until it waits because a pull failed, for one of these causes.
async fn until_refused(cluster: &Cluster, name: &str, causes: &[&str]) {
    let refused = |pod: &Pod| {
        let (reason, message) = waiting(pod);
        let is_pull = ["ErrImagePull", "ImagePullBackOff"].contains(&reason.as_str());
        match is_pull && causes.iter().any(|cause| message.contains(cause)) {
            true => Ok(()),
            false => Err(format!("{reason}: {message}")),
        }
    };
    cluster.until(name, &format!("refused: {causes:?}"), refused).await;
}

#[tokio::test]
async fn image_pull_policy_is_followed() {
    let host = host(|_| ());
    let registry = Registry::start(&host, 5000).expect("a registry");
    host.allow_plain_http(registry.address()).unwrap();
    let busybox = Image::busybox().unwrap();
    let image = registry.push(&busybox, "tools/busybox:1").await.expect("a push");
    let cluster = Cluster::on(host, json!({})).await;

    cluster.create("absent", runs(&image, "IfNotPresent")).await;
    let pod = cluster.until_ready("absent").await;
    let statuses = pod.status.unwrap().container_statuses.unwrap();
    let digest = statuses[0].image_id.split_once('@').expect("a digest").1;
    assert!(digest.starts_with("sha256:"), "{digest}");
    assert_eq!(statuses[0].image, image);
    let pulling = format!("Pulling image {image:?}");
    let pulled = format!("Successfully pulled image {image:?} in ");
    assert_eq!(
        cluster.until_event("Pulling", &pulling).await.involved_object.name.as_deref(),
        Some("absent")
    );
    let event = cluster.until_event("Pulled", &pulled).await;
    assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{c}"));

    // It is there now: who does not insist needs no registry.
    cluster.create("always", runs(&image, "Always")).await;
    cluster.until_ready("always").await;
    let of = |name: &'static str, reason: &'static str| messages(&cluster, name, reason);
    assert!(of("always", "Pulled").await.starts_with(&pulled));
    drop(registry);
    cluster.create("present", runs(&image, "IfNotPresent")).await;
    cluster.until_ready("present").await;
    let present = format!("Container image {image:?} already present on machine");
    cluster.until_event("Pulled", &present).await;
    assert_eq!(of("present", "Pulling").await, "");
    cluster.create("insists", runs(&image, "Always")).await;
    until_refused(&cluster, "insists", &["connection refused"]).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn image_pull_is_retried_until_it_exists() {
    let host = host(|_| ());
    let registry = Registry::start(&host, 5000).expect("a registry");
    host.allow_plain_http(registry.address()).unwrap();
    let image = format!("{}/tools/busybox:later", registry.address());
    let cluster = Cluster::on(host, json!({})).await;

    let pod = cluster.create("early", runs(&image, "IfNotPresent")).await;
    let waits = waits_until(&cluster, &pod, "ImagePullBackOff").await;
    let [.., (failed, cause), (_, message)] = &waits[..] else { panic!("{waits:?}") };
    assert!(failed == "ErrImagePull" && cause.contains("not found"), "{waits:?}");
    let backing_off = format!("Back-off pulling image {image:?}");
    assert!(message.starts_with(&backing_off), "{message}");
    cluster.until_event("Failed", &format!("Failed to pull image {image:?}: ")).await;
    cluster.until_event("Failed", "Error: ErrImagePull").await;
    cluster.until_event("BackOff", &backing_off).await;

    let busybox = Image::busybox().unwrap();
    assert_eq!(registry.push(&busybox, "tools/busybox:later").await.expect("a push"), image);
    cluster.until_ready("early").await;
    assert_eq!(common::run_of(&cluster.pod("early").await).0, 0, "it has not been restarted");
    cluster.delete("early").await;
    cluster.until_gone("early").await;
    cluster.until_removed(&common::uid(&pod)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn image_pull_secret_is_used() {
    let host = host(|_| ());
    let registry = Registry::start_with_login(&host, 5000).expect("a registry");
    host.allow_plain_http(registry.address()).unwrap();
    let busybox = Image::busybox().unwrap();
    let image = registry.push(&busybox, "private/busybox:1").await.expect("a push");
    let cluster = Cluster::on(host, json!({})).await;
    let (user, password) = Registry::LOGIN;
    for (name, password) in [("login", password), ("mistyped", "open says me")] {
        let args = ["create", "secret", "docker-registry", name];
        let login = [
            format!("--docker-server={}", registry.address()),
            format!("--docker-username={user}"),
            format!("--docker-password={password}"),
        ];
        let output = ["--dry-run=client", "--output=json"];
        let args = args.into_iter().chain(login.iter().map(String::as_str)).chain(output);
        let kubectl = cluster.apiserver.kubectl();
        kubectl.apply(&kubectl.run(args).expect("a secret")).expect("it is taken");
    }
    let with = |secret: &str| {
        let mut spec = runs(&image, "IfNotPresent");
        spec["imagePullSecrets"] = json!([{"name": secret}]);
        spec
    };

    cluster.create("anonymous", runs(&image, "IfNotPresent")).await;
    cluster.create("mistyped", with("mistyped")).await;
    for name in ["anonymous", "mistyped"] {
        until_refused(&cluster, name, &["401 Unauthorized", "authorization failed"]).await;
    }
    cluster.create("known", with("login")).await;
    cluster.until_ready("known").await;

    // The image is there now, and still for those alone who could have pulled it.
    cluster.create("again", with("login")).await;
    cluster.until_ready("again").await;
    let present = format!(
        "Container image {image:?} already present on machine and can be accessed by the pod"
    );
    let event = cluster.until_event("Pulled", &present).await;
    assert_eq!(event.involved_object.name.as_deref(), Some("again"));
    cluster.create("intruder", runs(&image, "IfNotPresent")).await;
    until_refused(&cluster, "intruder", &["401 Unauthorized", "authorization failed"]).await;
    cluster.create("sly", runs(&image, "Never")).await;
    let absent = format!("Container image {image:?} is not present with pull policy of Never");
    cluster.until_event("ErrImageNeverPull", &absent).await;
    cluster.create("forgetful", with("nowhere")).await;
    let missing = "Unable to retrieve some image pull secrets (nowhere); attempting to pull the image may not succeed.";
    cluster.until_event("FailedToRetrieveImagePullSecret", missing).await;
    cluster.host.assert_clean();
}

/// A plugin of that name, which is this script.
fn plugin(dir: &Path, name: &str, script: &str) {
    let path = dir.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn image_credentials_of_plugins_are_used() {
    const SECRET: &str = "s3cret-of-the-plugin";
    let host = host(|_| ());
    let registry = Registry::start_with_login(&host, 5000).expect("a registry");
    host.allow_plain_http(registry.address()).unwrap();
    let busybox = Image::busybox().unwrap();
    let image = registry.push(&busybox, "private/busybox:1").await.expect("a push");
    let (user, password) = Registry::LOGIN;
    let dir = host.dir().join("plugins");
    std::fs::create_dir(&dir).unwrap();
    let requests = host.dir().join("requests");
    let api_version = "credentialprovider.kubelet.k8s.io/v1";
    let response = json!({
        "kind": "CredentialProviderResponse", "apiVersion": api_version, "cacheKeyType": "Registry",
        "auth": {registry.address().to_string(): {"username": user, "password": password}},
    });
    let script = format!("cat >>{}; echo '{response}'", requests.display());
    plugin(&dir, "helper", &script);
    plugin(&dir, "broken", &format!("echo {SECRET} >&2; exit 3"));
    let provider = |name: &str| {
        json!({"name": name, "apiVersion": api_version, "defaultCacheDuration": "1h",
            "matchImages": [registry.address().to_string()]})
    };
    let mut with_tokens = provider("helper");
    with_tokens["tokenAttributes"] = json!({
        "serviceAccountTokenAudience": "registry", "cacheType": "ServiceAccount",
        "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": ["example.com/role"],
    });
    let config = host.dir().join("plugins.json");
    let document = json!({"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1",
        "providers": [with_tokens, provider("broken")]});
    std::fs::write(&config, document.to_string()).unwrap();
    let flags = vec![
        format!("--image-credential-provider-config={}", config.display()),
        format!("--image-credential-provider-bin-dir={}", dir.display()),
    ];
    let mut cluster = Cluster::with_args(host, json!({}), &[], flags).await;
    let kubectl = cluster.apiserver.kubectl();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
        "name": "worker", "annotations": {"example.com/role": "reader"}}});
    kubectl.apply(&account.to_string()).expect("an account");

    // without the account's annotation, the first plugin is not called
    cluster.create("stranger", runs(&image, "IfNotPresent")).await;
    until_refused(&cluster, "stranger", &["401 Unauthorized", "authorization failed"]).await;
    let failed = "Image credential provider \"broken\" failed (failed to get credential from external registry \
                  credential provider: error execing credential provider plugin broken for image ";
    cluster.until_event("FailedToRetrieveImagePullSecret", failed).await;
    let mut spec = runs(&image, "IfNotPresent");
    spec["serviceAccountName"] = json!("worker");
    // nodes may ask for tokens of audiences that the pod names
    spec["volumes"] = json!([{"name": "token", "projected": {"sources": [
        {"serviceAccountToken": {"audience": "registry", "path": "token"}}]}}]);
    cluster.create("worker", spec.clone()).await;
    cluster.until_ready("worker").await;
    let request = std::fs::read_to_string(&requests).unwrap();
    let mut sent = serde_json::Deserializer::from_str(&request).into_iter::<Value>();
    let request = sent.next().unwrap().unwrap();
    assert_eq!(request["kind"], "CredentialProviderRequest");
    assert_eq!(request["image"], image.rsplit_once(':').unwrap().0);
    assert_eq!(request["serviceAccountAnnotations"], json!({"example.com/role": "reader"}));
    let token = request["serviceAccountToken"].as_str().unwrap().to_owned();
    assert_eq!(token.split('.').count(), 3, "a JWT");

    // the image is there now: for that account, and for nobody else
    cluster.create("again", spec).await;
    cluster.until_ready("again").await;
    assert!(sent.next().is_none(), "what the plugin has given is kept");
    cluster.create("intruder", runs(&image, "IfNotPresent")).await;
    until_refused(&cluster, "intruder", &["401 Unauthorized", "authorization failed"]).await;
    let log = cluster.node.daemon().log();
    for secret in [SECRET, password, &token] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn image_pull_from_a_remote_registry() {
    let outside = Host::bare().expect("a host");
    let registry = Registry::start_inside(&outside, 5000).expect("a registry");
    // It answers its neighbour, the machine, alone: requests of others must be masqueraded.
    outside.run("ip", ["route", "del", "default"]).unwrap();
    let url = format!("http://{}/v2/", registry.address());
    let wget = ["2", "busybox", "wget", "-q", "-O", "-", &url];
    let reach = |host: &Host| host.run("timeout", wget);

    let host = host(|host| {
        reach(host).expect_err("no way out yet");
        // What else it lacks, such as name servers, is this machine's affair.
        let lacks = host.open_egress();
        reach(host).unwrap_or_else(|error| panic!("{error}, {lacks:?}"));
    });
    host.allow_plain_http(registry.address()).unwrap();
    let busybox = Image::busybox().unwrap();
    let image = registry.push(&busybox, "busybox:1").await.expect("a push");
    let cluster = Cluster::on(host, json!({})).await;

    let text = format!("wget -q -O - {url} && echo reached; cat /etc/resolv.conf; {FOREVER}");
    let mut spec = runs(&image, "Always");
    spec["containers"][0]["command"] = json!(["sh", "-c", text]);
    cluster.create("abroad", spec).await;
    cluster.until_ready("abroad").await;
    let log = wait_until(common::TIMEOUT, "what the pod reached", async || {
        let log = cluster.apiserver.kubectl().run(["logs", "abroad"]).unwrap();
        if log.contains("nameserver") { Ok(log) } else { Err(log) }
    })
    .await
    .unwrap();
    // The registry's answer, then what names are resolved by.
    assert!(log.starts_with("{}reached\n"), "{log}");
    let own = cluster.host.resolv_conf().map(std::fs::read_to_string).transpose().unwrap();
    for server in
        own.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("nameserver"))
    {
        assert!(log.contains(server), "{server} is not in {log}");
    }
    cluster.host.assert_clean();
    drop(registry);
    outside.assert_clean();
}

/// Why the container waited from one change to the next, until the reason is `last`. Some reasons
/// are brief, so the changes are watched.
async fn waits_until(cluster: &Cluster, pod: &Pod, last: &str) -> Vec<(String, String)> {
    let name = pod.metadata.name.as_deref().unwrap();
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let since = pod.metadata.resource_version.as_deref().unwrap();
    let watched = async {
        let mut changes = cluster.pods().watch(&params, since).await.expect("a watch").boxed();
        let mut waits = Vec::new();
        while waits.last().is_none_or(|(reason, _)| reason != last) {
            match changes.next().await.expect("it goes on").expect("a change") {
                WatchEvent::Modified(pod) => waits.push(waiting(&pod)),
                other => panic!("{other:?}"),
            }
        }
        waits
    };
    tokio::time::timeout(common::TIMEOUT, watched).await.expect("in time")
}

/// What the events of a reason say of a pod.
async fn messages(cluster: &Cluster, pod: &str, reason: &str) -> String {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let fields = format!("involvedObject.name={pod},reason={reason}");
    let params = ListParams::default().fields(&fields);
    let events = events.list(&params).await.expect("events");
    events.items.into_iter().filter_map(|event| event.message).collect()
}
