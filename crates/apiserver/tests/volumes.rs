//! Volumes and claims with the real kubectl and the real binary. What controllers do with them is
//! tested in `longshore-controllers`.

use crate::common;

use common::kubectl::kubectl;

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
fn volume_resize_and_other_updates() {
    let kubectl = kubectl!();
    kubectl.ok_with("create -f -", &class("grows", "allowVolumeExpansion: true"));
    kubectl.ok_with("create -f -", &class("fixed", ""));
    for name in ["grows", "fixed"] {
        let spec = format!("storageClassName: {name}");
        kubectl.ok_with("create -f -", &volume(name, "1Gi", &spec));
        kubectl.ok_with("create -f -", &claim(name, "1Gi", &spec));
        let bound = r#"--subresource=status --type=merge -p {"status":{"phase":"Bound","capacity":{"storage":"1Gi"}}}"#;
        kubectl.ok(&format!("patch pvc {name} {bound}"));
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
