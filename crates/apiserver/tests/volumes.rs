//! Volumes and claims with the real kubectl and the real binary, from the class to the end.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::{Duration, Instant};

use common::kubectl::{Kubectl, kubectl};
use serde_json::Value;

/// Waits until kubectl prints this.
fn prints(kubectl: &Kubectl, line: &str, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        let printed = kubectl.ok(line);
        if printed == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "kubectl {line}: {printed:?}, not {wanted:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

const CLAIM_PHASE: &str = "get pvc data -o jsonpath={.status.phase}";

fn volume(name: &str, size: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{storage: {size}}}
  hostPath: {{path: /tmp/longshore-none}}
  {spec}
"
    )
}

fn claim(name: &str, size: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: {size}}}}}
  {spec}
"
    )
}

fn pod(name: &str, node: &str, volume: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {node}
  containers: [{{name: c, image: busybox, volumeMounts: [{{name: v, mountPath: /v}}]}}]
  volumes: [{{name: v, {volume}}}]
"
    )
}

fn node(name: &str, metadata: &str) -> String {
    format!(
        "apiVersion: v1
kind: Node
metadata:
  name: {name}
  {metadata}
"
    )
}

fn class(name: &str, rest: &str) -> String {
    format!(
        "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: {name}
  annotations: {{storageclass.kubernetes.io/is-default-class: \"true\"}}
provisioner: kubernetes.io/no-provisioner
{rest}
"
    )
}

#[test]
fn volume_lifecycle_bind_release_retain() {
    let kubectl = kubectl!();
    kubectl.ok_with("create -f -", &volume("big", "10Gi", ""));
    kubectl.ok_with("create -f -", &volume("small", "2Gi", ""));
    kubectl.ok_with("create -f -", &claim("data", "1Gi", "storageClassName: \"\""));
    prints(&kubectl, CLAIM_PHASE, "Bound");
    let row = kubectl.ok("get pvc data --no-headers");
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row[..5], ["data", "Bound", "small", "2Gi", "RWO"], "{row:?}");
    prints(&kubectl, "get pv small -o jsonpath={.status.phase}", "Bound");
    let header = kubectl.ok("get pv");
    let header: Vec<&str> = header.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header[..6], ["NAME", "CAPACITY", "ACCESS", "MODES", "RECLAIM", "POLICY"]);
    assert!(kubectl.ok("describe pvc data").contains("Used By:"));
    assert!(kubectl.ok("describe pv small").contains("default/data"));

    // In use, it stays though it is deleted, and so does what holds its data.
    kubectl.ok_with("create -f -", &pod("user", "n1", "persistentVolumeClaim: {claimName: data}"));
    kubectl.ok("delete pvc data --wait=false");
    kubectl.ok("delete pv small --wait=false");
    assert!(kubectl.ok("get pvc data --no-headers").contains("Terminating"));
    assert!(kubectl.ok("get pv small --no-headers").contains("Terminating"));
    std::thread::sleep(Duration::from_millis(500));
    kubectl.ok("get pvc data");
    kubectl.ok("delete pod user --force --grace-period=0");
    kubectl.ok("wait pvc/data --for=delete --timeout=15s");
    kubectl.ok("wait pv/small --for=delete --timeout=15s");

    // A retained volume is kept until an administrator deletes it.
    kubectl.ok_with("create -f -", &claim("data", "1Gi", "storageClassName: \"\""));
    prints(&kubectl, CLAIM_PHASE, "Bound");
    kubectl.ok("delete pvc data --timeout=15s");
    prints(&kubectl, "get pv big -o jsonpath={.status.phase}", "Released");
    let patch = r#"patch pv big --type=json -p [{"op":"remove","path":"/spec/claimRef"}]"#;
    kubectl.ok(patch);
    prints(&kubectl, "get pv big -o jsonpath={.status.phase}", "Available");
}

#[test]
fn volume_prebinding() {
    let kubectl = kubectl!();
    let meant = "claimRef: {namespace: default, name: data}";
    kubectl.ok_with("create -f -", &volume("meant", "9Gi", meant));
    kubectl.ok_with("create -f -", &volume("other", "1Gi", ""));
    prints(&kubectl, "get pv meant -o jsonpath={.status.phase}", "Available");
    kubectl.ok_with("create -f -", &claim("data", "1Gi", "storageClassName: \"\""));
    prints(&kubectl, "get pvc data -o jsonpath={.spec.volumeName}", "meant");
    let spec = "storageClassName: \"\"\n  volumeName: late";
    kubectl.ok_with("create -f -", &claim("asks", "1Gi", spec));
    prints(&kubectl, "get pvc asks -o jsonpath={.status.phase}", "Pending");
    kubectl.ok_with("create -f -", &volume("late", "500Mi", ""));
    let event =
        "get events --field-selector involvedObject.name=asks -o jsonpath={.items[*].reason}";
    prints(&kubectl, event, "VolumeMismatch");
    kubectl.ok(r#"patch pv late -p {"spec":{"capacity":{"storage":"1Gi"}}}"#);
    prints(&kubectl, "get pvc asks -o jsonpath={.status.phase}", "Bound");
    // The volume is lost: nothing brings it back.
    let none = r#"patch pv late --type=merge -p {"metadata":{"finalizers":null}}"#;
    kubectl.ok("delete pv late --wait=false");
    kubectl.ok(none);
    prints(&kubectl, "get pvc asks -o jsonpath={.status.phase}", "Lost");
}

#[test]
fn volume_wait_for_first_consumer() {
    let kubectl = kubectl!();
    kubectl.ok_with("create -f -", &class("local", "volumeBindingMode: WaitForFirstConsumer"));
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        kubectl.ok_with("create -f -", &node(name, &format!("labels: {{zone: {zone}}}")));
        let affinity = format!(
            "storageClassName: local
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: zone, operator: In, values: [{zone}]}}]}}]}}}}"
        );
        kubectl.ok_with("create -f -", &volume(&format!("on-{name}"), "1Gi", &affinity));
    }
    // No class is named: it gets the default one.
    kubectl.ok_with("create -f -", &claim("data", "1Gi", ""));
    prints(&kubectl, "get pvc data -o jsonpath={.spec.storageClassName}", "local");
    let event =
        "get events --field-selector involvedObject.name=data -o jsonpath={.items[*].reason}";
    prints(&kubectl, event, "WaitForFirstConsumer");
    assert_eq!(kubectl.ok(CLAIM_PHASE), "Pending");
    assert!(kubectl.ok("get sc").contains("local (default)"));
    kubectl.ok_with("create -f -", &pod("user", "n2", "persistentVolumeClaim: {claimName: data}"));
    prints(&kubectl, "get pvc data -o jsonpath={.spec.volumeName}", "on-n2");
}

#[test]
fn volume_ephemeral_claims() {
    let kubectl = kubectl!();
    let template = "ephemeral: {volumeClaimTemplate: {metadata: {labels: {a: b}}, spec: {accessModes: [ReadWriteOnce], storageClassName: \"\", resources: {requests: {storage: 1Gi}}}}}";
    kubectl.ok_with("create -f -", &volume("v", "1Gi", ""));
    kubectl.ok_with("create -f -", &pod("user", "n1", template));
    prints(&kubectl, "get pvc -o jsonpath={.items[*].status.phase}", "Bound");
    assert_eq!(kubectl.ok("get pvc user-v -o jsonpath={.metadata.labels.a}"), "b");
    let owner = "get pvc user-v -o jsonpath={.metadata.ownerReferences[0].kind}";
    assert_eq!(kubectl.ok(owner), "Pod");
    kubectl.ok("delete pod user --force --grace-period=0");
    kubectl.ok("wait pvc/user-v --for=delete --timeout=15s");
    // An unrelated claim of that name is not touched.
    kubectl.ok_with("create -f -", &claim("user-v", "1Gi", "storageClassName: none"));
    kubectl.ok_with("create -f -", &pod("user", "n1", template));
    let message =
        "get events --field-selector involvedObject.kind=Pod -o jsonpath={.items[0].message}";
    prints(
        &kubectl,
        message,
        "ephemeral volume v: PVC default/user-v was not created for pod default/user (pod is not owner)",
    );
}

#[test]
fn volume_host_path_deletion_is_opt_in() {
    let data = tempfile::tempdir_in("/tmp").unwrap();
    let volume = |name: &str, below: &str| {
        let path = data.path().join(below);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("file"), "x").unwrap();
        volume(name, "1Gi", "persistentVolumeReclaimPolicy: Delete")
            .replace("/tmp/longshore-none", path.to_str().unwrap())
    };
    for is_allowed in [false, true] {
        let kubectl = match is_allowed {
            true => kubectl!("--delete-host-paths"),
            false => kubectl!(),
        };
        kubectl.ok_with("create -f -", &volume("v", "a"));
        kubectl.ok_with("create -f -", &claim("data", "1Gi", "storageClassName: \"\""));
        prints(&kubectl, CLAIM_PHASE, "Bound");
        kubectl.ok("delete pvc data --timeout=15s");
        if is_allowed {
            kubectl.ok("wait pv/v --for=delete --timeout=15s");
            assert!(!data.path().join("a").exists());
        } else {
            prints(&kubectl, "get pv v -o jsonpath={.status.phase}", "Failed");
            assert!(data.path().join("a/file").exists());
            let described = kubectl.ok("describe pv v");
            assert!(described.contains("VolumeFailedDelete"), "{described}");
        }
    }
    // A way out of /tmp is not taken.
    let kubectl = kubectl!("--delete-host-paths");
    let outside = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    std::fs::write(outside.path().join("file"), "x").unwrap();
    std::os::unix::fs::symlink(outside.path(), data.path().join("link")).unwrap();
    kubectl.ok_with("create -f -", &volume("v", "link"));
    kubectl.ok_with("create -f -", &claim("data", "1Gi", "storageClassName: \"\""));
    prints(&kubectl, CLAIM_PHASE, "Bound");
    kubectl.ok("delete pvc data --timeout=15s");
    prints(&kubectl, "get pv v -o jsonpath={.status.phase}", "Failed");
    assert!(outside.path().join("file").exists());
}

#[test]
fn volume_resize_and_other_updates() {
    let kubectl = kubectl!();
    kubectl.ok_with("create -f -", &class("grows", "allowVolumeExpansion: true"));
    kubectl.ok_with("create -f -", &class("fixed", ""));
    for name in ["grows", "fixed"] {
        let spec = format!("storageClassName: {name}");
        kubectl.ok_with("create -f -", &volume(name, "1Gi", &spec));
        kubectl.ok_with("create -f -", &claim(name, "1Gi", &spec));
        prints(&kubectl, &format!("get pvc {name} -o jsonpath={{.status.phase}}"), "Bound");
    }
    let size = r#"-p {"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#;
    kubectl.ok(&format!("patch pvc grows {size}"));
    let error = kubectl.fails(&format!("patch pvc fixed {size}"), "");
    assert!(error.contains("must support resize"), "{error}");
    let shrink = r#"patch pvc grows -p {"spec":{"resources":{"requests":{"storage":"1Gi"}}}}"#;
    let error = kubectl.fails(shrink, "");
    assert!(error.contains("field can not be less than status.capacity"), "{error}");
    let mode = r#"patch pvc grows -p {"spec":{"accessModes":["ReadWriteMany"]}}"#;
    assert!(kubectl.fails(mode, "").contains("spec is immutable after creation"));
    let path = r#"patch pv fixed -p {"spec":{"hostPath":{"path":"/elsewhere"}}}"#;
    assert!(kubectl.fails(path, "").contains("immutable after creation"));
    let provisioner = r#"patch sc fixed -p {"provisioner":"other"}"#;
    assert!(kubectl.fails(provisioner, "").contains("field is immutable"));
    for (kind, error) in
        [("volumes: none", "unknown field"), ("volumeMode: Raw", "Unsupported value: \"Raw\"")]
    {
        let bad = claim("bad", "1Gi", kind);
        assert!(kubectl.fails("create -f -", &bad).contains(error), "{kind}");
    }
    assert!(kubectl.fails("create -f -", &claim("bad", "0", "")).contains("greater than zero"));
    for name in ["pv", "pvc", "sc", "csidrivers", "csinodes", "volumeattachments", "vac"] {
        kubectl.ok(&format!("get {name}"));
    }
    let explained = kubectl.ok("explain pvc.spec.volumeAttributesClassName");
    assert!(explained.contains("volumeAttributesClassName"), "{explained}");
}

#[test]
fn volume_attach_and_detach() {
    let kubectl = kubectl!();
    let managed = "annotations: {volumes.kubernetes.io/controller-managed-attach-detach: \"true\"}";
    kubectl.ok_with("create -f -", &node("n1", managed));
    let csi = volume("v", "1Gi", "").replace(
        "hostPath: {path: /tmp/longshore-none}",
        "csi: {driver: csi.example.com, volumeHandle: h}",
    );
    kubectl.ok_with("create -f -", &csi);
    kubectl.ok_with("create -f -", &claim("data", "1Gi", "storageClassName: \"\""));
    prints(&kubectl, CLAIM_PHASE, "Bound");
    kubectl.ok_with("create -f -", &pod("user", "n1", "persistentVolumeClaim: {claimName: data}"));
    let name = "csi-b443ff371db9b71827ff6dcb6a58f7474195968c4317513778b950b8560576b6";
    prints(
        &kubectl,
        "get volumeattachments -o name",
        &format!("volumeattachment.storage.k8s.io/{name}\n"),
    );
    let row = kubectl.ok("get volumeattachments --no-headers");
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row[1..5], ["csi.example.com", "v", "n1", "false"]);
    let attach = format!(
        r#"patch volumeattachment {name} --subresource=status --type=merge -p {{"status":{{"attached":true}}}}"#
    );
    kubectl.ok(&attach);
    let attached = "get node n1 -o jsonpath={.status.volumesAttached[*].name}";
    prints(&kubectl, attached, "kubernetes.io/csi/csi.example.com^h");
    let in_use = r#"patch node n1 --subresource=status --type=merge -p {"status":{"volumesInUse":["kubernetes.io/csi/csi.example.com^h"]}}"#;
    kubectl.ok(in_use);
    kubectl.ok("delete pod user --force --grace-period=0");
    std::thread::sleep(Duration::from_millis(300));
    let kept: Value = serde_json::from_str(&kubectl.ok("get volumeattachments -o json")).unwrap();
    assert_eq!(kept["items"].as_array().unwrap().len(), 1, "the node still has it mounted");
    kubectl.ok(&in_use.replace(r#""kubernetes.io/csi/csi.example.com^h""#, ""));
    prints(&kubectl, "get volumeattachments -o name", "");
    prints(&kubectl, attached, "");
}

#[test]
fn volume_controllers_can_be_disabled() {
    let kubectl = kubectl!("--bind-volumes=false");
    kubectl.ok_with("create -f -", &volume("v", "1Gi", ""));
    kubectl.ok_with("create -f -", &claim("data", "1Gi", "storageClassName: \"\""));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(kubectl.ok(CLAIM_PHASE), "Pending");
    assert_eq!(kubectl.ok("get pv v -o jsonpath={.status.phase}"), "Pending");
}
