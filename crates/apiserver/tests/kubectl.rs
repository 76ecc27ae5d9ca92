//! The real kubectl (1.32 or later) against the real binary.

use crate::common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use common::kubectl::kubectl;
use serde_json::{Value, json};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: main
    image: busybox
    env:
    - {name: A, value: "1"}
    - {name: B, value: "2"}
  - name: side
    image: busybox:1
"#;

#[test]
fn kubectl_get_describe_and_delete() {
    let kubectl = kubectl!();
    let namespaces = kubectl.ok("get namespaces");
    assert!(namespaces.lines().next().unwrap().starts_with("NAME"), "{namespaces}");
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        assert!(namespaces.contains(name), "{namespaces}");
    }
    assert!(kubectl.ok("api-resources").contains("endpointslices"));
    assert!(kubectl.ok("version").contains("Server Version: v1.36"));
    kubectl.ok_with("create -f -", POD);
    let pods = kubectl.ok("get pods");
    let columns: Vec<&str> = pods.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(columns, ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    let row: Vec<&str> = pods.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["web", "0/2", "Pending", "0"]);
    assert!(kubectl.ok("get pods -o wide --show-labels").contains("app=web"));
    let described = kubectl.ok("describe pod web");
    assert!(described.contains("QoS Class:") && described.contains("BestEffort"), "{described}");
    assert!(kubectl.ok("describe service kubernetes").contains("10.96.0.1"));
    assert!(kubectl.ok("describe namespace default").contains("Active"));
    assert_eq!(kubectl.ok("get pod web -o jsonpath={.spec.containers[0].name}"), "main");
    assert!(kubectl.ok("get pod web -o yaml").contains("kind: Pod"));
    assert!(kubectl.ok("get all -A").contains("pod/web"));
    assert!(kubectl.ok("explain pod.spec.containers").contains("FIELD"));
    assert!(kubectl.fails("get pod absent", "").contains("pods \"absent\" not found"));
    assert!(
        kubectl
            .fails("get nothings", "")
            .contains("the server doesn't have a resource type \"nothings\"")
    );
    assert!(kubectl.fails("create -f -", POD).contains("already exists"));
    kubectl.ok("label pod web tier=front");
    kubectl.ok("annotate pod web note=x");
    // newer ones say from where
    assert!(kubectl.ok("delete pod web").starts_with("pod \"web\" deleted"));
    kubectl.ok("label namespace default tier=x");
    assert!(kubectl.ok("get namespaces -l tier=x -o name").contains("namespace/default"));
    kubectl.ok("run quick --image=busybox");
    kubectl.ok("expose pod quick --port=80");
    assert!(kubectl.ok("get service quick").contains("80/TCP"));
    kubectl.ok("debug quick --image=busybox --container=look --target=quick");
    let target = "get pod quick -o jsonpath={.spec.ephemeralContainers[0].targetContainerName}";
    assert_eq!(kubectl.ok(target), "quick");
    let again = kubectl.fails("debug quick --image=busybox --target=none", "");
    assert!(
        again.contains("spec.ephemeralContainers[1].targetContainerName: Not found"),
        "{again}"
    );
    kubectl.ok("delete secret,service,pod --all --now");
}

/// Of what cannot be patched, kubectl asks the old document whether it validates it itself.
#[test]
fn kubectl_create_reviews_from_files() {
    let kubectl = kubectl!();
    let review = |kind: &str, spec: Value| {
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}).to_string()
    };
    let pods = json!({"verb": "get", "resource": "pods"});
    let own = review("SelfSubjectAccessReview", json!({"resourceAttributes": pods}));
    let allowed = "create -f - -o jsonpath={.status.allowed}";
    assert_eq!(kubectl.ok_with(allowed, &own), "true");
    let jane = review("SubjectAccessReview", json!({"user": "jane", "resourceAttributes": pods}));
    assert_eq!(kubectl.ok_with(allowed, &jane), "false");
    assert!(kubectl.ok("get --raw /openapi/v2").contains("\"swagger\":\"2.0\""));
}

/// Since 1.32, kubectl sends these as protobuf.
#[test]
fn kubectl_create_and_auth_subcommands() {
    let kubectl = kubectl!();
    kubectl.ok("create namespace shop");
    kubectl.ok("create configmap c --from-literal=a=b");
    assert_eq!(kubectl.ok("get configmap c -o jsonpath={.data}"), r#"{"a":"b"}"#);
    kubectl.ok("create secret generic s --from-literal=x=y");
    assert!(kubectl.ok("describe secret s").contains("x:  1 bytes"));
    kubectl.ok("create serviceaccount robot");
    let token = kubectl.ok(
        "create token robot --audience=https://kubernetes.default.svc.cluster.local --duration=10m",
    );
    let by_token = format!("auth whoami -o json --token={}", token.trim());
    // Without its certificate: kubectl shows both where it has both.
    let config = kubectl.ok("config view --raw -o json --minify");
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["users"] = json!([]);
    config["contexts"][0]["context"]["user"] = "".into();
    let path = kubectl.daemon.dir.path().join("bare.conf");
    std::fs::write(&path, config.to_string()).unwrap();
    let who = kubectl.ok(&format!("--kubeconfig={} {by_token}", path.display()));
    assert!(who.contains("system:serviceaccount:default:robot"), "{who}");
    assert!(who.contains("JTI="), "{who}");
    let refused = kubectl.fails(&format!("--kubeconfig={} --token=x get pods", path.display()), "");
    assert!(refused.contains("Unauthorized"), "{refused}");
    kubectl.ok("create service nodeport web --tcp=80:8080 --node-port=30080");
    let ports = kubectl.ok("get service web -o jsonpath={.spec.ports[0]}");
    let wanted = json!({"name": "80-8080", "nodePort": 30080, "port": 80, "protocol": "TCP", "targetPort": 8080});
    assert_eq!(serde_json::from_str::<Value>(&ports).unwrap(), wanted);
    assert_eq!(kubectl.ok("auth can-i delete pods"), "yes\n");
    assert!(kubectl.ok("auth whoami").contains("kubernetes-admin"));
    let error = kubectl.fails("get pods --as=bob", "");
    assert!(error.contains("User \"bob\" cannot list resource \"pods\""), "{error}");
    kubectl.ok("delete namespace shop --wait=false");
}

#[test]
fn kubectl_apply_merges_by_key() {
    let kubectl = kubectl!();
    assert_eq!(kubectl.ok_with("apply -f -", POD), "pod/web created\n");
    assert_eq!(kubectl.ok_with("apply -f -", POD), "pod/web unchanged\n");
    // Another client adds a label; applying again keeps it, and removes only fields of the last apply.
    kubectl.ok("label pod web other=x");
    let changed =
        POD.replace("app: web", "app: web, tier: front").replace("busybox:1", "busybox:2");
    assert_eq!(kubectl.ok_with("apply -f -", &changed), "pod/web configured\n");
    let pod: Value = serde_json::from_str(&kubectl.ok("get pod web -o json")).unwrap();
    assert_eq!(pod["metadata"]["labels"], json!({"app": "web", "tier": "front", "other": "x"}));
    let images: Vec<_> =
        pod["spec"]["containers"].as_array().unwrap().iter().map(|c| c["image"].clone()).collect();
    assert_eq!(json!(images), json!(["busybox", "busybox:2"]), "merged by name, in order");
    assert_eq!(kubectl.ok_with("apply -f -", POD), "pod/web configured\n");
    let labels = kubectl.ok("get pod web -o jsonpath={.metadata.labels}");
    assert_eq!(
        serde_json::from_str::<Value>(&labels).unwrap(),
        json!({"app": "web", "other": "x"})
    );

    let patch = r#"patch pod web -p {"spec":{"containers":[{"name":"side","image":"busybox:3"}]}}"#;
    kubectl.ok(patch);
    assert_eq!(
        kubectl.ok("get pod web -o jsonpath={.spec.containers[*].image}"),
        "busybox busybox:3"
    );
    kubectl.ok(r#"patch pod web --type=json -p [{"op":"remove","path":"/metadata/labels/other"}]"#);
    kubectl.ok(r#"patch pod web --type=merge -p {"metadata":{"labels":{"merged":"yes"}}}"#);
    assert!(kubectl.ok("get pods -l merged=yes,!other -o name").contains("pod/web"));
    let error = kubectl.fails(r#"patch pod web -p {"spec":{"restartPolicy":"Never"}}"#, "");
    assert!(error.contains("Forbidden: pod updates may not change fields other than"), "{error}");
    let unknown = POD.replace("image: busybox:1", "image: busybox:1\n    imagee: x");
    assert!(
        kubectl
            .fails("apply -f -", &unknown)
            .contains("unknown field \"spec.containers[1].imagee\"")
    );
    let stale = POD.replace("labels:", "resourceVersion: \"1\", labels:");
    let error = kubectl.fails("replace -f -", &stale);
    assert!(error.contains("the object has been modified"), "{error}");
    assert!(kubectl.ok_with("diff -f -", "").is_empty());
}

#[test]
fn kubectl_selectors_and_chunks() {
    let kubectl = kubectl!();
    for i in 0..7 {
        let node = if i % 2 == 0 { "n1" } else { "n2" };
        let pod = POD
            .replace("name: web,", &format!("name: web{i},"))
            .replace("spec:", &format!("spec:\n  nodeName: {node}"));
        kubectl.ok_with("create -f -", &pod);
    }
    let names = |line: &str| kubectl.ok(line).lines().count();
    assert_eq!(names("get pods -o name --chunk-size=3"), 7);
    assert_eq!(names("get pods -o name --field-selector=spec.nodeName=n1"), 4);
    assert_eq!(names("get pods -o name --field-selector=spec.nodeName!=n1"), 3);
    assert_eq!(names("get pods -o name -l app=web"), 7);
    assert_eq!(names("get pods -o name -l app!=web"), 0);
    assert_eq!(kubectl.ok("get pods --chunk-size=2 --no-headers").lines().count(), 7);
    kubectl.ok("delete pods --all --grace-period=0 --force");
    assert_eq!(names("get pods -o name"), 0);
}

#[test]
fn kubectl_watch_prints_changes() {
    let kubectl = kubectl!();
    let mut child = kubectl
        .command("get pods -w")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    std::thread::sleep(Duration::from_millis(500));
    kubectl.ok_with("create -f -", POD);
    kubectl
        .ok(r#"patch pod web --subresource=status --type=merge -p {"status":{"phase":"Running"}}"#);
    let next = || receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    let first = next();
    assert!(first.starts_with("NAME") && first.contains("READY"), "{first}");
    assert!(next().contains("Pending"));
    assert!(next().contains("Running"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn kubectl_wait_for_conditions_and_deletions() {
    let kubectl = kubectl!();
    kubectl.ok_with("create -f -", &POD.replace("spec:", "spec:\n  nodeName: n1"));
    let waiter = kubectl
        .command("wait pod/web --for=condition=Ready --timeout=20s")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let ready = r#"patch pod web --subresource=status --type=merge -p {"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
    kubectl.ok(ready);
    let output = waiter.wait_with_output().unwrap();
    assert!(output.status.success());
    let waiter = kubectl
        .command("wait pod/web --for=delete --timeout=20s")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    kubectl.ok("delete pod web --wait=false");
    assert!(kubectl.ok("get pods").contains("Terminating"));
    kubectl.ok("delete pod web --grace-period=0 --force");
    assert!(waiter.wait_with_output().unwrap().status.success());
}

#[test]
fn kubectl_server_side_apply() {
    let kubectl = kubectl!();
    let map = |a: &str, b: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{a: {a:?}{b}}}\n")
    };
    let as_ci = "apply --server-side --field-manager=ci -f -";
    kubectl.ok_with(as_ci, &map("1", ", b: \"1\""));
    let version = kubectl.ok("get configmap m -o jsonpath={.metadata.resourceVersion}");
    kubectl.ok_with(as_ci, &map("1", ", b: \"1\""));
    assert_eq!(kubectl.ok("get configmap m -o jsonpath={.metadata.resourceVersion}"), version);
    assert!(!kubectl.ok("get configmap m -o yaml").contains("managedFields"));
    let shown = kubectl.ok("get configmap m -o yaml --show-managed-fields");
    assert!(shown.contains("manager: ci") && shown.contains("f:data:"), "{shown}");

    let as_other = "apply --server-side --field-manager=other -f -";
    let conflict = kubectl.fails(as_other, &map("2", ""));
    assert!(
        conflict.contains("Apply failed with 1 conflict: conflict with \"ci\": .data.a"),
        "{conflict}"
    );
    let diff = "diff --server-side --force-conflicts --field-manager=other -f -";
    let mut child =
        kubectl.command(diff).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), map("2", "").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "there is a difference");
    assert!(text.contains("-  a: \"1\"") && text.contains("+  a: \"2\""), "{text}");

    kubectl.ok_with(&as_other.replace(" -f ", " --force-conflicts -f "), &map("2", ""));
    kubectl.ok_with(as_ci, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n");
    assert_eq!(kubectl.ok("get configmap m -o jsonpath={.data}"), "{\"a\":\"2\"}");

    // From client-side apply there and back.
    kubectl.ok_with("apply -f -", &map("1", "").replace("name: m", "name: k"));
    kubectl.ok_with("apply --server-side -f -", &map("2", "").replace("name: m", "name: k"));
    let shown = kubectl.ok("get configmap k -o yaml --show-managed-fields");
    assert!(!shown.contains("kubectl-client-side-apply"), "{shown}");
    let last = kubectl.ok("apply view-last-applied configmap k");
    assert!(last.contains("a: \"2\""), "{last}");
    kubectl.ok_with("apply -f -", &map("3", "").replace("name: m", "name: k"));
    assert_eq!(kubectl.ok("get configmap k -o jsonpath={.data}"), "{\"a\":\"3\"}");
}

/// What docs/ and README.md tell people to ask this server.
#[test]
fn kubectl_commands_of_the_guide_succeed() {
    let kubectl = kubectl!();
    let guide = longshore_guide::Guide::read().unwrap();
    let commands: Vec<_> =
        guide.commands.iter().filter(|line| line.text.starts_with("kubectl ")).collect();
    assert!(!commands.is_empty());
    for line in commands {
        let words = longshore_guide::words(&line.text);
        let output = kubectl.command("").args(&words[1..]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !output.stdout.is_empty(), "{}: {error}", line.place);
    }
}
