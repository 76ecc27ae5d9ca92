//! Users that a front proxy vouches for: with its own client certificate it sends their names in headers
//! (`--requestheader-*`). The headers count from nobody else.

use std::collections::BTreeMap;

use hyper::HeaderMap;
use longshore_tls::{User, Verdict};
use percent_encoding::percent_decode_str;

/// Which front proxies are trusted, and where they name the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontProxyHeaders {
    /// Common names of the proxies' certificates; empty: any.
    pub allowed_names: Vec<String>,
    /// Headers with the name: the first that is there counts.
    pub username_headers: Vec<String>,
    /// Headers with the UID: the first that is there counts.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// How headers with extra fields begin; what follows is the field's name.
    pub extra_prefixes: Vec<String>,
}

impl FrontProxyHeaders {
    /// Without the space around names.
    ///
    /// # Errors
    /// A name is empty: it would be that of no header, or of all.
    pub fn trimmed(mut self) -> Result<Self, String> {
        for (flag, names) in [
            ("username-headers", &mut self.username_headers),
            ("uid-headers", &mut self.uid_headers),
            ("group-headers", &mut self.group_headers),
            ("extra-headers-prefix", &mut self.extra_prefixes),
        ] {
            for name in names {
                *name = name.trim().to_owned();
                if name.is_empty() {
                    return Err(format!("{flag}: empty header \"\""));
                }
            }
        }
        Ok(self)
    }

    /// Whether a header names a user. The certificate of a peer that sends none need not be verified.
    #[must_use]
    pub fn names_somebody(&self, headers: &HeaderMap) -> bool {
        self.username_headers.iter().any(|name| headers.contains_key(name.as_str()))
    }

    /// The user that the headers name, where the peer's certificate is a front proxy's: exactly as named,
    /// with no further groups. The headers are removed then, as nobody else may read them.
    pub fn user(&self, peer: &Verdict, headers: &mut HeaderMap) -> Option<User> {
        let proxy = match peer.user() {
            Ok(proxy) => proxy?,
            Err(_) => return None,
        };
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&proxy.name) {
            tracing::info!(name = ?proxy.name, "the front proxy is not in the list of allowed names");
            return None;
        }
        let first = |names: &[String]| {
            let mut values = names.iter().map(|name| all(headers, name));
            values.find_map(|values| values.into_iter().next().filter(|value| !value.is_empty()))
        };
        let name = first(&self.username_headers)?;
        let uid = first(&self.uid_headers).unwrap_or_default();
        let groups = self.group_headers.iter().flat_map(|name| all(headers, name)).collect();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.extra_prefixes {
            let prefix = prefix.to_ascii_lowercase();
            for header in headers.keys() {
                let Some(key) = header.as_str().strip_prefix(&prefix) else { continue };
                let decoded = percent_decode_str(key).decode_utf8();
                let key = decoded.map_or_else(|_| key.to_owned(), |key| key.to_lowercase());
                extra.entry(key).or_default().extend(all(headers, header.as_str()));
            }
        }
        self.clear(headers);
        Some(User { name, uid, groups, extra })
    }

    /// Removes the headers that name users.
    pub fn clear(&self, headers: &mut HeaderMap) {
        for name in self.username_headers.iter().chain(&self.uid_headers).chain(&self.group_headers)
        {
            headers.remove(name.as_str());
        }
        let prefixes: Vec<String> =
            self.extra_prefixes.iter().map(|prefix| prefix.to_ascii_lowercase()).collect();
        let is_extra = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let extra: Vec<_> =
            headers.keys().filter(|name| is_extra(name.as_str())).cloned().collect();
        for name in extra {
            headers.remove(name);
        }
    }
}

fn all(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).iter();
    values.filter_map(|value| String::from_utf8(value.as_bytes().to_vec()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};
    use rustls::pki_types::UnixTime;

    use super::*;

    fn peer(name: &str) -> Verdict {
        let user = User {
            name: name.into(),
            uid: String::new(),
            groups: Vec::new(),
            extra: BTreeMap::new(),
        };
        let until = UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::from(u32::MAX)));
        Verdict::User { user, until }
    }

    #[test]
    fn front_proxy_headers_have_names() {
        let mut spaced = config();
        spaced.username_headers = vec![" X-User ".to_owned()];
        let trimmed = spaced.trimmed().map(|headers| headers.username_headers);
        assert_eq!(trimmed, Ok(vec!["X-User".to_owned()]));
        let mut all = config();
        all.extra_prefixes = vec![" ".to_owned()];
        assert_eq!(all.trimmed(), Err("extra-headers-prefix: empty header \"\"".to_owned()));
    }

    fn config() -> FrontProxyHeaders {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        FrontProxyHeaders {
            allowed_names: list(&["proxy"]),
            username_headers: list(&["X-Remote-User", "X-User"]),
            uid_headers: list(&["X-Remote-Uid"]),
            group_headers: list(&["X-Remote-Group"]),
            extra_prefixes: list(&["X-Remote-Extra-"]),
        }
    }

    fn headers() -> HeaderMap {
        let lines = [
            ("x-remote-user", "ann"),
            ("x-user", "bob"),
            ("x-remote-uid", "7"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-extra-scopes", "a"),
            ("x-remote-extra-scopes", "b"),
            ("x-remote-extra-example.com%2fkey", "c"),
            ("accept", "any"),
        ];
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn front_proxy_names_the_user() {
        let mut headers = headers();
        assert!(config().names_somebody(&headers));
        let user = config().user(&peer("proxy"), &mut headers).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("ann", "7"));
        assert_eq!(user.groups, ["dev", "ops"]);
        assert_eq!(user.extra["scopes"], ["a", "b"]);
        assert_eq!(user.extra["example.com/key"], ["c"]);
        let left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["accept"]);
        assert!(!config().names_somebody(&headers));
    }

    #[test]
    fn front_proxy_headers_of_others_name_nobody() {
        for peer in [
            peer("other"),
            Verdict::Nothing,
            Verdict::Untrusted("by a CA that is not known".into()),
        ] {
            let mut headers = headers();
            assert_eq!(config().user(&peer, &mut headers), None, "{peer:?}");
            assert!(headers.contains_key("x-remote-user"));
        }
        assert_eq!(config().user(&peer("proxy"), &mut HeaderMap::new()), None);
        let any = FrontProxyHeaders { allowed_names: Vec::new(), ..config() };
        assert_eq!(any.user(&peer("other"), &mut headers()).unwrap().name, "ann");
        let none = FrontProxyHeaders::default();
        assert_eq!(none.user(&peer("proxy"), &mut headers()), None, "no header is trusted");
    }
}
