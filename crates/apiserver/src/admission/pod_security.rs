//! The PodSecurity admission plugin: the Pod Security Standards, at the level that the labels of a
//! namespace set. Upstream's rules and messages are in `pod-security-admission/policy`.
//!
//! Current limitations: a namespace whose level rises gets no warning about its existing pods.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::api_types::Resource;
use crate::audit;
use crate::kinds::core;
use crate::object;
use crate::registry::Registry;
use crate::schema::names;
use crate::schema::value::{entries, items, text};
use crate::status::{Cause, StatusError};
use crate::user::User;

const PREFIX: &str = "pod-security.kubernetes.io/";
/// The newest version whose rules differ from those of the one before.
const NEWEST: u32 = 35;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// A level, and the minor version of its rules; `None` is the newest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Policy {
    level: Level,
    version: Option<u32>,
}

impl Policy {
    fn to_text(self) -> String {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Some(minor) => format!("{level}:v1.{minor}"),
            None => format!("{level}:latest"),
        }
    }
}

fn parse_level(value: &str) -> Result<Level, &'static str> {
    match value {
        "privileged" => Ok(Level::Privileged),
        "baseline" => Ok(Level::Baseline),
        "restricted" => Ok(Level::Restricted),
        _ => Err("must be one of privileged, baseline, restricted"),
    }
}

fn parse_version(value: &str) -> Result<Option<u32>, &'static str> {
    const WRONG: &str = "must be \"latest\" or \"v1.x\"";
    if value == "latest" {
        return Ok(None);
    }
    let minor = value.strip_prefix("v1.").ok_or(WRONG)?;
    let is_number = minor.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || (minor.len() > 1 && minor.starts_with('0')) {
        return Err(WRONG);
    }
    minor.parse().map(Some).map_err(|_| WRONG)
}

/// What holds where a namespace says nothing, and for whom nothing holds (a PodSecurityConfiguration).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodSecurity {
    enforce: Policy,
    audit: Policy,
    warn: Policy,
    exempt: Exemptions,
}

/// For whom nothing holds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Exemptions {
    usernames: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

/// What holds for the pods of an update.
#[derive(Debug)]
pub(crate) struct Policies {
    enforce: Policy,
    audit: Policy,
    warn: Policy,
    exempt_classes: Vec<String>,
}

impl PodSecurity {
    /// Reads a PodSecurityConfiguration.
    pub(super) fn read(configuration: &Value) -> Result<PodSecurity, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Configuration {
            api_version: String,
            kind: String,
            #[serde(default)]
            defaults: BTreeMap<String, String>,
            #[serde(default)]
            exemptions: Exemptions,
        }
        const MODES: [&str; 3] = ["enforce", "audit", "warn"];
        let read = Configuration::deserialize(configuration)
            .map_err(|error| format!("no PodSecurityConfiguration: {error}"))?;
        let version = read.api_version.strip_prefix("pod-security.admission.config.k8s.io/");
        let is_known = version.is_some_and(|v| ["v1", "v1beta1", "v1alpha1"].contains(&v));
        if !is_known || read.kind != "PodSecurityConfiguration" {
            let (version, kind) = (read.api_version, read.kind);
            return Err(format!("{version}, {kind} is no PodSecurityConfiguration"));
        }
        let mut policies = [Policy::default(); MODES.len()];
        for (field, value) in read.defaults.iter().filter(|(_, value)| !value.is_empty()) {
            let (mode, is_version) = match field.strip_suffix("-version") {
                Some(mode) => (mode, true),
                None => (field.as_str(), false),
            };
            let policy = MODES.iter().zip(&mut policies).find(|(known, _)| **known == mode);
            let Some((_, policy)) = policy else {
                return Err(format!("defaults.{field}: unknown field"));
            };
            let at = |why| format!("defaults.{field}: Invalid value: {value:?}: {why}");
            match is_version {
                true => policy.version = parse_version(value).map_err(at)?,
                false => policy.level = parse_level(value).map_err(at)?,
            }
        }
        let [enforce, audit, warn] = policies;
        let exempt = read.exemptions;
        exempt.check()?;
        Ok(PodSecurity { enforce, audit, warn, exempt })
    }

    /// Whether nothing holds for what the user does in the namespace.
    fn exempts(&self, user: &User, namespace: &str) -> bool {
        self.exempt.usernames.contains(&user.name)
            || self.exempt.namespaces.iter().any(|exempt| exempt == namespace)
    }

    /// What a namespace enforces and warns about. A label that cannot be read enforces the strictest.
    fn policies(&self, namespace: &Value) -> Policies {
        let labels = &namespace["metadata"]["labels"];
        let label = |name: &str| labels[format!("{PREFIX}{name}")].as_str();
        let version = |name: &str, default: Policy| match label(name) {
            Some(value) => parse_version(value).unwrap_or(None),
            None => default.version,
        };
        let level = |name: &str| label(name).map(parse_level);
        let enforce = Policy {
            level: level("enforce")
                .map_or(self.enforce.level, |level| level.unwrap_or(Level::Restricted)),
            version: version("enforce-version", self.enforce),
        };
        let audit = Policy {
            level: level("audit").map_or(self.audit.level, |level| level.unwrap_or_default()),
            version: version("audit-version", self.audit),
        };
        let mut warn = Policy {
            level: level("warn").map_or(self.warn.level, |level| level.unwrap_or_default()),
            version: version("warn-version", self.warn),
        };
        let is_valid = level("enforce").is_some_and(|level| level.is_ok());
        if level("warn").is_none() && is_valid && enforce.level > warn.level {
            warn.level = enforce.level;
            if label("warn-version").is_none() {
                warn.version = enforce.version;
            }
        }
        Policies { enforce, audit, warn, exempt_classes: self.exempt.runtime_classes.clone() }
    }

    /// Admits a new object. Returns a warning for the client.
    pub(crate) async fn admit_create(
        &self,
        registry: &Registry,
        user: &User,
        resource: &Resource,
        object: &Value,
    ) -> Result<Option<String>, StatusError> {
        let is_exempt = || self.exempts(user, object::namespace(object));
        match resource.kind {
            "Namespace" => check_namespace(resource, object, None).map(|()| None),
            _ if !resource.namespaced || is_exempt() => Ok(None),
            "Pod" => {
                let namespace = namespace_of(registry, object::namespace(object)).await?;
                self.policies(&namespace).check(resource, object)
            }
            _ => self.warn_template(registry, object).await,
        }
    }

    /// What holds for an update of a subresource, if anything does.
    pub(crate) async fn policies_for_update(
        &self,
        registry: &Registry,
        user: &User,
        subresource: &str,
        namespace: &str,
    ) -> Result<Option<Policies>, StatusError> {
        if subresource != "ephemeralcontainers" || self.exempts(user, namespace) {
            return Ok(None);
        }
        namespace_of(registry, namespace).await.map(|namespace| Some(self.policies(&namespace)))
    }

    /// A warning about a template whose pods would violate the level that the namespace warns about.
    async fn warn_template(
        &self,
        registry: &Registry,
        owner: &Value,
    ) -> Result<Option<String>, StatusError> {
        let template = match () {
            () if owner["template"].is_object() => &owner["template"],
            () if owner["spec"]["jobTemplate"].is_object() => {
                &owner["spec"]["jobTemplate"]["spec"]["template"]
            }
            () => &owner["spec"]["template"],
        };
        if !template["spec"]["containers"].is_array() {
            return Ok(None);
        }
        let namespace = registry.find(core("namespaces")?, "", object::namespace(owner)).await?;
        let Some(namespace) = namespace else { return Ok(None) };
        let policies = self.policies(&namespace);
        Ok(policies.warning(&template["metadata"], &template["spec"]))
    }
}

impl Exemptions {
    fn check(&self) -> Result<(), String> {
        let named = |text: &str| match names::is_dns_subdomain(text) {
            true => Ok(()),
            false => Err("it is not a name".to_owned()),
        };
        let not_empty = |text: &str| match text.is_empty() {
            true => Err("username must not be empty".to_owned()),
            false => Ok(()),
        };
        type Check<'a> = &'a dyn Fn(&str) -> Result<(), String>;
        let lists: [(&str, &[String], Check<'_>); 3] = [
            ("namespaces", &self.namespaces, &named),
            ("runtimeClasses", &self.runtime_classes, &named),
            ("usernames", &self.usernames, &not_empty),
        ];
        for (list, texts, check) in lists {
            for (i, text) in texts.iter().enumerate() {
                let at = format!("exemptions.{list}[{i}]");
                check(text).map_err(|why| format!("{at}: Invalid value: {text:?}: {why}"))?;
                if texts.iter().take(i).any(|other| other == text) {
                    return Err(format!("{at}: Duplicate value: {text:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Admits an update. Takes what [`PodSecurity::policies_for_update`] found, and the stored object. Returns a
/// warning for the client.
pub(crate) fn admit_update(
    resource: &Resource,
    subresource: &str,
    policies: Option<&Policies>,
    object: &Value,
    old: &Value,
) -> Result<Option<String>, StatusError> {
    match (policies, resource.kind, subresource) {
        (Some(policies), ..) => policies.check(resource, object),
        (None, "Namespace", "") => check_namespace(resource, object, Some(old)).map(|()| None),
        _ => Ok(None),
    }
}

async fn namespace_of(registry: &Registry, namespace: &str) -> Result<Value, StatusError> {
    registry.get(core("namespaces")?, "", namespace).await
}

/// Refuses a namespace whose labels cannot be read; those that were so before may stay.
fn check_namespace(
    resource: &Resource,
    namespace: &Value,
    old: Option<&Value>,
) -> Result<(), StatusError> {
    let causes = label_faults(namespace);
    if causes.is_empty() || old.is_some_and(|old| label_faults(old) == causes) {
        return Ok(());
    }
    Err(StatusError::invalid(resource, object::name(namespace), causes))
}

fn label_faults(namespace: &Value) -> Vec<Cause> {
    let labels = &namespace["metadata"]["labels"];
    let mut causes = Vec::new();
    for mode in ["enforce", "audit", "warn"] {
        let (level, version) = (format!("{PREFIX}{mode}"), format!("{PREFIX}{mode}-version"));
        let faults = [
            (labels[&level].as_str().and_then(|value| parse_level(value).err()), level),
            (labels[&version].as_str().and_then(|value| parse_version(value).err()), version),
        ];
        for (fault, label) in faults {
            let Some(fault) = fault else { continue };
            causes.push(Cause {
                reason: "FieldValueInvalid",
                message: format!("Invalid value: {}: {fault}", labels[&label]),
                field: format!("metadata.labels[{label}]"),
            });
        }
    }
    causes
}

impl Policies {
    /// Refuses a pod that its namespace does not take; returns a warning about one that it would rather not.
    fn check(&self, resource: &Resource, pod: &Value) -> Result<Option<String>, StatusError> {
        let class = text(&pod["spec"]["runtimeClassName"]);
        if self.exempt_classes.iter().any(|exempt| exempt == class) {
            return Ok(None);
        }
        let enforce = self.enforce;
        audit::annotate(format!("{PREFIX}enforce-policy"), enforce.to_text());
        let warning = self.warning(&pod["metadata"], &pod["spec"]);
        if let Some(faults) = violations(enforce, &pod["metadata"], &pod["spec"]) {
            let why = format!("violates PodSecurity {:?}: {faults}", enforce.to_text());
            return Err(StatusError::forbidden(resource, object::name(pod), &why));
        }
        Ok(warning)
    }

    /// A warning about what it would rather not take. What violates the audited level is recorded.
    fn warning(&self, metadata: &Value, spec: &Value) -> Option<String> {
        let class = text(&spec["runtimeClassName"]);
        if self.exempt_classes.iter().any(|exempt| exempt == class) {
            return None;
        }
        let would_violate = |policy: Policy| {
            let faults = violations(policy, metadata, spec)?;
            Some(format!("would violate PodSecurity {:?}: {faults}", policy.to_text()))
        };
        if let Some(violations) = would_violate(self.audit) {
            audit::annotate(format!("{PREFIX}audit-violations"), violations);
        }
        would_violate(self.warn)
    }
}

/// What is wrong by these rules, as one text.
fn violations(policy: Policy, metadata: &Value, spec: &Value) -> Option<String> {
    let version = policy.version.unwrap_or(NEWEST);
    let context = Context { metadata, spec, version };
    let mut found = Vec::new();
    if policy.level >= Level::Baseline {
        found.extend(context.baseline(policy.level == Level::Baseline));
    }
    if policy.level >= Level::Restricted {
        found.extend(context.restricted());
    }
    (!found.is_empty()).then(|| found.join(", "))
}

struct Context<'a> {
    metadata: &'a Value,
    spec: &'a Value,
    version: u32,
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

fn quoted<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = names.into_iter().map(|name| format!("{:?}", name.as_ref())).collect();
    all.join(", ")
}

fn containers_text(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

fn fault(reason: &str, detail: String) -> String {
    format!("{reason} ({detail})")
}

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Allowed sysctls, and the version from which they are.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.tcp_wmem", 32),
];
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

impl<'a> Context<'a> {
    fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec;
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(move |list| items(&spec[list]))
    }

    /// Names of the containers that are bad, and what is bad in them.
    fn bad<'b>(
        &'b self,
        values: impl Fn(&'a Value) -> Vec<String> + 'b,
    ) -> (Vec<&'a str>, BTreeSet<String>) {
        let (mut names, mut all) = (Vec::new(), BTreeSet::new());
        for container in self.containers() {
            let found = values(container);
            if !found.is_empty() {
                names.push(text(&container["name"]));
                all.extend(found);
            }
        }
        (names, all)
    }

    /// A field of the security context, in the pod and in containers: who sets it to something bad.
    fn setters(&self, bad: impl Fn(&Value) -> Option<String>) -> (Vec<String>, BTreeSet<String>) {
        let (mut setters, mut values) = (Vec::new(), BTreeSet::new());
        if let Some(value) = bad(&self.spec["securityContext"]) {
            setters.push("pod".to_owned());
            values.insert(value);
        }
        let (names, more) =
            self.bad(|container| bad(&container["securityContext"]).into_iter().collect());
        if !names.is_empty() {
            setters.push(containers_text(&names));
        }
        values.extend(more);
        (setters, values)
    }

    fn has_user_namespace(&self) -> bool {
        self.version >= 35 && self.spec["hostUsers"] == false
    }

    fn is_windows(&self) -> bool {
        self.version >= 25 && self.spec["os"]["name"] == "windows"
    }

    /// By upstream's names of the checks. `all`: those too that the restricted level replaces.
    fn baseline(&self, all: bool) -> Vec<String> {
        let mut checks: BTreeMap<&str, Option<String>> = BTreeMap::new();
        checks.insert("appArmorProfile", self.app_armor());
        if all || self.version < 22 {
            checks.insert("capabilities_baseline", self.capabilities());
        }
        checks.insert("hostNamespaces", self.host_namespaces());
        if all {
            checks.insert("hostPathVolumes", self.host_paths());
        }
        checks.insert("hostPorts", self.host_ports());
        if self.version >= 34 {
            checks.insert("hostProbesAndHostLifecycle", self.probe_hosts());
        }
        checks.insert("privileged", self.privileged());
        if !(self.has_user_namespace() && all) {
            checks.insert("procMount", self.proc_mount());
        }
        checks.insert("seLinuxOptions", self.selinux());
        if all || self.version < 19 {
            checks.insert("seccompProfile_baseline", self.seccomp(false));
        }
        checks.insert("sysctls", self.sysctls());
        checks.insert("windowsHostProcess", self.host_process());
        checks.into_values().flatten().collect()
    }

    fn restricted(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !self.is_windows() && self.version >= 8 {
            found.extend(self.privilege_escalation());
        }
        if !self.is_windows() && self.version >= 22 {
            found.extend(self.capabilities_restricted());
        }
        found.extend(self.restricted_volumes());
        if !self.has_user_namespace() {
            found.extend(self.run_as_non_root());
            if self.version >= 23 {
                found.extend(self.run_as_user());
            }
        }
        if !self.is_windows() && self.version >= 19 {
            found.extend(self.seccomp(true));
        }
        found
    }

    fn app_armor(&self) -> Option<String> {
        const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
        let (mut setters, values) = self.setters(|context| {
            let kind = context["appArmorProfile"]["type"].as_str()?;
            (!matches!(kind, "RuntimeDefault" | "Localhost")).then(|| kind.to_owned())
        });
        let mut values: Vec<String> = values.into_iter().collect();
        let annotations: Vec<String> = entries(&self.metadata["annotations"])
            .filter(|(key, value)| {
                let value = text(value);
                key.starts_with(ANNOTATION)
                    && !(value.is_empty()
                        || value == "runtime/default"
                        || value.starts_with("localhost/"))
            })
            .map(|(key, value)| format!("{key}={:?}", text(value)))
            .collect();
        if !annotations.is_empty() {
            setters.push(plural("annotation", "annotations", annotations.len()).to_owned());
            values.extend(annotations);
        }
        if setters.is_empty() {
            return None;
        }
        let reason =
            plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
        let (setters, values) = (setters.join(" and "), quoted(values));
        Some(fault(reason, format!("{setters} must not set AppArmor profile type to {values}")))
    }

    fn capabilities(&self) -> Option<String> {
        let (names, added) = self.bad(|container| {
            let added = items(&container["securityContext"]["capabilities"]["add"]).iter();
            let added = added.map(text).filter(|name| !CAPABILITIES.contains(name));
            added.map(str::to_owned).collect()
        });
        (!names.is_empty()).then(|| {
            let (names, added) = (containers_text(&names), quoted(added));
            let detail =
                format!("{names} must not include {added} in securityContext.capabilities.add");
            fault("non-default capabilities", detail)
        })
    }

    fn host_namespaces(&self) -> Option<String> {
        let fields = ["hostNetwork", "hostPID", "hostIPC"];
        let set: Vec<String> = fields
            .into_iter()
            .filter(|field| self.spec[*field] == true)
            .map(|field| format!("{field}=true"))
            .collect();
        (!set.is_empty()).then(|| fault("host namespaces", set.join(", ")))
    }

    fn host_paths(&self) -> Option<String> {
        let volumes = items(&self.spec["volumes"]).iter();
        let names: Vec<&str> = volumes
            .filter(|volume| !volume["hostPath"].is_null())
            .map(|volume| text(&volume["name"]))
            .collect();
        (!names.is_empty()).then(|| {
            let detail = format!("{} {}", plural("volume", "volumes", names.len()), quoted(&names));
            fault("hostPath volumes", detail)
        })
    }

    fn host_ports(&self) -> Option<String> {
        let (names, ports) = self.bad(|container| {
            let ports = items(&container["ports"]).iter();
            let ports =
                ports.filter_map(|port| port["hostPort"].as_i64()).filter(|port| *port != 0);
            ports.map(|port| port.to_string()).collect()
        });
        (!names.is_empty()).then(|| {
            let all: Vec<String> = ports.into_iter().collect();
            let detail = format!(
                "{} {} {} {}",
                containers_text(&names),
                plural("uses", "use", names.len()),
                plural("hostPort", "hostPorts", all.len()),
                all.join(", ")
            );
            fault("hostPort", detail)
        })
    }

    fn probe_hosts(&self) -> Option<String> {
        let (names, hosts) = self.bad(|container| {
            let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
            let probes = probes.map(|probe| &container[probe]);
            let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
            let handlers = probes.into_iter().chain(hooks);
            let hosts = handlers.flat_map(|handler| {
                ["httpGet", "tcpSocket"].map(|kind| text(&handler[kind]["host"]).to_owned())
            });
            hosts.filter(|host| !host.is_empty()).collect()
        });
        (!names.is_empty()).then(|| {
            let names: BTreeSet<&str> = names.into_iter().collect();
            let names: Vec<&str> = names.into_iter().collect();
            let detail = format!(
                "{} {} {} {}",
                containers_text(&names),
                plural("uses", "use", names.len()),
                plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
                quoted(hosts)
            );
            fault("probe or lifecycle host", detail)
        })
    }

    fn names(&self, is_bad: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        let bad = self.containers().filter(|container| is_bad(&container["securityContext"]));
        bad.map(|container| text(&container["name"])).collect()
    }

    fn privileged(&self) -> Option<String> {
        let names = self.names(|context| context["privileged"] == true);
        (!names.is_empty()).then(|| {
            let names = containers_text(&names);
            fault("privileged", format!("{names} must not set securityContext.privileged=true"))
        })
    }

    fn proc_mount(&self) -> Option<String> {
        let (names, types) = self.bad(|container| {
            let given = container["securityContext"]["procMount"].as_str();
            given.filter(|given| *given != "Default").map(str::to_owned).into_iter().collect()
        });
        (!names.is_empty()).then(|| {
            let (names, types) = (containers_text(&names), quoted(types));
            fault("procMount", format!("{names} must not set securityContext.procMount to {types}"))
        })
    }

    fn selinux(&self) -> Option<String> {
        let is_allowed = |kind: &str| {
            matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
                || (self.version >= 31 && kind == "container_engine_t")
        };
        let bad = |context: &Value| {
            let options = &context["seLinuxOptions"];
            let is_set = |field: &str| !text(&options[field]).is_empty();
            let kind = text(&options["type"]);
            (!is_allowed(kind) || is_set("user") || is_set("role")).then(|| options.clone())
        };
        let (setters, options) =
            self.setters(|context| bad(context).map(|options| options.to_string()));
        if setters.is_empty() {
            return None;
        }
        let options: Vec<Value> =
            options.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
        let types: BTreeSet<&str> =
            options.iter().map(|o| text(&o["type"])).filter(|kind| !is_allowed(kind)).collect();
        let mut data = Vec::new();
        if !types.is_empty() {
            data.push(format!("{} {}", plural("type", "types", types.len()), quoted(types)));
        }
        for field in ["user", "role"] {
            if options.iter().any(|options| !text(&options[field]).is_empty()) {
                data.push(format!("{field} may not be set"));
            }
        }
        let detail = format!(
            "{} set forbidden securityContext.seLinuxOptions: {}",
            setters.join(" and "),
            data.join("; ")
        );
        Some(fault("seLinuxOptions", detail))
    }

    /// `required`: what says nothing is bad too.
    fn seccomp(&self, required: bool) -> Option<String> {
        let is_valid = |kind: &str| matches!(kind, "RuntimeDefault" | "Localhost");
        let (setters, values) = self.setters(|context| {
            let kind = context["seccompProfile"]["type"].as_str()?;
            (!is_valid(kind)).then(|| kind.to_owned())
        });
        if !setters.is_empty() {
            let (setters, values) = (setters.join(" and "), quoted(values));
            let detail =
                format!("{setters} must not set securityContext.seccompProfile.type to {values}");
            return Some(fault("seccompProfile", detail));
        }
        let is_set = |context: &Value| context["seccompProfile"]["type"].is_string();
        if !required || is_set(&self.spec["securityContext"]) {
            return None;
        }
        let names = self.names(|context| !is_set(context));
        (!names.is_empty()).then(|| {
            let detail = format!(
                "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
                containers_text(&names)
            );
            fault("seccompProfile", detail)
        })
    }

    fn sysctls(&self) -> Option<String> {
        let is_allowed = |name: &str| {
            SYSCTLS.iter().any(|(known, from)| *known == name && self.version >= *from)
        };
        let set = items(&self.spec["securityContext"]["sysctls"]).iter();
        let bad: Vec<&str> =
            set.map(|sysctl| text(&sysctl["name"])).filter(|name| !is_allowed(name)).collect();
        (!bad.is_empty()).then(|| fault("forbidden sysctls", bad.join(", ")))
    }

    fn host_process(&self) -> Option<String> {
        let (setters, _) = self.setters(|context| {
            (context["windowsOptions"]["hostProcess"] == true).then(String::new)
        });
        (!setters.is_empty()).then(|| {
            let setters = setters.join(" and ");
            let detail =
                format!("{setters} must not set securityContext.windowsOptions.hostProcess=true");
            fault("hostProcess", detail)
        })
    }

    fn privilege_escalation(&self) -> Option<String> {
        let names = self.names(|context| context["allowPrivilegeEscalation"] != false);
        (!names.is_empty()).then(|| {
            let detail = format!(
                "{} must set securityContext.allowPrivilegeEscalation=false",
                containers_text(&names)
            );
            fault("allowPrivilegeEscalation != false", detail)
        })
    }

    fn capabilities_restricted(&self) -> Option<String> {
        let list = |context: &Value, field: &str| -> Vec<String> {
            items(&context["capabilities"][field]).iter().map(|c| text(c).to_owned()).collect()
        };
        let mut details = Vec::new();
        let keeping = self.names(|context| !list(context, "drop").iter().any(|name| name == "ALL"));
        if !keeping.is_empty() {
            let names = containers_text(&keeping);
            details.push(format!("{names} must set securityContext.capabilities.drop=[\"ALL\"]"));
        }
        let (adding, added) = self.bad(|container| {
            let mut added = list(&container["securityContext"], "add");
            added.retain(|name| name != "NET_BIND_SERVICE");
            added
        });
        if !adding.is_empty() {
            let (names, added) = (containers_text(&adding), quoted(added));
            details.push(format!(
                "{names} must not include {added} in securityContext.capabilities.add"
            ));
        }
        (!details.is_empty()).then(|| fault("unrestricted capabilities", details.join("; ")))
    }

    fn restricted_volumes(&self) -> Option<String> {
        let (mut names, mut types) = (Vec::new(), BTreeSet::new());
        for volume in items(&self.spec["volumes"]) {
            let source = entries(volume).map(|(key, _)| key.as_str()).find(|key| *key != "name");
            let source = source.unwrap_or("unknown");
            if !VOLUMES.contains(&source) {
                names.push(text(&volume["name"]));
                types.insert(source);
            }
        }
        (!names.is_empty()).then(|| {
            let detail = format!(
                "{} {} {} {} {}",
                plural("volume", "volumes", names.len()),
                quoted(&names),
                plural("uses", "use", names.len()),
                plural("restricted volume type", "restricted volume types", types.len()),
                quoted(types)
            );
            fault("restricted volume types", detail)
        })
    }

    fn run_as_non_root(&self) -> Option<String> {
        const REASON: &str = "runAsNonRoot != true";
        let (setters, _) =
            self.setters(|context| (context["runAsNonRoot"] == false).then(String::new));
        if !setters.is_empty() {
            let setters = setters.join(" and ");
            let detail = format!("{setters} must not set securityContext.runAsNonRoot=false");
            return Some(fault(REASON, detail));
        }
        if self.spec["securityContext"]["runAsNonRoot"] == true {
            return None;
        }
        let names = self.names(|context| context["runAsNonRoot"].is_null());
        (!names.is_empty()).then(|| {
            let names = containers_text(&names);
            fault(REASON, format!("pod or {names} must set securityContext.runAsNonRoot=true"))
        })
    }

    fn run_as_user(&self) -> Option<String> {
        let (setters, _) = self.setters(|context| (context["runAsUser"] == 0).then(String::new));
        (!setters.is_empty()).then(|| {
            fault("runAsUser=0", format!("{} must not set runAsUser=0", setters.join(" and ")))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use serde_json::json;

    use super::*;

    fn namespace(labels: Value) -> Value {
        let mut prefixed = json!({});
        for (key, value) in entries(&labels) {
            prefixed[format!("{PREFIX}{key}")] = value.clone();
        }
        json!({"metadata": {"name": "n", "labels": prefixed}})
    }

    fn found(level: Level, version: Option<u32>, spec: &Value) -> Option<String> {
        violations(Policy { level, version }, &json!({}), spec)
    }

    fn restricted_pod() -> Value {
        json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            }}],
        })
    }

    #[test]
    fn pod_security_levels() {
        let plain = json!({"containers": [{"name": "c"}]});
        assert_eq!(found(Level::Privileged, None, &plain), None);
        assert_eq!(found(Level::Baseline, None, &plain), None);
        assert_eq!(
            found(Level::Restricted, None, &plain).unwrap(),
            "allowPrivilegeEscalation != false (container \"c\" must set \
             securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \
             \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or \
             container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or \
             container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
             \"Localhost\")"
        );
        assert_eq!(found(Level::Restricted, None, &restricted_pod()), None);
    }

    #[test]
    fn pod_security_baseline_checks() {
        for (change, expected) in [
            (
                json!({"hostNetwork": true, "hostPID": true}),
                "host namespaces (hostNetwork=true, hostPID=true)",
            ),
            (
                json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}),
                "hostPath volumes (volume \"h\")",
            ),
            (
                json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
                "hostPort (container \"c\" uses hostPort 80)",
            ),
            (
                json!({"containers": [{"name": "c", "securityContext": {"privileged": true}}]}),
                "privileged (container \"c\" must not set securityContext.privileged=true)",
            ),
            (
                json!({"initContainers": [{"name": "i", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}),
                "non-default capabilities (container \"i\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
            ),
            (
                json!({"ephemeralContainers": [{"name": "e", "securityContext": {"procMount": "Unmasked"}}]}),
                "procMount (container \"e\" must not set securityContext.procMount to \"Unmasked\")",
            ),
            (
                json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
                "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
            ),
            (
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
                "forbidden sysctls (kernel.msgmax)",
            ),
            (
                json!({"securityContext": {"seLinuxOptions": {"type": "spc_t", "user": "u"}}}),
                "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set)",
            ),
        ] {
            assert_eq!(found(Level::Baseline, None, &change).as_deref(), Some(expected));
            assert!(found(Level::Restricted, None, &change).is_some(), "{change}");
        }
    }

    #[test]
    fn pod_security_rules_are_of_their_version() {
        let sysctl =
            json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]}});
        assert!(found(Level::Baseline, Some(31), &sysctl).is_some());
        assert!(found(Level::Baseline, Some(32), &sysctl).is_none());
        let mut root = restricted_pod();
        root["securityContext"]["runAsUser"] = 0.into();
        assert!(found(Level::Restricted, Some(22), &root).is_none());
        assert_eq!(
            found(Level::Restricted, None, &root).unwrap(),
            "runAsUser=0 (pod must not set runAsUser=0)"
        );
    }

    fn configured(rest: &Value) -> Result<PodSecurity, String> {
        let mut configuration = json!({"kind": "PodSecurityConfiguration",
            "apiVersion": "pod-security.admission.config.k8s.io/v1"});
        for (field, value) in rest.as_object().unwrap() {
            configuration[field] = value.clone();
        }
        PodSecurity::read(&configuration)
    }

    #[test]
    fn pod_security_defaults_hold_where_a_namespace_says_nothing() {
        let own =
            configured(&json!({"defaults": {"enforce": "baseline", "enforce-version": "v1.30",
            "warn": "restricted", "audit": "restricted", "warn-version": ""}}))
            .unwrap();
        let of = |labels: Value| {
            let found = own.policies(&namespace(labels));
            (found.enforce.to_text(), found.warn.to_text())
        };
        let texts = |enforce: &str, warn: &str| (enforce.to_owned(), warn.to_owned());
        assert_eq!(of(json!({})), texts("baseline:v1.30", "restricted:latest"));
        let open = json!({"enforce": "privileged", "warn": "privileged"});
        assert_eq!(of(open), texts("privileged:v1.30", "privileged:latest"));
        let versions = json!({"enforce-version": "odd", "warn-version": "v1.29"});
        assert_eq!(of(versions), texts("baseline:latest", "restricted:v1.29"));
    }

    #[test]
    fn pod_security_exemptions() {
        let own = configured(&json!({
            "defaults": {"enforce": "restricted"},
            "exemptions": {"usernames": ["ann"], "namespaces": ["free"], "runtimeClasses": ["vm"]},
        }))
        .unwrap();
        let user = |name: &str| User::authenticated(name.to_owned(), Vec::new());
        assert!(own.exempts(&user("ann"), "n") && own.exempts(&user("bob"), "free"));
        assert!(!own.exempts(&user("bob"), "n") && !own.exempts(&user(""), ""));
        let pods = core("pods").unwrap();
        let policies = own.policies(&namespace(json!({})));
        let pod = |class: Value| {
            json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": true, "runtimeClassName": class,
                "containers": [{"name": "c"}]}})
        };
        assert!(policies.check(pods, &pod(json!("vm"))).unwrap().is_none());
        for class in [json!("other"), json!(null), json!("")] {
            assert!(policies.check(pods, &pod(class)).is_err());
        }
    }

    #[test]
    fn pod_security_configurations_that_are_invalid() {
        for (rest, why) in [
            (json!({"defaults": {"enforce": "odd"}}), "defaults.enforce: Invalid value"),
            (json!({"defaults": {"warn-version": "1.2"}}), "defaults.warn-version"),
            (json!({"defaults": {"enforced": "baseline"}}), "unknown field"),
            (json!({"exemptions": {"usernames": [""]}}), "username must not be empty"),
            (json!({"exemptions": {"namespaces": ["A"]}}), "exemptions.namespaces[0]"),
            (json!({"exemptions": {"namespaces": ["a", "a"]}}), "Duplicate"),
            (json!({"exemptions": {"users": []}}), "users"),
            (json!({"kind": "Pod"}), "Pod is no PodSecurityConfiguration"),
        ] {
            let error = configured(&rest).unwrap_err();
            assert!(error.contains(why), "{rest}: {error}");
        }
    }

    #[test]
    fn pod_security_labels() {
        let policies = |namespace: &Value| {
            let found = PodSecurity::default().policies(namespace);
            (found.enforce, found.warn)
        };
        let namespaces = core("namespaces").unwrap();
        let (enforce, warn) =
            policies(&namespace(json!({"enforce": "restricted", "enforce-version": "v1.30"})));
        assert_eq!(enforce.to_text(), "restricted:v1.30");
        assert_eq!(warn, enforce, "warnings follow");
        let (enforce, warn) = policies(&namespace(json!({"enforce": "odd", "warn": "odd"})));
        assert_eq!((enforce.level, warn.level), (Level::Restricted, Level::Privileged));
        assert_eq!(policies(&namespace(json!({}))).0.level, Level::Privileged);
        let odd = namespace(json!({"enforce": "odd", "audit-version": "v1.01"}));
        let error = check_namespace(namespaces, &odd, None).unwrap_err();
        assert_eq!(error.code, 422);
        assert!(
            error.message.contains("must be one of privileged, baseline, restricted"),
            "{error}"
        );
        assert_eq!(error.details.unwrap().causes.len(), 2);
        assert!(check_namespace(namespaces, &odd, Some(&odd)).is_ok());
        assert!(check_namespace(namespaces, &namespace(json!({"warn": "baseline"})), None).is_ok());
    }
}
