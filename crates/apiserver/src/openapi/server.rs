//! What is served beside objects: discovery, the version, the keys of tokens of service accounts, and logs.
//! Each has a document of its own in version 3.

use std::collections::BTreeMap;

use super::operations::{CBOR, Content, META, Operation, PROTOBUF, Path, identifier};
use crate::api_types::Resource;
use crate::discovery::{Custom, all};

/// The schema of what `/version` answers.
pub(super) const VERSION_INFO: &str = "io.k8s.apimachinery.pkg.version.Info";
const RESOURCES: &[&str] = &["application/json", "application/yaml", PROTOBUF, CBOR];
const GROUPS: &[&str] = &["application/json", "application/yaml", PROTOBUF];
const JSON: &[&str] = &["application/json"];

/// The documents by their names in the index: their paths. Groups of custom kinds alone have none, as
/// upstream. `has_logs`: whether `/logs/` is served.
pub(super) fn documents(custom: Custom<'_>, has_logs: bool) -> BTreeMap<String, Vec<Path>> {
    let mut documents = BTreeMap::new();
    let mut put = |of: Get<'_>| {
        let name = of.path.trim_matches('/').to_owned();
        documents.insert(name, vec![of.path()]);
    };
    for (path, tag, id, description, answer, produces) in [
        (
            "/api/",
            "core",
            "getCoreAPIVersions",
            "get available API versions",
            "APIVersions",
            GROUPS,
        ),
        ("/apis/", "apis", "getAPIVersions", "get available API versions", "APIGroupList", GROUPS),
    ] {
        let answer = Some(Content::Schema(format!("{META}{answer}")));
        put(Get { path, tag, id, description, answer, produces });
    }
    put(Get {
        path: "/version/",
        tag: "version",
        id: "getCodeVersion",
        description: "get the version information for this server",
        answer: Some(Content::Schema(VERSION_INFO.to_owned())),
        produces: JSON,
    });
    put(Get {
        path: "/.well-known/openid-configuration/",
        tag: "WellKnown",
        id: "getServiceAccountIssuerOpenIDConfiguration",
        description: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
        answer: Some(Content::Text),
        produces: JSON,
    });
    put(Get {
        path: "/openid/v1/jwks/",
        tag: "openid",
        id: "getServiceAccountIssuerOpenIDKeyset",
        description: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
        answer: Some(Content::Text),
        produces: &["application/jwk-set+json"],
    });
    for resource in all(custom).filter(|resource| resource.custom.is_none()) {
        let group = resource.group;
        if !group.is_empty() {
            let name = group.strip_suffix(".k8s.io").unwrap_or(group);
            put(Get {
                path: &format!("/apis/{group}/"),
                tag: &identifier(name, true),
                id: &format!("get{}APIGroup", identifier(name, false)),
                description: "get information of a group",
                answer: Some(Content::Schema(format!("{META}APIGroup"))),
                produces: GROUPS,
            });
        }
    }
    if has_logs {
        let of =
            |path, id| Get { path, tag: "logs", id, description: "", answer: None, produces: &[] };
        let file = Path { names: &["logpath"], ..of("/logs/{logpath}", "logFileHandler").path() };
        documents.insert("logs".into(), vec![of("/logs/", "logFileListHandler").path(), file]);
    }
    documents
}

/// Discovery of the group and version of a resource, which is in the document of these. There is none for
/// custom kinds, as upstream.
pub(super) fn resources_of(resource: &Resource) -> Option<Path> {
    let names = super::operations::Names::of(resource);
    resource.custom.is_none().then(|| {
        Get {
            path: &format!("/{}/", super::path(resource)),
            tag: &names.tag(),
            id: &names.id("get", "APIResources"),
            description: "get available resources",
            answer: Some(Content::Schema(format!("{META}APIResourceList"))),
            produces: RESOURCES,
        }
        .path()
    })
}

/// The one operation of a path.
struct Get<'a> {
    path: &'a str,
    tag: &'a str,
    id: &'a str,
    description: &'static str,
    /// `None`: nothing is said of it.
    answer: Option<Content>,
    produces: &'static [&'static str],
}

impl Get<'_> {
    fn path(self) -> Path {
        let codes: &[u16] = if self.answer.is_some() { &[200] } else { &[] };
        let operation = Operation {
            method: "get",
            id: self.id.to_owned(),
            tag: self.tag.to_owned(),
            description: self.description,
            action: None,
            parameters: &[],
            body: None,
            codes,
            answer: self.answer.unwrap_or(Content::Text),
            produces: self.produces.to_vec(),
        };
        Path {
            path: self.path.to_owned(),
            names: &[],
            parameters: Vec::new(),
            operations: vec![operation],
        }
    }
}
