//! The table of served resources.

/// Group, version and kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gvk {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Kind, for example `Pod`.
    pub kind: &'static str,
}

impl Gvk {
    const fn core(kind: &'static str) -> Self {
        Self { group: "", version: "v1", kind }
    }

    const fn v1(group: &'static str, kind: &'static str) -> Self {
        Self { group, version: "v1", kind }
    }

    /// `DeleteOptions`, which every group accepts as the body of a DELETE.
    pub const DELETE_OPTIONS: Self = Self::core("DeleteOptions");

    /// The `apiVersion` of such an object: `v1`, or `group/version`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// One served resource.
#[derive(Debug)]
pub struct Resource {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Plural name, as in paths.
    pub plural: &'static str,
    /// Singular name.
    pub singular: &'static str,
    /// Kind of its objects.
    pub kind: &'static str,
    /// Short names that kubectl accepts.
    pub short_names: &'static [&'static str],
    /// Categories such as `all`.
    pub categories: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Verbs served on it, sorted.
    pub verbs: &'static [&'static str],
    /// What is served below one object.
    pub subresources: &'static [Subresource],
    /// Path below `/registry/` where its objects are stored; empty when they never are.
    pub storage: &'static str,
    /// Whether `metadata.generation` counts changes of its spec.
    pub counts_generation: bool,
}

/// One subresource.
#[derive(Debug)]
pub struct Subresource {
    /// Its name in the path.
    pub name: &'static str,
    /// What its bodies are.
    pub gvk: Gvk,
    /// Verbs served on it, sorted.
    pub verbs: &'static [&'static str],
}

impl Resource {
    /// Group, version and kind of its objects.
    #[must_use]
    pub const fn gvk(&self) -> Gvk {
        Gvk { group: self.group, version: self.version, kind: self.kind }
    }

    /// The name used in messages: `pods`, or `leases.coordination.k8s.io`.
    #[must_use]
    pub fn qualified(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Whether this verb is served.
    #[must_use]
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// The subresource of that name.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether `status` is written apart from the rest of the object.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// Whether both name the same stored objects (events live in two groups).
    #[must_use]
    pub fn same_storage(&self, other: &Resource) -> bool {
        !self.storage.is_empty() && self.storage == other.storage
    }
}

/// The resource served under this group, version and plural.
#[must_use]
pub fn lookup(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|r| r.plural == plural && r.group == group && r.version == version)
}

const ALL: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const NO_COLLECTION_DELETE: &[&str] =
    &["create", "delete", "get", "list", "patch", "update", "watch"];
const CREATE: &[&str] = &["create"];
/// A GET too opens a connection.
const CONNECT: &[&str] = &["create", "get"];
/// Any verb.
const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];
const READ_WRITE: &[&str] = &["get", "patch", "update"];

const fn status(kind: &'static str) -> Subresource {
    status_of("", kind)
}

const fn status_of(group: &'static str, kind: &'static str) -> Subresource {
    Subresource { name: "status", gvk: Gvk::v1(group, kind), verbs: READ_WRITE }
}

/// The number of replicas of a workload, read and written without the rest.
const SCALE: Subresource =
    Subresource { name: "scale", gvk: Gvk::v1("autoscaling", "Scale"), verbs: READ_WRITE };

const fn core(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    storage: &'static str,
) -> Resource {
    Resource {
        group: "",
        version: "v1",
        plural,
        singular,
        kind,
        short_names: &[],
        categories: &[],
        namespaced: true,
        verbs: ALL,
        subresources: &[],
        storage,
        counts_generation: false,
    }
}

const fn review(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
) -> Resource {
    Resource { group, namespaced: false, verbs: CREATE, ..core(plural, singular, kind, "") }
}

const fn storage(plural: &'static str, singular: &'static str, kind: &'static str) -> Resource {
    Resource { group: "storage.k8s.io", namespaced: false, ..core(plural, singular, kind, plural) }
}

const SIGNING_REQUEST: Gvk = Gvk::v1("certificates.k8s.io", "CertificateSigningRequest");

/// A namespaced resource of another group than the core one.
const fn grouped(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
) -> Resource {
    Resource { group, ..core(plural, singular, kind, plural) }
}

const fn rbac(plural: &'static str, singular: &'static str, kind: &'static str) -> Resource {
    Resource { group: "rbac.authorization.k8s.io", ..core(plural, singular, kind, plural) }
}

/// Every served resource, by group and then by name.
pub static RESOURCES: &[Resource] = &[
    Resource { verbs: CREATE, ..core("bindings", "binding", "Binding", "") },
    Resource { short_names: &["cm"], ..core("configmaps", "configmap", "ConfigMap", "configmaps") },
    Resource {
        short_names: &["ep"],
        ..core("endpoints", "endpoints", "Endpoints", "services/endpoints")
    },
    Resource { short_names: &["ev"], ..core("events", "event", "Event", "events") },
    Resource {
        short_names: &["limits"],
        ..core("limitranges", "limitrange", "LimitRange", "limitranges")
    },
    Resource {
        short_names: &["ns"],
        namespaced: false,
        verbs: NO_COLLECTION_DELETE,
        subresources: &[
            Subresource { name: "finalize", gvk: Gvk::core("Namespace"), verbs: &["update"] },
            status("Namespace"),
        ],
        ..core("namespaces", "namespace", "Namespace", "namespaces")
    },
    Resource {
        short_names: &["no"],
        namespaced: false,
        subresources: &[
            Subresource { name: "proxy", gvk: Gvk::core("NodeProxyOptions"), verbs: PROXY },
            status("Node"),
        ],
        ..core("nodes", "node", "Node", "minions")
    },
    Resource {
        short_names: &["pvc"],
        subresources: &[status("PersistentVolumeClaim")],
        ..core(
            "persistentvolumeclaims",
            "persistentvolumeclaim",
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
        )
    },
    Resource {
        short_names: &["pv"],
        namespaced: false,
        subresources: &[status("PersistentVolume")],
        ..core("persistentvolumes", "persistentvolume", "PersistentVolume", "persistentvolumes")
    },
    Resource {
        short_names: &["po"],
        categories: &["all"],
        subresources: &[
            Subresource { name: "attach", gvk: Gvk::core("PodAttachOptions"), verbs: CONNECT },
            Subresource { name: "binding", gvk: Gvk::core("Binding"), verbs: CREATE },
            Subresource { name: "ephemeralcontainers", gvk: Gvk::core("Pod"), verbs: READ_WRITE },
            Subresource { name: "eviction", gvk: Gvk::v1("policy", "Eviction"), verbs: CREATE },
            Subresource { name: "exec", gvk: Gvk::core("PodExecOptions"), verbs: CONNECT },
            Subresource { name: "log", gvk: Gvk::core("Pod"), verbs: &["get"] },
            Subresource {
                name: "portforward",
                gvk: Gvk::core("PodPortForwardOptions"),
                verbs: CONNECT,
            },
            Subresource { name: "proxy", gvk: Gvk::core("PodProxyOptions"), verbs: PROXY },
            Subresource { name: "resize", gvk: Gvk::core("Pod"), verbs: READ_WRITE },
            status("Pod"),
        ],
        counts_generation: true,
        ..core("pods", "pod", "Pod", "pods")
    },
    Resource {
        counts_generation: true,
        ..core("podtemplates", "podtemplate", "PodTemplate", "podtemplates")
    },
    Resource {
        short_names: &["rc"],
        categories: &["all"],
        subresources: &[SCALE, status("ReplicationController")],
        counts_generation: true,
        ..core(
            "replicationcontrollers",
            "replicationcontroller",
            "ReplicationController",
            "controllers",
        )
    },
    Resource {
        short_names: &["quota"],
        subresources: &[status("ResourceQuota")],
        ..core("resourcequotas", "resourcequota", "ResourceQuota", "resourcequotas")
    },
    core("secrets", "secret", "Secret", "secrets"),
    Resource {
        short_names: &["sa"],
        subresources: &[Subresource {
            name: "token",
            gvk: Gvk::v1("authentication.k8s.io", "TokenRequest"),
            verbs: CREATE,
        }],
        ..core("serviceaccounts", "serviceaccount", "ServiceAccount", "serviceaccounts")
    },
    Resource {
        short_names: &["svc"],
        categories: &["all"],
        subresources: &[
            Subresource { name: "proxy", gvk: Gvk::core("ServiceProxyOptions"), verbs: PROXY },
            status("Service"),
        ],
        ..core("services", "service", "Service", "services/specs")
    },
    grouped("apps", "controllerrevisions", "controllerrevision", "ControllerRevision"),
    Resource {
        short_names: &["ds"],
        categories: &["all"],
        subresources: &[status_of("apps", "DaemonSet")],
        counts_generation: true,
        ..grouped("apps", "daemonsets", "daemonset", "DaemonSet")
    },
    Resource {
        short_names: &["deploy"],
        categories: &["all"],
        subresources: &[SCALE, status_of("apps", "Deployment")],
        counts_generation: true,
        ..grouped("apps", "deployments", "deployment", "Deployment")
    },
    Resource {
        short_names: &["rs"],
        categories: &["all"],
        subresources: &[SCALE, status_of("apps", "ReplicaSet")],
        counts_generation: true,
        ..grouped("apps", "replicasets", "replicaset", "ReplicaSet")
    },
    Resource {
        short_names: &["sts"],
        categories: &["all"],
        subresources: &[SCALE, status_of("apps", "StatefulSet")],
        counts_generation: true,
        ..grouped("apps", "statefulsets", "statefulset", "StatefulSet")
    },
    review("authentication.k8s.io", "selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview"),
    review("authentication.k8s.io", "tokenreviews", "tokenreview", "TokenReview"),
    Resource {
        namespaced: true,
        ..review(
            "authorization.k8s.io",
            "localsubjectaccessreviews",
            "localsubjectaccessreview",
            "LocalSubjectAccessReview",
        )
    },
    review(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
    ),
    review(
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
    ),
    review(
        "authorization.k8s.io",
        "subjectaccessreviews",
        "subjectaccessreview",
        "SubjectAccessReview",
    ),
    Resource {
        version: "v2",
        short_names: &["hpa"],
        categories: &["all"],
        subresources: &[Subresource {
            name: "status",
            gvk: Gvk { group: "autoscaling", version: "v2", kind: "HorizontalPodAutoscaler" },
            verbs: READ_WRITE,
        }],
        ..grouped(
            "autoscaling",
            "horizontalpodautoscalers",
            "horizontalpodautoscaler",
            "HorizontalPodAutoscaler",
        )
    },
    Resource {
        short_names: &["cj"],
        categories: &["all"],
        subresources: &[status_of("batch", "CronJob")],
        counts_generation: true,
        ..grouped("batch", "cronjobs", "cronjob", "CronJob")
    },
    Resource {
        categories: &["all"],
        subresources: &[status_of("batch", "Job")],
        counts_generation: true,
        ..grouped("batch", "jobs", "job", "Job")
    },
    Resource {
        group: "certificates.k8s.io",
        short_names: &["csr"],
        namespaced: false,
        subresources: &[
            Subresource { name: "approval", gvk: SIGNING_REQUEST, verbs: READ_WRITE },
            Subresource { name: "status", gvk: SIGNING_REQUEST, verbs: READ_WRITE },
        ],
        ..core(
            "certificatesigningrequests",
            "certificatesigningrequest",
            SIGNING_REQUEST.kind,
            "certificatesigningrequests",
        )
    },
    Resource {
        group: "certificates.k8s.io",
        version: "v1beta1",
        namespaced: false,
        ..core(
            "clustertrustbundles",
            "clustertrustbundle",
            "ClusterTrustBundle",
            "clustertrustbundles",
        )
    },
    Resource { group: "coordination.k8s.io", ..core("leases", "lease", "Lease", "leases") },
    Resource {
        version: "v1beta1",
        ..grouped("coordination.k8s.io", "leasecandidates", "leasecandidate", "LeaseCandidate")
    },
    Resource {
        group: "discovery.k8s.io",
        counts_generation: true,
        ..core("endpointslices", "endpointslice", "EndpointSlice", "endpointslices")
    },
    Resource {
        group: "events.k8s.io",
        short_names: &["ev"],
        ..core("events", "event", "Event", "events")
    },
    Resource {
        namespaced: false,
        subresources: &[status_of("flowcontrol.apiserver.k8s.io", "FlowSchema")],
        counts_generation: true,
        ..grouped("flowcontrol.apiserver.k8s.io", "flowschemas", "flowschema", "FlowSchema")
    },
    Resource {
        namespaced: false,
        subresources: &[status_of("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration")],
        counts_generation: true,
        ..grouped(
            "flowcontrol.apiserver.k8s.io",
            "prioritylevelconfigurations",
            "prioritylevelconfiguration",
            "PriorityLevelConfiguration",
        )
    },
    Resource {
        namespaced: false,
        counts_generation: true,
        ..grouped("networking.k8s.io", "ingressclasses", "ingressclass", "IngressClass")
    },
    Resource {
        short_names: &["ing"],
        subresources: &[status_of("networking.k8s.io", "Ingress")],
        storage: "ingress",
        counts_generation: true,
        ..grouped("networking.k8s.io", "ingresses", "ingress", "Ingress")
    },
    Resource {
        short_names: &["ip"],
        namespaced: false,
        ..grouped("networking.k8s.io", "ipaddresses", "ipaddress", "IPAddress")
    },
    Resource {
        short_names: &["netpol"],
        counts_generation: true,
        ..grouped("networking.k8s.io", "networkpolicies", "networkpolicy", "NetworkPolicy")
    },
    Resource {
        namespaced: false,
        subresources: &[status_of("networking.k8s.io", "ServiceCIDR")],
        ..grouped("networking.k8s.io", "servicecidrs", "servicecidr", "ServiceCIDR")
    },
    Resource {
        group: "node.k8s.io",
        namespaced: false,
        ..core("runtimeclasses", "runtimeclass", "RuntimeClass", "runtimeclasses")
    },
    Resource {
        short_names: &["pdb"],
        subresources: &[status_of("policy", "PodDisruptionBudget")],
        counts_generation: true,
        ..grouped("policy", "poddisruptionbudgets", "poddisruptionbudget", "PodDisruptionBudget")
    },
    Resource {
        namespaced: false,
        ..rbac("clusterrolebindings", "clusterrolebinding", "ClusterRoleBinding")
    },
    Resource { namespaced: false, ..rbac("clusterroles", "clusterrole", "ClusterRole") },
    rbac("rolebindings", "rolebinding", "RoleBinding"),
    rbac("roles", "role", "Role"),
    Resource {
        namespaced: false,
        counts_generation: true,
        ..grouped("resource.k8s.io", "deviceclasses", "deviceclass", "DeviceClass")
    },
    Resource {
        subresources: &[status_of("resource.k8s.io", "ResourceClaim")],
        ..grouped("resource.k8s.io", "resourceclaims", "resourceclaim", "ResourceClaim")
    },
    grouped(
        "resource.k8s.io",
        "resourceclaimtemplates",
        "resourceclaimtemplate",
        "ResourceClaimTemplate",
    ),
    Resource {
        namespaced: false,
        counts_generation: true,
        ..grouped("resource.k8s.io", "resourceslices", "resourceslice", "ResourceSlice")
    },
    Resource {
        short_names: &["pc"],
        namespaced: false,
        counts_generation: true,
        ..grouped("scheduling.k8s.io", "priorityclasses", "priorityclass", "PriorityClass")
    },
    Resource { counts_generation: true, ..storage("csidrivers", "csidriver", "CSIDriver") },
    storage("csinodes", "csinode", "CSINode"),
    Resource {
        namespaced: true,
        ..storage("csistoragecapacities", "csistoragecapacity", "CSIStorageCapacity")
    },
    Resource { short_names: &["sc"], ..storage("storageclasses", "storageclass", "StorageClass") },
    Resource {
        subresources: &[Subresource {
            name: "status",
            gvk: Gvk::v1("storage.k8s.io", "VolumeAttachment"),
            verbs: READ_WRITE,
        }],
        ..storage("volumeattachments", "volumeattachment", "VolumeAttachment")
    },
    Resource {
        short_names: &["vac"],
        ..storage("volumeattributesclasses", "volumeattributesclass", "VolumeAttributesClass")
    },
];
