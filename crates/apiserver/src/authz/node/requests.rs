//! Which node each PodCertificateRequest is of.

use std::collections::HashMap;

use serde_json::Value;

use super::graph::Key;
use crate::cache::Index;
use crate::object;
use crate::schema::value::text;

/// The node of each request.
#[derive(Default)]
pub(super) struct Requests(HashMap<Key, Box<str>>);

impl Requests {
    pub(super) fn node(&self, namespace: &str, name: &str) -> Option<&str> {
        self.0.get(&(namespace.into(), name.into())).map(|node| &**node)
    }
}

impl Index for Requests {
    fn put(&mut self, request: &Value) {
        let key = (object::namespace(request).into(), object::name(request).into());
        self.0.insert(key, text(&request["spec"]["nodeName"]).into());
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        self.0.remove(&(namespace.into(), name.into()));
    }
}
