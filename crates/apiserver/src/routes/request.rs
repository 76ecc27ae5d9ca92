//! What a request's line asks for: verb, resource and query.

use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;

use crate::registry::is_path_segment;
use crate::status::StatusError;

/// A request line, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) verb: &'static str,
    pub(super) path: String,
    /// `None`: no resource, the path says it all.
    pub(super) resource: Option<ResourcePath>,
    pub(super) query: Query,
}

/// The parts of a resource's path; empty where not given.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ResourcePath {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) namespace: String,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) subresource: String,
    /// What is asked of the object itself by `proxy`: a path as it was sent, without its first slash.
    pub(super) below: String,
}

/// The query parameters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: Option<&str>) -> Query {
        Query(form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned().collect())
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

    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false"))
    }

    pub(super) fn number<T: std::str::FromStr>(
        &self,
        name: &str,
    ) -> Result<Option<T>, StatusError> {
        let parse = |text: &str| {
            let invalid = |_| {
                StatusError::bad_request(format!(
                    "invalid value for {name}: {text:?} is no such number"
                ))
            };
            text.parse().map_err(invalid)
        };
        self.get(name).map(parse).transpose()
    }

    /// `dryRun=All`.
    pub(super) fn dry_run(&self) -> Result<bool, StatusError> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => Err(StatusError::bad_request(format!(
                "dryRun: Unsupported value: {other:?}: supported values: \"All\""
            ))),
        }
    }
}

impl RequestLine {
    pub(super) fn parse(method: &Method, uri: &Uri) -> Result<RequestLine, StatusError> {
        let path = uri.path();
        let query = Query::parse(uri.query());
        let mut resource = split(path)?;
        let verb = match &mut resource {
            Some(resource) => resource_verb(method, resource, &query),
            None => path_verb(method),
        };
        // The one name that a selector asks for is what the caller must be allowed to see.
        if let (Some(resource), "list" | "watch") = (&mut resource, verb)
            && let Some(name) = query.get("fieldSelector").and_then(selected_name)
        {
            resource.name = name;
        }
        Ok(RequestLine { verb, path: path.to_owned(), resource, query })
    }
}

fn path_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

fn resource_verb(method: &Method, resource: &ResourcePath, query: &Query) -> &'static str {
    match (method, resource.name.is_empty()) {
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

/// The name in `metadata.name=x`; a full reading of the selector comes later and must agree.
fn selected_name(selector: &str) -> Option<String> {
    let mut names = selector.split(',').filter_map(|term| {
        let (field, value) = term.split_once('=')?;
        (field.trim() == "metadata.name").then(|| value.trim_start_matches('=').trim())
    });
    names.next().filter(|name| is_path_segment(name)).map(str::to_owned)
}

/// `None` for a path that is no resource's.
fn split(path: &str) -> Result<Option<ResourcePath>, StatusError> {
    let (path, below) = split_proxied(path);
    let trimmed = path.strip_prefix('/').unwrap_or(path);
    let trimmed = trimmed.strip_suffix('/').unwrap_or(trimmed);
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
    if parts[0] == "namespaces" && parts.len() > 1 {
        resource.namespace = parts[1].clone();
        if parts.len() > 2 && !matches!(parts[2].as_str(), "status" | "finalize") {
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

/// Cuts a path behind `nodes/NAME/proxy/` and its like: what follows is for whom it leads to.
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
    let decoded = percent_decode_str(segment).decode_utf8();
    match decoded {
        Ok(text) if is_path_segment(&text) => Ok(text.into_owned()),
        _ => Err(StatusError::bad_request(format!("the path segment {segment:?} is not valid"))),
    }
}
