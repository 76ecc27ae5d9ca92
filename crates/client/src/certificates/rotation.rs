//! When a certificate is to be rotated. Pure functions of the clock and jitter passed in.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::pair::Leaf;
use super::request::Template;

/// When a certificate is rotated: after 70 % to 90 % of its lifetime, by `jitter` (0 to 1), so that
/// nodes that started together do not rotate together.
pub(super) fn rotation(from: Timestamp, until: Timestamp, jitter: f64) -> Timestamp {
    let life = until.duration_since(from).max(SignedDuration::ZERO);
    let part = 0.7 + 0.2 * jitter.clamp(0.0, 1.0);
    from.checked_add(life.mul_f64(part)).unwrap_or(until)
}

/// What a certificate lacks of the template; it may have more.
pub(super) fn lacks(leaf: &Leaf, wanted: &Template) -> Option<String> {
    let listed = |items: Vec<String>| items.join(", ");
    if leaf.name != wanted.name {
        return Some(format!("it is for {:?}, not for {:?}", leaf.name, wanted.name));
    }
    let groups = wanted.groups.difference(&leaf.groups).cloned().collect::<Vec<_>>();
    if !groups.is_empty() {
        return Some(format!("it lacks the groups {}", listed(groups)));
    }
    let dns = wanted.dns.difference(&leaf.dns).cloned();
    let ips = wanted.ips.difference(&leaf.ips).map(ToString::to_string);
    let names = dns.chain(ips).collect::<Vec<_>>();
    (!names.is_empty()).then(|| format!("it lacks the names {}", listed(names)))
}
