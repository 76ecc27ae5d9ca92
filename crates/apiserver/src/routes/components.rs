//! `componentstatuses`: scheduler, controller manager and store, asked at each read.

use futures::future::join_all;
use http_body_util::BodyExt;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::lists::{self, ListText};
use super::respond::Result;
use super::{Call, Router};
use crate::kinds::component_status;
use crate::object;
use crate::status::StatusError;

/// Components that serve `/healthz` on this machine, with their ports.
const LOCAL: [(&str, u16); 2] = [("scheduler", 10259), ("controller-manager", 10257)];
const STORE: &str = "etcd-0";
/// How much of an answer is shown, in bytes.
const SHOWN: usize = 1024;

impl Router {
    pub(super) async fn components(&self, call: Call<'_>) -> Result {
        let view = call.view()?;
        let wanted = call.path.name.as_str();
        if !wanted.is_empty() {
            let is_known = wanted == STORE || LOCAL.iter().any(|(name, _)| *name == wanted);
            if !is_known {
                return Err(StatusError::not_found_of(("", "componentstatus"), wanted));
            }
            return Ok(view.answer(StatusCode::OK, &self.component(wanted).await));
        }
        let (labels, fields) = lists::selectors(&call.line.query, call.resource)?;
        let names = LOCAL.iter().map(|(name, _)| *name).chain([STORE]);
        let components = join_all(names.map(|name| self.component(name))).await;
        let mut list = ListText::new(&view, self.limits.memory(&call.holder, 0)?);
        for mut component in components {
            if !labels.matches(&component) || !fields.matches(&component) {
                continue;
            }
            if let Some(map) = component.as_object_mut() {
                map.remove("kind");
                map.remove("apiVersion");
            }
            object::metadata_mut(&mut component).remove("creationTimestamp");
            list.push(&component)?;
        }
        list.finish(&json!({}))
    }

    async fn component(&self, name: &str) -> Value {
        let answer = match LOCAL.iter().find(|(local, _)| *local == name) {
            Some((_, port)) => self.health_of(*port).await,
            None => {
                let revision = self.api.registry.store().revision().await;
                revision.map(|_| "ok".to_owned()).map_err(|error| error.to_string())
            }
        };
        component_status::of(name, &answer)
    }

    async fn health_of(&self, port: u16) -> std::result::Result<String, String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("Get \"https://127.0.0.1:{port}/healthz\": {error}")
        };
        let answer = self.kubelet.get_local(port, "/healthz").await;
        let answer = answer.map_err(|error| failed(&error))?;
        let is_healthy = answer.status() == StatusCode::OK;
        let body = http_body_util::Limited::new(answer.into_body(), SHOWN).collect().await;
        let body = body.map_err(|error| failed(&error))?.to_bytes();
        let text = String::from_utf8_lossy(&body).trim().to_owned();
        if is_healthy { Ok(text) } else { Err(text) }
    }
}
