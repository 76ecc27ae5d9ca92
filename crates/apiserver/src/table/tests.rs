use serde_json::json;

use super::*;
use crate::kinds::{lookup, resources};

const NOW: &str = "2026-01-02T00:00:00Z";
const META: &str = "meta.k8s.io/v1";
const CREATED: &str = "2026-01-01T23:55:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn table(plural: &str, object: &Value) -> Value {
    let resource = resources().find(|r| r.plural == plural).unwrap();
    render(
        resource,
        [object],
        json!({"resourceVersion": "7"}),
        IncludeObject::None,
        META,
        true,
        now(),
    )
}

fn cells(plural: &str, mut object: Value) -> Vec<Value> {
    object["metadata"]["creationTimestamp"] = CREATED.into();
    let table = table(plural, &object);
    let cells = table["rows"][0]["cells"].as_array().unwrap().clone();
    assert_eq!(cells.len(), table["columnDefinitions"].as_array().unwrap().len());
    cells
}

/// READY, STATUS and RESTARTS of a pod.
fn pod(spec: Value, status: Value) -> [String; 3] {
    let cells = cells("pods", json!({"metadata": {"name": "p"}, "spec": spec, "status": status}));
    [1, 2, 3].map(|i| cells[i].as_str().unwrap().to_owned())
}

#[test]
fn pod_status() {
    let one = || json!({"containers": [{"name": "c"}]});
    let with_init =
        || json!({"containers": [{"name": "c"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
    let sidecar = || json!({"containers": [{"name": "c"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]});
    let running = || json!({"name": "c", "ready": true, "state": {"running": {}}});
    let waiting = |reason: &str| json!({"name": "c", "state": {"waiting": {"reason": reason}}});
    let ended = |code: i32, reason: &str| json!({"name": "c", "state": {"terminated": {"exitCode": code, "reason": reason}}});
    let init = |state: Value| json!({"name": "i", "state": state});
    let table = [
        (one(), json!({"phase": "Pending"}), ["0/1", "Pending", "0"]),
        (
            one(),
            json!({"phase": "Running", "containerStatuses": [running()]}),
            ["1/1", "Running", "0"],
        ),
        (
            one(),
            json!({"phase": "Pending", "containerStatuses": [waiting("ContainerCreating")]}),
            ["0/1", "ContainerCreating", "0"],
        ),
        (one(), json!({"phase": "Failed", "reason": "Evicted"}), ["0/1", "Evicted", "0"]),
        (
            one(),
            json!({"phase": "Succeeded", "containerStatuses": [ended(0, "Completed")]}),
            ["0/1", "Completed", "0"],
        ),
        (
            one(),
            json!({"phase": "Failed", "containerStatuses": [ended(1, "Error")]}),
            ["0/1", "Error", "0"],
        ),
        (
            one(),
            json!({"phase": "Failed", "containerStatuses": [ended(3, "")]}),
            ["0/1", "ExitCode:3", "0"],
        ),
        (
            one(),
            json!({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"signal": 9}}}]}),
            ["0/1", "Signal:9", "0"],
        ),
        (
            one(),
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            ["0/1", "SchedulingGated", "0"],
        ),
        (
            one(),
            json!({"phase": "Running", "containerStatuses": [{
                "name": "c", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"finishedAt": "2026-01-01T23:54:30Z"}},
            }]}),
            ["0/1", "CrashLoopBackOff", "3 (5m30s ago)"],
        ),
        (
            json!({"containers": [{"name": "c"}, {"name": "d"}]}),
            json!({"phase": "Running", "containerStatuses": [ended(0, "Completed"), running()]}),
            ["1/2", "NotReady", "0"],
        ),
        (
            json!({"containers": [{"name": "c"}, {"name": "d"}]}),
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                   "containerStatuses": [ended(0, "Completed"), running()]}),
            ["1/2", "Running", "0"],
        ),
        (
            with_init(),
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"running": {}})), init(json!({"waiting": {}}))]}),
            ["0/1", "Init:0/2", "0"],
        ),
        (
            with_init(),
            json!({"phase": "Pending", "initContainerStatuses": [
                init(json!({"terminated": {"exitCode": 0}})), init(json!({"waiting": {"reason": "PodInitializing"}})),
            ]}),
            ["0/1", "Init:1/2", "0"],
        ),
        (
            with_init(),
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            ]}),
            ["0/1", "Init:CrashLoopBackOff", "2"],
        ),
        (
            with_init(),
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"terminated": {"exitCode": 1}}))]}),
            ["0/1", "Init:ExitCode:1", "0"],
        ),
        (
            with_init(),
            json!({"phase": "Pending", "initContainerStatuses": [init(json!({"terminated": {"exitCode": 1, "reason": "Error"}}))]}),
            ["0/1", "Init:Error", "0"],
        ),
        (
            with_init(),
            json!({"phase": "Running", "containerStatuses": [running()], "initContainerStatuses": [
                {"name": "i", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}},
            ]}),
            ["1/1", "Running", "0"],
        ),
        (
            sidecar(),
            json!({"phase": "Running", "containerStatuses": [running()], "initContainerStatuses": [
                {"name": "s", "restartCount": 1, "started": true, "ready": true, "state": {"running": {}}},
            ]}),
            ["2/2", "Running", "1"],
        ),
    ];
    for (spec, status, wanted) in table {
        assert_eq!(pod(spec, status.clone()), wanted, "{status}");
    }
}

#[test]
fn table_pod_being_deleted() {
    let row = |phase: &str, reason: &str| {
        let object = json!({"metadata": {"deletionTimestamp": NOW}, "status": {"phase": phase, "reason": reason}});
        cells("pods", object)[2].clone()
    };
    assert_eq!(row("Running", ""), "Terminating");
    assert_eq!(row("Running", "NodeLost"), "Unknown");
    assert_eq!(row("Succeeded", ""), "Succeeded");
}

#[test]
fn table_wide_pod_columns() {
    let object = json!({
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{}], "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
        "status": {"podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "a", "status": "True"}]},
    });
    let row = cells("pods", object);
    assert_eq!(
        row[4..],
        [json!("5m"), json!("10.0.0.1"), json!("n"), json!("<none>"), json!("1/2")]
    );
    assert_eq!(
        cells("pods", json!({}))[5..],
        [json!("<none>"), json!("<none>"), json!("<none>"), json!("<none>")]
    );
}

#[test]
fn other_kinds() {
    let table = [
        (
            "nodes",
            json!({
                "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/a": "", "kubernetes.io/role": "z"}},
                "spec": {"unschedulable": true},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": "1.2.3.4"}],
                    "nodeInfo": {"kubeletVersion": "v1", "osImage": "Debian", "kernelVersion": "6", "architecture": "amd64", "containerRuntimeVersion": "containerd://1"},
                },
            }),
            json!([
                "n",
                "Ready,SchedulingDisabled",
                "a,worker,z",
                "5m",
                "v1",
                "1.2.3.4",
                "<none>",
                "Debian",
                "6 (amd64)",
                "containerd://1"
            ]),
        ),
        (
            "nodes",
            json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
            json!([
                "n",
                "NotReady",
                "<none>",
                "5m",
                "",
                "<none>",
                "<none>",
                "<unknown>",
                "<unknown>",
                "<unknown>"
            ]),
        ),
        (
            "services",
            json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "clusterIPs": ["10.0.0.1"], "selector": {"a": "b", "c": "d"},
                   "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "nodePort": 30053, "protocol": "UDP"}]}}),
            json!(["s", "NodePort", "10.0.0.1", "<none>", "80/TCP,53:30053/UDP", "5m", "a=b,c=d"]),
        ),
        (
            "services",
            json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer"}}),
            json!(["s", "LoadBalancer", "<none>", "<pending>", "<none>", "5m", "<none>"]),
        ),
        (
            "services",
            json!({"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "x.y"}}),
            json!(["s", "ExternalName", "<none>", "x.y", "<none>", "5m", "<none>"]),
        ),
        (
            "endpoints",
            json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "1"}, {"ip": "::2"}], "ports": [{"port": 80}, {"port": 81}]}]}),
            json!(["e", "1:80,[::2]:80,1:81 + 1 more...", "5m"]),
        ),
        ("endpoints", json!({"metadata": {"name": "e"}}), json!(["e", "<none>", "5m"])),
        (
            "endpointslices",
            json!({"metadata": {"name": "e"}, "addressType": "IPv4", "ports": [{"port": 80}, {"name": "x"}], "endpoints": [{"addresses": ["1", "2"]}]}),
            json!(["e", "IPv4", "80,x", "1,2", "5m"]),
        ),
        (
            "endpointslices",
            json!({"metadata": {"name": "e"}, "addressType": "IPv4"}),
            json!(["e", "IPv4", "<unset>", "<unset>", "5m"]),
        ),
        (
            "events",
            json!({
                "metadata": {"name": "e"}, "firstTimestamp": "2026-01-01T23:00:00Z", "lastTimestamp": "2026-01-01T23:59:00Z", "count": 4,
                "type": "Normal", "reason": "Started", "message": " hi\n", "source": {"component": "kubelet", "host": "n"},
                "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec"},
            }),
            json!(["60s", "Normal", "Started", "pod/p", "spec", "kubelet, n", "hi", "60m", 4, "e"]),
        ),
        (
            "events",
            json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T23:59:30.000000Z", "note": "hi", "reportingController": "c", "regarding": {"kind": "Node"}}),
            json!(["30s", "", "", "node", "", "c", "hi", "30s", 1, "e"]),
        ),
        (
            "replicationcontrollers",
            json!({"metadata": {"name": "r"}, "spec": {"replicas": 2, "selector": {"a": "b"}, "template": {"spec": {"containers": [
                {"name": "x", "image": "i"}, {"name": "y", "image": "j"}]}}}, "status": {"replicas": 1}}),
            json!(["r", 2, 1, 0, "5m", "x,y", "i,j", "a=b"]),
        ),
        (
            "configmaps",
            json!({"metadata": {"name": "c"}, "data": {"a": ""}, "binaryData": {"b": ""}}),
            json!(["c", 2, "5m"]),
        ),
        (
            "secrets",
            json!({"metadata": {"name": "s"}, "type": "Opaque"}),
            json!(["s", "Opaque", 0, "5m"]),
        ),
        (
            "namespaces",
            json!({"metadata": {"name": "n"}, "status": {"phase": "Active"}}),
            json!(["n", "Active", "5m"]),
        ),
        (
            "leases",
            json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "h"}}),
            json!(["l", "h", "5m"]),
        ),
        ("serviceaccounts", json!({"metadata": {"name": "a"}}), json!(["a", "5m"])),
    ];
    for (plural, object, wanted) in table {
        assert_eq!(Value::Array(cells(plural, object)), wanted);
    }
}

#[test]
fn table_row_object_by_include_object() {
    let pods = lookup("", "v1", "pods").unwrap();
    let pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "status": {"phase": "Succeeded"}});
    let render = |include, headers| render(pods, [&pod], json!({}), include, META, headers, now());
    let full = render(IncludeObject::Object, true);
    assert_eq!((&full["kind"], &full["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(full["rows"][0]["object"], pod);
    assert_eq!(
        full["rows"][0]["conditions"],
        json!([{"type": "Completed", "status": "True", "reason": "Succeeded"}])
    );
    assert_eq!(
        full["columnDefinitions"][0],
        json!({"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0})
    );
    let partial = render(IncludeObject::Metadata, false);
    assert_eq!(partial["columnDefinitions"], json!([]));
    assert_eq!(
        partial["rows"][0]["object"],
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "p"}})
    );
    assert_eq!(render(IncludeObject::None, true)["rows"][0]["object"], Value::Null);
    assert_eq!(IncludeObject::parse(None).unwrap(), IncludeObject::Metadata);
    assert_eq!(IncludeObject::parse(Some("x")).unwrap_err().code, 400);
}

proptest::proptest! {
    /// Finding 1.
    #[test]
    fn extremes_of_objects_are_shown(
        pod in longshore_generators::hostile(longshore_generators::examples::pod(), 8),
        service in longshore_generators::hostile(longshore_generators::examples::service(), 8),
        node in longshore_generators::hostile(longshore_generators::examples::node(), 8),
    ) {
        for object in [pod, service, node] {
            for resource in resources() {
                render(resource, [&object], json!({}), IncludeObject::Metadata, META, true, now());
            }
        }
    }

    #[test]
    fn no_object_panics(object in crate::schema::value::arbitrary::value()) {
        for resource in resources() {
            render(resource, [&object], json!({}), IncludeObject::Metadata, META, true, now());
        }
    }
}
