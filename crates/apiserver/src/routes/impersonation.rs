//! Impersonation, as with `kubectl --as`: `Impersonate-User`, `Impersonate-Group`,
//! `Impersonate-Uid` and `Impersonate-Extra-KEY`. The caller must be allowed to `impersonate` each
//! of them.

use hyper::HeaderMap;
use percent_encoding::percent_decode_str;

use super::Router;
use super::respond::Result;
use crate::audit;
use crate::authz::{self, Access, ResourceTarget, Target};
use crate::schema::quoted;
use crate::status::StatusError;
use crate::user::{self, Extra, User};

const PREFIX: &str = "impersonate-";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

impl Router {
    /// The effective user of a request.
    pub(super) async fn effective(&self, caller: User, headers: &HeaderMap) -> Result<User> {
        let Some(wanted) = requested(headers)? else {
            return Ok(caller);
        };
        for target in targets(&wanted) {
            let target = Target::Resource(target);
            let access = Access { user: &caller, verb: "impersonate", target };
            let Err(reason) = self.api.is_allowed(&access).await? else {
                continue;
            };
            tracing::info!(user = ?caller.name, wanted = ?wanted.name, reason = ?reason, "impersonation denied");
            return Err(StatusError::forbidden_path(&authz::forbidden_message(&access, &reason)));
        }
        let wanted = wanted.impersonated();
        audit::impersonated(&wanted);
        Ok(wanted)
    }
}

/// The user in the headers, if there is one.
fn requested(headers: &HeaderMap) -> Result<Option<User>> {
    if !headers.keys().any(|name| name.as_str().starts_with(PREFIX)) {
        return Ok(None);
    }
    let values = |name: &str| -> Result<Vec<String>> {
        let values = headers.get_all(name).iter();
        // A value that is dropped would widen what the rest means.
        values
            .map(|value| value.to_str().map(str::to_owned).map_err(|_| unreadable(name)))
            .collect()
    };
    let first = |name: &str| Ok(values(name)?.into_iter().next().unwrap_or_default());
    let name: String = first("impersonate-user")?;
    let mut extra = Extra::new();
    for header in headers.keys() {
        let Some(key) = header.as_str().strip_prefix(EXTRA_PREFIX) else { continue };
        let key = percent_decode_str(key).decode_utf8().map_err(|_| unreadable(header.as_str()))?;
        extra.entry(key.to_lowercase()).or_default().extend(values(header.as_str())?);
    }
    let groups = values("impersonate-group")?;
    let uid: String = first("impersonate-uid")?;
    if name.is_empty() {
        // An empty name is refused, too: it may be all that a proxy has left of one.
        return Err(StatusError::bad_request(format!(
            "requested &user.DefaultInfo{{Name:\"\", UID:{}, Groups:{}, Extra:{}}} without impersonating a user name",
            quoted(&uid),
            go_texts(&groups),
            go_map(&extra)
        )));
    }
    Ok(Some(User { name, uid, groups, extra }))
}

/// Texts as Go writes them.
fn go_texts(texts: &[String]) -> String {
    match texts.is_empty() {
        true => "[]string(nil)".to_owned(),
        false => {
            let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            format!("[]string{{{}}}", quoted.join(", "))
        }
    }
}

fn go_map(extra: &Extra) -> String {
    match extra.is_empty() {
        true => "map[string][]string(nil)".to_owned(),
        false => {
            let entries: Vec<String> = extra
                .iter()
                .map(|(key, values)| format!("{}:{}", quoted(key), go_texts(values)))
                .collect();
            format!("map[string][]string{{{}}}", entries.join(", "))
        }
    }
}

fn unreadable(header: &str) -> StatusError {
    StatusError::bad_request(format!("the header {header} is not readable text"))
}

/// Everything that the caller must be allowed to impersonate.
fn targets(wanted: &User) -> Vec<ResourceTarget<'_>> {
    let target = |resource, name| ResourceTarget { resource, name, ..ResourceTarget::default() };
    let mut targets = vec![match user::service_account(&wanted.name) {
        Some((namespace, name)) => ResourceTarget { namespace, ..target("serviceaccounts", name) },
        None => target("users", &wanted.name),
    }];
    targets.extend(wanted.groups.iter().map(|group| target("groups", group)));
    let of_group = |target| ResourceTarget { group: AUTHENTICATION, ..target };
    if !wanted.uid.is_empty() {
        targets.push(of_group(target("uids", &wanted.uid)));
    }
    for (key, values) in &wanted.extra {
        targets.extend(values.iter().map(|value| ResourceTarget {
            subresource: key,
            ..of_group(target("userextras", value))
        }));
    }
    targets
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(pair) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn impersonation_authorizes_every_attribute() {
        let wanted = requested(&headers(&[
            ("impersonate-user", "jane"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-acme.com%2fproject", "x"),
            ("impersonate-extra-acme.com%2fproject", "y"),
        ]));
        let wanted = wanted.unwrap().unwrap();
        let asked: Vec<String> = targets(&wanted)
            .iter()
            .map(|target| {
                format!(
                    "{}|{}|{}|{}",
                    target.group, target.resource, target.subresource, target.name
                )
            })
            .collect();
        assert_eq!(
            asked,
            [
                "|users||jane",
                "|groups||a",
                "|groups||b",
                "authentication.k8s.io|uids||7",
                "authentication.k8s.io|userextras|acme.com/project|x",
                "authentication.k8s.io|userextras|acme.com/project|y",
            ]
        );
        assert_eq!(wanted.impersonated().groups, ["a", "b", "system:authenticated"]);
    }

    #[test]
    fn impersonation_adds_implied_groups() {
        for (name, given, expected) in [
            ("jane", "", "system:authenticated"),
            ("system:anonymous", "", "system:unauthenticated"),
            ("x", "system:unauthenticated", "system:unauthenticated"),
            (
                "system:serviceaccount:ns:sa",
                "",
                "system:serviceaccounts system:serviceaccounts:ns system:authenticated",
            ),
            ("system:serviceaccount:ns:sa", "g", "g system:authenticated"),
        ] {
            let groups = given.split_whitespace().map(str::to_owned).collect();
            let user = User { name: name.into(), groups, ..User::default() };
            assert_eq!(user.impersonated().groups.join(" "), expected, "{name} {given}");
        }
    }

    #[test]
    fn impersonation_of_a_service_account() {
        let wanted = requested(&headers(&[("impersonate-user", "system:serviceaccount:ns:sa")]));
        let wanted = wanted.unwrap().unwrap();
        let target = targets(&wanted)[0];
        assert_eq!(
            (target.resource, target.namespace, target.name),
            ("serviceaccounts", "ns", "sa")
        );
    }

    #[test]
    fn bad_headers() {
        assert_eq!(requested(&HeaderMap::new()), Ok(None));
        for lines in [
            [("impersonate-group", "system:masters")].as_slice(),
            &[("impersonate-user", "")],
            &[("impersonate-user", "jane"), ("impersonate-group", "\u{e9}")],
            &[("impersonate-user", "jane"), ("impersonate-extra-%ff", "x")],
        ] {
            assert_eq!(requested(&headers(lines)).unwrap_err().code, 400, "{lines:?}");
        }
    }
}
