//! Sysctls that pods may set: the safe ones, and those in `allowedUnsafeSysctls`.

use k8s_openapi::api::core::v1::PodSpec;

use crate::status::Verdict;

/// Safe sysctls, with the kernel version from which on they are namespaced.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];
const MAX_LENGTH: usize = 253;

/// An invalid pattern in `allowedUnsafeSysctls`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not a pattern of sysctl names.
    #[error(
        "allowedUnsafeSysctls: {0:?} must have at most {MAX_LENGTH} characters, of segments of a-z, 0-9, - and _ between dots or slashes, with * only at its end"
    )]
    Pattern(String),
    /// It is not namespaced.
    #[error("allowedUnsafeSysctls: {0:?} is not known to be namespaced")]
    Shared(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

/// A name, or a prefix of names.
#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    is_prefix: bool,
    namespace: Namespace,
}

/// The sysctls that pods may set.
#[derive(Clone, Debug)]
pub struct Sysctls(Vec<Pattern>);

impl Sysctls {
    /// The safe ones of a kernel (major and minor version), and the allowed unsafe ones: names, or
    /// prefixes that end with `*`.
    pub fn new(allowed: &[String], kernel: (u32, u32)) -> Result<Self, Error> {
        let safe = SAFE.iter().filter(|(_, since)| kernel >= *since).map(|(name, _)| *name);
        let all = safe.chain(allowed.iter().map(String::as_str));
        let mut patterns = all.map(pattern).collect::<Result<Vec<_>, _>>()?;
        // A name takes precedence over a prefix.
        patterns.sort_by_key(|pattern| pattern.is_prefix);
        Ok(Self(patterns))
    }

    /// Why a sysctl of the pod is forbidden, if one is.
    pub(super) fn check(&self, pod_spec: &PodSpec) -> Option<Verdict> {
        let requested = pod_spec.security_context.as_ref()?.sysctls.iter().flatten();
        let why = requested.filter_map(|sysctl| self.forbidden(&sysctl.name, pod_spec)).next()?;
        Some(Verdict::failed("SysctlForbidden", format!("forbidden sysctl: {why}")))
    }

    fn forbidden(&self, name: &str, pod_spec: &PodSpec) -> Option<String> {
        let name = with_dots(name);
        let fits = |pattern: &&Pattern| match pattern.is_prefix {
            true => name.starts_with(&pattern.text),
            false => name == pattern.text,
        };
        let Some(pattern) = self.0.iter().find(fits) else {
            return Some(format!("{name:?} not allowlisted"));
        };
        let (is_hosts, namespace) = match pattern.namespace {
            Namespace::Ipc => (pod_spec.host_ipc, "IPC"),
            Namespace::Net => (pod_spec.host_network, "Net"),
        };
        is_hosts
            .unwrap_or(false)
            .then(|| format!("{name:?} not allowed with host {namespace} enabled"))
    }
}

fn pattern(pattern: &str) -> Result<Pattern, Error> {
    if !is_pattern(pattern) {
        return Err(Error::Pattern(pattern.to_owned()));
    }
    let name = with_dots(pattern);
    let (text, is_prefix) = match name.split_once('*') {
        Some((prefix, _)) => (prefix.to_owned(), true),
        None => (name, false),
    };
    let namespace = namespace(&text).ok_or_else(|| Error::Shared(pattern.to_owned()))?;
    Ok(Pattern { text, is_prefix, namespace })
}

/// The name with dots. In a name with slashes, a dot stands for a slash in the dotted form.
fn with_dots(name: &str) -> String {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => name
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                c => c,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

fn namespace(name: &str) -> Option<Namespace> {
    let ipc = [
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.shm",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.msg",
    ];
    match name {
        name if ipc.contains(&name) || name.starts_with("fs.mqueue.") => Some(Namespace::Ipc),
        name if name.starts_with("net.") => Some(Namespace::Net),
        _ => None,
    }
}

fn is_pattern(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_inner = |b: u8| is_word(b) || b == b'-' || b == b'_';
    let is_segment = |segment: &str, last_may: fn(u8) -> bool| match segment.as_bytes() {
        [] => false,
        [only] => is_word(*only) || last_may(*only),
        [first, inner @ .., last] => {
            is_word(*first)
                && inner.iter().all(|b| is_inner(*b))
                && (is_word(*last) || last_may(*last))
        }
    };
    let mut segments = text.split(['.', '/']);
    let last = segments.next_back().unwrap_or_default();
    text.len() <= MAX_LENGTH
        && segments.all(|segment| is_segment(segment, |_| false))
        && is_segment(last, |b| b == b'*')
}
