//! The fixed rules: who may do what, as data.

use super::{AUTHENTICATED, Access, KUBELET_CLIENT, NODES, SERVICE_ACCOUNTS, Target, User};

/// What a group or a user may do to resources; `*` stands for all.
struct Rule {
    verbs: &'static [&'static str],
    groups: &'static [&'static str],
    /// With sub-resource: `pods/status`.
    resources: &'static [&'static str],
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const READ: &[&str] = &["get", "list", "watch"];

/// Everybody who is known may ask about himself.
const BASIC_USER: &[Rule] = &[
    Rule {
        verbs: &["create"],
        groups: &[AUTHORIZATION],
        resources: &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    },
    Rule { verbs: &["create"], groups: &[AUTHENTICATION], resources: &["selfsubjectreviews"] },
];

/// What every node may do alike; what depends on the object is in `node`.
const NODE: &[Rule] = &[
    Rule { verbs: &["create"], groups: &[AUTHENTICATION], resources: &["tokenreviews"] },
    Rule {
        verbs: &["create"],
        groups: &[AUTHORIZATION],
        resources: &["subjectaccessreviews", "localsubjectaccessreviews"],
    },
    Rule { verbs: READ, groups: &[""], resources: &["services"] },
    Rule {
        verbs: &["create", "update", "patch"],
        groups: &["", "events.k8s.io"],
        resources: &["events"],
    },
    Rule { verbs: &["get"], groups: &[""], resources: &["endpoints"] },
    Rule {
        verbs: &["create", "get", "list", "watch"],
        groups: &["certificates.k8s.io"],
        resources: &["certificatesigningrequests"],
    },
    Rule { verbs: READ, groups: &["storage.k8s.io"], resources: &["csidrivers"] },
    Rule { verbs: READ, groups: &["node.k8s.io"], resources: &["runtimeclasses"] },
];

/// The service proxy runs in the node's daemon and under its name: what `system:node-proxier` grants.
const NODE_PROXIER: &[Rule] = &[
    Rule { verbs: &["list", "watch"], groups: &[""], resources: &["services"] },
    Rule {
        verbs: &["list", "watch"],
        groups: &["discovery.k8s.io"],
        resources: &["endpointslices"],
    },
    Rule {
        verbs: &["list", "watch"],
        groups: &["networking.k8s.io"],
        resources: &["servicecidrs"],
    },
];

/// What `system:kubelet-api-admin` grants.
const KUBELET_API: &[Rule] = &[
    Rule { verbs: READ, groups: &[""], resources: &["nodes"] },
    Rule { verbs: &["proxy"], groups: &[""], resources: &["nodes"] },
    Rule {
        verbs: &["*"],
        groups: &[""],
        resources: &[
            "nodes/checkpoint",
            "nodes/configz",
            "nodes/healthz",
            "nodes/log",
            "nodes/metrics",
            "nodes/pods",
            "nodes/proxy",
            "nodes/stats",
            "nodes/statusz",
        ],
    },
];

/// Paths that say nothing about anybody.
const PUBLIC_PATHS: &[&str] = &["/healthz", "/livez", "/readyz", "/version", "/version/"];
const DISCOVERY_PATHS: &[&str] = &["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"];
/// What `system:service-account-issuer-discovery` grants: how to verify one's token.
const ISSUER_DISCOVERY_PATHS: &[&str] = &[
    "/.well-known/openid-configuration",
    "/.well-known/openid-configuration/",
    "/openid/v1/jwks",
    "/openid/v1/jwks/",
];

pub(super) fn allows(access: &Access<'_>) -> bool {
    match &access.target {
        Target::Path(path) => access.verb == "get" && allows_path(access.user, path),
        Target::Resource(target) => {
            let resource = match target.subresource {
                "" => target.resource.to_owned(),
                subresource => format!("{}/{subresource}", target.resource),
            };
            rules_of(access.user).flatten().any(|rule| {
                has(rule.verbs, access.verb)
                    && has(rule.groups, target.group)
                    && has(rule.resources, &resource)
            })
        }
    }
}

fn rules_of(user: &User) -> impl Iterator<Item = &'static [Rule]> {
    let is_node = super::node_name(user).is_some_and(|name| !name.is_empty());
    [
        (user.is_in(AUTHENTICATED), BASIC_USER),
        (is_node, NODE),
        (is_node && user.is_in(NODES), NODE_PROXIER),
        (user.name == KUBELET_CLIENT, KUBELET_API),
    ]
    .into_iter()
    .filter_map(|(applies, rules)| applies.then_some(rules))
}

fn has(list: &[&str], item: &str) -> bool {
    list.iter().any(|entry| *entry == "*" || *entry == item)
}

fn allows_path(user: &User, path: &str) -> bool {
    let matches = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == *pattern,
    };
    PUBLIC_PATHS.iter().any(matches)
        || (user.is_in(AUTHENTICATED) && DISCOVERY_PATHS.iter().any(matches))
        || (user.is_in(SERVICE_ACCOUNTS) && ISSUER_DISCOVERY_PATHS.iter().any(matches))
}
