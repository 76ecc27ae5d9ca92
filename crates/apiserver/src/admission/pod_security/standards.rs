//! The Pod Security Standards: what is wrong with a pod at a level.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::policy::{Level, Policy};
use crate::schema::value::{entries, items, text};

/// The newest version whose rules differ from those of the one before.
const NEWEST: u32 = 35;

/// What is wrong by these rules, as one text.
pub(super) fn violations(policy: Policy, metadata: &Value, spec: &Value) -> Option<String> {
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
