//! Requests, counted. Labels come from fixed sets, so what clients send cannot make them grow.

use std::collections::BTreeMap;
use std::fmt::Write;

use hyper::StatusCode;
use parking_lot::Mutex;

use super::request::RequestLine;
use crate::api_types::Resource;
use crate::definitions::Snapshot;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    code: u16,
}

/// Counters of requests.
#[derive(Default)]
pub(super) struct Metrics {
    requests: Mutex<BTreeMap<Labels, u64>>,
}

impl Metrics {
    pub(super) fn count(&self, kinds: &Snapshot, line: &RequestLine, code: StatusCode) {
        let path = line.resource.as_ref();
        let resource: Option<&'static Resource> =
            path.and_then(|path| kinds.lookup(&path.group, &path.version, &path.resource));
        let subresource = path
            .zip(resource)
            .and_then(|(path, resource)| resource.subresource(&path.subresource))
            .map_or("", |subresource| subresource.name);
        let labels = Labels {
            verb: line.verb,
            group: resource.map_or("", |resource| resource.group),
            version: resource.map_or("", |resource| resource.version),
            resource: resource.map_or("", |resource| resource.plural),
            subresource,
            code: code.as_u16(),
        };
        let mut requests = self.requests.lock();
        let count = requests.entry(labels).or_default();
        *count = count.saturating_add(1);
    }

    /// In Prometheus' text format.
    pub(super) fn render(&self) -> String {
        let mut text = String::from(
            "# HELP apiserver_request_total Requests by verb, resource and answer.\n\
             # TYPE apiserver_request_total counter\n",
        );
        for (labels, count) in self.requests.lock().iter() {
            let Labels { verb, group, version, resource, subresource, code } = labels;
            // Writing into a string cannot fail.
            let _ = writeln!(
                text,
                "apiserver_request_total{{verb=\"{}\",group=\"{group}\",version=\"{version}\",resource=\"{resource}\",\
                 subresource=\"{subresource}\",code=\"{code}\"}} {count}",
                verb.to_ascii_uppercase(),
            );
        }
        text
    }
}
