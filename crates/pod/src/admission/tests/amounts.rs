use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::super::Amounts;
use super::{pod, with_requests};

fn show(amounts: &Amounts) -> String {
    let parts: Vec<_> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    parts.join(" ")
}

#[test]
fn admission_amounts_are_millicores_and_whole_units() {
    let all = json!({
        "cpu": "1500m", "memory": "1Ki", "ephemeral-storage": "1k", "hugepages-2Mi": "2Mi",
        "example.com/gpu": "3", "storage": "1Gi", "requests.example.com/x": "1",
        "kubernetes.io/batteries": "1", "nonsense": "4",
    });
    assert_eq!(
        show(&Amounts::of_pod(&with_requests(all))),
        "cpu=1500 memory=1024 ephemeral-storage=1000 example.com/gpu=3 hugepages-2Mi=2097152 kubernetes.io/batteries=1"
    );
}

#[test]
fn admission_sums_sidecars_init_containers_overhead_and_pod_level_requests() {
    let container = |requests: Value| json!({"name": "c", "resources": {"requests": requests}});
    let sidecar = json!({
        "name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}},
    });
    for (spec, expected) in [
        (
            json!({"containers": [container(json!({"cpu": "1"})), container(json!({"cpu": "2"}))]}),
            3000,
        ),
        (
            json!({
                "initContainers": [container(json!({"cpu": "5"}))],
                "containers": [container(json!({"cpu": "1"}))],
            }),
            5000,
        ),
        (
            json!({
                "initContainers": [sidecar, container(json!({"cpu": "5"}))],
                "containers": [container(json!({"cpu": "1"}))],
                "overhead": {"cpu": "250m"},
            }),
            6250,
        ),
        (
            json!({
                "initContainers": [container(json!({"cpu": "5"})), sidecar],
                "containers": [container(json!({"cpu": "4500m"}))],
            }),
            5500,
        ),
        (
            json!({
                "resources": {"requests": {"cpu": "7"}},
                "containers": [container(json!({"cpu": "4"}))],
            }),
            7000,
        ),
    ] {
        assert_eq!(Amounts::of_pod(&pod(spec.clone())).get("cpu"), expected, "{spec}");
    }
}

#[test]
fn resize_reserves_the_maximum_of_requested_allocated_and_actual() {
    let resized = |wanted: &str, actual: &str, allocated: &str, reason: &str| {
        let mut pod = with_requests(json!({"cpu": wanted}));
        pod.status = serde_json::from_value(json!({
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": {"requests": {"cpu": actual}}, "allocatedResources": {"cpu": allocated},
            }],
        }))
        .unwrap();
        (Amounts::of_pod(&pod).get("cpu"), Amounts::of_resized(&pod).get("cpu"))
    };
    for (wanted, actual, allocated, reason, held, granted) in [
        ("1", "2", "1", "Deferred", 2000, 2000),
        ("1", "1", "3", "Deferred", 3000, 3000),
        ("4", "1", "1", "Deferred", 4000, 4000),
        ("4", "1", "1", "Infeasible", 1000, 4000),
    ] {
        assert_eq!(
            resized(wanted, actual, allocated, reason),
            (held, granted),
            "{wanted} {reason}"
        );
    }
    let mut whole = pod(json!({
        "resources": {"requests": {"cpu": "1"}}, "containers": [{"name": "c"}],
    }));
    let status =
        json!({"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1"}});
    whole.status = serde_json::from_value(status).unwrap();
    assert_eq!(Amounts::of_pod(&whole).get("cpu"), 2000);
}

#[test]
fn admission_leaves_out_resources_that_a_claim_provides() {
    let resources = json!({"requests": {
        "cpu": "1", "example.com/gpu": "3", "deviceclass.resource.kubernetes.io/gpu": "1",
    }});
    let mut pod = pod(json!({"containers": [
        {"name": "c", "resources": resources}, {"name": "d", "resources": resources},
    ]}));
    let shown = |pod: &Pod| show(&Amounts::of_pod(pod));
    let all = "cpu=2000 deviceclass.resource.kubernetes.io/gpu=2 example.com/gpu=6";
    assert_eq!(shown(&pod), all);
    let mapping = |container: &str, resource: &str| json!({"containerName": container, "requestName": "r", "resourceName": resource});
    let claim = json!({"extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": [
        mapping("c", "deviceclass.resource.kubernetes.io/gpu"),
        mapping("d", "deviceclass.resource.kubernetes.io/gpu"),
        mapping("d", "example.com/gpu"),
    ]}});
    pod.status = serde_json::from_value(claim).unwrap();
    assert_eq!(shown(&pod), "cpu=2000 example.com/gpu=3");
}
