//! The request line: verb, resource and query, parsed as upstream's `RequestInfo`
//! (`apiserver/pkg/endpoints/request/requestinfo.go`). Whether that is served is for [`super::served`].

use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;

use crate::authz::{ResourceTarget, Target};
use crate::flow_control::{Describe, Digest};
use crate::registry::is_path_segment;
use crate::selector::{FieldSelector, equalities};
use crate::status::{Cause, StatusError, unsupported};

/// A request line, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) verb: &'static str,
    pub(super) path: String,
    /// `None`: no resource, the path says it all.
    pub(super) resource: Option<ResourcePath>,
    pub(super) query: Query,
    /// The equality terms of the field selector of a list, a watch or a deletecollection.
    fields: Vec<(String, String)>,
}

/// Where a path has its resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Scope {
    /// Right below the version: a resource of the cluster, or one of all namespaces.
    #[default]
    Cluster,
    /// Below `namespaces/NAME/`.
    Namespace,
}

/// The parts of a resource's path; empty where not given.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ResourcePath {
    pub(super) scope: Scope,
    /// Whether the path begins with `watch/`, the old form of `?watch=1`.
    pub(super) is_watch: bool,
    pub(super) group: String,
    pub(super) version: String,
    pub(super) namespace: String,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) subresource: String,
    /// The path below `proxy`, as it was sent, without its first slash.
    pub(super) below: String,
}

/// The query parameters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: Option<&str>) -> Query {
        // As Go reads them, which takes none with a semicolon.
        let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.contains(';'));
        let pairs = pairs.flat_map(|pair| form_urlencoded::parse(pair.as_bytes()));
        Query(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// The first value of a parameter; an empty one counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// All values of a parameter.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether a parameter is there, even without a value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    /// Whether a parameter that is true or false is true, which an empty value is too.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.all(name)
            .next()
            .is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    fn set(&mut self, name: &str, value: String) {
        self.0.retain(|(key, _)| key != name);
        self.0.push((name.to_owned(), value));
    }

    pub(super) fn number<T: std::str::FromStr>(
        &self,
        name: &str,
    ) -> Result<Option<T>, StatusError> {
        let parse = |text: &str| {
            let invalid = |_| {
                let why = number_fault(text);
                StatusError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
            };
            text.parse().map_err(invalid)
        };
        self.first(name).map(parse).transpose()
    }

    /// The first value of a parameter, which may be empty.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// `dryRun=All`, or what is wrong with it.
    pub(super) fn dry_run(&self) -> Result<bool, Cause> {
        let given: Vec<&str> = self.all("dryRun").collect();
        match given.iter().all(|stage| *stage == "All") {
            true => Ok(!given.is_empty()),
            false => {
                let given = serde_json::json!(given).to_string();
                Err(unsupported("dryRun", &given, &["All"]))
            }
        }
    }
}

/// What is wrong with text that is no number.
pub(super) fn number_fault(text: &str) -> &'static str {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    match !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => "value out of range",
        false => "invalid syntax",
    }
}

impl RequestLine {
    pub(super) fn parse(method: &Method, uri: &Uri) -> Result<RequestLine, StatusError> {
        let path = uri.path();
        let mut query = Query::parse(uri.query());
        let resource = split(path)?;
        let verb = match &resource {
            Some(resource) => resource_verb(method, resource, &query),
            None => path_verb(method),
        };
        let is_old_watch = resource.as_ref().is_some_and(|resource| resource.is_watch);
        let fields = match (verb, query.get("fieldSelector")) {
            // A selector that cannot be read is refused later, and narrows nothing until then.
            ("list" | "watch" | "deletecollection", Some(text)) if !is_old_watch => {
                equalities(text).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        if let Some(name) =
            resource.as_ref().map(|resource| &resource.name).filter(|name| !name.is_empty())
            && is_old_watch
        {
            query.set("fieldSelector", FieldSelector::of_name(name));
        }
        let path = match &resource {
            // A proxied request goes on with the path as it was sent.
            Some(_) => path.to_owned(),
            // Any other is authorized, audited and served by the same text.
            None => {
                let decoded = percent_decode_str(path).decode_utf8();
                let unreadable = || StatusError::bad_request("the path is not valid UTF-8");
                decoded.map_err(|_| unreadable())?.into_owned()
            }
        };
        Ok(RequestLine { verb, path, resource, query, fields })
    }

    /// What is to be authorized.
    pub(super) fn target(&self) -> Target<'_> {
        let Some(path) = &self.resource else {
            return Target::Path(&self.path);
        };
        Target::Resource(ResourceTarget {
            group: &path.group,
            version: &path.version,
            resource: &path.resource,
            subresource: &path.subresource,
            namespace: &path.namespace,
            name: match path.name.as_str() {
                "" => self.selected_name(),
                name => name,
            },
            fields: &self.fields,
        })
    }

    /// Whether it is about one node's objects alone.
    pub(super) fn selects_node(&self) -> bool {
        self.fields.iter().any(|(field, node)| field == "spec.nodeName" && !node.is_empty())
    }

    /// The name that the selector of a list or a watch requires: the authorized name.
    fn selected_name(&self) -> &str {
        let mut fields = self.fields.iter().filter(|_| matches!(self.verb, "list" | "watch"));
        let name = fields.find(|(field, _)| field == "metadata.name");
        name.map(|(_, name)| name.as_str()).filter(|name| is_path_segment(name)).unwrap_or_default()
    }
}

impl Describe for RequestLine {
    fn digest(&self) -> Digest<'_> {
        let common = Digest { verb: self.verb, path: &self.path, ..Digest::default() };
        match self.target() {
            Target::Path(_) => common,
            Target::Resource(target) => Digest {
                is_resource: true,
                group: target.group,
                version: target.version,
                resource: target.resource,
                subresource: target.subresource,
                namespace: target.namespace,
                name: target.name,
                ..common
            },
        }
    }
}

pub(super) fn path_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "",
    }
}

fn resource_verb(method: &Method, resource: &ResourcePath, query: &Query) -> &'static str {
    match (method, resource.name.is_empty()) {
        _ if resource.is_watch => "watch",
        (&Method::GET | &Method::HEAD, false) => "get",
        (&Method::GET | &Method::HEAD, true) if query.flag("watch") => "watch",
        (&Method::GET | &Method::HEAD, true) => "list",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, false) => "delete",
        (&Method::DELETE, true) => "deletecollection",
        _ => "",
    }
}

/// `None` for a path that is no resource's.
fn split(path: &str) -> Result<Option<ResourcePath>, StatusError> {
    let (path, below) = split_proxied(path);
    let trimmed = path.strip_prefix('/').unwrap_or(path).trim_end_matches('/');
    let (group, rest) = match trimmed.split_once('/') {
        Some(("api", rest)) => (String::new(), rest),
        Some(("apis", rest)) => match rest.split_once('/') {
            Some((group, rest)) => (decode(group)?, rest),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let Some((version, rest)) = rest.split_once('/') else {
        return Ok(None);
    };
    let mut parts = rest.split('/').map(decode).collect::<Result<Vec<String>, StatusError>>()?;
    let mut resource = ResourcePath { group, version: decode(version)?, ..ResourcePath::default() };
    if parts[0] == "watch" && parts.len() > 1 {
        resource.is_watch = true;
        parts.remove(0);
    }
    if parts[0] == "namespaces" && parts.len() > 1 {
        resource.namespace = parts[1].clone();
        if parts.len() > 2 && !matches!(parts[2].as_str(), "status" | "finalize") {
            resource.scope = Scope::Namespace;
            parts.drain(..2);
        }
    }
    if parts.len() > 3 {
        return Err(StatusError::no_such_path());
    }
    let mut parts = parts.into_iter();
    resource.resource = parts.next().unwrap_or_default();
    resource.name = parts.next().unwrap_or_default();
    resource.subresource = parts.next().unwrap_or_default();
    resource.below = below.to_owned();
    Ok(Some(resource))
}

/// Splits a path after `nodes/NAME/proxy/` and similar: the rest is for the target.
pub(super) fn split_proxied(path: &str) -> (&str, &str) {
    let is_proxied = |path: &str| {
        let parts: Vec<_> = path.split('/').collect();
        matches!(
            parts.as_slice(),
            ["", "api", "v1", "nodes", _, "proxy"]
                | ["", "api", "v1", "namespaces", _, "pods" | "services", _, "proxy"]
        )
    };
    // Five slashes are in "/api/v1/nodes/NAME/proxy", and seven where there is a namespace: the
    // next one ends it.
    let ends = path.match_indices('/').map(|(end, _)| end).skip(5).take(3);
    let mut splits = ends.map(|end| path.split_at(end));
    match splits.find(|(path, _)| is_proxied(path)) {
        Some((path, below)) => (path, below.trim_start_matches('/')),
        None => (path, ""),
    }
}

fn decode(segment: &str) -> Result<String, StatusError> {
    if segment.is_empty() {
        return Err(StatusError::no_such_path());
    }
    let decoded = percent_decode_str(segment).decode_utf8();
    match decoded {
        Ok(text) if is_path_segment(&text) => Ok(text.into_owned()),
        Ok(text) if text.contains('/') => Err(StatusError::no_such_path()),
        Ok(text) => {
            let why = match text.as_ref() {
                "." | ".." => format!("may not be '{text}'"),
                text if text.contains('%') => "may not contain '%'".to_owned(),
                _ => "may not contain NUL".to_owned(),
            };
            Err(StatusError::bad_request(format!("Name parameter invalid: {text:?}: {why}")))
        }
        Err(_) => {
            Err(StatusError::bad_request(format!("the path segment {segment:?} is not valid")))
        }
    }
}
