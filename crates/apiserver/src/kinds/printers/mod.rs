//! The columns and cells that kinds have in tables.

pub(super) mod access;
mod age;
mod pod;
pub(super) mod storage;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

pub(in crate::kinds) use self::age::{human, since};
use crate::schema::value::{entries, items, text};

/// One column: name, type, format and priority.
#[derive(Clone, Copy)]
pub(crate) struct Column(
    pub(in crate::kinds) &'static str,
    pub(in crate::kinds) &'static str,
    pub(in crate::kinds) &'static str,
    pub(in crate::kinds) u8,
);

impl Column {
    /// The column definition of a Table.
    pub(crate) fn to_value(self) -> Value {
        let Self(name, kind, format, priority) = self;
        json!({"name": name, "type": kind, "format": format, "description": "", "priority": priority})
    }
}

/// How objects of one kind become rows.
pub(crate) struct Printer {
    pub(crate) columns: &'static [Column],
    pub(crate) cells: fn(&Value, Timestamp) -> Vec<Value>,
    /// The conditions of a row, for objects that are done.
    pub(crate) conditions: fn(&Value) -> Option<Value>,
}

impl Printer {
    pub(in crate::kinds) const fn new(
        columns: &'static [Column],
        cells: fn(&Value, Timestamp) -> Vec<Value>,
    ) -> Printer {
        Printer { columns, cells, conditions: |_| None }
    }
}

pub(in crate::kinds) const NAME: Column = Column("Name", "string", "name", 0);
pub(in crate::kinds) const AGE: Column = string("Age");

pub(in crate::kinds) const fn string(name: &'static str) -> Column {
    Column(name, "string", "", 0)
}

pub(in crate::kinds) const fn integer(name: &'static str) -> Column {
    Column(name, "integer", "", 0)
}

pub(in crate::kinds) const fn wide(name: &'static str) -> Column {
    Column(name, "string", "", 1)
}

pub(super) static PODS: Printer = Printer {
    conditions: pod::conditions,
    ..Printer::new(
        &[
            NAME,
            string("Ready"),
            string("Status"),
            string("Restarts"),
            AGE,
            wide("IP"),
            wide("Node"),
            wide("Nominated Node"),
            wide("Readiness Gates"),
        ],
        pod::cells,
    )
};

pub(super) static NODES: Printer = Printer::new(
    &[
        NAME,
        string("Status"),
        string("Roles"),
        AGE,
        string("Version"),
        wide("Internal-IP"),
        wide("External-IP"),
        wide("OS-Image"),
        wide("Kernel-Version"),
        wide("Container-Runtime"),
    ],
    node,
);

pub(super) static SERVICES: Printer = Printer::new(
    &[
        NAME,
        string("Type"),
        string("Cluster-IP"),
        string("External-IP"),
        string("Port(s)"),
        AGE,
        wide("Selector"),
    ],
    service,
);

pub(super) static EVENTS: Printer = Printer::new(
    &[
        string("Last Seen"),
        string("Type"),
        string("Reason"),
        string("Object"),
        wide("Subobject"),
        wide("Source"),
        string("Message"),
        wide("First Seen"),
        wide("Count"),
        Column("Name", "string", "name", 1),
    ],
    event,
);

pub(super) static CONTROLLERS: Printer = Printer::new(
    &[
        NAME,
        integer("Desired"),
        integer("Current"),
        integer("Ready"),
        AGE,
        wide("Containers"),
        wide("Images"),
        wide("Selector"),
    ],
    controller,
);

pub(super) static ENDPOINTS: Printer = Printer::new(&[NAME, string("Endpoints"), AGE], endpoints);
pub(super) static SLICES: Printer = Printer::new(
    &[NAME, string("AddressType"), string("Ports"), string("Endpoints"), AGE],
    endpoint_slice,
);
pub(super) static CONFIG_MAPS: Printer = Printer::new(&[NAME, string("Data"), AGE], config_map);
pub(super) static SECRETS: Printer =
    Printer::new(&[NAME, string("Type"), string("Data"), AGE], secret);
pub(super) static NAMESPACES: Printer = Printer::new(&[NAME, string("Status"), AGE], namespace);
pub(super) static LEASES: Printer = Printer::new(&[NAME, string("Holder"), AGE], lease);
pub(super) static ACCOUNTS: Printer = Printer::new(&[NAME, AGE], account);
pub(super) static NAME_AND_CREATION: Printer =
    Printer::new(&[NAME, Column("Created At", "date", "", 0)], name_and_creation);

pub(in crate::kinds) fn name(object: &Value) -> Value {
    text(&object["metadata"]["name"]).into()
}

pub(in crate::kinds) fn age(object: &Value, now: Timestamp) -> Value {
    since(&object["metadata"]["creationTimestamp"], now).into()
}

/// The text, or this where there is none.
pub(in crate::kinds) fn or(text: &str, fallback: &str) -> Value {
    if text.is_empty() { fallback.into() } else { text.into() }
}

pub(in crate::kinds) fn labels(labels: &Value) -> Value {
    let pairs: Vec<String> = entries(labels).map(|(k, v)| format!("{k}={}", text(v))).collect();
    or(&pairs.join(","), "<none>")
}

fn config_map(map: &Value, now: Timestamp) -> Vec<Value> {
    let count = entries(&map["data"]).count() + entries(&map["binaryData"]).count();
    vec![name(map), json!(count), age(map, now)]
}

fn secret(secret: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(secret),
        text(&secret["type"]).into(),
        json!(entries(&secret["data"]).count()),
        age(secret, now),
    ]
}

fn namespace(namespace: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(namespace), text(&namespace["status"]["phase"]).into(), age(namespace, now)]
}

fn lease(lease: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(lease), text(&lease["spec"]["holderIdentity"]).into(), age(lease, now)]
}

fn account(account: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(account), age(account, now)]
}

fn name_and_creation(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(object), object["metadata"]["creationTimestamp"].clone()]
}

fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let (status, info) = (&node["status"], &node["status"]["nodeInfo"]);
    let ready = items(&status["conditions"]).iter().find(|c| c["type"] == "Ready");
    let mut state = match ready {
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        state.push_str(",SchedulingDisabled");
    }
    let address = |kind: &str| {
        let found = items(&status["addresses"]).iter().find(|a| a["type"] == kind);
        or(found.map_or("", |a| text(&a["address"])), "<none>")
    };
    let mut kernel = match text(&info["kernelVersion"]) {
        "" => "<unknown>".to_owned(),
        version => version.to_owned(),
    };
    if !text(&info["architecture"]).is_empty() {
        kernel.push_str(&format!(" ({})", text(&info["architecture"])));
    }
    vec![
        name(node),
        state.into(),
        or(&roles(node), "<none>"),
        age(node, now),
        text(&info["kubeletVersion"]).into(),
        address("InternalIP"),
        address("ExternalIP"),
        or(text(&info["osImage"]), "<unknown>"),
        kernel.into(),
        or(text(&info["containerRuntimeVersion"]), "<unknown>"),
    ]
}

fn roles(node: &Value) -> String {
    let role = |(key, value): (&'_ String, &'_ Value)| match key
        .strip_prefix("node-role.kubernetes.io/")
    {
        Some(role) => Some(role.to_owned()),
        None if key == "kubernetes.io/role" => Some(text(value).to_owned()),
        None => None,
    };
    let roles: BTreeSet<String> =
        entries(&node["metadata"]["labels"]).filter_map(role).filter(|r| !r.is_empty()).collect();
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn service(service: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &service["spec"];
    let ports: Vec<String> = items(&spec["ports"])
        .iter()
        .map(|p| match p["nodePort"].as_i64().unwrap_or(0) {
            0 => format!("{}/{}", p["port"], text(&p["protocol"])),
            node => format!("{}:{node}/{}", p["port"], text(&p["protocol"])),
        })
        .collect();
    vec![
        name(service),
        text(&spec["type"]).into(),
        or(text(&spec["clusterIPs"][0]), "<none>"),
        external_ip(service).into(),
        or(&ports.join(","), "<none>"),
        age(service, now),
        labels(&spec["selector"]),
    ]
}

fn external_ip(service: &Value) -> String {
    let spec = &service["spec"];
    let given: Vec<&str> = items(&spec["externalIPs"]).iter().map(text).collect();
    let list = |ips: Vec<&str>, fallback: &str| {
        if ips.is_empty() { fallback.to_owned() } else { ips.join(",") }
    };
    match text(&spec["type"]) {
        "ClusterIP" | "NodePort" => list(given, "<none>"),
        "LoadBalancer" => {
            let ingress = items(&service["status"]["loadBalancer"]["ingress"]).iter();
            let addresses = ingress.map(|i| [text(&i["ip"]), text(&i["hostname"])]);
            let balancer: BTreeSet<&str> =
                addresses.filter_map(|a| a.into_iter().find(|a| !a.is_empty())).collect();
            list(balancer.into_iter().chain(given).collect(), "<pending>")
        }
        "ExternalName" => text(&spec["externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// The first three, and how many more there are; `none` when there are none.
fn first_few(all: impl Iterator<Item = String>, none: &str) -> Value {
    let mut shown = Vec::new();
    let mut more = 0;
    for item in all {
        if shown.len() < 3 { shown.push(item) } else { more += 1_usize }
    }
    let list = shown.join(",");
    if more > 0 { format!("{list} + {more} more...").into() } else { or(&list, none) }
}

fn endpoints(endpoints: &Value, now: Timestamp) -> Vec<Value> {
    let subsets = items(&endpoints["subsets"]);
    let all = subsets.iter().flat_map(|subset| {
        let ports = items(&subset["ports"]);
        let ips = || items(&subset["addresses"]).iter().map(|a| text(&a["ip"]));
        let bare = ports.is_empty().then(ips).into_iter().flatten().map(str::to_owned);
        bare.chain(ports.iter().flat_map(move |port| ips().map(|ip| host_port(ip, &port["port"]))))
    });
    // subsets whose addresses are all not ready show as nothing
    let shown = first_few(all, if subsets.is_empty() { "<none>" } else { "" });
    vec![name(endpoints), shown, age(endpoints, now)]
}

fn host_port(ip: &str, port: &Value) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn endpoint_slice(slice: &Value, now: Timestamp) -> Vec<Value> {
    let ports = items(&slice["ports"]).iter().map(|port| {
        match (port["port"].as_i64(), port["name"].as_str()) {
            (Some(number), _) => number.to_string(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => "*".to_owned(),
        }
    });
    let addresses = items(&slice["endpoints"])
        .iter()
        .flat_map(|e| items(&e["addresses"]).iter().map(|a| text(a).to_owned()));
    vec![
        name(slice),
        text(&slice["addressType"]).into(),
        first_few(ports, "<unset>"),
        first_few(addresses, "<unset>"),
        age(slice, now),
    ]
}

/// Events of either group: the newer fields are used where the older ones are absent.
fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    let field = |old: &str, new: &str| if event[old].is_null() { &event[new] } else { &event[old] };
    let first = match field("firstTimestamp", "deprecatedFirstTimestamp") {
        Value::Null => since(&event["eventTime"], now),
        time => since(time, now),
    };
    let mut last = match field("lastTimestamp", "deprecatedLastTimestamp") {
        Value::Null => first.clone(),
        time => since(time, now),
    };
    let mut count = field("count", "deprecatedCount").as_i64().unwrap_or(0).max(1);
    let series = &event["series"];
    if !series.is_null() {
        last = since(&series["lastObservedTime"], now);
        count = series["count"].as_i64().unwrap_or(0);
    }
    let about = field("involvedObject", "regarding");
    let kind = text(&about["kind"]).to_lowercase();
    let target = match text(&about["name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = field("source", "deprecatedSource");
    let either = |a: &'_ Value, b: &'_ Value| {
        if text(a).is_empty() { text(b).to_owned() } else { text(a).to_owned() }
    };
    let component =
        either(&source["component"], field("reportingComponent", "reportingController"));
    let host = either(&source["host"], &event["reportingInstance"]);
    vec![
        last.into(),
        text(&event["type"]).into(),
        text(&event["reason"]).into(),
        target.into(),
        text(&about["fieldPath"]).into(),
        if host.is_empty() { component.into() } else { format!("{component}, {host}").into() },
        text(field("message", "note")).trim().into(),
        first.into(),
        json!(count),
        name(event),
    ]
}

fn controller(controller: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&controller["spec"], &controller["status"]);
    let count = |value: &Value| json!(value.as_i64().unwrap_or(0));
    let containers = items(&spec["template"]["spec"]["containers"]);
    let all =
        |field: &str| containers.iter().map(|c| text(&c[field])).collect::<Vec<_>>().join(",");
    vec![
        name(controller),
        count(&spec["replicas"]),
        count(&status["replicas"]),
        count(&status["readyReplicas"]),
        age(controller, now),
        all("name").into(),
        all("image").into(),
        labels(&spec["selector"]),
    ]
}
