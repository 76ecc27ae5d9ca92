//! Objects with values in all fields that are used.

use serde_json::{Value, json};

fn probe() -> Value {
    json!({
        "httpGet": {"path": "/healthz", "port": "web", "host": "10.0.0.1", "scheme": "HTTP",
            "httpHeaders": [{"name": "X-Test", "value": "v"}]},
        "initialDelaySeconds": 5, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1,
        "failureThreshold": 3, "terminationGracePeriodSeconds": 30,
    })
}

fn container(name: &str) -> Value {
    json!({
        "name": name, "image": "registry.example/image:tag", "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", "$(A)"], "args": ["$(POD)"], "workingDir": "/work",
        "ports": [{"name": "web", "containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "TCP"}],
        "env": [
            {"name": "A", "value": "$(B)"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['key']"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"containerName": name, "resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}},
        ],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi", "example.com/device": "1"},
            "limits": {"cpu": "200m", "memory": "128Mi", "ephemeral-storage": "2Gi", "hugepages-2Mi": "4Mi", "example.com/device": "1"},
        },
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/data", "subPath": "a/b", "readOnly": false}],
        "livenessProbe": probe(), "readinessProbe": probe(), "startupProbe": probe(),
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}, "postStart": {"exec": {"command": ["true"]}}, "stopSignal": "SIGTERM"},
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "privileged": false, "readOnlyRootFilesystem": true},
    })
}

fn container_status(name: &str) -> Value {
    json!({
        "name": name, "ready": true, "started": true, "restartCount": 3, "image": "registry.example/image:tag",
        "imageID": "sha256:1", "containerID": "containerd://1",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        "lastState": {"terminated": {"exitCode": 1, "signal": 9, "reason": "Error", "message": "why",
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z", "containerID": "containerd://0"}},
        "allocatedResources": {"cpu": "100m", "memory": "64Mi"},
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "user": {"linux": {"uid": 1, "gid": 1, "supplementalGroups": [1]}},
    })
}

/// A pod with containers of every kind, and its status.
pub fn pod() -> Value {
    let mut sidecar = container("sidecar");
    sidecar["restartPolicy"] = "Always".into();
    let mut ephemeral = container("debug");
    for field in
        ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources"]
    {
        if let Some(fields) = ephemeral.as_object_mut() {
            fields.remove(field);
        }
    }
    ephemeral["targetContainerName"] = "main".into();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "pod", "namespace": "default", "uid": "8a2c6e2e-0000-4000-8000-000000000001", "generation": 2,
            "resourceVersion": "12", "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": 30,
            "labels": {"app": "test"}, "annotations": {"key": "value", "kubernetes.io/config.source": "api"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}],
            "managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {}}}],
        },
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 600,
            "priority": 100, "priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority",
            "nodeName": "n", "serviceAccountName": "default", "hostname": "h", "subdomain": "s",
            "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "hostNetwork": false,
            "dnsConfig": {"nameservers": ["10.0.0.10"], "searches": ["example"], "options": [{"name": "ndots", "value": "5"}]},
            "hostAliases": [{"ip": "10.0.0.3", "hostnames": ["x"]}],
            "initContainers": [container("init"), sidecar],
            "containers": [container("main"), container("second")],
            "ephemeralContainers": [ephemeral],
            "overhead": {"cpu": "10m", "memory": "8Mi"},
            "resources": {"requests": {"cpu": "300m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
            "securityContext": {"fsGroup": 1000, "runAsUser": 1000, "supplementalGroups": [1], "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]},
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "nodeSelector": {"disk": "ssd"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["5"]}]}]}}},
            "readinessGates": [{"conditionType": "example.com/gate"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 1}],
            "volumes": [
                {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi", "medium": ""}},
                {"name": "memory", "emptyDir": {"sizeLimit": "64Mi", "medium": "Memory"}},
                {"name": "secret", "secret": {"secretName": "s", "defaultMode": 420, "items": [{"key": "k", "path": "p", "mode": 256}]}},
                {"name": "all", "projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"downwardAPI": {"items": [{"path": "cpu", "mode": 256, "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu", "divisor": "1m"}}]}},
                ]}},
            ],
        },
        "status": {
            "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}],
            "hostIP": "10.0.0.1", "qosClass": "Burstable", "observedGeneration": 2,
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastProbeTime": "2026-01-01T00:00:00Z", "observedGeneration": 2},
                {"type": "PodResizePending", "status": "True", "reason": "Deferred", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 2},
                {"type": "PodResizeInProgress", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 2},
            ],
            "initContainerStatuses": [container_status("init"), container_status("sidecar")],
            "containerStatuses": [container_status("main"), container_status("second")],
        },
    })
}

/// A node and its status.
pub fn node() -> Value {
    let amounts = json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110", "hugepages-2Mi": "64Mi", "example.com/device": "2"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"disk": "ssd", "n": "7", "kubernetes.io/hostname": "n"}, "annotations": {"key": "value"}},
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "unschedulable": false,
            "taints": [{"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]},
        "status": {"capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": ["registry.example/image:tag"], "sizeBytes": 1000}],
            "volumesInUse": ["kubernetes.io/csi/driver^1"]},
    })
}

/// A service of the type LoadBalancer.
pub fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"],
            "ports": [{"name": "web", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 30080, "appProtocol": "http"},
                {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 53, "nodePort": 30053}],
            "externalIPs": ["192.0.2.7"], "loadBalancerIP": "192.0.2.8", "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster", "healthCheckNodePort": 30081,
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
            "publishNotReadyAddresses": false, "trafficDistribution": "PreferClose", "selector": {"app": "web"},
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.8", "ipMode": "VIP"}]}},
    })
}

/// The endpoints of that service.
pub fn endpoint_slice() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "default", "uid": "s", "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}},
        "endpoints": [{"addresses": ["10.1.0.2"], "nodeName": "n", "zone": "z", "hostname": "h",
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]},
            "targetRef": {"kind": "Pod", "name": "p", "namespace": "default", "uid": "p"}},
            {"addresses": ["10.1.0.3"], "conditions": {"ready": false}}],
        "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}],
    })
}
